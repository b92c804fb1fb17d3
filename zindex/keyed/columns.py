"""All values of one key of a store over its shards, and the bounds of its records.

Columns of h5, bin and Zarr stores differ only in their readers: extents of files, gathered into
batches by one kernel call, or `RowReader`. Nothing is copied to shared memory: a column is pickled
as the description of its files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.formats.keyed.keyed_array import KeyedArray, join_records
from zindex.kernels.widening import widen_rows
from zindex.keyed.file_values import ColumnRead, CopySpans, FileValues, gather_file_values
from zindex.samples.batch import empty_array
from zindex.store.rows import RowReader, Spans, address_of, read_many

_INT64 = np.dtype(np.int64)


class Items(NamedTuple):
    """The items of some records, concatenated."""

    #: Starts and stops of items.
    starts: Int64Array
    stops: Int64Array
    #: Items of each record.
    counts: Int64Array

    @property
    def lengths(self) -> Int64Array:
        """Values of each item."""
        return self.stops - self.starts


@dataclass(slots=True, eq=False)
class Column:
    """The values of one key."""

    key: str
    #: Reader of the values of all records; an array in memory for lengths of items.
    values: FileValues | RowReader | Int64Array
    #: Record bounds: one more than there are records; None if they are unknown.
    offsets: RowReader | Int64Array | None
    #: If records are groups, the lengths of their items, as a column.
    lengths: "Column | None" = None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of the stored values."""
        return self.values.dtype

    @property
    def length(self) -> int:
        """Values of all shards."""
        return len(self.values)

    @property
    def num_records(self) -> int | None:
        """Records; None if their bounds are unknown."""
        return None if self.offsets is None else len(self.offsets) - 1

    def record_offset(self, start: int, stop: int) -> Int64Array:
        """Return the bounds of records ``[start, stop)``: one more than there are records."""
        assert self.offsets is not None
        bounds: Int64Array = self.offsets[start : stop + 1]
        return bounds

    def record_spans(self, records: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the starts and stops of records."""
        if not isinstance(self.offsets, RowReader):
            assert self.offsets is not None
            return self.offsets[records], self.offsets[records + 1]
        bounds = self.offsets.read_spans(records, records + 2).reshape(-1, 2)
        return bounds[:, 0].copy(), bounds[:, 1].copy()

    def find_items(self, records: Int64Array) -> Items:
        """Return the items of records; a record that is not a group is a single item."""
        starts, stops = self.record_spans(records)
        if self.lengths is None:
            return Items(starts, stops, np.ones(len(records), np.int64))
        first, last = self.lengths.record_spans(records)
        assert not isinstance(self.lengths.values, FileValues)
        lengths = read_many([Spans(self.lengths.values, first, last)])[0].astype(np.int64)
        counts = last - first
        ends = np.cumsum(lengths)
        # The number of values of all groups before each one, where its items start.
        before = np.append(0, ends)[np.cumsum(counts) - counts]
        firsts = ends - lengths + np.repeat(starts - before, counts)
        return Items(firsts, firsts + lengths, counts)

    def read(self, spans: CopySpans, target: AnyArray, shift: int = 0) -> ColumnRead:
        """Return a read of this column for `read_columns`."""
        assert not isinstance(self.values, np.ndarray)
        return ColumnRead(self.values, spans, target, shift)


def column_of_files(arrays: Sequence[KeyedArray], *, mapped: bool = False) -> Column:
    """Return the column of one key in files, with its record bounds over all shards.

    Parameters
    ----------
    arrays
        Of one key, one for each shard, with the same dtype.
    mapped
        As of `FileValues`.
    """
    key, values = arrays[0].key, FileValues(arrays, mapped=mapped)
    if any(array.item_offset is None for array in arrays):
        return Column(key, values, None)
    records = join_records(arrays)
    lengths = None
    if records.item_length is not None:
        lengths = Column(key, records.item_length, records.group_offset)
    return Column(key, values, records.offset, lengths)


def read_columns(reads: Sequence[ColumnRead]) -> Mapping[int, int]:
    """Fill targets with spans of columns, all in one round.

    Parameters
    ----------
    reads
        Spans and targets. Spans must be inside their columns and targets: callers check user input.
        Values of targets outside all spans are unchanged.

    Returns
    -------
    largest
        By the number of a read, its largest value, -1 if one is negative, where that is known.

    Raises
    ------
    SourceError
        If a file has changed since the store was loaded.
    VerificationError
        If a chunk of a Zarr store fails its checksum.
    """
    files: dict[int, ColumnRead] = {}
    single: list[int] = []
    wanted: list[Spans] = []
    converted: list[tuple[ColumnRead, AnyArray]] = []
    shared: list[tuple[list[int], int, AnyArray]] = []
    others: list[int] = []
    for number, read in enumerate(reads):
        if read.is_gathered and read.form is not None:
            files[number] = read
        else:
            others.append(number)
    for same in _group_shifted(reads, others):
        first, last = reads[same[0]], reads[same[-1]]
        if len(same) > 1 and (width := first.row_width):
            values, spans, low, high = first.values, first.spans, first.shift, last.shift
            assert isinstance(values, RowReader)
            source = empty_array((len(spans.starts), width + high - low), values.dtype)
            wanted.append(Spans(values, spans.starts + low, spans.stops + high, source.reshape(-1)))
            shared.append((same, width, source))
        else:
            single += same
    for number in single:
        read = reads[number]
        if not read.is_direct:
            source = np.empty(read.target.shape, read.values.dtype)
            converted.append((read, source))
            read = read._replace(target=source)
        values, (starts, stops, places), target, shift = read
        if read.is_gathered:
            files[number] = read
        else:
            if shift:
                starts, stops = starts + shift, stops + shift
            assert isinstance(values, RowReader)
            wanted.append(Spans(values, starts, stops, target.reshape(-1), places))
    largest = gather_file_values(files) if files else {}
    read_many(wanted)
    for read, found in converted:
        read.put(found)
    for same, width, found in shared:
        targets = [reads[number].target for number in same]
        skipped = [reads[number].shift - reads[same[0]].shift for number in same]
        if found.dtype.kind in "iu" and all(target.dtype == _INT64 for target in targets):
            largest |= dict.fromkeys(same, _widen_rows(found, width, skipped, targets))
        else:
            for target, skip in zip(targets, skipped, strict=True):
                np.copyto(target.reshape(-1, width), found[:, skip : skip + width])
    return largest


def _widen_rows(
    rows: AnyArray, width: int, places: Sequence[int], targets: Sequence[AnyArray]
) -> int:
    """Write parts of rows as int64; return the largest value, -1 if one is negative."""
    addresses = [address_of(array) for array in (rows, *targets)]
    nbytes = -rows.itemsize if rows.dtype.kind == "i" else rows.itemsize
    numbers = np.array(places, np.int64), np.array(addresses[1:], np.int64)
    return int(widen_rows(addresses[0], nbytes, rows.shape[1], *numbers, (len(rows), width)))


def _group_shifted(reads: Sequence[ColumnRead], numbers: Iterable[int]) -> Iterable[list[int]]:
    """Group the reads of one `RowReader` that differ in their shift alone, as inputs and targets.

    It is then read once for all of them; `gather_file_values` does the same for files. Returns
    their numbers, by shift.
    """
    groups: dict[Any, list[int]] = {}
    for number in numbers:
        read = reads[number]
        is_other = read.is_gathered or not read.is_direct
        key = number if is_other else (id(read.values), id(read.spans), read.target.shape)
        groups.setdefault(key, []).append(number)
    return [sorted(same, key=lambda number: reads[number].shift) for same in groups.values()]
