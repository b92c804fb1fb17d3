"""Spans of an array in an object store: whole inner chunks, fetched side by side and kept.

A chunk is what a checksum covers, so no less is fetched. All chunks that one call needs, of however
many arrays, are asked for at once; neighbours share a request. Decoded chunks stay in memory, a
bounded number of bytes for each process, and an array that is read in order is fetched ahead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.store.chunk_fetch import Need, RemoteArray, obtain
from zindex.store.layout import ArrayLayout
from zindex.store.objects import ObjectPath
from zindex.store.reader import Verify
from zindex.store.rows import RowReader, Spans, check_places

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

# Bytes of chunks that are in memory for one call at a time, beside those that are kept.
_ROUND_NBYTES = 64 << 20


class RemoteReader(RowReader):
    """One stored array in an object store, read by position.

    Parameters
    ----------
    root
        Place of the store.
    layout
        The array's layout.
    version
        Tells the stores apart that lie at this place one after another.
    verify
        ``"never"`` skips the checksums; otherwise each chunk is checked whenever it is fetched.
    """

    layout: ArrayLayout

    def __init__(
        self, root: ObjectPath, layout: ArrayLayout, version: str = "", verify: Verify = "first"
    ) -> None:
        super().__init__(layout)
        self.root = root
        self.version = version
        self.verify: Verify = verify

    @property
    def array(self) -> RemoteArray:
        """What is read."""
        return RemoteArray(self.root, self.layout, self.version, self.verify != "never")

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        spans = np.array([start], np.int64), np.array([stop], np.int64)
        RemoteReader.read_round([Spans(self, *spans, out)])

    def read_spans(
        self,
        starts: Int64Array,
        stops: Int64Array,
        out: AnyArray | None = None,
        places: Int64Array | None = None,
    ) -> AnyArray:
        """Return the rows of many spans, one span after the other; see `RowReader.read_spans`."""
        return RemoteReader.read_round([Spans(self, starts, stops, out, places)])[0]

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several remote arrays: all their requests are made side by side."""
        jobs = [_Job.of(spans) for spans in wanted]
        for group in _group(jobs):
            needs = [Need(job.reader.array, job.chunks) for job in group]
            for job, chunks in zip(group, obtain(needs), strict=True):
                job.copy(chunks)
        return [job.out for job in jobs]


@dataclass(frozen=True, slots=True)
class _Job:
    """Spans of one remote array, and where they go."""

    reader: RemoteReader
    starts: Int64Array
    stops: Int64Array
    out: AnyArray
    places: Int64Array

    @classmethod
    def of(cls, spans: Spans) -> "_Job":
        reader = spans.reader
        assert isinstance(reader, RemoteReader)
        starts, stops = np.asarray(spans.starts, np.int64), np.asarray(spans.stops, np.int64)
        wrong = np.flatnonzero((starts < 0) | (starts > stops) | (stops > len(reader)))
        if wrong.size:
            first = int(wrong[0])
            raise IndexError(
                f"rows [{int(starts[first])}, {int(stops[first])}) are outside "
                f"{reader.layout.name} of length {len(reader)}"
            )
        lengths = stops - starts
        places = np.cumsum(lengths) - lengths if spans.places is None else spans.places
        out = spans.out
        if out is None:
            out = np.empty((int(lengths.sum()), *reader.shape[1:]), reader.dtype)
        if len(places):
            check_places(int(places.min()), int((places + lengths).max()), len(out))
        return cls(reader, starts, stops, out, np.asarray(places, np.int64))

    @property
    def chunks(self) -> Int64Array:
        """The chunks that the spans touch, ascending."""
        filled = self.stops > self.starts
        first = self.starts[filled] // self.reader.layout.chunk_length
        last = (self.stops[filled] - 1) // self.reader.layout.chunk_length
        counts = last - first + 1
        if not counts.size or counts.max() == 1:
            return np.unique(first)
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(np.repeat(first, counts) + steps)

    def split(self) -> Iterator["_Job"]:
        """Yield jobs of bounded memory that together do this one."""
        limit = max(1, _ROUND_NBYTES // self.reader.array.chunk_nbytes)
        if len(self.chunks) <= limit:
            yield self
        elif len(self.starts) > 1:
            middle = len(self.starts) // 2
            yield from self._part(slice(None, middle)).split()
            yield from self._part(slice(middle, None)).split()
        else:
            start, stop, place = int(self.starts[0]), int(self.stops[0]), int(self.places[0])
            step = limit * self.reader.layout.chunk_length
            cuts = np.array([start, *range((start // step + 1) * step, stop, step), stop])
            firsts, lasts = cuts[:-1], cuts[1:]
            places = place + firsts - start
            for row in range(len(firsts)):
                part = slice(row, row + 1)
                yield _Job(self.reader, firsts[part], lasts[part], self.out, places[part])

    def _part(self, part: slice) -> "_Job":
        bounds = self.starts[part], self.stops[part]
        return _Job(self.reader, *bounds, self.out, self.places[part])

    def copy(self, chunks: dict[int, AnyArray]) -> None:
        """Put the rows of the spans where they go."""
        length, out = self.reader.layout.chunk_length, self.out
        numbers = self.starts // length
        if len(numbers) > len(chunks) and (self.stops - self.starts == 1).all():
            order = np.argsort(numbers, kind="stable")
            cuts = np.flatnonzero(np.diff(numbers[order])) + 1
            for rows in np.split(order, cuts):
                number = int(numbers[rows[0]])
                out[self.places[rows]] = chunks[number][self.starts[rows] - number * length]
            return
        bounds = (self.starts.tolist(), self.stops.tolist(), self.places.tolist())
        for start, stop, place in zip(*bounds, strict=True):
            row = start
            while row < stop:
                number, skip = divmod(row, length)
                count = min(length - skip, stop - row)
                at = place + row - start
                out[at : at + count] = chunks[number][skip : skip + count]
                row += count


def _group(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield jobs that are done together: all at once where memory allows."""
    group: list[_Job] = []
    nbytes = 0
    for job in jobs:
        for part in job.split():
            size = len(part.chunks) * part.reader.array.chunk_nbytes
            if group and nbytes + size > _ROUND_NBYTES:
                yield group
                group, nbytes = [], 0
            group.append(part)
            nbytes += size
    if group:
        yield group
