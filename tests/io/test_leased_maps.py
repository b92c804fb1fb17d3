"""Maps under leases: what is read, and what happens to those who truncate the files."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zindex.io import leased_maps
from zindex.io.leased_maps import LeasedMap

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="leases are Linux's")


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def can_map(path: Path) -> bool:
    """Return whether a file can be mapped now."""
    with opened(path) as descriptor:
        try:
            LeasedMap(descriptor, str(path))
        except OSError:
            return False
        return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    np.arange(10_000, dtype=np.uint8).tofile(path)
    if not can_map(path):
        pytest.skip("the file system of temporary files has no leases")
    return path


def wait_for_break(made: LeasedMap) -> None:
    while made.is_held():
        time.sleep(0.01)


def test_whoever_truncates_waits_until_the_map_is_dropped(path: Path) -> None:
    with opened(path) as descriptor, multiprocessing.get_context("spawn").Pool(1) as pool:
        made = LeasedMap(descriptor, str(path))
        assert made.content.tobytes() == path.read_bytes()
        assert made.record.tolist() == [made.content.ctypes.data, 10_000]
        waited = pool.apply_async(os.truncate, (path, 10))
        wait_for_break(made)
        assert (path.stat().st_size, int(made.content[-1])) == (10_000, 9_999 % 256)
        del made
        waited.get(200)
        assert path.stat().st_size == 10


def test_threads_of_this_process_wait_too(path: Path) -> None:
    with opened(path) as descriptor:
        made = LeasedMap(descriptor, str(path))
        other = threading.Thread(target=path.write_bytes, args=(b"new",))
        other.start()
        wait_for_break(made)
        assert path.stat().st_size == 10_000
        del made
        other.join(200)
    assert path.read_bytes() == b"new"


def test_it_keeps_its_descriptor_open(path: Path) -> None:
    class Owner:
        def __init__(self) -> None:
            self.number = os.open(path, os.O_RDONLY)

        def __del__(self, close: Any = os.close) -> None:
            close(self.number)

    owner = Owner()
    number = owner.number
    made = LeasedMap(number, str(path), owner)
    del owner
    assert made.is_held()
    del made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize(
    ("name", "value"), [("_LOCAL", frozenset()), ("_LEAST_SECONDS", 1 << 40), (None, None)]
)
def test_files_without_leases_are_not_mapped(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, value: object
) -> None:
    if name is None:
        with path.open("ab"):  # which may write
            assert not can_map(path)
        assert can_map(path)
    else:
        monkeypatch.setattr(leased_maps, name, value)
        assert not can_map(path)


def test_a_pipe_has_no_lease() -> None:
    for number in os.pipe():
        with pytest.raises(OSError, match="no lease protects maps of pipe"):
            LeasedMap(number, "pipe")
        os.close(number)


def test_a_forked_child_does_not_release_the_lease(path: Path) -> None:
    with opened(path) as descriptor:
        held = [LeasedMap(descriptor, str(path))]
        child = multiprocessing.get_context("fork").Process(target=held.clear)
        child.start()
        child.join(200)
        assert child.exitcode == 0
        assert held[0].is_held()
        held.clear()
