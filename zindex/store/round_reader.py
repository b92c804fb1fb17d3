"""One round of spans over local arrays: a single kernel call for all that is known to be sound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from zindex.store.open_array import OpenArray
from zindex.store.open_files import table
from zindex.store.rows import RowReader, Spans, check_counts, check_places

if TYPE_CHECKING:
    from zindex.store.reader import LocalReader

AnyArray: TypeAlias = npt.NDArray[Any]

#: A round of so few spans is read faster without a kernel.
FEW_SPANS = 2
#: Spans that a process reads before it takes a second to compile the kernel: the first batches of
#: a run, and short-lived processes, do without.
SPANS_BEFORE_KERNEL = 1024
_SCRATCH_NBYTES = 1 << 17
_SMALL_NBYTES = 1 << 14
_INT64 = np.dtype(np.int64)

_num_spans = 0


def kernel_pays() -> bool:
    """Return whether this process has read so much that compiling a kernel is worth it."""
    return _num_spans >= SPANS_BEFORE_KERNEL


def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
    """Return the spans of local arrays; see `zindex.store.rows.read_many`."""
    global _num_spans
    count = 0
    for spans in wanted:
        count += len(spans.starts)
    if count <= FEW_SPANS or not kernel_pays():
        _num_spans += count
        return [_read_each(spans) for spans in wanted]
    return _Round(wanted).read()


def _read_each(spans: Spans) -> AnyArray:
    """Return the rows of spans that are read one by one."""
    reader, starts, stops, out, places = spans
    local = cast("LocalReader", reader)
    if len(starts) == 1 == len(stops) and out is None and places is None:
        return local.read(int(starts[0]), int(stops[0]))
    return RowReader.read_spans(local, starts, stops, out, places)


class _Round:
    """The spans of a round as the kernel takes them.

    Parameters
    ----------
    wanted
        Spans of local readers, some of which may be such that the kernel cannot read them.
    """

    def __init__(self, wanted: Sequence[Spans]) -> None:
        self.wanted = wanted
        self.results: list[AnyArray | None] = []
        #: Of each group the spans, the open array, which must outlive the kernel, and the target.
        self.groups: list[tuple[Spans, OpenArray, AnyArray]] = []
        self.fields: list[int] = []
        self.num_spans = 0
        self.placed = False
        self.address = 0
        self.addressed: AnyArray | None = None
        # Small results are views of one block: to find out an array's address takes longer than
        # anything else here.
        self.block = np.empty(_SMALL_NBYTES, np.uint8)
        self.block_address = self.block.__array_interface__["data"][0]
        self.block_nbytes = 0
        for spans in wanted:
            self.results.append(self._add(spans))

    def _add(self, spans: Spans) -> AnyArray | None:
        """Put the spans of one array into the table and return their target."""
        reader, starts, stops, out, places = spans
        local = cast("LocalReader", reader)
        array = local._array
        if array is None or array.retired:
            array = local.bind()
        record = local.record(array)
        count = len(starts)
        if count != len(stops) or (places is not None and count != len(places)):
            check_counts(starts, stops, places)
        dtype = local.dtype
        wide = 0
        if out is None:
            if not record:
                return None
            rows = stops.item() - starts.item() if count == 1 else int((stops - starts).sum())
            if rows > local._length:
                local.refuse(starts, stops)  # or memory is taken for rows that are not there
            out, address = self._target(local, max(rows, 0))
        elif not record or not out.flags.carray or out.shape[1:] != local._row_shape:
            return None
        else:
            if out.dtype != dtype:
                if out.dtype != _INT64 or dtype.kind not in "iu" or dtype.itemsize > 4:
                    return None
                if out.ndim > 1:
                    return None
                wide = 1
            if out is not self.addressed:
                self.address = out.__array_interface__["data"][0]
                self.addressed = out
            address = self.address
        self.num_spans += count
        placed = places is not None
        self.placed |= placed
        self.fields += (self.num_spans, record, address, len(out), wide, placed)
        self.groups.append((spans, array, out))
        return out

    def _target(self, reader: "LocalReader", rows: int) -> tuple[AnyArray, int]:
        """Return an array for the rows of a reader, and its address."""
        first = self.block_nbytes
        nbytes = rows * reader._row_nbytes
        if first + nbytes <= _SMALL_NBYTES:
            self.block_nbytes = first + nbytes + (-nbytes & 7)
            part: AnyArray = self.block[first : first + nbytes].view(reader.dtype)
            if reader._row_shape:
                part = part.reshape(rows, *reader._row_shape)
            return part, self.block_address + first
        out = np.empty((rows, *reader._row_shape), reader.dtype)
        return out, out.__array_interface__["data"][0]

    def read(self) -> list[AnyArray]:
        """Return the rows of all spans."""
        if self.groups:
            self._gather()
        return [
            _read_each(spans) if rows is None else rows
            for spans, rows in zip(self.wanted, self.results, strict=True)
        ]

    def _gather(self) -> None:
        """Have the kernel read, and read for it what it leaves."""
        from zindex.kernels.gather import GROUP_LENGTH, gather

        fields = np.array(self.fields, np.int64).reshape(-1, GROUP_LENGTH)
        chosen = [group[0] for group in self.groups]
        starts = _join([spans.starts for spans in chosen])
        stops = _join([spans.stops for spans in chosen])
        places = starts
        if self.placed:
            parts = [spans.starts if spans.places is None else spans.places for spans in chosen]
            places = _join(parts)
        scratch = np.empty(_SCRATCH_NBYTES + 8, np.uint8)
        address = scratch.__array_interface__["data"][0]
        state = np.zeros(3, np.int64)
        while True:
            ticket = table.begin_read()
            try:
                done = gather(fields, starts, stops, places, address, _SCRATCH_NBYTES, state)
            finally:
                table.end_read(ticket)
            if done:
                return
            number, span, place = state.tolist()
            _read_left(self.groups[number], int(starts[span]), int(stops[span]), place)
            state[1] = span + 1
            state[2] = place + int(stops[span]) - int(starts[span])


def _join(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return arrays one after the other, in the dtype that the kernel takes."""
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return np.ascontiguousarray(joined, np.int64)


def _read_left(group: tuple[Spans, OpenArray, AnyArray], start: int, stop: int, place: int) -> None:
    """Read a span that the kernel left: it needs a file opened or a chunk verified, or is wrong."""
    spans, _, target = group
    reader = cast("LocalReader", spans.reader)
    rows = reader.read(start, stop)
    if place < 0 or place + len(rows) > len(target):
        reader.refuse(spans.starts, spans.stops)
        check_places(place, place + len(rows), len(target))
    target[place : place + len(rows)] = rows
