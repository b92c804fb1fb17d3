"""Invert an order by chunks: collect the rows at which each value occurs."""

import numpy as np

from zindex.arrays import IntegerArray
from zindex.kernels._jit import jit, prefetch

# Rows between the prefetch of a place and its use.
_AHEAD = 32


@jit
def collect_rows(
    values: IntegerArray,
    first_row: int,
    first_value: int,
    counts: IntegerArray,
    rows: IntegerArray,
) -> bool:
    """Write the row of each value of a range; return False if one occurs too often.

    Parameters
    ----------
    values
        Shape (rows,), any integers: part of an order. Values outside the range are skipped.
    first_row
        Row of the first of them.
    first_value
        Least value of the range.
    counts
        Shape (range,), integers: occurrences so far of each value; advanced.
    rows
        Shape (range, occurrences): the rows of each value, ascending; filled.

    Notes
    -----
    Law: after all parts of an order, row k of ``rows`` is
    ``numpy.flatnonzero(order == first_value + k)``. Cost: under a nanosecond per value outside the
    range, and a few for others.

    Examples
    --------
    >>> counts, rows = np.zeros(2, np.uint8), np.zeros((2, 2), np.uint32)
    >>> collect_rows(np.array([7, 5, 6, 5, 6]), 10, 5, counts, rows)
    True
    >>> rows.tolist()
    [[11, 13], [12, 14]]
    """
    size, most = np.uint64(counts.size), rows.shape[1]
    last = values.size - 1
    for i in range(values.size):
        ahead = np.uint64(np.int64(values[min(i + _AHEAD, last)]) - first_value)
        if ahead < size:
            prefetch(counts, ahead)
        # A value below the range wraps around to a large number.
        value = np.uint64(np.int64(values[i]) - first_value)
        if value < size:
            count = np.int64(counts[value])
            if count >= most:
                return False
            rows[value, count] = first_row + i
            counts[value] = count + 1
    return True
