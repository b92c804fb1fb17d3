"""Values of one key in files that are mapped read-only, or in memory."""

import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed.shards import KeyedArray, sum_lengths
from zindex.formats.keyed.value_ranges import read_values
from zindex.kernels import mapped
from zindex.keyed.columns import Array, Form, Int64Array, Request, Spans, put_truth

_FORMS: dict[Form, int] = {"copy": mapped.COPY, "int64": mapped.WIDEN, "bool": mapped.TRUTH}


class MappedColumn:
    """Values in files that are mapped read-only; what cannot be mapped is read into memory.

    Parameters
    ----------
    arrays
        Of one key, one for each shard, with the same dtype.

    Notes
    -----
    Files are mapped at the first touch in a process, once for all keys in them. A file that is cut
    afterwards ends the process, as with every memory map: write new folders, never into old ones.
    """

    def __init__(self, arrays: Sequence[KeyedArray]) -> None:
        self.arrays = tuple(arrays)
        self.key = self.arrays[0].key
        self.dtype = np.dtype(self.arrays[0].dtype)
        self.length = sum(array.length for array in self.arrays)
        is_known = all(array.item_offset is not None for array in self.arrays)
        self.has_groups = any(array.group_offset is not None for array in self.arrays)
        self._items: Int64Array | None = None
        self._groups: Int64Array | None = None
        if is_known:
            items = [array.item_offset for array in self.arrays]
            self._items = _join_offsets([item for item in items if item is not None])
            if self.has_groups:
                self._groups = _join_offsets([_groups_of(array) for array in self.arrays])

    def __getstate__(self) -> dict[str, Any]:
        return {"arrays": self.arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["arrays"])  # type: ignore[misc]

    @property
    def num_records(self) -> int | None:
        """Records; None where it is not known where they begin."""
        bounds = self._items if self._groups is None else self._groups
        return None if bounds is None else len(bounds) - 1

    def record_offset(self, start: int, stop: int) -> Int64Array:
        """Return where records ``[start, stop)`` begin, and where the last one ends."""
        assert self._items is not None
        if self._groups is None:
            return self._items[start : stop + 1]
        offsets: Int64Array = self._items[self._groups[start : stop + 1]]
        return offsets

    def record_spans(self, records: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where records begin and end."""
        assert self._items is not None
        first, last = records, records + 1
        if self._groups is not None:
            first, last = self._groups[first], self._groups[last]
        return self._items[first], self._items[last]

    def item_lengths(self, records: Int64Array) -> list[Int64Array]:
        """Return the lengths of the items of each of some records."""
        assert self._items is not None
        groups = self._groups
        if groups is None:
            starts, stops = self.record_spans(records)
            return list((stops - starts).reshape(-1, 1))
        bounds = [self._items[groups[k] : groups[k + 1] + 1] for k in records.tolist()]
        return [np.diff(item) for item in bounds]

    @property
    def table(self) -> "_Table":
        """Addresses of the values, in this process."""
        made = vars(self).get("_table")
        if made is None:
            # Of threads that come at once all must hold the same one, whose addresses they take.
            made = vars(self).setdefault("_table", _Table(self.arrays))
        table: _Table = made
        return table

    @staticmethod
    def read_round(requests: Sequence[Request]) -> None:
        """Gather spans of columns in memory by one call of the kernel; see `read_columns`."""
        groups: list[tuple[int, ...]] = []
        firsts: dict[int, tuple[int, int]] = {}
        spans: list[Spans] = []
        stop = 0
        floats: list[tuple[Request, Array]] = []
        for request in requests:
            column, target, form = request.column, request.target, _FORMS[request.form]
            assert isinstance(column, MappedColumn)
            if form == mapped.TRUTH and column.dtype.kind == "f":
                # Hardly anybody keeps masks as floats, so numpy may do it.
                target = np.empty(target.shape, column.dtype)
                floats.append((request, target))
                form = mapped.COPY
            elif column.dtype == target.dtype:
                # Any byte may stand in a file, but torch's booleans must be 0 or 1.
                form = mapped.TRUTH if column.dtype == np.bool_ else mapped.COPY
            place = firsts.get(id(request.spans))
            if place is None:
                place = firsts[id(request.spans)] = (stop, stop + len(request.spans.starts))
                spans.append(request.spans)
                stop = place[1]
            # The interface of arrays gives an address in half the time of ctypes.
            address = target.__array_interface__["data"][0]
            groups.append((*place, request.shift, *column.table.facts, address, target.size, form))
        starts, stops, places = (
            spans[0] if len(spans) == 1 else map(np.concatenate, zip(*spans, strict=True))
        )
        wrong = mapped.gather_mapped(np.array(groups, np.int64), starts, stops, places)
        assert wrong < 0, f"spans of {requests[wrong].column.key} were not checked"
        for request, values in floats:
            put_truth(request, values)


class _Table:
    """Where the extents of a column lie in the memory of this process, and what holds it there."""

    def __init__(self, arrays: Sequence[KeyedArray]) -> None:
        self.held: list[Any] = []
        addresses = [self._map(array) for array in arrays]
        lengths = [array.extent_length for array in arrays]
        self.addresses = np.concatenate([*addresses, np.empty(0, np.int64)])
        self.ends = np.cumsum(np.concatenate([*lengths, np.empty(0, np.int64)]))
        width = np.dtype(arrays[0].dtype).itemsize
        is_signed = np.dtype(arrays[0].dtype).kind == "i"
        #: What the kernel takes of it.
        self.facts = (
            self.ends.ctypes.data,
            self.addresses.ctypes.data,
            len(self.ends),
            -width if is_signed else width,
        )

    def _map(self, array: KeyedArray) -> Int64Array:
        """Return the address of each extent of an array."""
        if not len(array.extent_start):
            return np.empty(0, np.int64)
        itemsize = np.dtype(array.dtype).itemsize
        found = array.extent_start.copy()
        is_mapped = (found >= 0) & (array.extent_length > 0)
        if is_mapped.any():
            nbytes = int((found + array.extent_length * itemsize)[is_mapped].max())
            values = _map_file(array.path, nbytes)
            self.held.append(values)
            found[is_mapped] += values.ctypes.data
        # Numpy's arrays are aligned, and so is what kernels take for arrays.
        is_copied = ~is_mapped | (found % itemsize != 0)
        ends = np.cumsum(array.extent_length)
        for number in np.flatnonzero(is_copied & (array.extent_length > 0)).tolist():
            stop = int(ends[number])
            copied = read_values(array, stop - int(array.extent_length[number]), stop, ends)
            self.held.append(copied)
            found[number] = copied.ctypes.data
        return found


class _MappedFile(NamedTuple):
    """A mapped file, and what was known of it."""

    identity: tuple[int, int, int]
    values: npt.NDArray[np.uint8]


_maps: dict[str, _MappedFile] = {}


def _map_file(path: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return a file as read-only bytes; a file that all keys lie in is mapped once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path} must still be there, as it was when the store was described; load the store "
            "again"
        ) from error
    try:
        status = os.fstat(descriptor)
        if status.st_size < nbytes:
            raise SourceError(
                f"{path} must have at least {nbytes:,} bytes, as when the store was described, it "
                f"has {status.st_size:,}; load the store again"
            )
        identity = (status.st_dev, status.st_ino, status.st_size)
        known = _maps.get(path)
        if known is None or known.identity != identity:
            memory = mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ)
            known = _maps[path] = _MappedFile(identity, np.frombuffer(memory, np.uint8))
    finally:
        os.close(descriptor)
    return known.values


def _groups_of(array: KeyedArray) -> Int64Array:
    """Return where the records of an array begin among its items."""
    assert array.item_offset is not None
    if array.group_offset is None:
        return np.arange(len(array.item_offset))
    return array.group_offset


def _join_offsets(parts: Sequence[Int64Array]) -> Int64Array:
    """Return the offsets of several arrays one after the other."""
    starts = sum_lengths([int(part[-1]) for part in parts])
    joined = [part[:-1] + start for part, start in zip(parts, starts[:-1].tolist(), strict=True)]
    return np.concatenate([*joined, starts[-1:]])
