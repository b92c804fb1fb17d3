"""The values of one key in keyed files, described by spans of bytes and read by position.

A shard is a file or a folder with all keys. The values of a key are in one or several spans of a
file, and the file may specify where records start. Everything that files declare, such as keys,
dtypes and offsets, is validated here.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError, ZindexError
from zindex.io.create_only import open_descriptor
from zindex.io.local import read_into
from zindex.io.regular_files import open_file
from zindex.io.system_errors import reading
from zindex.lazy import need


@dataclass(frozen=True, slots=True, eq=False)
class KeyedArray:
    """The values of one key in one shard: a flat array, in one or several spans of a file."""

    key: str
    #: The file.
    path: str
    #: Numpy dtype name of the values in the file.
    dtype: str
    #: Shape (spans,), int64: first byte of each span in the file. A span that HDF5 stores in chunks
    #: has ``-1 - n`` and is read by h5py from value n of its dataset.
    span_start: Int64Array
    #: Shape (spans + 1,), int64, from 0 to the number of values: where spans start.
    value_offset: Int64Array
    #: Shape (items + 1,), int64, from 0 to the number of values: where items start; None if
    #: unknown.
    item_offset: Int64Array | None = None
    #: Shape (records + 1,), int64, from 0 to the number of items: where records start, if a record
    #: is a group of items, such as the responses to a prompt; None: every item is a record.
    group_offset: Int64Array | None = None
    #: Datasets of the spans in the file; None if the file is one raw span.
    names: tuple[str, ...] | None = None
    #: Modification time of the file when it was described, in nanoseconds; None if unknown.
    modified: int | None = None

    @property
    def length(self) -> int:
        """Number of values."""
        return int(self.value_offset[-1])

    @property
    def num_records(self) -> int | None:
        """Number of records; None if their bounds are unknown."""
        if self.group_offset is not None:
            return len(self.group_offset) - 1
        return None if self.item_offset is None else len(self.item_offset) - 1

    def span(self, start: int, stop: int) -> "KeyedArray":
        """Return values ``[start, stop)`` as an array without records, small enough for a task.

        Examples
        --------
        >>> array = KeyedArray("x", "x.bin", "int8", np.array([0, 3, 3]), np.array([0, 3, 3, 7]))
        >>> part = array.span(2, 4)
        >>> part.span_start, part.value_offset
        (array([2, 3, 3]), array([0, 1, 1, 2]))
        """
        first = int(np.searchsorted(self.value_offset, start, "right")) - 1
        last = max(first, int(np.searchsorted(self.value_offset, stop, "left")))
        starts = self.span_start[first:last].copy()  # a view would send all spans to a worker
        if len(starts):
            skipped = start - int(self.value_offset[first])
            starts[0] += skipped * np.dtype(self.dtype).itemsize if starts[0] >= 0 else -skipped
        return replace(
            self,
            span_start=starts,
            value_offset=np.clip(self.value_offset[first : last + 1], start, stop) - start,
            item_offset=None,
            group_offset=None,
            names=None if self.names is None else self.names[first:last],
        )

    def read(self, start: int, stop: int) -> AnyArray:
        """Return values ``[start, stop)`` in a new array; errors as of `read_into`."""
        out = np.empty(stop - start, self.dtype)
        self.span(start, stop).read_into(out)
        return out

    def check_unchanged(self) -> None:
        """Raise if a file was modified since it was described; FileNotFoundError if it is missing.

        Raises
        ------
        SourceError
            If it was modified.
        StoreUnreadableError
            If the system denies access.
        """
        with reading(Path(self.path)):
            modified = os.stat(self.path).st_mtime_ns
        if self.modified not in (None, modified):
            raise SourceError(
                f"{self.path} must be as it was when it was described, it was changed since; load "
                "the store again"
            )

    def read_into(self, out: AnyArray) -> None:
        """Read all values into an array of matching size and dtype.

        Raises
        ------
        SourceError
            If the file is missing or shorter than before, or a byte of a boolean is neither 0 nor
            1.
        ConfigError
            If HDF5 stores the values in chunks and h5py is missing.
        """
        try:
            self.check_unchanged()
            with ExitStack() as stack:
                descriptor, file = -1, None
                spans = zip(
                    self.span_start.tolist(), pairwise(self.value_offset.tolist()), strict=True
                )
                for number, (first, (row, stop)) in enumerate(spans):
                    target = out[row:stop]
                    if first < 0:
                        assert self.names is not None
                        file = file or stack.enter_context(open_h5(self.path))
                        at = -1 - first
                        target[:] = file[self.names[number]][at : at + len(target)]
                    elif len(target):
                        if descriptor < 0:
                            descriptor = open_descriptor(self.path, os.O_RDONLY)
                            stack.callback(os.close, descriptor)
                        if read_into(descriptor, target, first) != target.nbytes:
                            raise SourceError(
                                f"{self.path} must hold {len(target):,} values of {self.key} from "
                                f"byte {first:,} on, it ends before; restore the file"
                            )
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.path} must still be there, as when its shard was described, it is gone; "
                "restore the file"
            ) from error
        if out.dtype == np.bool_ and out.size and out.view(np.uint8).max() > 1:
            raise SourceError(
                f"{self.path} must hold 0 or 1 for each boolean of {self.key}, it holds "
                f"{out.view(np.uint8).max()}; write it again with another dtype"
            )


@dataclass(frozen=True, slots=True, eq=False)
class KeyedShard:
    """One file or folder: all keys of consecutive records."""

    #: Relative to the given folder, with ``/``; determines the order of shards.
    name: str
    arrays: dict[str, KeyedArray]


def sum_lengths(lengths: Sequence[int] | Int64Array) -> Int64Array:
    """Return the offsets of items of these lengths, then the total.

    Examples
    --------
    >>> sum_lengths([2, 0, 3])
    array([0, 2, 2, 5])
    """
    offset = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offset[1:])
    return offset


class JoinedRecords(NamedTuple):
    """The bounds of the records of a key, over all shards."""

    #: Shape (records + 1,), int64: offsets of the records among the values.
    offset: Int64Array
    #: If records are groups, the lengths of all items, and the offsets of the records among them.
    item_length: Int64Array | None = None
    group_offset: Int64Array | None = None


def join_records(arrays: Sequence[KeyedArray]) -> JoinedRecords:
    """Return the records of one key, given its array of each shard; all have items."""
    items = [array.item_offset for array in arrays if array.item_offset is not None]
    offset = _join_offsets(items)
    if all(array.group_offset is None for array in arrays):
        return JoinedRecords(offset)
    groups = _join_offsets(
        [
            np.arange(len(item)) if array.group_offset is None else array.group_offset
            for array, item in zip(arrays, items, strict=True)
        ]
    )
    return JoinedRecords(offset[groups], np.diff(offset), groups)


def _join_offsets(parts: Sequence[Int64Array]) -> Int64Array:
    """Return the concatenated offsets of several arrays."""
    starts = sum_lengths([int(part[-1]) for part in parts])
    joined = [part[:-1] + start for part, start in zip(parts, starts[:-1].tolist(), strict=True)]
    return np.concatenate([*joined, starts[-1:]])


@contextmanager
def open_h5(path: str) -> Iterator[Any]:
    """Open an HDF5 file for reading.

    Raises
    ------
    SourceError
        If its content is damaged, here or when it is read in the block.
    ConfigError
        If h5py is not installed.
    """
    h5py = import_h5py()
    try:
        open_file(path).close()  # only regular files: HDF5 would wait forever on a pipe
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file
    except ZindexError:
        raise
    # h5py raises all of these for damaged files.
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{path} must be a sound HDF5 file, it cannot be read: {str(error)[:200]}; restore it"
        ) from error


def import_h5py() -> Any:
    """Import h5py, which only HDF5 files need."""
    return need("h5py", "an HDF5 file", "zindex[keyed]")


#: Numpy dtypes that keyed files may have.
DTYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
)
# ``<key>.bin`` must be a file name, of at most 255 bytes on most systems.
_MAX_KEY_NBYTES = 200


def check_key(key: str, *, where: str) -> None:
    """Raise SourceError if a key cannot be a file name, as it might lead out of the folder."""
    is_name = key not in {"", ".", ".."} and not any(sign in key for sign in "/\\\0")
    # Characters that are not UTF-8 are replaced by "?", which preserves the length.
    is_text = key.encode("utf-8", "replace").decode() == key
    if not is_name or not is_text or len(key.encode("utf-8", "replace")) > _MAX_KEY_NBYTES:
        shown = key if len(key) <= _MAX_KEY_NBYTES else f"{key[:40]}..."
        raise SourceError(
            f"a key must be the name of a file, of 1 to {_MAX_KEY_NBYTES} bytes of UTF-8 and "
            f"without slashes, got {shown!r} in {where}; rename it"
        )


def parse_dtype(name: object, *, where: str) -> str:
    """Return numpy's name of a dtype given with or without ``torch.``.

    Raises
    ------
    SourceError
        If it is not one of `DTYPES`.
    """
    plain = name.removeprefix("torch.") if isinstance(name, str) else ""
    if plain in DTYPES:
        return plain
    advice = "convert the values to one of these"
    if plain == "bfloat16":
        advice = "numpy has no such numbers, so store them as float32"
    raise SourceError(
        f"values must have one of the dtypes {', '.join(sorted(DTYPES))}, got {name!r} in "
        f"{where}; {advice}"
    )


def parse_offsets(offsets: object, *, stop: int, where: str) -> Int64Array:
    """Parse a list of offsets.

    Parameters
    ----------
    offsets
        The value in the file.
    stop
        Required last offset: the number of values, or of items.
    where
        File and key, for messages.

    Returns
    -------
    offset
        Shape (items + 1,), int64, from 0 to ``stop``, ascending.

    Raises
    ------
    SourceError
        If it is not a list of ascending integers from 0 to ``stop``.
    """
    if not isinstance(offsets, list) or set(map(type, offsets)) - {int}:
        raise SourceError(
            f"offsets must be a list of whole numbers, {where} has {_shorten(offsets)}; write the "
            "file again"
        )
    try:
        offset = np.array(offsets, np.int64)
    except OverflowError:
        offset = np.array([-1])
    fault = _find_fault(offset, stop)
    if fault:
        raise SourceError(
            f"offsets must ascend from 0 to {stop:,}, {where} has {fault}; write the file again"
        )
    return offset


def _find_fault(offset: Int64Array, stop: int) -> str:
    """Return the problem of offsets, or an empty text."""
    if len(offset) == 0:
        return "none"
    descents = np.flatnonzero(np.diff(offset) < 0)
    if len(descents):
        row = int(descents[0])
        return f"{offset[row + 1]:,} after {offset[row]:,} at place {row + 1:,}"
    if offset[0] != 0 or offset[-1] != stop:
        return f"offsets from {offset[0]:,} to {offset[-1]:,}"
    return ""


def _shorten(value: Any) -> str:
    """Return a value as short text for a message."""
    if isinstance(value, list):
        for item in value:
            if type(item) is not int:
                return f"{type(item).__name__} {str(item)[:40]!r} among them"
    return f"{type(value).__name__} {str(value)[:40]!r}"
