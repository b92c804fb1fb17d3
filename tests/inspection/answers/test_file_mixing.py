"""How well files are mixed, as measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from zindex.inspection.answers.file_mixing import measure_mixing
from zindex.streaming import JsonlIterableDataset, MergedDataset


def make(folder: Path, lengths: list[int], **settings: Any) -> MergedDataset:
    for number, length in enumerate(lengths):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps({"i": i}) + "\n" for i in range(length)))
    texts: Any = JsonlIterableDataset(str(folder))
    texts.name, texts.percent = "texts", 1
    return MergedDataset([texts], **settings)


@pytest.mark.parametrize("cyclic", [False, True])
def test_files_in_turn_have_no_entropy_and_shuffled_ones_that_of_chance(
    tmp_path: Path, cyclic: bool
) -> None:
    in_turn = make(tmp_path, [512] * 4, shuffle_streaming_subsets=False, cyclic=cyclic)
    [found] = measure_mixing(in_turn)
    assert (found.source, found.num_files, found.window, found.bits) == ("texts", 4, 256, 0)
    assert found.random_bits == pytest.approx(2, abs=0.02)
    [found] = measure_mixing(make(tmp_path, [512] * 4, cyclic=cyclic))
    assert found.bits == pytest.approx(found.random_bits, abs=0.1)
    assert found.to_json()["bits"] == found.bits


def test_few_samples_and_single_files(tmp_path: Path) -> None:
    [found] = measure_mixing(make(tmp_path, [30, 10], cyclic=False))
    assert (found.window, found.num_files) == (40, 2)
    assert found.bits == pytest.approx(0.811, abs=0.001)
    assert found.random_bits == pytest.approx(found.bits)
    (tmp_path / "1.jsonl").unlink()
    assert measure_mixing(make(tmp_path, [30])) == ()


def test_outputs_of_a_yield_function_do_not_count(tmp_path: Path) -> None:
    stream = make(tmp_path, [300, 300], customized_yield_fn=lambda samples: ({} for _ in samples))
    [found] = measure_mixing(stream)
    assert found.bits > 0.9
    assert len(next(iter(stream))) == 1  # its first iteration has not begun before
