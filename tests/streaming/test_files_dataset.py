"""What process functions bring to the datasets of files: their settings and their losses."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import StateMismatchError
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking, to_state

Sample = dict[str, Any]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": "abcdefgh" * (1 + number % 5)}) for number in range(30)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.jsonl"


def to_ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def pack(path: Path, length: int) -> MergedDataset:
    source: Any = JsonlIterableDataset(path, TextPacking(length, to_ids))
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=False)


def test_a_state_holds_for_the_settings_of_the_process_function(texts: Path) -> None:
    state = to_state(list(islice(pack(texts, 8), 3)))
    pack(texts, 8).set_dataloader_states(state)
    with pytest.raises(StateMismatchError, match="state of 'texts' must be of the same files"):
        pack(texts, 16).set_dataloader_states(state)
    pack(texts, 16).set_dataloader_states(state, reload_from_url_level=True)


def test_samples_skipped_by_a_process_function_are_counted(texts: Path) -> None:
    class Half:
        num_skipped = 0

        def __init__(self) -> None:
            self.numbers: list[int] = []

        def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
            for sample in samples:
                self.numbers.append(int(sample["__key__"]))
                if self.numbers[-1] % 2:
                    self.num_skipped += 1
                else:
                    yield sample

    half = Half()
    source: Any = JsonlIterableDataset(texts, half)
    source.name, source.percent = "texts", 1
    state: dict[str, Any] = {}
    for sample in MergedDataset([source], cyclic=False):
        state.update(to_state(sample))
    assert source.num_skipped == 15
    # Lines after the last sample are not part of its state.
    skipped = [number % 2 for number in half.numbers]
    assert state["leaf texts @0/1"][1][2] == sum(skipped[: 30 - skipped[::-1].index(0)])
