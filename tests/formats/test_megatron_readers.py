"""Megatron's reader of a ``.bin`` by position: what it opens, shares and asks again."""

import copy
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from zindex.errors import VerificationError
from zindex.formats import megatron_readers
from zindex.formats.megatron_readers import LazyArray, _FileBinReader, _IndexReader


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
def test_running_out_of_descriptors_is_not_retried(
    path: str, waits: list[float], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        _FileBinReader(path).read(np.int32, 1, 0)
    assert waits == []


@given(
    length=st.integers(1, 40),
    asked=st.lists(
        st.one_of(
            st.integers(0, 39),
            st.tuples(st.integers(0, 41), st.integers(0, 41)),
            st.lists(st.integers(0, 39)),
        )
    ),
)
def test_a_lazy_array_reads_the_blocks_that_it_needs_once(
    length: int, asked: list[int | tuple[int, int] | list[int]]
) -> None:
    source = np.arange(length) * 7
    read: list[int] = []

    def fill(array: np.ndarray, start: int) -> None:
        array[:] = source[start : start + len(array)]
        assert start % 4 == 0
        read.extend(range(start // 4, -(-(start + len(array)) // 4)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron_readers, "_BLOCK_LENGTH", 4)
        lazy = LazyArray(fill, "<i8", length)
        needed: set[int] = set()
        for where in asked:
            if isinstance(where, tuple):
                numbers = list(range(length))[slice(*where)]
                found = lazy[slice(*where)]
            elif isinstance(where, list):
                numbers = [number % length for number in where]
                found = lazy[np.array(numbers, np.int64)]
            else:
                numbers = [where % length]
                found = lazy[where % length]
            np.testing.assert_array_equal(np.ravel(found), source[numbers])
            needed |= {number // 4 for number in numbers}
            assert sorted(read) == sorted(needed)


def test_an_index_that_is_replaced_is_refused_where_it_was_not_read(
    write_corpus: WriteCorpus,
) -> None:
    block = megatron_readers._BLOCK_LENGTH
    path = f"{write_corpus([1] * block + [2] * 5)}.idx"
    index = _IndexReader(path, multimodal=False)
    assert index[0] == (0, 1, None)
    assert index[1] == (4, 1, None)
    os.utime(path, ns=(1, 1))
    assert index[2] == (8, 1, None)  # of a block that was read
    with pytest.raises(VerificationError, match="replaced or written since"):
        index[-1]


def test_reading_imports_nothing_more(write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 4])
    code = (
        "import sys, numpy as np\nfrom zindex.formats.megatron_readers import _IndexReader\n"
        f"index = _IndexReader({prefix + '.idx'!r}, False)\nknown = set(sys.modules)\n"
        "index[0], index.lengths[np.array([1])], index.pointers[0:2]\n"
        "print(sorted(set(sys.modules) - known))"  # np.unique would take 7 ms for numpy.ma
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
