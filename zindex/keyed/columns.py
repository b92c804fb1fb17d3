"""All values of one key of a store over its shards, and the bounds of its records.

Columns of h5, bin and Zarr stores differ in their readers only: mapped values or `RowReader`.
Nothing is copied into shared memory: a column pickles as the description of its files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.formats.keyed.keyed_array import KeyedArray, join_records
from zindex.keyed.mapped_values import ColumnRead, CopySpans, MappedValues, gather_mapped_values
from zindex.store.rows import RowReader, Spans, read_many


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
    values: MappedValues | RowReader | Int64Array
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
        """Return the items of records; a record that is no group is one item."""
        starts, stops = self.record_spans(records)
        if self.lengths is None:
            return Items(starts, stops, np.ones(len(records), np.int64))
        first, last = self.lengths.record_spans(records)
        assert not isinstance(self.lengths.values, MappedValues)
        lengths = read_many([Spans(self.lengths.values, first, last)])[0].astype(np.int64)
        counts = last - first
        ends = np.cumsum(lengths)
        # Values of all groups before each one, which its items follow.
        before = np.append(0, ends)[np.cumsum(counts) - counts]
        firsts = ends - lengths + np.repeat(starts - before, counts)
        return Items(firsts, firsts + lengths, counts)

    def read(self, spans: CopySpans, target: AnyArray, shift: int = 0) -> ColumnRead:
        """Return a read of this column for `read_columns`."""
        assert not isinstance(self.values, np.ndarray)
        return ColumnRead(self.values, spans, target, shift)


def column_of_files(arrays: Sequence[KeyedArray]) -> Column:
    """Return the column of one key in mapped files, with its record bounds over all shards.

    Parameters
    ----------
    arrays
        Of one key, one for each shard, with the same dtype.
    """
    key, values = arrays[0].key, MappedValues(arrays)
    if any(array.item_offset is None for array in arrays):
        return Column(key, values, None)
    records = join_records(arrays)
    lengths = None
    if records.item_length is not None:
        lengths = Column(key, records.item_length, records.group_offset)
    return Column(key, values, records.offset, lengths)


def read_columns(reads: Sequence[ColumnRead]) -> None:
    """Fill targets with spans of columns, all in one round.

    Parameters
    ----------
    reads
        Spans and targets. Spans must be inside their columns and targets: callers check input of
        users. Values of targets outside all spans are unchanged.

    Raises
    ------
    SourceError
        If a file has changed since the store was loaded.
    VerificationError
        If a chunk of a Zarr store fails its checksum.
    """
    mapped: list[ColumnRead] = []
    wanted: list[Spans] = []
    converted: list[tuple[ColumnRead, AnyArray]] = []
    for read in reads:
        if not read.is_direct:
            source = np.empty(read.target.shape, read.values.dtype)
            converted.append((read, source))
            read = read._replace(target=source)
        values, (starts, stops, places), target, shift = read
        if isinstance(values, MappedValues):
            mapped.append(read)
        else:
            if shift:
                starts, stops = starts + shift, stops + shift
            wanted.append(Spans(values, starts, stops, target.reshape(-1), places))
    if mapped:
        gather_mapped_values(mapped)
    read_many(wanted)
    for read, found in converted:
        read.put(found)
