"""Gather spans of mapped arrays into the rows of a batch, for many keys at once.

Arrays are given by the addresses of their extents. Values are copied, widened to int64 or compared
with 0 at run time, so that there is one compiled version. Mapped files are read by page faults.
"""

from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._intrinsics import carray, load_int64, pointer
from zindex.kernels._jit import inline, jit

#: Fields of a group, the spans of one array with one target: bounds of its spans, which groups may
#: share; offset added to them in this array; addresses of two int64 arrays over extents, the ends
#: in values and the addresses of the values; number of extents; bytes of a value, negative if
#: signed; address and length of the target; and the conversion of values.
FIRST, STOP, SHIFT, ENDS, EXTENTS, NUM_EXTENTS, WIDTH, TARGET, TARGET_LENGTH, FORM = range(10)
GROUP_LENGTH = 10

#: Conversions of values: the same bytes, int64, or one byte that is 0 or 1.
COPY, WIDEN, TRUTH = 0, 1, 2


@inline
def _find_extent(ends: int, count: int, value: int) -> int:
    """Return the first extent that ends after a value."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if load_int64(ends + 8 * middle) > value:
            high = middle
        else:
            low = middle + 1
    return low


@inline
def _cast(source: int, kind: Any, target: int, target_kind: Any, count: int) -> None:
    """Write values of one dtype as another."""
    out = carray(pointer(target), (count,), dtype=target_kind)
    values = carray(pointer(source), (count,), dtype=kind)
    for i in range(count):
        out[i] = values[i]


@inline
def _widen(source: int, target: int, count: int, width: int) -> None:
    """Write integers as int64."""
    if width == -4:
        _cast(source, np.int32, target, np.int64, count)
    elif width == 2:
        _cast(source, np.uint16, target, np.int64, count)
    elif abs(width) == 8:
        _cast(source, np.int64, target, np.int64, count)
    elif width == 4:
        _cast(source, np.uint32, target, np.int64, count)
    elif width == -2:
        _cast(source, np.int16, target, np.int64, count)
    elif width == 1:
        _cast(source, np.uint8, target, np.int64, count)
    else:
        _cast(source, np.int8, target, np.int64, count)


@inline
def _write_truth(source: int, target: int, count: int, nbytes: int) -> None:
    """Write whether any byte of an integer is not 0."""
    out = carray(pointer(target), (count,), dtype=np.uint8)
    raw = carray(pointer(source), (count * nbytes,), dtype=np.uint8)
    if nbytes == 1:  # the usual masks; this loop vectorises
        for i in range(count):
            out[i] = raw[i] != 0
        return
    for i in range(count):
        byte = np.uint8(0)
        for k in range(nbytes):
            byte |= raw[i * nbytes + k]
        out[i] = byte != 0


@jit
def gather_mapped(
    groups: Int64Array, starts: Int64Array, stops: Int64Array, places: Int64Array
) -> int:
    """Copy spans of arrays in memory to their targets.

    Parameters
    ----------
    groups
        Shape (groups, GROUP_LENGTH), int64. The caller keeps the memory at its addresses alive.
    starts, stops
        Shape (spans,), int64: values of the group's array, counted over its extents, without the
        group's shift.
    places
        Shape (spans,), int64: first value of each span in the target.

    Returns
    -------
    wrong
        -1, or a group with a span outside its array or target; later spans are not copied.

    Notes
    -----
    Law: the target of a group holds at ``places[i]`` what numpy gives for ``[starts[i] + shift,
    stops[i] + shift)`` of its concatenated extents. Cost: the bytes of the spans, and a binary
    search over the extents for each.
    """
    group = 0
    while group < groups.shape[0]:
        last = group + 1
        while last < groups.shape[0] and groups[last, FIRST] == groups[group, FIRST]:
            last += 1
        # Groups that share spans are copied span by span: an array that is read twice with another
        # shift is then still in the cache.
        for span in range(groups[group, FIRST], groups[group, STOP]):
            for k in range(group, last):
                record = groups[k]
                start, stop = starts[span] + record[SHIFT], stops[span] + record[SHIFT]
                if not _copy_span(record, start, stop, places[span]):
                    return k
        group = last
    return -1


@jit
def _copy_span(record: Int64Array, start: int, stop: int, place: int) -> bool:
    """Copy one span; return False if it is outside its array or target."""
    count, width, form = record[NUM_EXTENTS], record[WIDTH], record[FORM]
    space = record[TARGET_LENGTH] - place
    if place < 0 or space < 0 or start > stop or stop - start > space:
        return False
    if start == stop:
        return True
    ends = record[ENDS]
    if start < 0 or count == 0 or stop > load_int64(ends + 8 * (count - 1)):
        return False
    nbytes = abs(width)
    target_nbytes = 8 if form == WIDEN else 1 if form == TRUTH else nbytes
    target = record[TARGET] + place * target_nbytes
    extent = _find_extent(ends, count, start)
    first = load_int64(ends + 8 * (extent - 1)) if extent else 0
    while start < stop:
        end = load_int64(ends + 8 * extent)
        length = min(stop, end) - start
        if length > 0:
            source = load_int64(record[EXTENTS] + 8 * extent) + (start - first) * nbytes
            if form == WIDEN:
                _widen(source, target, length, width)
            elif form == TRUTH:
                _write_truth(source, target, length, nbytes)
            else:
                _cast(source, np.uint8, target, np.uint8, length * nbytes)
            start += length
            target += length * target_nbytes
        first = end
        extent += 1
    return True
