"""In how many processes is counted: in one for little."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items, Parts, write_jsonl
from zindex.streaming import JsonlIterableDataset, MergedDataset
from zindex.streaming.lengths import workload
from zindex.streaming.lengths.workload import choose_processes


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))


def test_files_go_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x" * 90}] * 100)
    nbytes = Path(path).stat().st_size
    monkeypatch.setattr(workload, "_NBYTES_ALONE", nbytes)
    dataset: Any = JsonlIterableDataset(path, part_nbytes=999)
    assert choose_processes(dataset) == 1
    monkeypatch.setattr(workload, "_NBYTES_ALONE", nbytes - 1)
    assert choose_processes(dataset) == 4


def test_other_sources_go_by_their_number() -> None:
    assert choose_processes(MergedDataset([Parts("a", [5] * 3), Items("b", 9)])) == 1
    assert choose_processes(Parts("a", [5] * 9)) == 4
    items = Items("b", 1025)
    assert choose_processes(items) == 4
    assert choose_processes(items, num_samples=100) == 1
    files = MergedDataset([Parts("a", [5] * 4)], shuffle_streaming_subsets="cogdata_urlbuffer")
    assert choose_processes(files) == 1
