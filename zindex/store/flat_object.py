"""An object that is one array and nothing else, such as the tokens of a ``.bin``, by position."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.errors import VerificationError
from zindex.store.array_files import ArrayFiles
from zindex.store.chunk_cache import cache
from zindex.store.chunk_fetch import REQUEST_NBYTES, Part, Request, coalesce
from zindex.store.codecs import CodecChain
from zindex.store.remote_files import RemoteFile, open_remote
from zindex.store.request_threads import wait_for
from zindex.store.rows import RowReader, Spans, check_counts, check_places

if TYPE_CHECKING:
    from concurrent.futures import Future

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

# Bytes of answers that are in memory for one call at a time.
_ROUND_NBYTES = 64 << 20


class FlatObject(RowReader):
    """The values of an object, in the machine's byte order and without checksums.

    The bytes of spans are asked for, with those between near ones, side by side for all spans of
    all objects of a round; nothing is kept. Pickles as its arguments.

    Parameters
    ----------
    url
        The object.
    nbytes
        Its size.
    dtype
        Dtype of the values.
    block_nbytes
        None, or the bytes of the blocks that are asked for instead, of which the last one is kept:
        for reading in order with few requests.
    """

    def __init__(
        self, url: str, nbytes: int, dtype: npt.DTypeLike, block_nbytes: int | None = None
    ) -> None:
        values = np.dtype(dtype)
        length = nbytes // values.itemsize
        super().__init__(
            ArrayFiles(
                name=url,
                length=length,
                num_columns=1,
                dtype=values.name,
                chunk_length=max(1, length),
                shard_length=max(1, length),
                chain=CodecChain(),
                index=None,
                prefix=url,
                flat=True,
            )
        )
        self.url = url
        self.file_nbytes = nbytes
        self.block_nbytes = block_nbytes
        #: First element of the block that is kept, and the block.
        self._block: tuple[int, AnyArray] = (0, np.empty(0, values))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.file_nbytes, self.dtype, self.block_nbytes)

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        span = np.array([start], np.int64), np.array([stop], np.int64)
        FlatObject.read_round([Spans(self, *span, out)])

    def read_spans(
        self,
        starts: Int64Array,
        stops: Int64Array,
        out: AnyArray | None = None,
        places: Int64Array | None = None,
    ) -> AnyArray:
        """Return the rows of many spans, one span after the other; see `RowReader.read_spans`."""
        return FlatObject.read_round([Spans(self, starts, stops, out, places)])[0]

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several objects: all their requests are made side by side."""
        jobs = [_Job.of(spans) for spans in wanted]
        groups: list[_Group] = []
        for job in jobs:
            if job.reader.block_nbytes:
                job.reader._copy_blocks(job)
            else:
                groups += job.groups()
        _fetch(groups)
        return [job.out for job in jobs]

    def _copy_blocks(self, job: "_Job") -> None:
        """Put the rows of spans where they go, out of the kept block or those after it."""
        for start, stop, place in job.spans:
            at = start
            while at < stop:
                first, block = self._block
                if not first <= at < first + len(block):
                    first, block = self._block = self._load_blocks(at, stop)
                end = min(stop, first + len(block))
                job.out[place + at - start : place + end - start] = block[at - first : end - first]
                at = end

    def _load_blocks(self, start: int, stop: int) -> tuple[int, AnyArray]:
        """Return the block in which a span begins, with as many more as it reaches into."""
        assert self.block_nbytes
        length = max(1, self.block_nbytes // self.dtype.itemsize)
        first = start // length * length
        last = min(-(-stop // length) * length, len(self))
        job = _Job(self, [(first, last, 0)], np.empty(last - first, self.dtype))
        _fetch(list(job.groups()))
        return first, job.out


class _Job(NamedTuple):
    """Spans of one object, and where they go."""

    reader: FlatObject
    #: Start, stop and place in ``out`` of each, ascending by start.
    spans: list[tuple[int, int, int]]
    out: AnyArray

    @classmethod
    def of(cls, spans: Spans) -> "_Job":
        reader = spans.reader
        assert isinstance(reader, FlatObject)
        starts, stops = np.asarray(spans.starts, np.int64), np.asarray(spans.stops, np.int64)
        check_counts(starts, stops, spans.places)
        reader.refuse(starts, stops)
        lengths = stops - starts
        places = np.cumsum(lengths) - lengths if spans.places is None else spans.places
        out = spans.out
        if out is None:
            out = np.empty(int(lengths.sum()), reader.dtype)
        if len(places):
            check_places(int(places.min()), int((places + lengths).max()), len(out))
        order = np.argsort(starts, kind="stable")
        rows = (starts[order].tolist(), stops[order].tolist(), places[order].tolist())
        return cls(reader, list(zip(*rows, strict=True)), out)

    def groups(self) -> Iterator["_Group"]:
        """Yield the requests for all spans, as many together as a thread makes."""
        itemsize = self.reader.dtype.itemsize
        step = REQUEST_NBYTES // itemsize
        parts: list[Part] = []
        places: list[int] = []
        for start, stop, place in self.spans:
            for first in range(start, stop, step):
                nbytes = min(step, stop - first) * itemsize
                parts.append(Part(len(parts), first * itemsize, nbytes))
                places.append(place + first - start)
        file = open_remote(self.reader.url)
        requests = coalesce(parts)
        for first in range(0, len(requests), file.num_together):
            yield _Group(self, file, requests[first : first + file.num_together], places)


class _Group(NamedTuple):
    """Requests to one object that a thread makes."""

    job: _Job
    file: RemoteFile
    requests: list[Request]
    #: Place in ``out`` of each part of the job.
    places: list[int]

    @property
    def nbytes(self) -> int:
        """Bytes of the answers."""
        return sum(request.stop - request.start for request in self.requests)

    def answer(self) -> None:
        """Make the requests, and put what comes where it goes."""
        grain = self.file.grain
        starts = [request.start // grain * grain for request in self.requests]
        stops = [-(-request.stop // grain) * grain for request in self.requests]
        reader, out = self.job.reader, self.job.out
        try:
            contents = self.file.read_ranges(starts, stops)
        except FileNotFoundError:
            raise VerificationError(
                f"{reader.url} must be there, as when it was opened, it is gone; restore it"
            ) from None
        cache.count_requests(len(contents), sum(map(len, contents)))
        for request, first, content in zip(self.requests, starts, contents, strict=True):
            for part in request.parts:
                stored = content[part.offset - first : part.offset - first + part.nbytes]
                if len(stored) != part.nbytes:
                    raise VerificationError(
                        f"{reader.url} must hold {part.nbytes:,} bytes from byte {part.offset:,}, "
                        f"as when it was opened, but {len(stored):,} came; restore it and open it "
                        "again"
                    )
                values = np.frombuffer(stored, reader.dtype)
                place = self.places[part.chunk]
                out[place : place + len(values)] = values


def _fetch(groups: Sequence[_Group]) -> None:
    """Make the requests of groups side by side, of a bounded number of bytes at a time."""
    pending: deque[tuple[Future[None], int]] = deque()
    nbytes = 0
    if len(groups) == 1:
        groups[0].answer()
        return
    for group in groups:
        while pending and nbytes + group.nbytes > _ROUND_NBYTES:
            future, size = pending.popleft()
            wait_for(future)
            nbytes -= size
        pending.append((cache.pool.submit(group.answer), group.nbytes))
        nbytes += group.nbytes
    for future, _ in pending:
        wait_for(future)
