"""Shards of keyed files as the arrays of one store: values by range, and where records begin."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.source import DIGEST_BLOCK, join_digests
from zindex.errors import ConfigError
from zindex.formats.keyed.shards import Int64Array, KeyedArray, KeyedShard
from zindex.formats.keyed.value_ranges import ValueRange, cut_range, read_range
from zindex.store.identity import fingerprint
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import Place
from zindex.store.records import (
    KEY,
    LENGTH_SUFFIX,
    URL,
    Form,
    RecordField,
    check_dtypes,
    record_layouts,
)
from zindex.store.shard_files import ShardResult, store_shard

# Of every block of a key of a shard so many bytes go into the identity, as of corpora.
_BLOCK_NBYTES, _SAMPLE_NBYTES = 1 << 26, 1 << 16


class JoinedOffsets:
    """Offsets of many shards as those of one array; rows are made when they are asked for.

    Parameters
    ----------
    counts
        Rows that each shard has, without the bound behind its last.
    totals
        What each shard's offsets end with.
    part
        Returns the offsets of a shard: shape (count + 1,), int64, from 0 to its total.
    """

    def __init__(
        self, counts: Sequence[int], totals: Sequence[int], part: Callable[[int], Int64Array]
    ) -> None:
        self._starts = list(accumulate(counts, initial=0))
        self._bases = list(accumulate(totals, initial=0))
        self._part = part

    def __len__(self) -> int:
        return self._starts[-1] + 1

    def read(self, start: int, stop: int) -> Int64Array:
        """Return rows ``[start, stop)``: shape (stop - start,), int64."""
        out = np.empty(stop - start, np.int64)
        # The bound behind the last row of all.
        out[len(self) - 1 - start :] = self._bases[-1]
        end = min(stop, len(self) - 1)
        number = bisect_right(self._starts, start) - 1
        row = start
        while row < end:
            first, last = self._starts[number], min(end, self._starts[number + 1])
            if row < last:
                rows = self._part(number)[row - first : last - first]
                np.add(rows, self._bases[number], out=out[row - start : last - start])
                row = last
            number += 1
        return out


class KeyedSource:
    """All keys of some shards, one shard after the other.

    Parameters
    ----------
    shards
        They have the same keys, and each key has one dtype. Where records are kept, all keys of a
        shard have the same number of them.
    has_records
        Whether records are kept; else each shard is one.

    Raises
    ------
    ConfigError
        If a key is called like the lengths of another one, or cannot be stored.
    """

    def __init__(self, shards: Sequence[KeyedShard], *, has_records: bool) -> None:
        self.names = [shard.name for shard in shards]
        self.has_records = has_records
        keys = list(dict.fromkeys(key for shard in shards for key in shard.arrays))
        self._arrays = {
            key: [shard.arrays.get(key) or _nothing(shards, key) for shard in shards]
            for key in keys
        }
        check_dtypes({key: arrays[0].dtype for key, arrays in self._arrays.items()})
        self._ends = {
            key: [np.cumsum(array.extent_length) for array in arrays]
            for key, arrays in self._arrays.items()
        }
        self._starts = {
            key: list(accumulate((array.length for array in arrays), initial=0))
            for key, arrays in self._arrays.items()
        }
        first = self._arrays[keys[0]]
        self.record_counts = [self._count(array) for array in first]
        self.num_records = sum(self.record_counts)
        # Keys whose records are groups of items.
        self._groups = [
            key
            for key, arrays in self._arrays.items()
            if has_records and any(array.group_offset is not None for array in arrays)
        ]
        for key in keys:
            if key in (KEY, URL):
                raise ConfigError(
                    f"a key must not be called {key}, which a store of records keeps for itself; "
                    "rename it"
                )
            if f"{key}{LENGTH_SUFFIX}" in keys:
                raise ConfigError(
                    f"a key must not be called {key}{LENGTH_SUFFIX} beside {key}, for the store "
                    f"keeps the lengths of the items of {key} by that name; rename it"
                )

    def _count(self, array: KeyedArray) -> int:
        """Return the records of an array."""
        return (array.num_records or 0) if self.has_records else 1

    @property
    def fields(self) -> list[RecordField]:
        """What the records of the store have."""
        fields = []
        for key, arrays in self._arrays.items():
            numbers = int(Form.NUMBERS)
            fields.append(RecordField(key, self._starts[key][-1], numbers, dtype=arrays[0].dtype))
            if key in self._groups:
                count = sum(len(_items(array)) - 1 for array in arrays)
                fields.append(RecordField(f"{key}{LENGTH_SUFFIX}", count, numbers, dtype="int64"))
        return fields

    def layouts(self, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the arrays of the fields; see `record_layouts`."""
        return record_layouts(self.fields, self.num_records, grid)

    def values(self, key: str, start: int, stop: int) -> list[ValueRange]:
        """Return where values ``[start, stop)`` of a key lie, in order."""
        starts = self._starts[key]
        number = bisect_right(starts, start) - 1
        found = []
        while start < stop:
            first, last = starts[number], min(stop, starts[number + 1])
            if start < last:
                array, ends = self._arrays[key][number], self._ends[key][number]
                found.append(cut_range(array, ends, start - first, last - first))
                start = last
            number += 1
        return found

    def small_arrays(self) -> dict[str, Callable[[int, int], npt.NDArray[Any]]]:
        """Return of each array that holds no values how its rows ``[start, stop)`` are made."""
        found: dict[str, Callable[[int, int], npt.NDArray[Any]]] = {}
        for field in self.fields:
            key = field.name
            if key in self._arrays:
                found[field.offset.name] = self._value_offsets(key).read
                continue
            grouped = key.removesuffix(LENGTH_SUFFIX)
            arrays = self._arrays[grouped]
            items = [len(_items(array)) - 1 for array in arrays]
            parts = [_groups(array) for array in arrays]
            found[field.offset.name] = JoinedOffsets(
                self.record_counts, items, parts.__getitem__
            ).read
            offsets = JoinedOffsets(
                items,
                [array.length for array in arrays],
                [_items(array) for array in arrays].__getitem__,
            )
            found[field.value.name] = _Differences(offsets).read
        return found

    def _value_offsets(self, key: str) -> JoinedOffsets:
        """Return where the records of a key begin among its values."""
        arrays = self._arrays[key]

        def part(number: int) -> Int64Array:
            array = arrays[number]
            if not self.has_records:
                return np.array([0, array.length])
            items = _items(array)
            return items if array.group_offset is None else items[array.group_offset]

        return JoinedOffsets(self.record_counts, [array.length for array in arrays], part)

    def digest_shards(self) -> str:
        """Return the SHA-256, in hex, of the names of the shards, and the lengths of all keys."""
        lengths = {key: [array.length for array in arrays] for key, arrays in self._arrays.items()}
        return fingerprint({"names": self.names, "records": self.record_counts, "lengths": lengths})

    def digest_rows(self) -> dict[str, str]:
        """Return the SHA-256, in hex, of each array that holds no values."""
        lengths = {layout.name: layout.length for layout in self.layouts(ChunkGrid())}
        return {
            name: join_digests(
                hashlib.sha256(read(start, min(start + DIGEST_BLOCK, lengths[name])).data).digest()
                for start in range(0, lengths[name], DIGEST_BLOCK)
            )
            for name, read in self.small_arrays().items()
        }

    def samples(self) -> Iterator[ValueRange]:
        """Yield the values that go into the identity: the first of every block of every array."""
        for key, arrays in self._arrays.items():
            for array, ends in zip(arrays, self._ends[key], strict=True):
                itemsize = np.dtype(array.dtype).itemsize
                for start in range(0, array.length, _BLOCK_NBYTES // itemsize):
                    stop = min(start + _SAMPLE_NBYTES // itemsize, array.length)
                    yield cut_range(array, ends, start, stop)


class _Differences:
    """Lengths, from offsets."""

    def __init__(self, offsets: JoinedOffsets) -> None:
        self._offsets = offsets

    def read(self, start: int, stop: int) -> Int64Array:
        """Return lengths ``[start, stop)``: shape (stop - start,), int64."""
        return np.diff(self._offsets.read(start, stop + 1))


def digest_ranges(ranges: Sequence[ValueRange]) -> bytes:
    """Task: the SHA-256 of the values of some ranges, one after the other."""
    digest = hashlib.sha256()
    for values in ranges:
        digest.update(read_ranges([values], values.array.dtype, values.length).data)
    return digest.digest()


def read_ranges(
    ranges: Sequence[ValueRange], dtype: npt.DTypeLike, length: int
) -> npt.NDArray[Any]:
    """Return the values of some ranges, one after the other: shape (length,)."""
    out = np.empty(length, dtype)
    row = 0
    for values in ranges:
        read_range(values, out[row : row + values.length])
        row += values.length
    return out


def store_ranges(
    root: Place, layout: ArrayLayout, shard: int, ranges: Sequence[ValueRange]
) -> ShardResult:
    """Task: one shard of the values of a key, unless it is there already."""
    start, stop = layout.shard_bounds(shard)
    return store_shard(root, layout, shard, lambda: read_ranges(ranges, layout.dtype, stop - start))


def _items(array: KeyedArray) -> Int64Array:
    """Return where the items of an array begin."""
    assert array.item_offset is not None
    return array.item_offset


def _groups(array: KeyedArray) -> Int64Array:
    """Return where the records of an array begin among its items; alone, each is one."""
    if array.group_offset is None:
        return np.arange(len(_items(array)))
    return array.group_offset


def _nothing(shards: Sequence[KeyedShard], key: str) -> KeyedArray:
    """Return a key of a shard that lacks it."""
    found = next(shard.arrays[key] for shard in shards if key in shard.arrays)
    none = np.empty(0, np.int64)
    return KeyedArray(key, "", found.dtype, none, none)
