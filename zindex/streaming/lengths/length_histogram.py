"""How long the samples of a source are: counts in bins that never depend on the samples.

Below 64 every length has a bin of its own. Beyond, each doubling has 32 bins, so that a bin is
narrower than 1/32 of what is in it, and every power of two begins one. Bins keep the sum of their
lengths too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

_STEPS = 32  # bins of each doubling


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Lengths of samples; sums of histograms are exact, in any order."""

    #: Bins that hold samples, ascending: number of the bin, samples, and the sum of their lengths.
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
        numbers, where, counts = np.unique(
            number_bins(array), return_inverse=True, return_counts=True
        )
        sums = np.zeros(len(numbers), np.int64)
        np.add.at(sums, where, array)
        bins = zip(numbers.tolist(), counts.tolist(), sums.tolist(), strict=True)
        return cls(tuple(bins), int(array.min()), int(array.max()))

    @classmethod
    def union(cls, parts: Iterable["LengthHistogram"]) -> "LengthHistogram":
        """Return the histogram of all samples of some."""
        held = [part for part in parts if part.bins]
        found: dict[int, tuple[int, int]] = {}
        for part in held:
            for number, count, total in part.bins:
                before = found.get(number, (0, 0))
                found[number] = before[0] + count, before[1] + total
        if not held:
            return cls()
        return cls(
            tuple((number, *found[number]) for number in sorted(found)),
            min(part.shortest for part in held),
            max(part.longest for part in held),
        )

    @property
    def num_samples(self) -> int:
        """Samples of all bins."""
        return sum(count for _, count, _ in self.bins)

    @property
    def num_tokens(self) -> int:
        """Sum of all lengths."""
        return sum(total for _, _, total in self.bins)

    def quantile(self, share: float) -> int:
        """Return a length that this share of the samples does not exceed.

        It is the mean of the bin in which that sample lies: exact below 64, within 1/32 beyond.
        0 without samples.
        """
        rank = max(1, math.ceil(share * self.num_samples))
        if rank == 1:
            return self.shortest
        if rank >= self.num_samples:
            return self.longest
        for _, count, total in self.bins:
            rank -= count
            if rank <= 0:
                return total // count
        return self.longest

    def kept_tokens(self, limit: int) -> int:
        """Return the sum of lengths when longer samples are cut to a limit.

        It is exact where a bin begins at the limit, as at powers of two and up to 64.
        """
        kept = 0
        for number, count, total in self.bins:
            start, stop = bin_bounds(number)
            if stop - 1 <= limit:
                kept += total
            else:
                kept += count * limit if start >= limit else min(total, count * limit)
        return kept

    def longer_samples(self, limit: int) -> int:
        """Return how many samples are longer than a limit; exact where a bin ends with it."""
        longer = 0
        for number, count, total in self.bins:
            start, stop = bin_bounds(number)
            if start > limit or (stop - 1 > limit and total > count * limit):
                longer += count
        return longer

    def draw(self, size: int) -> Int64Array:
        """Return lengths that stand for all samples: evenly spaced ones of the ascending row.

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
        drawn: Int64Array = (sums // counts)[
            np.searchsorted(np.cumsum(counts), ranks, side="right")
        ]
        return drawn

    def to_json(self) -> dict[str, Any]:
        """Return the histogram as JSON values."""
        return {
            "bins": [*map(list, self.bins)],
            "shortest": self.shortest,
            "longest": self.longest,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "LengthHistogram":
        """Return the histogram that `to_json` wrote."""
        bins = tuple((int(a), int(b), int(c)) for a, b, c in fields["bins"])
        return cls(bins, int(fields["shortest"]), int(fields["longest"]))


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
    """Return the first length of a bin, and the first one beyond it.

    Examples
    --------
    >>> bin_bounds(63), bin_bounds(64), bin_bounds(96)
    ((63, 64), (64, 66), (128, 132))
    """
    shift = max(0, number // _STEPS - 1)
    base = number - _STEPS * shift
    return base << shift, (base + 1) << shift
