"""Datasets of jsonl files: parts through a process function, and iterated by themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from zindex.errors import ConfigError, SourceError
from zindex.processing.text_packing import TextPacking
from zindex.streaming import files_dataset
from zindex.streaming.file_formats import JsonlIterableDataset
from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.protocols import PartitionedDataset, UrlDataset
from zindex.streaming.state import to_state

Sample = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of ten lines."""
    for name in "abc":
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": f"{name}{i}"} for i in range(10)])
    return tmp_path


def only_even(samples: Iterator[Sample]) -> Iterator[Sample]:
    return (sample for sample in samples if int(sample["__key__"]) % 2 == 0)


def test_parts_and_files(folder: Path) -> None:
    dataset = JsonlIterableDataset(f"{folder}/a.jsonl,{folder}/{{b,c}}.jsonl", part_nbytes=30)
    assert isinstance(dataset, PartitionedDataset)
    assert isinstance(dataset, UrlDataset)
    everything = [f"{name}{i}" for name in "abc" for i in range(10)]
    found = [sample["id"] for p in range(dataset.num_parts) for sample in dataset.read_part(p)]
    assert found == everything
    assert [[sample["id"] for sample in dataset.read_url(number)] for number in range(3)] == [
        everything[:10],
        everything[10:20],
        everything[20:],
    ]
    assert dataset.fingerprint() == JsonlIterableDataset(folder, part_nbytes=30).fingerprint()


def test_a_process_function(folder: Path) -> None:
    dataset = JsonlIterableDataset(folder, only_even, shuffle_buffer=0)
    assert [sample["id"] for sample in dataset] == [
        f"{n}{i}" for n in "abc" for i in (0, 2, 4, 6, 8)
    ]


def test_damage_is_counted(folder: Path) -> None:
    (folder / "b.jsonl").write_text("{}\n{\n\n{}\n\n")
    dataset = JsonlIterableDataset(folder, on_damage="skip")
    assert len(list(dataset)) == 22
    assert dataset.num_skipped == 2  # a blank line at the end is none


def merge(folders: list[Path], *, shuffle: bool) -> MergedDataset:
    sources: list[Any] = [JsonlIterableDataset(one, on_damage="skip") for one in folders]
    for number, source in enumerate(sources):
        source.name, source.percent = f"source {number}", 1 + number
    return MergedDataset(sources, cyclic=False, shuffle_streaming_subsets=shuffle)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_sources", [1, 2])
def test_states_of_lines_that_are_parsed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_sources: int, shuffle: bool
) -> None:
    """Each sample has its own state, which that of the stream follows, also beside damage."""
    monkeypatch.setattr(files_dataset, "_NUM_UNITS", 2)
    folders = [tmp_path / str(number) for number in range(num_sources)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        lines = [f'{{"id": "{number}/{row}", "of": null, "__seed__": 7}}' for row in range(150)]
        lines[100:101] = ["[1]", "{}, {}", "{"]
        (folder / "a.jsonl").write_text("\n".join(lines[:90]) + "\n")
        (folder / "b.jsonl").write_text("\n".join(lines[90:]))
    dataset, samples, states = merge(folders, shuffle=shuffle), list[Sample](), list[Any]()
    state: dict[str, Any] = {}
    for sample in dataset:
        state |= to_state(sample)
        now = dataset.state_dict()
        if len(samples) < 140:  # of an exhausted source, it has the end
            assert state == {key: now[key] for key in state}
        states.append(dict(state))
        samples.append({name: value for name, value in sample.items() if name != "__state__"})
    names = [f"{number}/{row}" for number in range(num_sources) for row in range(150) if row != 100]
    assert sorted(sample["id"] for sample in samples) == sorted(names)
    assert all(sample["of"] == "" and sample["__seed__"] == 0 for sample in samples)
    assert all(Path(one["__url__"]).parent.name == one["id"].split("/")[0] for one in samples)
    for done in (1, 63, 64, 65, 100, 148):
        again = merge(folders, shuffle=shuffle)
        again.set_dataloader_states(states[done - 1])
        rest = [dict(sample) for sample in again]
        assert [state | to_state(sample) for sample in rest][-1]["turn @0/1"] == state["turn @0/1"]
        assert [{**sample, "__state__": None} for sample in rest] == [
            {**sample, "__state__": None} for sample in samples[done:]
        ]


def test_lines_before_a_bad_one_are_delivered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_dataset, "_NUM_UNITS", 1)
    (folder / "b.jsonl").write_text('{"id": "b0"}\n{"id": "b1"}\n{}, {}\n{"id": "b3"}\n')
    source: Any = JsonlIterableDataset(folder)
    source.name, source.percent = "only", 1
    stream = iter(MergedDataset([source], cyclic=False, shuffle_streaming_subsets=False))
    assert [next(stream)["id"] for _ in range(12)] == [*(f"a{i}" for i in range(10)), "b0", "b1"]
    with pytest.raises(SourceError, match=r"b\.jsonl.*line 3"):
        next(stream)


def test_a_class_of_process_functions_is_no_process_function(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"got the class TextPacking; give an object of it, Text"):
        JsonlIterableDataset(str(tmp_path / "a.jsonl"), TextPacking)

    class Doubled:  # its objects are iterators, so it is called as a function
        def __init__(self, samples: Any) -> None:
            self.samples = samples

        def __iter__(self) -> Any:
            return iter(self.samples)

    JsonlIterableDataset(str(tmp_path / "a.jsonl"), Doubled)


def test_parquet_files_are_refused_with_what_to_do(folder: Path) -> None:
    (folder / "d.parquet").write_bytes(b"PAR1")
    match = r"must read jsonl files or tar archives, got .*d\.parquet; convert it with .*ZarrText"
    with pytest.raises(ConfigError, match=match):
        JsonlIterableDataset([folder / "a.jsonl", folder / "d.parquet"])
