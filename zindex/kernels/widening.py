"""Integers of any width written as int64, with the largest of them."""

from typing import Any

import numpy as np

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
    return np.int64(largest)


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
