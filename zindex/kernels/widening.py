"""Integers of any width written as int64, with the largest of them."""

from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import carray, inline, jit, pointer


@inline
def _cast(source: int, kind: Any, unsigned: Any, target: int, count: int) -> int:
    """Write values of one dtype as int64; return the largest, as unsigned numbers."""
    out = carray(pointer(target), (count,), dtype=np.int64)
    values = carray(pointer(source), (count,), dtype=kind)
    raw = carray(pointer(source), (count,), dtype=unsigned)
    largest = unsigned(0)
    for i in range(count):
        out[i] = values[i]
        largest = max(largest, raw[i])
    return int(np.int64(largest))


@jit
def widen(source: int, target: int, count: int, width: int) -> int:
    """Write integers as int64; return the largest, or -1 if one is negative as int64.

    Parameters
    ----------
    source, target
        Addresses.
    count
        Number of values.
    width
        Bytes of a value, negative if signed.

    Examples
    --------
    >>> values, wide = np.array([3, 7, 5], np.uint16), np.empty(3, np.int64)
    >>> int(widen(values.ctypes.data, wide.ctypes.data, 3, 2)), wide.tolist()
    (7, [3, 7, 5])
    """
    if width == -4:
        largest = _cast(source, np.int32, np.uint32, target, count)
    elif width == 2:
        largest = _cast(source, np.uint16, np.uint16, target, count)
    elif abs(width) == 8:
        largest = _cast(source, np.int64, np.uint64, target, count)
    elif width == 4:
        largest = _cast(source, np.uint32, np.uint32, target, count)
    elif width == -2:
        largest = _cast(source, np.int16, np.uint16, target, count)
    elif width == 1:
        largest = _cast(source, np.uint8, np.uint8, target, count)
    else:
        largest = _cast(source, np.int8, np.uint8, target, count)
    if largest < 0 or (width in (-4, -2, -1) and largest >> (-8 * width - 1)):
        return -1
    return largest


@jit
def widen_rows(
    source: int, width: int, row_length: int, places: Int64Array, targets: Int64Array, shape: Any
) -> int:
    """Write parts of rows as int64, such as inputs and targets; return the largest as `widen` does.

    Parameters
    ----------
    source, width
        Address of the rows, and bytes of a value, negative if signed.
    row_length
        Values of a row.
    places, targets
        Shape (parts,), int64: first value of each part in its row, and address of its array.
    shape
        Rows, and values of a part.
    """
    largest = 0
    for row in range(shape[0]):
        for part in range(places.size):
            first = source + (row * row_length + places[part]) * abs(width)
            found = widen(first, targets[part] + 8 * row * shape[1], shape[1], width)
            largest = -1 if found < 0 or largest < 0 else max(largest, found)
    return largest
