"""Request samples from object stores, several concurrently, before they are asked for."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from zindex.arrays import Int64Array
from zindex.io.request_threads import DaemonPool, wait_for
from zindex.sources.sample_offsets import RawSample, SampleOffsets

if TYPE_CHECKING:
    from concurrent.futures import Future

# Bytes of a request for adjacent samples, and between samples that are requested together.
_REQUEST_NBYTES, _GAP_NBYTES = 1 << 20, 1 << 15
_NOTHING = np.empty(0, np.int64)


class SampleRequests:
    """The bytes of some samples, in a given order; iterating over it consumes it.

    Parameters
    ----------
    offsets
        Where the samples of all files start.
    ranges
        Numbers ``[start, stop)`` of samples.
    order
        Positions in the ranges of the samples to yield; None yields all in their order.
    read
        Returns bytes ``[start, stop)`` of a file, given its number.
    threads
        Make the requests.

    Notes
    -----
    Adjacent samples are one request. The first sample waits for a single request, of which nothing
    else is in the way; after it, or after `begin`, all others are made in the order of need.
    """

    def __init__(
        self,
        offsets: SampleOffsets,
        ranges: Iterable[tuple[int, int]],
        order: Int64Array | None,
        read: Callable[[int, int, int], bytes],
        threads: DaemonPool,
    ) -> None:
        self._read, self._threads, self._process = read, threads, os.getpid()
        samples = [_NOTHING, *(np.arange(start, stop) for start, stop in ranges)]
        # The file of each sample, its row, and its bytes [start, stop): shape (4, samples).
        rows = np.stack(offsets.locate(np.concatenate(samples)))
        self._rows = rows if order is None else rows[:, order]
        self._groups, self._spans = _group(self._rows)
        self._futures: dict[int, Future[bytes]] = {}
        self._num_made = 0

    def begin(self) -> None:
        """Make all requests that are not made yet."""
        self._request(len(self._spans))

    def _request(self, stop: int) -> None:
        for number in range(self._num_made, min(stop, len(self._spans))):
            self._futures[number] = self._threads.submit(self._read, *self._spans[number])
            self._num_made = number + 1

    def __del__(self) -> None:
        if os.getpid() == self._process:  # a lock of the parent of a fork may never be released
            for future in self._futures.values():
                future.cancel()

    def __iter__(self) -> Iterator[RawSample]:
        self._request(1)
        left = np.bincount(self._groups, minlength=len(self._spans)).tolist()
        columns = (*self._rows.tolist(), self._groups.tolist())
        for number, row, start, stop, group in zip(*columns, strict=True):
            if group >= self._num_made:
                self.begin()
            content, base = wait_for(self._futures[group]), self._spans[group][1]
            left[group] -= 1
            if not left[group]:
                del self._futures[group]
            yield number, row, content[start - base : stop - base]


def _group(rows: Int64Array) -> tuple[Int64Array, Sequence[tuple[int, int, int]]]:
    """Return the request of each sample, and the requests, numbered in the order of need.

    Parameters
    ----------
    rows
        Of each sample its file, its row, and its bytes [start, stop), in the order of need.

    Returns
    -------
    groups
        Shape (samples,), int64.
    spans
        The file of each request, and its bytes [start, stop).
    """
    by_place = np.lexsort((rows[2], rows[0]))
    groups = np.empty(rows.shape[1], np.int64)
    spans: list[list[int]] = []
    for place, number, start, stop in zip(
        by_place.tolist(), *rows[[0, 2, 3]][:, by_place].tolist(), strict=True
    ):
        last = spans[-1] if spans else [-1, 0, 0]
        if (
            number == last[0]
            and start - last[2] <= _GAP_NBYTES
            and stop - last[1] <= _REQUEST_NBYTES
        ):
            last[2] = max(last[2], stop)
        else:
            spans.append([number, start, stop])
        groups[place] = len(spans) - 1
    _, firsts = np.unique(groups, return_index=True)
    needed = np.argsort(firsts)
    ranks = np.empty(len(spans), np.int64)
    ranks[needed] = np.arange(len(spans))
    return ranks[groups], [(one[0], one[1], one[2]) for one in map(spans.__getitem__, needed)]
