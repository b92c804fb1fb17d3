"""Maps under leases: what is read, and what happens to those who truncate the files."""

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import numpy as np
import pytest

from zindex.io import leased_maps
from zindex.io.leased_maps import LeasedMaps

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="leases are Linux's")


class Reader:
    """Maps one file, until its lease is asked for."""

    def __init__(self, path: Path, nbytes: int = 1) -> None:
        self.maps: LeasedMaps | None = LeasedMaps(WeakMethod(self.drop))
        self.content = self.maps.map(str(path), nbytes)
        self.dropped = threading.Event()

    def drop(self) -> None:
        self.maps = self.content = None
        self.dropped.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    np.arange(10_000, dtype=np.uint8).tofile(path)
    if Reader(path).content is None:
        pytest.skip("the file system of temporary files has no leases")
    return path


def truncate(path: Path) -> float:
    start = time.monotonic()
    os.truncate(path, 10)
    return time.monotonic() - start


def test_whoever_truncates_waits_until_the_map_is_dropped(path: Path) -> None:
    reader = Reader(path)
    assert reader.content is not None
    assert reader.maps is not None
    assert reader.content.tobytes() == path.read_bytes()
    assert reader.maps.is_held()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waited = pool.apply_async(truncate, (path,))
        assert reader.dropped.wait(30)
        assert waited.get(30) < 30
    assert path.stat().st_size == 10


def test_this_process_may_write_too(path: Path) -> None:
    reader = Reader(path)
    path.write_bytes(b"new")
    assert reader.dropped.is_set()
    assert path.read_bytes() == b"new"


def test_a_lease_is_asked_for_but_the_maps_are_in_use(path: Path) -> None:
    """The file keeps its length as long as somebody reads it."""
    reader = Reader(path)
    maps, content = reader.maps, reader.content
    assert maps is not None
    assert content is not None
    other = threading.Thread(target=truncate, args=(path,))
    other.start()
    assert reader.dropped.wait(30)
    assert not maps.is_held()
    assert (path.stat().st_size, int(content[-1])) == (10_000, 9_999 % 256)
    del maps, content
    other.join(30)
    assert path.stat().st_size == 10


def test_files_without_leases_are_not_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("ab"):  # somebody may write
        assert Reader(path).content is None
    assert Reader(path, 10_001).content is None
    maps = Reader(path).maps
    assert maps is not None
    assert maps.map(str(path), 1, path.stat().st_mtime_ns + 1) is None
    assert maps.map(str(path.parent / "missing"), 1) is None
    assert maps.map(str(path.parent), 1) is None
    del maps
    assert Reader(path, 10_000).content is not None
    before = leased_maps._num_leased
    readers = [Reader(path) for _ in range(3)]
    assert leased_maps._num_leased == before + 3
    del readers
    assert leased_maps._num_leased == before
    for name, value in (("_LOCAL", frozenset()), ("_SHARE", 1 << 60), ("_LEAST_SECONDS", 1 << 40)):
        with monkeypatch.context() as patch:
            patch.setattr(leased_maps, name, value)
            assert Reader(path).content is None


def _is_held(reader: Any, answers: Any) -> None:
    answers.put(reader.maps.is_held())


def test_a_forked_child_has_no_leases(path: Path) -> None:
    reader = Reader(path)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_is_held, args=(reader, answers))
    child.start()
    assert answers.get() is False
    child.join(30)
    # The end of the child gives up no lease of its parent.
    assert reader.maps is not None
    time.sleep(1.5 * leased_maps._CHECK_SECONDS)
    assert reader.maps.is_held()
