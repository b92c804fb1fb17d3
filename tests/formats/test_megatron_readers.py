"""Megatron's reader of a ``.bin`` by position: what it opens, shares and asks again."""

import copy
import errno
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from zindex.formats import megatron_readers
from zindex.formats.megatron_readers import _FileBinReader


@pytest.fixture
def path(write_corpus: WriteCorpus) -> str:
    return f"{write_corpus([5, 4])}.bin"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(megatron_readers.time, "sleep", found.append)
    return found


@pytest.mark.parametrize("make_copy", [copy.copy, lambda item: pickle.loads(pickle.dumps(item))])
def test_copies_open_for_themselves(
    path: str, make_copy: Callable[[_FileBinReader], _FileBinReader]
) -> None:
    reader = _FileBinReader(path, 7, 2, nbytes=36)
    assert reader._fd is None
    expected = reader.read(np.int32, 4, 8)
    other = make_copy(reader)
    assert other._fd is None
    assert (other.num_max_retries, other.sleep_duration_start) == (7, 2)
    assert np.array_equal(other.read(np.int32, 4, 8), expected)
    descriptor = other._fd
    assert descriptor not in (None, reader._fd)
    del other
    assert np.array_equal(reader.read(np.int32, 4, 8), expected)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_failed_reads_open_again(
    path: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, close = os.preadv, os.close
    events = []

    def fail_twice(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        events.append(offset)
        if len(events) < 4:
            raise OSError(errno.EIO, "the disk is gone")
        return read(descriptor, buffers, offset)

    def note_close(descriptor: int) -> None:
        events.append("close")
        close(descriptor)

    monkeypatch.setattr(os, "preadv", fail_twice)
    monkeypatch.setattr(os, "close", note_close)
    reader = _FileBinReader(path)
    assert reader.read(np.int32, 2, 4).tolist() == [1, 2]
    assert events == [4, "close", 4, "close", 4]
    assert waits == [10, 20]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_no_descriptors_left_is_told_at_once(
    path: str, waits: list[float], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        _FileBinReader(path).read(np.int32, 1, 0)
    assert waits == []
