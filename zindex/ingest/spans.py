"""Locate spans in arrays that are concatenated, and read concatenated offsets lazily."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from zindex.arrays import Int64Array


def cut_span(bounds: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the overlap of a span with each of several concatenated arrays.

    Parameters
    ----------
    bounds
        Shape (arrays + 1,): the position of the first element of each array, then the total.
    start, stop
        The span. Positions past the total are ignored.

    Yields
    ------
    number, first, last, offset
        An array, its elements ``[first, last)``, and their offset in the span.

    Examples
    --------
    >>> list(cut_span([0, 3, 3, 7], 2, 5))
    [(0, 2, 3, 0), (2, 0, 2, 1)]
    """
    at = start
    number = max(0, bisect_right(bounds, start) - 1)
    while at < stop and number < len(bounds) - 1:
        end = min(stop, bounds[number + 1])
        if at < end:
            yield number, at - bounds[number], end - bounds[number], at - start
            at = end
        number += 1


class JoinedOffsets:
    """The offset arrays of many shards, concatenated; rows are computed when they are read.

    Parameters
    ----------
    counts
        Rows of each shard, not counting its final bound.
    totals
        The final bound of each shard.
    offsets_of
        Returns the offsets of a shard: shape (count + 1,), int64, from 0 to its total.
    """

    def __init__(
        self, counts: Sequence[int], totals: Sequence[int], offsets_of: Callable[[int], Int64Array]
    ) -> None:
        self._starts = list(accumulate(counts, initial=0))
        self._bases = list(accumulate(totals, initial=0))
        self._offsets_of = offsets_of

    def read(self, start: int, stop: int) -> Int64Array:
        """Return rows ``[start, stop)``: shape (stop - start,), int64."""
        out = np.full(stop - start, self._bases[-1], np.int64)
        for number, first, last, offset in cut_span(self._starts, start, stop):
            rows = self._offsets_of(number)[first:last]
            np.add(rows, self._bases[number], out=out[offset : offset + last - first])
        return out

    def read_lengths(self, start: int, stop: int) -> Int64Array:
        """Return the differences of rows ``[start, stop]``: shape (stop - start,), int64."""
        return np.diff(self.read(start, stop + 1))
