"""Values of one key in files mapped read-only, gathered into batches by one kernel call."""

import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array, UInt8Array
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed.keyed_array import KeyedArray
from zindex.kernels import mapped
from zindex.store.rows import RowReader

_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


class CopySpans(NamedTuple):
    """Spans of values and their destinations; reads that share an instance are done together."""

    #: Shape (spans,), int64: values of a column.
    starts: Int64Array
    stops: Int64Array
    #: Shape (spans,), int64: first value of each in the flat target.
    places: Int64Array


class ColumnRead(NamedTuple):
    """One target to fill with spans of a column, converted to the target's dtype."""

    values: "MappedValues | RowReader"
    spans: CopySpans
    #: C order, of any shape.
    target: AnyArray
    #: Added to the starts and stops of the spans.
    shift: int = 0

    @property
    def is_direct(self) -> bool:
        """Whether the reader itself converts to the target's dtype."""
        kept, wanted = self.values.dtype, self.target.dtype
        is_truth = wanted == _BOOL and kept.kind != "f" and isinstance(self.values, MappedValues)
        return wanted in (kept, _INT64) or is_truth

    def put(self, values: AnyArray) -> None:
        """Convert the spans of ``values``, in the shape of the target, and nothing else of it."""
        flat, source = self.target.reshape(-1), values.reshape(-1)
        lengths = self.spans.stops - self.spans.starts
        for place, length in zip(self.spans.places.tolist(), lengths.tolist(), strict=True):
            flat[place : place + length] = source[place : place + length]


class MappedValues:
    """All values of one key, in files mapped read-only; what cannot be mapped is read into memory.

    Parameters
    ----------
    arrays
        Of one key, one for each shard, with the same dtype.

    Notes
    -----
    Pickles as the description of its files. Files are mapped on first use in a process, once for
    all keys in them. Truncating a mapped file ends the process, as with every memory map: write new
    folders, never into old ones.
    """

    def __init__(self, arrays: Sequence[KeyedArray]) -> None:
        self.arrays = tuple(replace(array, item_offset=None, group_offset=None) for array in arrays)
        self.dtype = np.dtype(self.arrays[0].dtype)

    def __len__(self) -> int:
        return sum(array.length for array in self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self.arrays, "dtype": self.dtype}

    @property
    def table(self) -> "_Table":
        """Addresses of the values in this process."""
        table: _Table | None = vars(self).get("_table")
        if table is None:
            # Concurrent threads must share one table, whose addresses they use.
            table = vars(self).setdefault("_table", _Table(self.arrays))
        return table


def gather_mapped_values(reads: Sequence[ColumnRead]) -> None:
    """Fill targets with spans of mapped values, by one call of the kernel.

    Parameters
    ----------
    reads
        Direct reads of mapped values, with spans inside their columns and targets.
    """
    groups: list[tuple[int, ...]] = []
    firsts: dict[int, tuple[int, int]] = {}
    spans: list[CopySpans] = []
    stop = 0
    for read in reads:
        values, target = read.values, read.target
        assert isinstance(values, MappedValues)
        # A file may hold any byte, but torch's booleans must be 0 or 1.
        form = mapped.TRUTH if target.dtype == _BOOL else mapped.COPY
        if form == mapped.COPY and target.dtype != values.dtype:
            form = mapped.WIDEN
        bounds = firsts.get(id(read.spans))
        if bounds is None:
            bounds = firsts[id(read.spans)] = (stop, stop + len(read.spans.starts))
            spans.append(read.spans)
            stop = bounds[1]
        # The array interface returns an address in half the time of ctypes.
        address = target.__array_interface__["data"][0]
        groups.append((*bounds, read.shift, *values.table.record, address, target.size, form))
    starts, stops, places = (
        spans[0] if len(spans) == 1 else map(np.concatenate, zip(*spans, strict=True))
    )
    wrong = mapped.gather_mapped(np.array(groups, np.int64), starts, stops, places)
    assert wrong < 0, f"spans of read {wrong} must be checked by the caller"


class _Table:
    """Addresses of a column's extents in this process; keeps their memory alive."""

    def __init__(self, arrays: Sequence[KeyedArray]) -> None:
        self.owners: list[Any] = []
        self.addresses = np.concatenate([self._map(array) for array in arrays])
        self.ends = np.cumsum(np.concatenate([np.diff(array.value_offset) for array in arrays]))
        dtype = np.dtype(arrays[0].dtype)
        #: The fields that `zindex.kernels.mapped` takes from it.
        self.record = (
            self.ends.ctypes.data,
            self.addresses.ctypes.data,
            len(self.ends),
            -dtype.itemsize if dtype.kind == "i" else dtype.itemsize,
        )

    def _map(self, array: KeyedArray) -> Int64Array:
        """Return the address of each extent of an array."""
        itemsize = np.dtype(array.dtype).itemsize
        found = array.span_start.copy()
        lengths = np.diff(array.value_offset)
        is_mapped = (found >= 0) & (lengths > 0)
        if is_mapped.any():
            nbytes = int((found + lengths * itemsize)[is_mapped].max())
            values = _map_file(array.path, nbytes)
            self.owners.append(values)
            found[is_mapped] += values.ctypes.data
        # Kernels take aligned arrays, as numpy's are.
        is_copied = ~is_mapped | (found % itemsize != 0)
        for number in np.flatnonzero(is_copied & (lengths > 0)).tolist():
            copied = array.read(*array.value_offset[number : number + 2].tolist())
            self.owners.append(copied)
            found[number] = copied.ctypes.data
        return found


# Path -> the identity of a mapped file, and its bytes.
_maps: dict[str, tuple[tuple[int, int, int], UInt8Array]] = {}


def _map_file(path: str, nbytes: int) -> UInt8Array:
    """Return a file as read-only bytes, mapped once for all keys in it."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size < nbytes:
                raise SourceError(
                    f"{path} must have at least {nbytes:,} bytes, as when the store was described, "
                    f"it has {status.st_size:,}; load the store again"
                )
            identity = (status.st_dev, status.st_ino, status.st_size)
            known, values = _maps.get(path, (None, np.empty(0, np.uint8)))
            if known != identity:
                memory = mmap.mmap(file.fileno(), status.st_size, prot=mmap.PROT_READ)
                values = np.frombuffer(memory, np.uint8)
                _maps[path] = identity, values
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path} must still be there, as when the store was described; load it again"
        ) from error
    return values
