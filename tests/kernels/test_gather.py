"""The kernel that reads files: equal to slices, and it leaves to its caller what it must."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zindex.kernels.gather import gather

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
DTYPES = [*INTEGERS, "int64", "uint64", "float32"]
#: Bytes between inner chunks, and before the first.
GAP, BASE = 4, 6


class Files:
    """An array in files as the kernel reads it: chunks with a gap after each."""

    def __init__(self, folder: Path, values: Any, chunk_length: int, chunks_per_shard: int) -> None:
        self.values = values
        self.held: list[Any] = []
        self.shard_length = chunk_length * chunks_per_shard
        row_nbytes = values[:1].nbytes
        num_shards = -(-len(values) // self.shard_length)
        self.descriptors = np.zeros(num_shards, np.int32)
        self.used = np.zeros(num_shards, np.uint8)
        self.maps = np.zeros(num_shards, np.int64)
        self.verified = np.ones(num_shards * chunks_per_shard, np.uint8)
        for shard in range(num_shards):
            content = b"\xee" * BASE
            for chunk in range(chunks_per_shard):
                start = shard * self.shard_length + chunk * chunk_length
                part = values[start : start + chunk_length].tobytes()
                content += part.ljust(chunk_length * row_nbytes, b"\xff") + b"\xdd" * GAP
            path = folder / f"{id(self)}-{shard}"
            path.write_bytes(content)
            self.descriptors[shard] = os.open(path, os.O_RDONLY) + 1
        dtype = values.dtype
        self.record = np.array(
            [
                len(values),
                self.shard_length,
                chunk_length,
                chunks_per_shard,
                row_nbytes,
                chunk_length * row_nbytes + GAP,
                BASE,
                self.descriptors.ctypes.data,
                self.used.ctypes.data,
                self.verified.ctypes.data,
                -dtype.itemsize if dtype.kind == "i" else dtype.itemsize,
                *[0] * 5,
                self.maps.ctypes.data,
            ],
            np.int64,
        )

    def map(self, folder: Path, shard: int, nbytes: int | None = None) -> None:
        """Map the first bytes of a file, all by default."""
        content = np.fromfile(folder / f"{id(self)}-{shard}", np.uint8, nbytes or -1)
        record = np.array([content.ctypes.data, content.nbytes])
        self.held += [content, record]
        self.maps[shard] = record.ctypes.data

    def close(self) -> None:
        for number in self.descriptors[self.descriptors > 0].tolist():
            os.close(number - 1)


def call(
    groups: list[Any], spans: list[Any], scratch_nbytes: int = 64
) -> tuple[bool, tuple[int, ...]]:
    """Call the kernel; return what it returns and leaves as its state."""
    starts, stops, places = (
        np.array([span[i] for span in spans], np.int64).reshape(-1) for i in range(3)
    )
    scratch = np.full(scratch_nbytes + 8, 0xAA, np.uint8)
    state = np.zeros(3, np.int64)
    table = np.array(groups, np.int64).reshape(-1, 6)
    address = scratch.ctypes.data
    done = gather(table, starts, stops, places, address, scratch_nbytes, 0, state)
    return done, tuple(state.tolist())


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[Any, int, int, list[tuple[int, int]], bool, bool]]:
    """Return for each array values, grid, spans, and whether they are widened and placed."""
    result = []
    for _ in range(draw(st.integers(1, 4))):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        columns = draw(st.sampled_from([(), (2,)]))
        length = draw(st.integers(1, 60))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        count = length * int(np.prod(columns, dtype=int)) * dtype.itemsize
        values = rng.integers(0, 256, count, np.uint8).view(dtype).reshape(length, *columns)
        bound = st.integers(0, length)
        pairs = draw(st.lists(st.tuples(bound, bound), max_size=5))
        wide = not columns and dtype.name in INTEGERS and draw(st.booleans())
        spans = [(min(pair), max(pair)) for pair in pairs]
        grid = draw(st.integers(1, 9)), draw(st.integers(1, 4))
        result.append((values, *grid, spans, wide, draw(st.booleans())))
    return result


@given(wanted=rounds())
@settings(max_examples=80)
def test_spans_equal_slices(wanted: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        groups, spans, checks, opened = [], [], [], []
        for values, chunk_length, chunks_per_shard, pairs, wide, placed in wanted:
            files = Files(Path(folder), values, chunk_length, chunks_per_shard)
            opened.append(files)
            for shard in range(0, len(files.maps), 2):
                files.map(Path(folder), shard)
            lengths = np.array([stop - start for start, stop in pairs], np.int64)
            gap = 2 if placed else 0
            places = np.cumsum(lengths + gap) - lengths
            size = int(lengths.sum()) + gap * len(pairs)
            out = np.zeros((size, *values.shape[1:]), np.int64 if wide else values.dtype)
            expected = out.copy()
            for place, (start, stop) in zip(places.tolist(), pairs, strict=True):
                spans.append((start, stop, place if placed else -9))
                expected[place : place + stop - start] = values[start:stop]
            address = files.record.ctypes.data
            groups.append((len(spans), address, out.ctypes.data, size, wide, placed))
            checks.append((out, expected))
        done, state = call(groups, spans)
        assert done
        assert state[1] == len(spans)
        for out, expected in checks:
            assert out.tobytes() == expected.tobytes()
        for files in opened:
            files.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    """Twenty uint16 in chunks of three, two of them in a file."""
    made = Files(tmp_path, np.arange(20, dtype=np.uint16), 3, 2)
    yield made
    made.close()


def read(files: Files, spans: list[Any], length: int = 20, *, placed: bool = True) -> Any:
    out = np.zeros(length, np.int64)
    group = (len(spans), files.record.ctypes.data, out.ctypes.data, length, True, placed)
    return *call([group], spans), out


@pytest.mark.parametrize("span", [(-1, 2), (3, 2), (0, 21), (21, 21), (-(2**62), 2**62)])
def test_a_span_outside_its_array_is_left(files: Files, span: tuple[int, int]) -> None:
    done, state, out = read(files, [(0, 2, 0), (*span, 2), (4, 6, 4)])
    assert not done
    assert state == (0, 1, 2)
    assert out.tolist() == [0, 1] + [0] * 18


@pytest.mark.parametrize("place", [-1, 19, 20, 2**62, -(2**62)])
def test_a_place_outside_the_target_is_left(files: Files, place: int) -> None:
    done, state, out = read(files, [(5, 7, 0), (5, 7, place)])
    assert not done
    assert state == (0, 1, place)
    assert out.tolist() == [5, 6] + [0] * 18


def test_spans_without_places_that_outgrow_the_target_are_left(files: Files) -> None:
    done, state, out = read(files, [(5, 8, -1), (9, 11, -1)], 4, placed=False)
    assert not done
    assert state == (0, 1, 3)
    assert out.tolist() == [5, 6, 7, 0]


def test_files_that_are_not_open_and_chunks_that_are_not_verified_are_left(files: Files) -> None:
    files.verified[3] = 0
    assert read(files, [(0, 9, 0), (9, 12, 9)])[:2] == (False, (0, 1, 9))
    files.record[9] = 0  # no verification
    assert read(files, [(0, 9, 0), (9, 12, 9)])[0]
    assert files.used.tolist() == [1, 1, 0, 0]
    number, files.descriptors[1] = int(files.descriptors[1]), 0
    assert read(files, [(0, 6, 0), (6, 7, 6)])[:2] == (False, (0, 1, 6))
    files.descriptors[1] = number


def test_windows_that_are_not_advised_are_left(files: Files) -> None:
    advised = np.array([1, 0, 1, 1], np.uint8)  # two windows of at most four rows in a file of six
    files.record[13:16] = advised.ctypes.data, 4, 2
    assert read(files, [(0, 4, 0), (6, 7, 4), (4, 5, 5)])[:2] == (False, (0, 2, 5))
    advised[1] = 1
    assert read(files, [(0, 4, 0), (6, 7, 4), (4, 5, 5)])[0]


def test_a_truncated_file_causes_no_signal(files: Files) -> None:
    number = int(files.descriptors[1]) - 1
    os.truncate(f"/proc/self/fd/{number}", BASE + 3)
    assert read(files, [(0, 6, 0), (6, 7, 6), (7, 8, 7)])[:2] == (False, (0, 2, 7))
    closed = os.dup(number)
    os.close(closed)
    files.descriptors[2] = closed + 1
    assert read(files, [(12, 13, 0)])[:2] == (False, (0, 0, 0))
    files.descriptors[2] = 0


def test_a_round_may_be_gone_on_with_and_groups_may_be_empty(files: Files) -> None:
    out = np.zeros(6, np.uint16)
    record, address = files.record.ctypes.data, out.ctypes.data
    groups = [(0, record, address, 6, 0, 0), (2, record, address, 6, 0, 0)]
    groups += [(2, record, address, 6, 0, 0), (3, record, address, 1, 0, 0)]
    done, state = call(groups, [(5, 7, 0), (0, 4, 0), (9, 11, 0)])
    assert not done
    assert state == (3, 2, 0)
    assert out.tolist() == [5, 6, 0, 1, 2, 3]


def test_maps_are_read_instead_of_files_as_far_as_they_reach(files: Files, tmp_path: Path) -> None:
    files.map(tmp_path, 0)
    files.map(tmp_path, 1, BASE + 3)
    number = int(files.descriptors[0]) - 1
    os.truncate(f"/proc/self/fd/{number}", 0)
    done, _, out = read(files, [(0, 12, 0)], 12)
    assert done
    assert out.tolist() == list(range(12))
    assert files.used.tolist() == [1, 1, 0, 0]
    os.truncate(f"/proc/self/fd/{int(files.descriptors[1]) - 1}", 0)
    assert read(files, [(0, 6, 0), (6, 7, 6), (7, 8, 7)])[:2] == (False, (0, 2, 7))
    files.descriptors[0] = 0  # closed files have no maps
    assert read(files, [(0, 6, 0)])[:2] == (False, (0, 0, 0))
    files.descriptors[0] = number + 1
