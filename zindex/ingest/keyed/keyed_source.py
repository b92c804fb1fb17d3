"""The shards of keyed files as row readers of the arrays of one store."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard, join_records
from zindex.ingest.length_source import digest_array
from zindex.ingest.records.import_records import url_arrays, url_layouts
from zindex.ingest.spans import cut_span
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

# The identity has the first bytes of every block of a key of a shard, as for corpora.
_BLOCK_NBYTES, _SAMPLE_NBYTES = 1 << 26, 1 << 16


class KeyedSource:
    """All keys of some shards, concatenated.

    Parameters
    ----------
    shards
        From `check_shards`: they have the same keys, and each key has one dtype. Records are kept
        if all keys know them, as many in each; else each shard is one record.

    Raises
    ------
    ConfigError
        If a key has the name of another one's lengths, or cannot be stored.
    """

    def __init__(self, shards: Sequence[KeyedShard]) -> None:
        self.names = [shard.name for shard in shards]
        self.has_records = all(
            array.num_records is not None for shard in shards for array in shard.arrays.values()
        )
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
        self.record_counts = [(a.num_records or 0) if self.has_records else 1 for a in first]
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
        # The arrays that no file holds, and the key of each array of values.
        self._offsets: dict[str, Int64Array] = {}
        self._keys: dict[str, str] = {}
        for key in keys:
            self._add_field(key)
        urls = url_arrays(self.names, np.array(self.record_counts, np.int64))
        #: The arrays that are in memory.
        self.rows = self._offsets | urls

    def _add_field(self, key: str) -> None:
        """Add the field of a key, and that of the lengths of its items if records are groups."""
        arrays = self._arrays[key]
        numbers = int(Form.NUMBERS)
        field = RecordField(key, self._starts[key][-1], numbers, dtype=arrays[0].dtype)
        self.fields.append(field)
        self._keys[field.value.name] = key
        if not self.has_records:
            self._offsets[field.offset.name] = np.array(self._starts[key])
            return
        records = join_records(arrays)
        self._offsets[field.offset.name] = records.offset
        if records.item_length is not None and records.group_offset is not None:
            lengths = records.item_length
            field = RecordField(f"{key}{LENGTH_SUFFIX}", len(lengths), numbers, dtype="int64")
            self.fields.append(field)
            self._offsets[field.offset.name] = records.group_offset
            self._offsets[field.value.name] = lengths

    def layouts(self, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the arrays of the store; see `record_layouts`."""
        return record_layouts(self.fields, self.num_records, grid) + url_layouts(self.rows, grid)

    def spans(self, name: str, start: int, stop: int) -> list[KeyedArray]:
        """Return the spans of files with rows ``[start, stop)`` of an array of values."""
        key = self._keys[name]
        return [
            self._arrays[key][number].span(first, last)
            for number, first, last, _ in cut_span(self._starts[key], start, stop)
        ]

    def digest_shards(self) -> str:
        """Return the SHA-256, in hex, of the names of the shards, and the lengths of all keys."""
        lengths = {key: [array.length for array in arrays] for key, arrays in self._arrays.items()}
        return fingerprint({"names": self.names, "records": self.record_counts, "lengths": lengths})

    def digest_rows(self) -> dict[str, str]:
        """Return the SHA-256, in hex, of each array of offsets or lengths."""

        def digest(rows: Int64Array) -> str:
            return digest_array(lambda start, stop: rows[start:stop], len(rows))

        return {name: digest(rows) for name, rows in self._offsets.items()}

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


def _empty(shards: Sequence[KeyedShard], key: str) -> KeyedArray:
    """Return the empty array of a key for a shard that lacks it."""
    found = next(shard.arrays[key] for shard in shards if key in shard.arrays)
    return KeyedArray(key, "", found.dtype, np.empty(0, np.int64), np.zeros(1, np.int64))
