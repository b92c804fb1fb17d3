"""Values of keys in local files, gathered into batches by one kernel call.

Nothing is copied to shared memory: values are pickled as the description of their files.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from zindex.arrays import AnyArray, Int32Array, Int64Array
from zindex.errors import SourceError, StoreNotFoundError, VerificationError
from zindex.formats.keyed.keyed_array import KeyedArray
from zindex.io.local import map_file
from zindex.kernels import gather_extents
from zindex.kernels.gather import DESCRIPTORS, MAPS, USED
from zindex.store.open_array import OpenArray
from zindex.store.open_files import SPANS_BEFORE_MAPS
from zindex.store.open_files import table as open_files
from zindex.store.reader import LocalReader, kernel_pays, lend_if_needed
from zindex.store.rows import RowReader, address_of
from zindex.store.tokens import FlatFile

# What the kernel needs of the record of a file.
_CELLS = [DESCRIPTORS, USED, MAPS]
_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)
# Less than what malloc requests from the system at every call.
_SCRATCH_NBYTES = 1 << 16


class CopySpans(NamedTuple):
    """Spans of values and their destinations; reads that share an instance are done together."""

    #: Shape (spans,), int64: values of a column.
    starts: Int64Array
    stops: Int64Array
    #: Shape (spans,), int64: first value of each in the flat target.
    places: Int64Array


class ColumnRead(NamedTuple):
    """One target to fill with spans of a column, converted to the target's dtype."""

    values: "FileValues | RowReader"
    spans: CopySpans
    #: C order, of any shape.
    target: AnyArray
    #: Added to the starts and stops of the spans.
    shift: int = 0

    @property
    def is_gathered(self) -> bool:
        """Whether `gather_file_values` reads these values."""
        values = self.values
        if isinstance(values, FileValues):
            return True
        return isinstance(values, LocalReader) and kernel_pays() and values.has_record

    @property
    def form(self) -> int | None:
        """The conversion by the kernel of `gather_file_values`, if it has it."""
        kept, wanted = self.values.dtype, self.target.dtype
        if wanted == _BOOL:  # a file may hold any byte, but torch's booleans must be 0 or 1
            return None if kept.kind == "f" else gather_extents.TRUTH
        if wanted == kept:
            return gather_extents.COPY
        return gather_extents.WIDEN if wanted == _INT64 else None

    @property
    def is_direct(self) -> bool:
        """Whether the reader itself converts to the target's dtype."""
        if self.is_gathered:
            return self.form is not None
        return self.target.dtype in (self.values.dtype, _INT64)

    @property
    def row_width(self) -> int:
        """The length of the spans if they are the rows of the target, in order; otherwise 0."""
        (starts, stops, places), width = self.spans, self.target.shape[-1]
        is_whole = 0 < self.target.size == len(places) * width and places[0] == 0
        is_whole = is_whole and bool((stops - starts == width).all())
        return width if is_whole and bool((places[1:] - places[:-1] == width).all()) else 0

    def put(self, values: AnyArray) -> None:
        """Convert the spans of ``values`` into the target's shape; leave the rest unchanged."""
        flat, source = self.target.reshape(-1), values.reshape(-1)
        lengths = self.spans.stops - self.spans.starts
        for place, length in zip(self.spans.places.tolist(), lengths.tolist(), strict=True):
            flat[place : place + length] = source[place : place + length]


class FileValues:
    """All values of one key, in extents of files that are read by position.

    Values that HDF5 stores in chunks are loaded into memory at the first read.

    Parameters
    ----------
    arrays
        Of one key, one for each shard, with the same dtype.
    mapped
        Whether to memory-map all files: a file that is truncated while open kills the process with
        SIGBUS.

    Notes
    -----
    Pickled as the description of its files, which each process opens on first use. If a file is
    truncated while open, reads of the lost part raise an error.
    """

    def __init__(self, arrays: Sequence[KeyedArray], *, mapped: bool = False) -> None:
        self.mapped = mapped
        self.arrays = tuple(replace(array, item_offset=None, group_offset=None) for array in arrays)
        self.dtype = np.dtype(self.arrays[0].dtype)

    def __len__(self) -> int:
        return sum(array.length for array in self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self.arrays, "dtype": self.dtype, "mapped": self.mapped}

    @property
    def table(self) -> "_Extents":
        """The extents in this process; callers that use its addresses keep a reference."""
        table: _Extents | None = vars(self).get("_table")
        if table is None:  # concurrent threads share one table
            table = vars(self).setdefault("_table", _Extents(self.arrays, mapped=self.mapped))
        return table


