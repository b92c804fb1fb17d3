"""What process functions bring to the datasets of files: their settings and their losses."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items
from zindex.errors import StateMismatchError
from zindex.sources.jsonl_files import JsonlFiles
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking, to_state
from zindex.streaming.files_dataset import FilesDataset

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


def write_packed(folder: Path, num_files: int, num_lines: int) -> Path:
    folder.mkdir()
    for number in range(num_files):
        lines = [json.dumps({"id": f"{number}:{n}"}) for n in range(num_lines)]
        (folder / f"{number:03}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    return folder


def in_order(folder: Path) -> MergedDataset:
    source: Any = JsonlIterableDataset(folder, prepare_nbytes=0)
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=False)


def test_files_that_are_read_in_order_are_mixed_in_groups(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "many", 200, 50)
    run = Run(lambda: in_order(folder), 2, 2)
    run.advance(3000)
    # Each of four workers has read five groups of six files, and not in the order of their names.
    first = run.ranks[0].delivered[::2][:300]
    assert len({sample["id"].partition(":")[0] for sample in first}) == 6
    rest = Run(lambda: in_order(folder), 3, 1, run.merged_states()).drain()
    assert run.ids() + rest.ids() == Counter(f"{i}:{n}" for i in range(200) for n in range(50))
    dataset = in_order(folder).sources()[0].dataset
    assert (dataset.num_together, dataset.num_parts) == (6, 34)
    assert sum(map(dataset.part_nbytes, range(34))) == sum(
        path.stat().st_size for path in folder.iterdir()
    )
    samples = [sample for part in range(34) for sample in dataset.read_part(part)]
    assert [sample["id"] for sample in samples[::50]] == [f"{i}:0" for i in range(200)]


def test_few_files_that_are_read_in_order_are_read_one_by_one(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "few", 20, 3)
    dataset = in_order(folder).sources()[0].dataset
    assert (dataset.num_together, dataset.num_parts) == (1, 20)
    urls = [sample["__url__"] for sample in in_order(folder)]
    assert [url for url, _ in groupby(urls)] == urls[::3]


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


class Numbered:
    """A process function that counts its inputs."""

    one_to_one = True

    def __init__(self) -> None:
        self.num_made = 0

    def __call__(self, samples: Any) -> Any:
        for sample in samples:
            self.num_made += 1
            yield {**sample, "made": True}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("order", [True, False])
def test_resuming_makes_no_delivered_sample_again(
    tmp_path: Path, suffix: str, *, order: bool
) -> None:
    content = "".join(f'{{"id": "{number}"}}\n' for number in range(2000)).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)

    def new() -> tuple[MergedDataset, Numbered]:
        function = Numbered()
        source: Any = JsonlIterableDataset(path, function)
        source.name, source.percent = "files", 1
        return MergedDataset([source], False, shuffle_streaming_subsets=order), function

    dataset, _ = new()
    samples = list(dataset)
    assert len(samples) == 2000
    for cut in (1, 11, 1500):
        again, function = new()
        rest = list(again.__iter_from__(to_state(samples[:cut])))
        assert [one["id"] for one in rest] == [one["id"] for one in samples[cut:]]
        assert all(one["made"] for one in rest)
        assert function.num_made == 2000 - cut
    if not suffix:
        assert len(new()[0]) == 2000


def test_units_of_a_process_function_share_the_blocks_of_their_group(tmp_path: Path) -> None:
    lines = [json.dumps({"id": number}) for number in range(5120)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    opened = []

    class Files(JsonlFiles):
        def open_samples(self, *args: Any) -> Any:
            opened.append(args)
            return super().open_samples(*args)

    source: Any = FilesDataset(Files(tmp_path / "a.jsonl"), lambda samples: samples, 1000)
    source.name, source.percent = "a", 1
    assert source.units.share > 1
    found = [sample["id"] for sample in MergedDataset([source], cyclic=False)]
    assert sorted(found) == [*range(5120)]
    assert len(opened) == source.units.num_units // source.units.share


@pytest.mark.parametrize("fields", [{"a": 1}, {}])
def test_a_source_without_samples_is_warned_of(
    tmp_path: Path, fields: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    def keep_pairs(samples: Iterator[Any]) -> Iterator[Any]:
        for first in samples:
            for second in islice(samples, 1):
                yield from (first, second)

    write_jsonl(tmp_path / "a.jsonl", [fields] * 9 if fields else [])
    lost: Any = JsonlIterableDataset(tmp_path / "a.jsonl", keep_pairs)
    lost.name, lost.percent = "lost", 1
    mixed = MergedDataset([lost, Items("b", 3)], cyclic=False)
    assert len(list(mixed)) == 3
    [message] = caplog.messages
    parts = 9 if fields else 0
    assert message.startswith(f"'lost' gave worker 0 of rank 0 no sample, in {parts} parts; check")
