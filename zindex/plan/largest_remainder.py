"""Counts in proportion to weights, in exact integers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zindex.errors import PlanError


def largest_remainder(
    weights: Sequence[float] | npt.NDArray[np.float64], size: int
) -> npt.NDArray[np.int64]:
    """Return how many of ``size`` samples each dataset gives.

    Parameters
    ----------
    weights
        Shape (datasets,), float64, each > 0; they need not sum to 1.
    size
        Samples to give out, >= 0.

    Returns
    -------
    counts
        Shape (datasets,), int64.

    Raises
    ------
    PlanError
        If a weight is not a positive number, or there is none.

    Notes
    -----
    Law: the counts sum to ``size``, and each lies within one of ``weight / sum(weights) * size``,
    in rational arithmetic on the exact values of the floats. The largest remainders are rounded
    up, the lowest index first among equals.
    Source: Hamilton's method of apportionment.

    Examples
    --------
    >>> largest_remainder([0.5, 0.3, 0.2], 7)
    array([4, 2, 1])
    """
    values = np.asarray(weights, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size or not values.size:
        got = f"{values[wrong[0]]} for dataset {wrong[0]}" if wrong.size else "none"
        raise PlanError(f"weights must be positive numbers, got {got}; leave that dataset out")
    # Every float is a whole number of units of the smallest exponent.
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    shifts = (exponents - exponents.min()).tolist()
    units = [unit << shift for unit, shift in zip(whole, shifts, strict=True)]
    total = sum(units)
    counts, rests = zip(*(divmod(size * unit, total) for unit in units), strict=True)
    num_left = size - sum(counts)
    # Sorting is stable, so equal remainders stay in the order of their datasets.
    first = sorted(range(len(rests)), key=rests.__getitem__, reverse=True)[:num_left]
    result = np.array(counts, np.int64)
    result[first] += 1
    return result