class _Chunks:
    """The files of a Zarr array as `_Extents` are those of `FileValues`."""

    def __init__(self, reader: LocalReader) -> None:
        self.reader, self.array = reader, reader.bind()
        self.decoder_nbytes = self.array.decoder_nbytes
        itemsize = reader.dtype.itemsize
        width = -itemsize if reader.dtype.kind == "i" else itemsize
        self.record = 0, reader.record(self.array), 0, 0, 0, width

    def count_spans(self, count: int) -> None:
        """Count spans that are read."""
        open_files.count_spans(self.array, count)

    def open(self, starts: Int64Array, stops: Int64Array) -> None:
        """Have the system read spans ahead."""
        self.reader.read_ahead(starts, stops)

    def read(self, start: int, stop: int) -> AnyArray:
        """Return values ``[start, stop)``, after verifying their chunks."""
        return self.reader.read(start, stop)


class _Extents:
    """The extents of a key in this process; keeps their memory alive."""

    decoder_nbytes = 0

    def __init__(self, arrays: Sequence[KeyedArray], *, mapped: bool) -> None:
        self.mapped, self.num_spans = mapped, 0
        self.dtype = np.dtype(arrays[0].dtype)
        self.ends = np.cumsum(np.concatenate([np.diff(array.value_offset) for array in arrays]))
        self.places = np.concatenate([array.span_start for array in arrays])
        self.readers: list[FlatFile] = []
        self.bound: dict[int, OpenArray] = {}
        #: The objects that own the addresses in `places` and `files`.
        self.owners: list[Any] = []
        self.file_of = np.full(len(self.places), -1, np.int32)
        first = 0
        for array in arrays:
            stop = first + len(array.span_start)
            self._add(array, self.places[first:stop], self.file_of[first:stop])
            first = stop
        self.files = np.zeros((len(self.readers), 3), np.int64)
        for number in range(len(self.readers)):
            self.bind(number)
        #: The fields used by `zindex.kernels.gather_extents`.
        self.record = (
            self.ends.ctypes.data,
            self.places.ctypes.data,
            self.file_of.ctypes.data,
            self.files.ctypes.data,
            len(self.ends),
            -self.dtype.itemsize if self.dtype.kind == "i" else self.dtype.itemsize,
        )

    def _add(self, array: KeyedArray, places: Int64Array, file_of: Int32Array) -> None:
        """Register the extents of a shard: in a file, or at an address."""
        for number in np.flatnonzero(array.span_start < 0).tolist():
            copied = array.read(*array.value_offset[number : number + 2].tolist())
            self.owners.append(copied)
            places[number] = copied.ctypes.data
        starts, lengths = array.span_start, np.diff(array.value_offset)
        in_file = (starts >= 0) & (lengths > 0)
        if not in_file.any():
            return
        needed = int((starts + lengths * self.dtype.itemsize)[in_file].max())
        nbytes = _check_size(array, needed)
        if self.mapped:
            content = map_file(array.path, nbytes)
            self.owners.append(content)
            places[in_file] += content.ctypes.data
            return
        version = None if array.modified is None else str(array.modified)
        file_of[in_file] = len(self.readers)
        # All keys of a file share its descriptor.
        self.readers.append(FlatFile(array.path, nbytes, np.uint8, version))

    def bind(self, number: int) -> OpenArray:
        """Make a file's descriptor visible to kernels, and return its state in this process."""
        array = self.readers[number].bind()
        if self.bound.get(number) is not array:
            self.bound[number] = array
            self.owners.append(array)  # another thread's kernel may still read the previous one
            self.files[number] = array.records[0, _CELLS]
        return array

    def count_spans(self, count: int) -> None:
        """Count spans that are read; many of them have the files mapped."""
        before, self.num_spans = self.num_spans, self.num_spans + count
        if before < SPANS_BEFORE_MAPS <= self.num_spans:
            for array in self.bound.values():
                open_files.map_files(array)

    def open(self, starts: Int64Array, stops: Int64Array) -> None:
        """Open the files of spans for kernels; errors are left to the reads."""
        first = np.searchsorted(self.ends, starts, "right").tolist()
        last = np.searchsorted(self.ends, stops, "left").tolist()
        touched = [self.file_of[a : b + 1] for a, b in zip(first, last, strict=True)]
        for number in {number for files in touched for number in files.tolist()} - {-1}:
            with suppress(VerificationError, OSError):
                open_files.open(self.bind(number), 0)

    def read(self, start: int, stop: int) -> AnyArray:
        """Return values ``[start, stop)``, read span by span."""
        values = np.empty(stop - start, self.dtype)
        extent = int(np.searchsorted(self.ends, start, "right"))
        while start < stop:
            first = int(self.ends[extent - 1]) if extent else 0
            length = min(stop, int(self.ends[extent])) - start
            part = values[len(values) - (stop - start) :][:length].view(np.uint8)
            place = int(self.places[extent]) + (start - first) * self.dtype.itemsize
            number = int(self.file_of[extent])
            self.bind(number)
            self.readers[number].read(place, place + len(part), part)
            start += length
            extent += 1
        return values


