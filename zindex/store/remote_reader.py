"""Read spans of arrays in object stores: whole inner chunks, fetched concurrently and cached.

A checksum covers a whole chunk, so chunks are fetched whole. All chunks of a call, of any number of
arrays, are requested concurrently, and neighbouring chunks share a request. Decoded chunks are
cached up to a limit per process, and sequential reads of an array are prefetched.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from zindex.arrays import AnyArray
from zindex.io.objects import ObjectPath
from zindex.store.chunk_fetch import obtain, remote_array
from zindex.store.chunk_reader import Verify
from zindex.store.layout import ArrayLayout
from zindex.store.rows import RoundReader, Spans
from zindex.store.shard import ArrayFiles

# Maximum size of the chunks that one call holds in memory, in addition to the cache.
_ROUND_NBYTES = 64 << 20


class RemoteReader(RoundReader):
    """One array of a zindex store in an object store, read by position.

    Parameters
    ----------
    root
        Location of the store.
    layout
        The array's layout.
    version
        Distinguishes stores that replace each other at the same location.
    verify
        ``"never"`` skips the checksums; otherwise each chunk is verified whenever it is fetched.
    """

    layout: ArrayLayout

    def __init__(
        self, root: ObjectPath, layout: ArrayLayout, version: str = "", verify: Verify = "first"
    ) -> None:
        super().__init__(layout)
        is_checked = verify != "never" or layout.codec != "none"
        self.array = remote_array(root, ArrayFiles.of(layout), version, is_checked)
        self._arguments = root, layout, version, verify

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several remote arrays, with all requests made concurrently."""
        jobs = [_Job(spans) for spans in wanted]
        for batch in _batch(jobs):
            needs = [(job.array, job.chunks[first:stop]) for job, first, stop in batch]
            for (job, first, stop), chunks in zip(batch, obtain(needs), strict=True):
                job.copy(first, stop, chunks)
        return [job.out for job in jobs]


class _Job:
    """Spans of one remote array, split at chunk boundaries."""

    def __init__(self, spans: Spans) -> None:
        self.array = cast("RemoteReader", spans.reader).array
        starts, stops, self.out, places = spans.resolve()
        length = self.array.form.chunk_length
        first = starts // length
        counts = np.where(stops > starts, (stops - 1) // length + 1 - first, 0)
        span = np.repeat(np.arange(len(starts)), counts)
        chunk = first[span] + np.arange(len(span)) - (np.cumsum(counts) - counts)[span]
        begin = np.maximum(starts[span], chunk * length)
        end = np.minimum(stops[span], (chunk + 1) * length)
        place = places[span] + begin - starts[span]
        pieces = np.array([chunk, begin - chunk * length, end - chunk * length, place])
        #: Shape (4, pieces), in chunk order: chunk, first and last + 1 row in it, position in
        #: ``out``.
        self.pieces = pieces[:, np.argsort(chunk, kind="stable")]
        #: The chunks, ascending, and their first pieces.
        self.chunks = np.unique(chunk)
        self.bounds = [*np.searchsorted(self.pieces[0], self.chunks).tolist(), len(chunk)]

    def copy(self, first: int, stop: int, chunks: dict[int, AnyArray]) -> None:
        """Copy the pieces of chunks ``self.chunks[first:stop]`` to their destination."""
        bounds = self.bounds[first : stop + 1]
        pieces = self.pieces[:, bounds[0] : bounds[-1]]
        if pieces.shape[1] > len(chunks) and (pieces[2] - pieces[1] == 1).all():
            for start, end in pairwise(bounds):
                chunk, row, _, place = self.pieces[:, start:end]
                self.out[place] = chunks[int(chunk[0])][row]
            return
        for number, row, end, at in pieces.T.tolist():
            self.out[at : at + end - row] = chunks[number][row:end]


def _batch(jobs: Sequence[_Job]) -> Iterator[list[tuple[_Job, int, int]]]:
    """Yield ranges of chunks to fetch together: all at once if they fit in memory."""
    batch: list[tuple[_Job, int, int]] = []
    room = _ROUND_NBYTES
    for job in jobs:
        nbytes, first = job.array.form.chunk_nbytes, 0
        while first < len(job.chunks):
            stop = min(first + max(room // nbytes, not batch), len(job.chunks))
            if first == stop:
                yield batch
                batch, room = [], _ROUND_NBYTES
                continue
            batch.append((job, first, stop))
            room -= (stop - first) * nbytes
            first = stop
    if batch:
        yield batch
