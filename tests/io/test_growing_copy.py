"""Copies that are read while they are made."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from zindex.errors import SourceError
from zindex.io.growing_copy import GrowingCopy


class Steps:
    """Makes a copy of ``b"abcdefgh"``, four bytes at a time, when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_suffix(".partial")
        self.go_on = threading.Semaphore(0)
        self.error: Exception | None = None
        self.reads: list[tuple[int, int]] = []
        self.num_begun = 0

    def make(self, growing: GrowingCopy) -> None:
        with open(self.partial, "wb") as stream:
            growing.begin(str(self.partial))
            for content in (b"abcd", b"efgh"):
                self.go_on.acquire()
                if self.error is not None:
                    raise self.error
                stream.write(content)
                stream.flush()
                growing.advance(stream.tell())
        os.rename(self.partial, self.path)

    def read(self, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        return b"abcdefgh"[start:stop]

    def begin_others(self) -> None:
        self.num_begun += 1


def submit(function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True).start()


def grow(steps: Steps) -> GrowingCopy:
    return GrowingCopy(steps.path, steps.make, submit, steps.read, steps.begin_others)


def test_it_is_read_while_it_grows(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "copy")
    growing = grow(steps)
    descriptor = growing.open()
    steps.go_on.release()
    growing.wait_for(3)
    assert os.pread(descriptor, 9, 0) == b"abcd"
    assert not growing.is_done
    steps.go_on.release()
    growing.wait_for(9)
    assert growing.is_done
    assert os.pread(descriptor, 9, 0) == b"abcdefgh"
    os.close(descriptor)
    os.close(growing.open())
    assert not steps.reads


def test_the_first_read_is_of_the_file_itself(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "copy")
    growing, view = grow(steps), memoryview(bytearray(2))
    assert growing.is_awaited
    assert growing.read_first(5, view)
    assert (bytes(view), steps.reads, steps.num_begun) == (b"fg", [(5, 7)], 1)
    assert not growing.is_awaited
    assert not growing.read_first(5, view)
    steps.go_on.release(2)
    growing.wait_for(7)
    assert steps.reads == [(5, 7)]


def test_errors_are_those_of_reads(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "copy")
    growing = grow(steps)
    steps.go_on.release()
    growing.wait_for(4)
    steps.error = SourceError("it was changed")
    steps.go_on.release()
    for _ in range(2):
        with pytest.raises(SourceError, match="it was changed"):
            growing.wait_for(5)
    os.unlink(steps.partial)
    with pytest.raises(SourceError, match="it was changed"):
        growing.open()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_it_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "copy")
    growing = grow(steps)
    steps.go_on.release()
    growing.wait_for(4)
    if not (child := os.fork()):  # the thread does not run here
        steps.go_on.release(2)
        os._exit(5 if growing._process != os.getpid() and growing.wait_for(8) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