def _check_size(array: KeyedArray, needed: int) -> int:
    """Return the bytes of a file, after checking that it is the one that was described."""
    try:
        array.check_unchanged()
        nbytes = os.stat(array.path).st_size
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{array.path} must still be there, as when the store was described; load it again"
        ) from error
    if nbytes < needed:
        raise SourceError(
            f"{array.path} must have at least {needed:,} bytes, as when the store was described, "
            f"it has {nbytes:,}; load the store again"
        )
    return nbytes


def gather_file_values(reads: Mapping[int, ColumnRead]) -> dict[int, int]:
    """Fill targets with spans of values in local files, by calls of one kernel.

    Parameters
    ----------
    reads
        Direct reads by number, which are gathered and whose spans are in their columns and targets.

    Returns
    -------
    largest
        By number, the largest value of a read, -1 if one is negative, where that is known: only
        conversions to int64 find it.
    """
    groups: list[tuple[int, ...]] = []
    tables: list[_Extents | _Chunks] = []
    opened: dict[int, _Extents | _Chunks] = {}
    firsts: dict[int, tuple[int, int]] = {}
    spans: list[CopySpans] = []
    stop = 0
    widened: dict[int, int] = {}
    for number, read in reads.items():
        values, target, form = read.values, read.target, read.form
        assert form is not None
        if form == gather_extents.WIDEN:
            widened[len(groups)] = number
        bounds = firsts.get(id(read.spans))
        if bounds is None:
            bounds = firsts[id(read.spans)] = (stop, stop + len(read.spans.starts))
            spans.append(read.spans)
            stop = bounds[1]
        table = opened.get(id(values))
        if table is None:
            if isinstance(values, FileValues):
                table = values.table
            else:
                table = _Chunks(cast("LocalReader", values))
            opened[id(values)] = table
            table.count_spans(len(read.spans.starts))
        tables.append(table)
        record = table.record
        groups.append((*bounds, read.shift, *record, address_of(target), target.size, form, 0))
    starts, stops, places = (
        spans[0] if len(spans) == 1 else map(np.concatenate, zip(*spans, strict=True))
    )
    fields, state = np.array(groups, np.int64), np.zeros(gather_extents.STATE_LENGTH, np.int64)
    state[0] = -1
    scratch = np.empty(_SCRATCH_NBYTES, np.uint8)
    buffer = address_of(scratch), _SCRATCH_NBYTES
    decoder_nbytes = max(table.decoder_nbytes for table in tables)
    is_first = True
    while True:
        ticket = open_files.begin_read()
        try:
            with lend_if_needed(decoder_nbytes) as decoder:
                where = starts, stops, places, *buffer, decoder, state
                is_done = gather_extents.gather_extents(fields, *where)
        finally:
            open_files.end_read(ticket)
        if is_done:
            largest = fields[:, gather_extents.LARGEST].tolist()
            return {number: largest[group] for group, number in widened.items()}
        group, _, span = state[:3].tolist()
        if is_first:
            for table, (_, wanted, _, shift) in zip(tables, reads.values(), strict=True):
                table.open(wanted.starts + shift, wanted.stops + shift)
            is_first = False
            continue
        # A file has changed, or there are too many to keep open.
        _, _, target, shift = list(reads.values())[group]
        start, stop, place = int(starts[span]) + shift, int(stops[span]) + shift, int(places[span])
        assert 0 <= place <= place + stop - start <= target.size, "callers check spans"
        widened.pop(group, None)
        found = tables[group].read(start, stop)
        if target.dtype == _BOOL:
            found = found.view(f"u{found.itemsize}") != 0
        target.reshape(-1)[place : place + stop - start] = found
        state[0] = group + 1
