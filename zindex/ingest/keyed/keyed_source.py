"""The shards of keyed files as row readers of the arrays of one store."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard
from zindex.ingest.length_source import digest_rows, join_digests, num_blocks
from zindex.ingest.records.import_records import url_arrays
from zindex.ingest.spans import JoinedOffsets, cut_span
from zindex.io.objects import Place
from zindex.store.commit import fingerprint
from zindex.store.layout import ArrayLayout, ChunkGrid
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

#: Returns rows ``[start, stop)`` of an array.
ReadRows = Callable[[int, int], AnyArray]

# The identity has the first bytes of every block of a key of a shard, as for corpora.
_BLOCK_NBYTES, _SAMPLE_NBYTES = 1 << 26, 1 << 16


class KeyedSource:
    """All keys of some shards, concatenated.

    Parameters
    ----------
    shards
        They have the same keys, and each key has one dtype. If records are kept, all keys of a
        shard have the same number of them.
    has_records
        Whether records are kept; else each shard is one.

    Raises
    ------
    ConfigError
        If a key has the name of another one's lengths, or cannot be stored.
    """

    def __init__(self, shards: Sequence[KeyedShard], *, has_records: bool) -> None:
        self.names = [shard.name for shard in shards]
        self.has_records = has_records
        keys = list(dict.fromkeys(key for shard in shards for key in shard.arrays))
        self._arrays = {
            key: [shard.arrays.get(key) or _empty(shards, key) for shard in shards] for key in keys
        }
        check_dtypes({key: arrays[0].dtype for key, arrays in self._arrays.items()})
        self._starts = {
            key: list(accumulate((array.length for array in arrays), initial=0))
            for key, arrays in self._arrays.items()
        }
        first = self._arrays[keys[0]]
        self.record_counts = [(a.num_records or 0) if has_records else 1 for a in first]
        self.num_records = sum(self.record_counts)
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
        #: The fields of the store.
        self.fields: list[RecordField] = []
        # Readers of the arrays that no file holds, and the key of each array of values.
        self._rows: dict[str, ReadRows] = {}
        self._keys: dict[str, str] = {}
        for key in keys:
            self._add_field(key)
        self.urls = url_arrays(self.names, np.array(self.record_counts, np.int64))

    def _add_field(self, key: str) -> None:
        """Add the field of a key, and that of the lengths of its items if records are groups."""
        arrays = self._arrays[key]
        totals = [array.length for array in arrays]
        numbers = int(Form.NUMBERS)
        field = RecordField(key, self._starts[key][-1], numbers, dtype=arrays[0].dtype)
        self.fields.append(field)
        self._keys[field.value.name] = key
        offsets_of = partial(_record_offsets, arrays, self.has_records)
        self._rows[field.offset.name] = JoinedOffsets(self.record_counts, totals, offsets_of).read
        if not self.has_records or all(array.group_offset is None for array in arrays):
            return
        items = [_items(array) for array in arrays]
        counts = [len(offsets) - 1 for offsets in items]
        field = RecordField(f"{key}{LENGTH_SUFFIX}", sum(counts), numbers, dtype="int64")
        self.fields.append(field)
        groups = [_groups(array) for array in arrays]
        joined = JoinedOffsets(self.record_counts, counts, groups.__getitem__)
        self._rows[field.offset.name] = joined.read
        joined = JoinedOffsets(counts, totals, items.__getitem__)
        self._rows[field.value.name] = joined.read_lengths

    def layouts(self, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the arrays of the fields; see `record_layouts`."""
        return record_layouts(self.fields, self.num_records, grid)

    def spans(self, name: str, start: int, stop: int) -> list[KeyedArray] | None:
        """Return the spans of files with rows ``[start, stop)``; None if no file holds them."""
        if name not in self._keys:
            return None
        key = self._keys[name]
        return [
            self._arrays[key][number].span(first, last)
            for number, first, last, _ in cut_span(self._starts[key], start, stop)
        ]

    def read(self, name: str, start: int, stop: int) -> AnyArray:
        """Return rows ``[start, stop)`` of an array of the store."""
        spans = self.spans(name, start, stop)
        if spans is not None:
            return read_spans(spans, self._arrays[self._keys[name]][0].dtype)
        if name in self.urls:
            return self.urls[name][start:stop]
        return self._rows[name](start, stop)

    def digest_shards(self) -> str:
        """Return the SHA-256, in hex, of the names of the shards, and the lengths of all keys."""
        lengths = {key: [array.length for array in arrays] for key, arrays in self._arrays.items()}
        return fingerprint({"names": self.names, "records": self.record_counts, "lengths": lengths})

    def digest_rows(self) -> dict[str, str]:
        """Return the SHA-256, in hex, of each array of offsets or lengths."""
        lengths = {layout.name: layout.length for layout in self.layouts(ChunkGrid())}
        return {
            name: join_digests(
                digest_rows(read, lengths[name], block)
                for block in range(num_blocks(lengths[name]))
            )
            for name, read in self._rows.items()
        }

    def samples(self) -> Iterator[KeyedArray]:
        """Yield the values in the identity: the first ones of every block of every array."""
        for arrays in self._arrays.values():
            for array in arrays:
                itemsize = np.dtype(array.dtype).itemsize
                for start in range(0, array.length, _BLOCK_NBYTES // itemsize):
                    yield array.span(start, min(start + _SAMPLE_NBYTES // itemsize, array.length))


def digest_spans(spans: Sequence[KeyedArray]) -> bytes:
    """Task: the SHA-256 of the values of some spans."""
    digest = hashlib.sha256()
    for span in spans:
        digest.update(span.read(0, span.length).data)
    return digest.digest()


def read_spans(spans: Sequence[KeyedArray], dtype: npt.DTypeLike) -> AnyArray:
    """Return the values of some spans, concatenated."""
    out = np.empty(sum(span.length for span in spans), dtype)
    row = 0
    for span in spans:
        span.read_into(out[row : row + span.length])
        row += span.length
    return out


def store_spans(
    root: Place, layout: ArrayLayout, shard: int, spans: Sequence[KeyedArray]
) -> ShardResult:
    """Task: one shard of the values of a key, unless it is already there."""
    return store_shard(root, layout, shard, lambda: read_spans(spans, layout.dtype))


def _items(array: KeyedArray) -> Int64Array:
    """Return the offsets of the items of an array."""
    assert array.item_offset is not None
    return array.item_offset


def _groups(array: KeyedArray) -> Int64Array:
    """Return the offsets of the records of an array among its items: by default, each."""
    return np.arange(len(_items(array))) if array.group_offset is None else array.group_offset


def _record_offsets(arrays: Sequence[KeyedArray], has_records: bool, number: int) -> Int64Array:
    """Return the offsets of the records of a shard among the values of a key."""
    array = arrays[number]
    if not has_records:
        return np.array([0, array.length])
    return _items(array)[_groups(array)] if array.group_offset is not None else _items(array)


def _empty(shards: Sequence[KeyedShard], key: str) -> KeyedArray:
    """Return the empty array of a key for a shard that lacks it."""
    found = next(shard.arrays[key] for shard in shards if key in shard.arrays)
    return KeyedArray(key, "", found.dtype, np.empty(0, np.int64), np.zeros(1, np.int64))
