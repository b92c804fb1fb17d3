"""Ranges of the values of a keyed array, over as many extents as they cover."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError
from zindex.formats.file_access import read_into
from zindex.formats.keyed.h5_file import open_h5
from zindex.formats.keyed.shards import Int64Array, KeyedArray


@dataclass(frozen=True, slots=True, eq=False)
class ValueRange:
    """A range of the values of one key in one shard; small enough to be sent to a worker."""

    #: The extents that the range covers, and nothing else of the array.
    array: KeyedArray
    #: Values of the first of them that lie before the range.
    skipped: int
    length: int


def cut_range(array: KeyedArray, ends: Int64Array, start: int, stop: int) -> ValueRange:
    """Return a range of an array's values.

    Parameters
    ----------
    array
        The array.
    ends
        Shape (extents,), int64: values of all extents up to and with each.
    start, stop
        The values, which must be the array's.

    Examples
    --------
    >>> lengths = np.array([3, 0, 4])
    >>> array = KeyedArray("x", "x.bin", "int8", np.array([0, 3, 3]), lengths)
    >>> part = cut_range(array, np.cumsum(lengths), 2, 4)
    >>> part.array.extent_start, part.array.extent_length, part.skipped, part.length
    (array([0, 3, 3]), array([3, 0, 4]), 2, 2)
    """
    if start == stop:
        first = last = 0
    else:
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(ends, stop, "left")) + 1
    taken = slice(first, last)
    before = int(ends[first - 1]) if first else 0
    covered = replace(
        array,
        # Views would carry all extents along to a worker.
        extent_start=array.extent_start[taken].copy(),
        extent_length=array.extent_length[taken].copy(),
        item_offset=None,
        group_offset=None,
        names=None if array.names is None else array.names[taken],
    )
    return ValueRange(covered, start - before, stop - start)


def read_values(
    array: KeyedArray, start: int, stop: int, ends: Int64Array | None = None
) -> npt.NDArray[Any]:
    """Return values ``[start, stop)`` of an array, in memory of their own; see `read_range`.

    Parameters
    ----------
    array, start, stop
        The array, and values that it has.
    ends
        As of `cut_range`, for those who ask often.
    """
    out = np.empty(stop - start, array.dtype)
    ends = np.cumsum(array.extent_length) if ends is None else ends
    read_range(cut_range(array, ends, start, stop), out)
    return out


def read_range(values: ValueRange, out: npt.NDArray[Any]) -> None:
    """Fill an array with a range of values.

    Parameters
    ----------
    values
        The range.
    out
        Shape (length,), in the dtype of the range.

    Raises
    ------
    SourceError
        If the file has become shorter or is gone, or a byte of a boolean is neither 0 nor 1.
    ConfigError
        If HDF5 has the values in chunks and its library is missing.
    """
    array = values.array
    try:
        with ExitStack() as stack:
            row, skipped = 0, values.skipped
            descriptor, chunked = -1, None
            for extent, (first, length) in enumerate(
                zip(array.extent_start.tolist(), array.extent_length.tolist(), strict=True)
            ):
                stop = min(length, skipped + values.length - row)
                target = out[row : row + stop - skipped]
                if first < 0:
                    assert array.names is not None
                    chunked = chunked or stack.enter_context(open_h5(array.path))
                    target[:] = chunked[array.names[extent]][skipped:stop]
                elif len(target):
                    if descriptor < 0:
                        descriptor = os.open(array.path, os.O_RDONLY | os.O_CLOEXEC)
                        stack.callback(os.close, descriptor)
                    came = read_into(descriptor, target, first + skipped * out.itemsize)
                    if came != target.nbytes:
                        raise SourceError(
                            f"{array.path} must hold values [{skipped:,}, {stop:,}) of {array.key} "
                            f"from byte {first:,} on, it ends before; restore the file"
                        )
                row, skipped = row + stop - skipped, 0
    except FileNotFoundError as error:
        raise SourceError(
            f"{array.path} must still be there, as when its shard was described, it is gone; "
            "restore the file"
        ) from error
    if out.dtype == np.bool_ and out.size and out.view(np.uint8).max() > 1:
        raise SourceError(
            f"{array.path} must hold 0 or 1 for each boolean of {array.key}, it holds "
            f"{out.view(np.uint8).max()}; write it again with another dtype"
        )
