"""Requests for samples: adjacent ones together, in the order of need, the first one alone."""

import threading

import numpy as np
import pytest

from zindex.errors import SourceError
from zindex.io.request_threads import DaemonPool
from zindex.sources import sample_requests
from zindex.sources.file_scan import FileScan
from zindex.sources.sample_offsets import SampleOffsets
from zindex.sources.sample_requests import SampleRequests

# Two files of 100 samples of 10 bytes, and of 50 of 20 bytes.
OFFSETS = SampleOffsets(
    [
        FileScan(np.arange(0, 1001, 10).reshape(-1, 1), 0),
        FileScan(np.arange(0, 1001, 20).reshape(-1, 1), 0),
    ]
)


THREADS = DaemonPool(4)


class Files:
    """Files that note what is read of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.lock = threading.Lock()

    def read(self, number: int, start: int, stop: int) -> bytes:
        with self.lock:
            self.asked.append((number, start, stop))
        return bytes([number, start // 10 % 256])[:1] + b"." * (stop - start - 1)


def sizes(number: int) -> int:
    return 20 if number else 10


def test_samples_are_in_the_given_order() -> None:
    files = Files()
    order = np.array([3, 0, 25, 2])
    found = list(SampleRequests(OFFSETS, [(5, 25), (98, 104)], order, files.read, THREADS))
    assert [(number, row) for number, row, _ in found] == [(0, 8), (0, 5), (1, 3), (0, 7)]
    assert all(len(content) == sizes(number) for number, _, content in found)
    assert sorted(files.asked) == [(0, 50, 90), (1, 60, 80)]


def test_all_samples_without_an_order() -> None:
    files = Files()
    found = [
        one[:2] for one in SampleRequests(OFFSETS, [(98, 101), (0, 2)], None, files.read, THREADS)
    ]
    assert found == [(0, 98), (0, 99), (1, 0), (0, 0), (0, 1)]
    assert list(SampleRequests(OFFSETS, [], None, files.read, THREADS)) == []


def test_the_first_sample_takes_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_requests, "_GAP_NBYTES", 0)
    monkeypatch.setattr(sample_requests, "_REQUEST_NBYTES", 40)
    files = Files()
    requests = SampleRequests(OFFSETS, [(0, 20)], np.arange(20)[::-1], files.read, THREADS)
    samples = iter(requests)
    assert next(samples)[1] == 19
    assert files.asked == [(0, 160, 200)]
    assert [row for _, row, _ in samples] == [*range(19)][::-1]
    assert sorted(files.asked) == [(0, start, start + 40) for start in range(0, 200, 40)]
    # All of them in advance.
    ahead = SampleRequests(OFFSETS, [(0, 20)], None, files.read, THREADS)
    ahead.begin()
    assert len(list(ahead)) == 20
    assert len(files.asked) == 10


def test_errors_come_with_their_sample() -> None:
    def read(number: int, start: int, stop: int) -> bytes:
        if start:
            raise SourceError("gone")
        return b"x" * (stop - start)

    samples = iter(SampleRequests(OFFSETS, [(0, 1), (149, 150)], None, read, THREADS))
    assert next(samples) == (0, 0, b"x" * 10)
    with pytest.raises(SourceError, match="gone"):
        next(samples)
