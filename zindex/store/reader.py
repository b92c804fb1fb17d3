"""Read spans of local arrays by position: many arrays or whole samples in one kernel call."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.io.helper_threads import run_with_helpers
from zindex.store.chunk_reader import FileReader
from zindex.store.codecs import lend_decoder
from zindex.store.open_array import OpenArray
from zindex.store.open_files import table
from zindex.store.rows import (
    RowReader,
    Spans,
    address_of,
    check_counts,
    check_places,
    read_one_by_one,
)

#: Called when a store is opened, so that its readers see the current files.
forget_open_shards = table.forget
#: Discards what this process knows about any file.
forget_all_files = table.forget_all

#: Up to this number of spans, a round is faster without the kernel.
FEW_SPANS = 2
#: Spans that a process reads before it compiles the kernel, which takes a second: the first batches
#: of a run and short-lived processes do without it.
SPANS_BEFORE_KERNEL = 1024
_SCRATCH_NBYTES = 1 << 17
_SMALL_NBYTES = 1 << 14
_NO_DECODER = nullcontext(0)
_INT64 = np.dtype(np.int64)
_WIDTHS = {np.dtype(np.int32): -4, np.dtype(np.uint32): 4, np.dtype(np.int64): -8}
# Fewer tokens, or an eighth as many if compressed, are read faster than a thread wakes up.
_TOKENS_PER_THREAD = 1 << 16
_TOKENS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")))

_num_spans = 0


def kernel_pays() -> bool:
    """Return whether this process reads enough to justify compiling the kernel."""
    return _num_spans >= SPANS_BEFORE_KERNEL


def _read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
    """Return the spans of local arrays: one kernel call for all chunks that are verified."""
    global _num_spans
    count = 0
    for spans in wanted:
        count += len(spans.starts)
    if count <= FEW_SPANS or not kernel_pays():
        _num_spans += count
        if count > FEW_SPANS:
            _read_ahead(wanted)
        return [_read_each(spans) for spans in wanted]
    return _Round(wanted).read()


class LocalReader(FileReader):
    """An array in local files, read by position; parameters as of `FileReader`."""

    def read(self, start: int, stop: int, out: AnyArray | None = None) -> AnyArray:
        """Return rows ``[start, stop)``; see `RowReader.read`."""
        array = self._array
        if array is not None and out is None and 0 <= start < stop <= self._length:
            shard, row = divmod(start, self._shard_length)
            file = array.files.get(shard)
            chunk, skip = divmod(row, self._chunk_length)
            count = stop - start
            if (
                file is not None
                and self._direct
                and skip + count <= self._chunk_length
                and file.index is None
                and (self._trusting or array.verified[shard * self._chunks_per_shard + chunk])
            ):
                array.used[shard] = 1
                rows = np.empty((count, *self._row_shape), self.dtype)
                offset = self._base + chunk * self._stride + skip * self._row_nbytes
                buffers: Any = (rows,)
                try:
                    if os.preadv(file.number, buffers, offset) == count * self._row_nbytes:
                        return rows
                except (OSError, AttributeError):
                    pass  # the slow path reports the error, and needs no preadv
        return super().read(start, stop, out)

    read_round = staticmethod(_read_round)

    @property
    def has_record(self) -> bool:
        """Whether kernels read it, as an array of single values."""
        return not self._row_shape and bool(self.record(self.bind()))

    def _decode_chunks(self, array: OpenArray, shard: int, first: int, rows: AnyArray) -> bool:
        global _num_spans
        num_chunks = len(rows) // self._chunk_length
        if not array.decoder_nbytes or num_chunks < FEW_SPANS:
            return False
        _num_spans += num_chunks
        if not kernel_pays():
            return False
        start = np.array([shard * self._shard_length + first])
        self.read_ahead(start, start + len(rows))
        address = address_of(rows)
        fields = np.array([[1, self.record(array), address, len(rows), 0, 0]])
        return _call_gather(
            fields, start, start + len(rows), start, np.zeros(3, np.int64), array.decoder_nbytes
        )


def lend_if_needed(decoder_nbytes: int) -> AbstractContextManager[int]:
    """Lend a decoder to a kernel, see `lend_decoder`, or the address 0 if it needs none."""
    return lend_decoder(decoder_nbytes) if decoder_nbytes else _NO_DECODER


def _read_ahead(wanted: Iterable[Spans]) -> None:
    """Ask the system to read ahead spans of local arrays that this process has not read yet."""
    for spans in wanted:
        cast("LocalReader", spans.reader).read_ahead(spans.starts, spans.stops)


def _read_each(spans: Spans) -> AnyArray:
    """Return the rows of spans, read one by one."""
    reader, starts, stops, out, places = spans
    if len(starts) == 1 == len(stops) and out is None and places is None:
        return cast("LocalReader", reader).read(int(starts[0]), int(stops[0]))
    return read_one_by_one(spans)


class _Round:
    """The spans of a round as kernel arguments.

    Parameters
    ----------
    wanted
        Spans of local readers; those that the kernel cannot read are read one by one.
    """

    def __init__(self, wanted: Sequence[Spans]) -> None:
        self.wanted = wanted
        self.results: list[AnyArray | None] = []
        #: For each group: the spans, the open array, which must outlive the kernel, and the target.
        self.groups: list[tuple[Spans, OpenArray, AnyArray]] = []
        self.fields: list[int] = []
        self.num_spans = 0
        self.placed = False
        self.address = 0
        self.addressed: AnyArray | None = None
        # Small results are views of one block, because looking up the address of an array is the
        # most expensive step here.
        self.block = np.empty(_SMALL_NBYTES, np.uint8)
        self.block_address = address_of(self.block)
        self.block_nbytes = 0
        for spans in wanted:
            self.results.append(self._add(spans))

    def _add(self, spans: Spans) -> AnyArray | None:
        """Add the spans of one array; return their destination, or None if the kernel cannot."""
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
                local.refuse(starts, stops)  # before memory is allocated for rows that do not exist
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
                self.address = address_of(out)
                self.addressed = out
            address = self.address
        self.num_spans += count
        placed = places is not None
        self.placed |= placed
        self.fields += (self.num_spans, record, address, len(out), wide, placed)
        self.groups.append((spans, array, out))
        return out

    def _target(self, reader: LocalReader, rows: int) -> tuple[AnyArray, int]:
        """Return a new array for rows of a reader, and its address."""
        first = self.block_nbytes
        nbytes = rows * reader._row_nbytes
        if first + nbytes <= _SMALL_NBYTES:
            self.block_nbytes = first + nbytes + (-nbytes & 7)
            part: AnyArray = self.block[first : first + nbytes].view(reader.dtype)
            if reader._row_shape:
                part = part.reshape(rows, *reader._row_shape)
            return part, self.block_address + first
        out = np.empty((rows, *reader._row_shape), reader.dtype)
        return out, address_of(out)

    def read(self) -> list[AnyArray]:
        """Return the rows of all spans."""
        if self.groups:
            self._gather()
        return [
            _read_each(spans) if rows is None else rows
            for spans, rows in zip(self.wanted, self.results, strict=True)
        ]

    def _gather(self) -> None:
        """Run the kernel, and read the spans that it skips."""
        from zindex.kernels.gather import GROUP_LENGTH

        fields = np.array(self.fields, np.int64).reshape(-1, GROUP_LENGTH)
        chosen = [group[0] for group in self.groups]
        starts = _join([spans.starts for spans in chosen])
        stops = _join([spans.stops for spans in chosen])
        places = starts
        if self.placed:
            parts = [spans.starts if spans.places is None else spans.places for spans in chosen]
            places = _join(parts)
        state = np.zeros(3, np.int64)
        nbytes = max(array.decoder_nbytes for _, array, _ in self.groups)
        for spans, array, _ in self.groups:
            table.count_spans(array, len(spans.starts))
        is_first = True
        while not _call_gather(fields, starts, stops, places, state, nbytes):
            number, span, place = state.tolist()
            if is_first:
                _read_ahead(chosen[number:])
                is_first = False
            _read_left(self.groups[number], int(starts[span]), int(stops[span]), place)
            state[1] = span + 1
            state[2] = place + int(stops[span]) - int(starts[span])


def _call_gather(
    fields: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    places: Int64Array,
    state: Int64Array,
    decoder_nbytes: int,
) -> bool:
    """Call the kernel from its current state, and return whether it has read all spans."""
    from zindex.kernels.gather import gather

    scratch = np.empty(_SCRATCH_NBYTES + 8, np.uint8)
    address = address_of(scratch)
    ticket = table.begin_read()
    try:
        with lend_if_needed(decoder_nbytes) as decoder:
            return gather(fields, starts, stops, places, address, _SCRATCH_NBYTES, decoder, state)
    finally:
        table.end_read(ticket)


def _join(parts: list[Int64Array]) -> Int64Array:
    """Return arrays concatenated, in the dtype of the kernel."""
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return np.ascontiguousarray(joined, np.int64)


def _read_left(group: tuple[Spans, OpenArray, AnyArray], start: int, stop: int, place: int) -> None:
    """Read a span that the kernel skipped: a closed file, an unverified chunk, or an error."""
    spans, _, target = group
    reader = cast("LocalReader", spans.reader)
    rows = reader.read(start, stop)
    if place < 0 or place + len(rows) > len(target):
        reader.refuse(spans.starts, spans.stops)
        check_places(place, place + len(rows), len(target))
    target[place : place + len(rows)] = rows


def can_read_samples(reader: RowReader | AnyArray) -> bool:
    """Return whether `read_samples` applies: local tokens, and the kernel pays off."""
    return isinstance(reader, LocalReader) and reader.dtype in _TOKENS and kernel_pays()


class SampleIndex:
    """The in-memory arrays from positions to tokens, as arguments of the kernel.

    Parameters
    ----------
    arrays
        Shuffle index, sample index, document index and bounds of documents.
    """

    def __init__(self, arrays: Sequence[AnyArray]) -> None:
        self.arrays = arrays
        self.columns = np.empty((len(arrays), 3), np.int64)
        #: Whether the kernel can read them.
        self.readable = True
        for column, values in zip(self.columns, arrays, strict=True):
            width = _WIDTHS.get(values.dtype)
            if width is None or not values.flags.c_contiguous:
                self.readable = False
            else:
                column[:] = values.ctypes.data, values.size, width


def read_samples(
    reader: RowReader,
    index: SampleIndex,
    positions: Int64Array,
    rows: Int64Array,
    tensors: tuple[AnyArray, AnyArray, AnyArray],
    *,
    extra: int,
    pad: int,
    num_threads: int = 1,
    text: AnyArray | None = None,
) -> bool:
    """Fill tensors with samples, if all are full and their chunks open and verified.

    Parameters
    ----------
    reader
        An array for which `can_read_samples` holds.
    index
        The in-memory index; readable.
    positions
        Shape (samples,), int64: positions in the dataset.
    rows
        Shape (samples,), int64: row of each in the tensors.
    tensors
        Tokens, labels and loss mask, each of shape (..., length), C order: int64, int64, float32.
    extra
        Tokens that a sample has beyond its length: 0 or 1.
    pad
        The padding token.
    num_threads
        Maximum number of threads for large batches.
    text
        Shape (..., length + extra), C order, in the dtype of the array: receives the tokens of the
        samples instead of the tensors.

    Returns
    -------
    done
        If False, the caller must read all of them on the slow path, which opens files, verifies
        chunks, pads, and raises errors.
    """
    from zindex.kernels.batches import read_samples as fill

    assert isinstance(reader, LocalReader)
    array = reader.bind()
    record = reader.record(array)
    if not record or (text is not None and text.dtype != reader.dtype):
        return False
    tokens, labels, loss_mask = tensors
    width = tokens.shape[1] + extra
    nbytes = width * reader.dtype.itemsize
    next_sample = np.zeros(1, np.int64)

    def work() -> int:
        scratch = np.empty(8 * (nbytes // 8 + 2), np.uint8), 0
        if text is not None:
            scratch = text.reshape(-1).view(np.uint8), nbytes
        outputs = tokens, labels, loss_mask, next_sample
        needed = array.decoder_nbytes
        wanted = index.columns, record, positions, rows, extra, pad
        with lend_if_needed(needed) as decoder:
            return int(fill(*wanted, *scratch, decoder, *outputs))

    tokens_per_thread = _TOKENS_PER_THREAD // (16 if array.decoder_nbytes else 1)
    shares = min(num_threads, len(positions) * width // tokens_per_thread, len(positions))
    table.count_spans(array, len(positions))
    ticket = table.begin_read()
    try:
        count = run_with_helpers(work, shares) if shares > 1 else work()
    finally:
        table.end_read(ticket)
    return count == len(positions)
