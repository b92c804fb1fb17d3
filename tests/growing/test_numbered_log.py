"""Numbered entries: created once, found without listing."""

from pathlib import Path
from typing import Any

import pytest

from tests.damage import flipped
from zindex.errors import VerificationError
from zindex.growing.numbered_log import NumberedLog
from zindex.io import files


def test_entries_are_created_once_and_in_order(tmp_path: Path) -> None:
    log = NumberedLog(tmp_path / "log")
    assert log.read(1) is None
    assert list(log.read_after(0)) == []
    assert log.find_last(0) == 0
    for number in range(1, 15):
        assert log.create(number, {"number": number})
    assert not log.create(3, {"number": "another"})
    assert log.create(3, {"number": 3})  # the reply of the first attempt was lost
    assert [entry["number"] for entry in log.read_after(0)] == list(range(1, 15))
    assert [entry["number"] for entry in log.read_after(12)] == [13, 14]
    for known in range(15):
        assert log.find_last(known) == 14


def test_entries_are_spread_over_folders(tmp_path: Path) -> None:
    log = NumberedLog(tmp_path)
    assert log.path(999) == tmp_path / "000000" / "999.json"
    assert log.path(1_234_567) == tmp_path / "001234" / "567.json"


def test_a_reader_that_follows_looks_for_the_next_entry_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, looked = NumberedLog(tmp_path), list[Any]()
    for number in range(1, 4):
        log.create(number, {"number": number})
    listed = files.list_names
    monkeypatch.setattr(files, "list_names", lambda path: looked.append(path) or listed(path))
    assert list(log.read_after(3)) == []
    assert looked == [tmp_path / "000000"]  # of at most a thousand entries


def test_damage_and_gaps_are_errors(tmp_path: Path) -> None:
    log = NumberedLog(tmp_path)
    for number in range(1, 9):
        log.create(number, {"number": number})
    path = log.path(6)
    assert isinstance(path, Path)
    content = path.read_bytes()
    path.write_bytes(flipped(content, 10))
    with pytest.raises(VerificationError, match=r"000000/006.json fails its digest; restore the"):
        list(log.read_after(0))
    path.unlink()
    with pytest.raises(VerificationError, match=r"006.json must exist, as entry 8 does; restore"):
        list(log.read_after(0))
