"""Histogram of sample lengths in fixed bins, and the number of sequences that samples pack into.

Below 64 every length has its own bin. Above, each doubling has 32 bins, so a bin is narrower than
1/32 of its lengths, and every power of two starts one. Bins also have the sum of their lengths.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from zindex.arrays import Int64Array

_STEPS = 32  # bins of each doubling


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Histogram of lengths; unions are exact and independent of order."""

    #: Non-empty bins, ascending: number of the bin, samples, and the sum of their lengths.
    bins: tuple[tuple[int, int, int], ...] = ()
    #: The shortest and the longest sample; 0 without any.
    shortest: int = 0
    longest: int = 0

    @classmethod
    def of(cls, lengths: Sequence[int] | Int64Array) -> "LengthHistogram":
        """Return the histogram of lengths, each >= 0 and below 2**52."""
        array = np.asarray(lengths, np.int64)
        if not array.size:
            return cls()
        bins = _sum_bins(number_bins(array), np.ones_like(array), array)
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

        It is the mean of the sample's bin: exact below 64, within 1/32 above. 0 without samples.
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

        Exact if a bin starts at the limit, as at powers of two and up to 64.
        """
        return sum(min(total, count * limit) for _, count, total in self.bins)

    def longer_samples(self, limit: int) -> int:
        """Return the number of samples longer than a limit; exact if a bin ends at it."""
        return sum(count for _, count, total in self.bins if total > count * limit)

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
    >>> number_bins(np.array([0, 63, 64, 65, 66, 128, 1 << 20]))
    array([  0,  63,  64,  64,  65,  96, 512])
    """
    num_bits = np.frexp(lengths.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(num_bits - 6, 0)
    numbers: Int64Array = _STEPS * shifts + (lengths >> shifts)
    return numbers


def bin_bounds(number: int) -> tuple[int, int]:
    """Return the bounds of a bin, half-open.

    Examples
    --------
    >>> bin_bounds(63), bin_bounds(64), bin_bounds(96)
    ((63, 64), (64, 66), (128, 132))
    """
    shift = max(0, number // _STEPS - 1)
    base = number - _STEPS * shift
    return base << shift, (base + 1) << shift


def count_sequences(lengths: Int64Array, sequence_length: int, max_samples: int) -> int:
    """Return how many sequences samples fill, by best-fit decreasing with long samples split.

    Pure Python, because compiling the kernel of a build takes seconds.

    Parameters
    ----------
    lengths
        Shape (samples,), int64, tokens of each, > 0.
    sequence_length
        Tokens of a sequence, > 0.
    max_samples
        Maximum samples, or parts of samples, of a sequence, > 0.

    Notes
    -----
    Law: equal to `zindex.kernels.packing.count_samples` with ``SPLIT`` and no extra token.
    Cost: O(samples * log(samples)) comparisons.

    Examples
    --------
    >>> count_sequences(np.array([3, 9, 5, 2, 3]), 8, 4)
    3
    """
    num_full, rests = np.divmod(lengths, sequence_length)
    num_sequences = int(num_full.sum())
    # Free space of the open sequences, ascending, the last filled first, and their samples.
    opened: list[tuple[int, int, int]] = []
    for turn, length in enumerate(np.sort(rests[rests > 0])[::-1].tolist()):
        at = bisect_left(opened, (length,))
        if at < len(opened):
            room, _, num_samples = opened.pop(at)
        else:
            room, num_samples = sequence_length, 0
            num_sequences += 1
        if room > length and num_samples + 1 < max_samples:
            insort(opened, (room - length, -turn, num_samples + 1))
    return num_sequences
