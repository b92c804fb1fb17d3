"""Open files: typed errors, and a bound on their number."""

import os
from pathlib import Path

import pytest

from tests.trees import num_descriptors
from zindex.errors import SourceError, StoreUnreadableError
from zindex.io.file_list import list_files
from zindex.sources.descriptors import Descriptors


def test_files_stay_open_within_a_bound(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.jsonl").write_text(f"{number:03}\n")
    opened = Descriptors(list_files(tmp_path, [".jsonl"]))
    assert [opened.read(number, 0, 3) for number in range(200)] == [
        f"{number:03}".encode() for number in range(200)
    ]
    assert num_descriptors(tmp_path) <= 128
    del opened
    assert num_descriptors(tmp_path) == 0


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    opened = Descriptors(list_files(path, [".jsonl"]))
    with pytest.raises(SourceError, match=r"a\.jsonl must have 3 bytes, .* ends at byte 3"):
        opened.read(0, 0, 4)
    os.close(opened._opened[0])
    opened._opened[0] = os.open(tmp_path, os.O_RDONLY)  # which cannot be read as a file
    with pytest.raises(StoreUnreadableError, match=r"a\.jsonl"):
        opened.read(0, 0, 3)
