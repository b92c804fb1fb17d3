"""Datasets of jsonl files: parts through a process function, and iterated by themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from zindex.streaming.files_dataset import JsonlIterableDataset
from zindex.streaming.protocols import PartitionedDataset, UrlDataset

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
