"""Frames that a node keeps: which are missing, full disks, and files that others cut off."""

import os
from pathlib import Path

import pytest

from zindex.errors import StoreUnreadableError
from zindex.io import frame_cache
from zindex.io.frame_cache import FrameCache

CONTENT = [b"abc", b"de", b"", b"fghi"]
STARTS = [0, 3, 5, 5]


def read(cache: FrameCache, start: int, stop: int) -> bytes:
    view = memoryview(bytearray(stop - start))
    cache.read_into(start, view)
    return bytes(view)


def test_processes_share_frames(tmp_path: Path) -> None:
    one, other = (FrameCache(tmp_path / "a.cache", 4, 9) for _ in range(2))
    assert one.find_missing(0, 4) == (0, 4)
    for number in (0, 1, 3):
        one.put(number, STARTS[number], CONTENT[number])
    assert other.find_missing(0, 4) == (2, 3)
    assert other.find_missing(0, 2) == (2, 2)
    assert other.find_missing(1, 4) == (2, 3)
    assert read(other, 1, 8) == b"bcdefgh"


def test_a_full_disk_ends_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FrameCache(tmp_path / "a.cache", 4, 9)
    monkeypatch.setattr(frame_cache, "FREE_NBYTES", 1 << 60)
    cache.put(0, 0, b"abc")
    monkeypatch.setattr(frame_cache, "FREE_NBYTES", 0)
    cache.put(1, 3, b"de")
    assert cache.find_missing(0, 2) == (0, 2)
    cache = FrameCache(tmp_path / "a.cache", 4, 9)
    monkeypatch.setattr(os, "pwrite", lambda *_: 1)  # a part only
    cache.put(0, 0, b"abc")
    assert cache.find_missing(0, 1) == (0, 1)


def test_a_cache_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    cache = FrameCache(tmp_path / "a.cache", 4, 9)
    for number in range(4):
        cache.put(number, STARTS[number], CONTENT[number])
    os.truncate(tmp_path / "a.cache", 4)
    with pytest.raises(StoreUnreadableError, match=r"a\.cache must be readable, .* was cut off"):
        read(cache, 0, 9)
    os.truncate(tmp_path / "a.frames", 2)
    assert cache.find_missing(0, 4) == (2, 4)


def test_a_restart_of_the_node_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frame_cache.boot_id() == frame_cache.boot_id()
    monkeypatch.setattr(frame_cache, "_BOOT_ID", tmp_path / "none")
    assert frame_cache.boot_id() == ""
