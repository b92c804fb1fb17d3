"""Samples are cut out of blocks, which are read when they are needed, and once."""

import numpy as np
import pytest

from zindex.sources.file_scan import FileScan
from zindex.sources.sample_blocks import SampleBlocks
from zindex.sources.sample_offsets import SampleOffsets

# Three files, the second one without samples; the samples of the last are 1, 2, 3 bytes.
CONTENTS = [b"aabbbc", b"", b"-xyyzzz"]
TABLES = [[0, 2, 5, 6], [0], [1, 2, 4, 7]]
SAMPLES = [(0, 0, b"aa"), (0, 1, b"bbb"), (0, 2, b"c"), (2, 0, b"x"), (2, 1, b"yy"), (2, 2, b"zzz")]


def open_blocks(
    ranges: list[tuple[int, int]], order: list[int]
) -> tuple[SampleBlocks, list[tuple[int, int, int]]]:
    """Return samples, and the reads that they have made."""
    scans = [FileScan(np.array(table).reshape(-1, 1), 0) for table in TABLES]
    reads: list[tuple[int, int, int]] = []

    def read_into(number: int, offset: int, view: memoryview) -> None:
        reads.append((number, offset, len(view)))
        view[:] = CONTENTS[number][offset : offset + len(view)]

    places = np.array(order, np.int64)
    return SampleBlocks(SampleOffsets(scans), ranges, places, read_into), reads


def whole(samples: SampleBlocks) -> list[tuple[int, int, bytes]]:
    return [(number, row, bytes(view)) for number, row, view in samples[:]]


@pytest.mark.parametrize(
    ("ranges", "order", "expected", "num_reads"),
    [
        ([(0, 6)], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 2),  # a range over two files
        ([(4, 6), (0, 2), (2, 4)], [0, 1, 2, 3, 4, 5], [4, 5, 0, 1, 2, 3], 4),
        ([(4, 6), (0, 2)], [3, 0, 2, 1], [1, 4, 0, 5], 2),
        ([(2, 2), (5, 6)], [0], [5], 1),
        ([], [], [], 0),
    ],
)
def test_ranges_in_an_order(
    ranges: list[tuple[int, int]], order: list[int], expected: list[int], num_reads: int
) -> None:
    samples, reads = open_blocks(ranges, order)
    assert len(samples) == len(expected)
    assert whole(samples) == [SAMPLES[number] for number in expected]
    assert len(reads) == num_reads


def test_only_blocks_of_needed_samples_are_read_once() -> None:
    samples, reads = open_blocks([(0, 3), (3, 6)], [0, 3, 1, 4, 2, 5])
    assert reads == []
    assert bytes(samples[1][2]) == b"x"
    assert reads == [(2, 1, 6)]
    assert whole(samples) == [SAMPLES[number] for number in (0, 3, 1, 4, 2, 5)]
    assert reads == [(2, 1, 6), (0, 0, 6)]


def test_a_failed_read_is_repeated() -> None:
    failures = [OSError("unplugged")]

    def read_into(number: int, offset: int, view: memoryview) -> None:
        if failures:
            raise failures.pop()
        view[:] = CONTENTS[number]

    offsets = SampleOffsets([FileScan(np.array(TABLES[0]).reshape(-1, 1), 0)])
    samples = SampleBlocks(offsets, [(0, 3)], np.arange(3), read_into)
    with pytest.raises(OSError, match="unplugged"):
        samples[:1]
    assert whole(samples) == SAMPLES[:3]


def test_memory_is_used_again_unless_a_sample_refers_to_it() -> None:
    samples, _ = open_blocks([(0, 6)], [*range(6)])
    expected, views = whole(samples), samples[:]
    del samples
    again, _ = open_blocks([(3, 6)], [0, 1, 2])
    assert whole(again) == expected[3:]
    assert [(number, row, bytes(view)) for number, row, view in views] == expected
    assert [*map(bytes, again[np.array([2, 0])].contents)] == [b"zzz", b"x"]
