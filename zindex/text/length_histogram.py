"""Histogram of lengths in fixed bins.

Up to 64 every length has its own bin. Above, each doubling has 32 bins, so a bin is narrower than
1/32 of its lengths, and every power of two ends one. Bins also have the sum of their lengths.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from zindex.arrays import Int64Array

_STEPS = 32  # bins of each doubling


@dataclass(frozen=True, slots=True)
class LimitCost:
    """What a limit on the length would cut off."""

    #: Most tokens of a sample: a power of two.
    most: int
    #: Samples with at most as many, but more than half of it.
    count: int
    #: Samples with more tokens, and the tokens that they would lose.
    num_longer: int
    num_lost: int


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Histogram of lengths; unions are exact and independent of order."""

    #: Non-empty bins, ascending: number of the bin, samples, and the sum of their lengths.
    bins: tuple[tuple[int, int, int], ...] = ()
    #: The shortest and the longest sample; 0 without any.
    shortest: int = 0
    longest: int = 0

    @classmethod
    def of(
        cls, lengths: Sequence[int] | Int64Array, counts: Sequence[int] | None = None
    ) -> "LengthHistogram":
        """Return the histogram of lengths, each >= 0 and below 2**52.

        ``counts`` has the samples of each length, 1 by default.
        """
        array = np.asarray(lengths, np.int64)
        if not array.size:
            return cls()
        times = np.ones_like(array) if counts is None else np.asarray(counts, np.int64)
        bins = _sum_bins(number_bins(array), times, array * times)
        return cls(bins, int(array.min()), int(array.max()))

    @classmethod
    def union(cls, parts: Iterable["LengthHistogram"]) -> "LengthHistogram":
        """Return the union of histograms."""
        filled = [part for part in parts if part.bins]
        if not filled:
            return cls()
        rows = np.array(list(chain.from_iterable(part.bins for part in filled)), np.int64)
        shortest = min(part.shortest for part in filled)
        return cls(_sum_bins(*rows.T), shortest, max(part.longest for part in filled))

    @property
    def num_samples(self) -> int:
        """Samples of all bins."""
        return sum(count for _, count, _ in self.bins)

    @property
    def num_tokens(self) -> int:
        """Sum of all lengths."""
        return sum(total for _, _, total in self.bins)

    def quantile(self, share: float) -> int:
        """Return a length that is not exceeded by this share of the samples.

        It is the mean of the sample's bin: exact up to 64, within 1/32 above. 0 without samples.
        """
        rank = max(1, math.ceil(share * self.num_samples))
        if rank == 1:
            return self.shortest
        if rank >= self.num_samples:
            return self.longest
        at = bisect_left(list(accumulate(count for _, count, _ in self.bins)), rank)
        _, count, total = self.bins[at]
        return total // count

    def kept_tokens(self, limit: int) -> int:
        """Return the sum of lengths if longer samples are truncated to a limit.

        Exact if a bin ends at the limit, as at powers of two and up to 64.
        """
        return sum(min(total, count * limit) for _, count, total in self.bins)

    def longer_samples(self, limit: int) -> int:
        """Return the number of samples longer than a limit; exact if a bin ends at it."""
        return sum(count for _, count, total in self.bins if total > count * limit)

    def limit_costs(self) -> Iterator[LimitCost]:
        """Yield what the powers of two cut off as limits, from the shortest sample to the longest.

        Examples
        --------
        >>> [(item.most, item.count, item.num_longer, item.num_lost)
        ...  for item in LengthHistogram.of([3, 4, 9]).limit_costs()]
        [(4, 2, 1, 5), (8, 0, 1, 1), (16, 1, 0, 0)]
        """
        if not self.bins:
            return
        num_left = self.num_samples
        for power in range(_power(self.shortest), _power(self.longest) + 1):
            most = 1 << power
            num_longer = self.longer_samples(most)
            num_lost = self.num_tokens - self.kept_tokens(most)
            yield LimitCost(most, num_left - num_longer, num_longer, num_lost)
            num_left = num_longer

    def draw(self, size: int) -> Int64Array:
        """Return representative lengths: evenly spaced ones of the sorted lengths.

        Parameters
        ----------
        size
            Lengths to return; none if there are no samples.

        Returns
        -------
        lengths
            Shape (size,), int64, ascending.
        """
        if not self.bins:
            return np.empty(0, np.int64)
        _, counts, sums = np.array(self.bins, np.int64).T
        ranks = ((np.arange(size) + 0.5) / size * self.num_samples).astype(np.int64)
        rows = np.searchsorted(np.cumsum(counts), ranks, side="right")
        drawn: Int64Array = (sums // counts)[rows]
        return drawn

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "LengthHistogram":
        """Return a histogram from its fields as JSON values."""
        return cls(**fields | {"bins": tuple(map(tuple, fields["bins"]))})


def _power(length: int) -> int:
    """Return the exponent of the lowest power of two that is not exceeded by a length."""
    return max(0, length - 1).bit_length()


def _sum_bins(
    numbers: Int64Array, counts: Int64Array, sums: Int64Array
) -> tuple[tuple[int, int, int], ...]:
    """Return bins with the sums of the counts and of the lengths of equal numbers."""
    bins, where = np.unique(numbers, return_inverse=True)
    totals = np.zeros((2, len(bins)), np.int64)
    np.add.at(totals[0], where, counts)
    np.add.at(totals[1], where, sums)
    return tuple(zip(bins.tolist(), *totals.tolist(), strict=True))


def number_bins(lengths: Int64Array) -> Int64Array:
    """Return the bin of each length.

    Parameters
    ----------
    lengths
        Shape (samples,), int64, in ``[0, 2**52)``.

    Returns
    -------
    numbers
        Shape (samples,), int64.

    Examples
    --------
    >>> number_bins(np.array([0, 63, 64, 65, 66, 67, 128, 1 << 20]))
    array([  0,  63,  64,  65,  65,  66,  96, 512])
    """
    below: Int64Array = np.maximum(lengths - 1, 0)
    num_bits = np.frexp(below.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(num_bits - 6, 0)
    numbers: Int64Array = _STEPS * shifts + (below >> shifts) + (lengths > 0).astype(np.int64)
    return numbers


def bin_bounds(number: int) -> tuple[int, int]:
    """Return the bounds of a bin, half-open.

    Examples
    --------
    >>> bin_bounds(64), bin_bounds(65), bin_bounds(97)
    ((64, 65), (65, 67), (129, 133))
    """
    if not number:
        return 0, 1
    shift = max(0, (number - 1) // _STEPS - 1)
    base = number - 1 - _STEPS * shift
    return (base << shift) + 1, ((base + 1) << shift) + 1
