"""Read spans of arrays in object stores: whole inner chunks, fetched concurrently and cached.

A checksum covers a chunk, so no less is fetched. All chunks of one call, of any number of arrays,
are requested at once, and neighbours share a request. Decoded chunks are cached within a limit of
bytes per process, and an array that is read sequentially is prefetched.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.io.objects import ObjectPath
from zindex.store.chunk_fetch import Need, RemoteArray, obtain
from zindex.store.layout import ArrayLayout
from zindex.store.reader import Verify
from zindex.store.rows import RoundReader, Spans
from zindex.store.shard import ArrayFiles

# Bytes of chunks that one call has in memory at a time, in addition to the cache.
_ROUND_NBYTES = 64 << 20


class RemoteReader(RoundReader):
    """One array of a zindex store in an object store, read by position.

    Parameters
    ----------
    root
        Place of the store.
    layout
        The array's layout.
    version
        Distinguishes stores that succeed each other at this place.
    verify
        ``"never"`` skips the checksums; otherwise each chunk is checked whenever it is fetched.
    """

    layout: ArrayLayout

    def __init__(
        self, root: ObjectPath, layout: ArrayLayout, version: str = "", verify: Verify = "first"
    ) -> None:
        super().__init__(layout)
        self.version = version
        self.array = RemoteArray(root, ArrayFiles.of(layout), version, verify != "never")
        self._arguments = root, layout, version, verify

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several remote arrays, with all requests made concurrently."""
        jobs = [_Job(spans.reader, *spans.resolve()) for spans in wanted]
        for batch in _batch(jobs):
            needs = [Need(job.array, job.chunks) for job in batch]
            for job, chunks in zip(batch, obtain(needs), strict=True):
                job.copy(chunks)
        return [job.out for job in jobs]


class _Job:
    """Resolved spans of one remote array; arguments as of `Spans`."""

    def __init__(
        self, reader: Any, starts: Int64Array, stops: Int64Array, out: AnyArray, places: Int64Array
    ) -> None:
        self.reader: RemoteReader = reader
        self.array = self.reader.array
        self.starts, self.stops, self.out, self.places = starts, stops, out, places

    @property
    def chunks(self) -> Int64Array:
        """The chunks that the spans touch, ascending."""
        filled = self.stops > self.starts
        first = self.starts[filled] // self.array.form.chunk_length
        last = (self.stops[filled] - 1) // self.array.form.chunk_length
        counts = last - first + 1
        if not counts.size or counts.max() == 1:
            return np.unique(first)
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(np.repeat(first, counts) + steps)

    def split(self) -> Iterator["_Job"]:
        """Yield jobs of bounded memory that together are this one."""
        form = self.array.form
        limit = max(1, _ROUND_NBYTES // form.chunk_nbytes)
        if len(self.chunks) <= limit:
            yield self
        elif len(self.starts) > 1:
            middle = len(self.starts) // 2
            for part in (slice(None, middle), slice(middle, None)):
                bounds = self.starts[part], self.stops[part]
                yield from _Job(self.reader, *bounds, self.out, self.places[part]).split()
        else:
            start, stop = int(self.starts[0]), int(self.stops[0])
            step = limit * form.chunk_length
            limits = [start, *range((start // step + 1) * step, stop, step), stop]
            for first, last in pairwise(limits):
                row = np.array([[first], [last]])
                yield _Job(self.reader, row[0], row[1], self.out, self.places + first - start)

    def copy(self, chunks: dict[int, AnyArray]) -> None:
        """Copy the rows of the spans to their destination."""
        length, out = self.array.form.chunk_length, self.out
        numbers = self.starts // length
        if len(numbers) > len(chunks) and (self.stops - self.starts == 1).all():
            order = np.argsort(numbers, kind="stable")
            bounds = np.flatnonzero(np.diff(numbers[order])) + 1
            for rows in np.split(order, bounds):
                number = int(numbers[rows[0]])
                out[self.places[rows]] = chunks[number][self.starts[rows] - number * length]
            return
        spans = (self.starts.tolist(), self.stops.tolist(), self.places.tolist())
        for start, stop, place in zip(*spans, strict=True):
            row = start
            while row < stop:
                number, skip = divmod(row, length)
                count = min(length - skip, stop - row)
                at = place + row - start
                out[at : at + count] = chunks[number][skip : skip + count]
                row += count


def _batch(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield jobs that are done together: all at once if they fit in memory."""
    batch: list[_Job] = []
    nbytes = 0
    for job in jobs:
        for part in job.split():
            size = len(part.chunks) * part.array.form.chunk_nbytes
            if batch and nbytes + size > _ROUND_NBYTES:
                yield batch
                batch, nbytes = [], 0
            batch.append(part)
            nbytes += size
    if batch:
        yield batch
