"""Sets of record numbers as sorted intervals: shape (intervals, 2), int64, half-open, apart."""

from collections.abc import Sequence

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.store.rows import count_from

#: The empty set.
EMPTY: Int64Array = np.empty((0, 2), np.int64)


def merge(intervals: Sequence[Sequence[int]] | Int64Array) -> Int64Array:
    """Return the union of intervals in any order.

    Examples
    --------
    >>> merge([[5, 7], [0, 2], [2, 3], [6, 9]]).tolist()
    [[0, 3], [5, 9]]
    """
    given: Int64Array = np.asarray(intervals, np.int64).reshape(-1, 2)
    given = given[given[:, 0] < given[:, 1]]
    if len(given) < 2:
        return given
    given = given[np.argsort(given[:, 0], kind="stable")]
    reach = np.maximum.accumulate(given[:, 1])
    is_first = np.append(True, given[1:, 0] > reach[:-1])
    last = np.append(np.flatnonzero(is_first)[1:] - 1, len(given) - 1)
    return np.stack([given[is_first, 0], reach[last]], axis=1)


def subtract(one: Int64Array, other: Int64Array) -> Int64Array:
    """Return the numbers of one set that another lacks.

    Examples
    --------
    >>> subtract(merge([[0, 9]]), merge([[2, 3], [5, 6]])).tolist()
    [[0, 2], [3, 5], [6, 9]]
    """
    points = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    starts = points[:-1]
    kept = _contains(one, starts) & ~_contains(other, starts)
    return merge(np.stack([starts[kept], points[1:][kept]], axis=1))


def _contains(intervals: Int64Array, numbers: Int64Array) -> BoolArray:
    is_within: BoolArray = np.searchsorted(intervals.ravel(), numbers, "right") % 2 == 1
    return is_within


def intersect(one: Int64Array, other: Int64Array) -> Int64Array:
    """Return the numbers that two sets have in common."""
    return subtract(one, subtract(one, other))


def count(intervals: Int64Array) -> int:
    """Return how many numbers a set has."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def take(intervals: Int64Array, number: int, *, last: bool) -> Int64Array:
    """Return the first or last numbers of a set.

    Examples
    --------
    >>> take(merge([[0, 3], [5, 9]]), 5, last=True).tolist()
    [[2, 3], [5, 9]]
    """
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.cumsum(lengths) - lengths
    if last:
        before = lengths.sum() - before - lengths
    taken = np.clip(number - before, 0, lengths)
    found = intervals.copy()
    if last:
        found[:, 0] = found[:, 1] - taken
    else:
        found[:, 1] = found[:, 0] + taken
    chosen: Int64Array = found[taken > 0]
    return chosen


def expand(intervals: Int64Array) -> Int64Array:
    """Return all numbers of intervals, in their order.

    Examples
    --------
    >>> expand(np.array([[7, 9], [0, 2]]))
    array([7, 8, 0, 1])
    """
    return count_from(intervals[:, 0], intervals[:, 1] - intervals[:, 0])
