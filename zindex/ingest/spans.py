"""Locate spans in concatenated arrays."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence


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
