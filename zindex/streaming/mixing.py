"""Which source gives the next sample: orders by weight, without random numbers.

An order is an endless sequence of picks that the weights alone decide, so its state is how many
picks were taken.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import islice

from zindex.plan.largest_remainder import largest_remainder

# Weights that no small integers express are rounded to this many parts of the whole.
_MAX_PERIOD = 1 << 16
_GOLDEN = (math.sqrt(5) - 1) / 2
_BLOCK = 4096  # picks found at once


def integer_weights(percents: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the ratio of the percents.

    Parameters
    ----------
    percents
        Positive, finite numbers; only their ratios matter.

    Returns
    -------
    weights
        Each >= 1. Ratios of short decimals are exact; others are rounded so that the sum is about
        65,536.

    Examples
    --------
    >>> integer_weights([0.25, 0.25, 0.5])
    [1, 1, 2]
    """
    ratios = [Fraction(repr(float(percent))) for percent in percents]
    scale = math.lcm(*(ratio.denominator for ratio in ratios))
    weights = [int(ratio * scale) for ratio in ratios]
    if sum(weights) // math.gcd(*weights) > _MAX_PERIOD:
        weights = [max(1, n) for n in _round(ratios)]
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights]


def exact_order(weights: Sequence[int]) -> Iterator[int]:
    """Yield one period of the order in which every source keeps to its share at every pick.

    The k-th pick of a source of share p falls into slots ``floor((k - 1) / p)`` to
    ``ceil(k / p) - 1``; of the picks whose slots have begun, the one whose slots end first comes
    next, the lowest number among equals.

    Parameters
    ----------
    weights
        Whole numbers >= 1; the period is their sum.

    Notes
    -----
    Law: after N picks, a source of share p was picked more than ``N * p - 1`` and less than
    ``N * p + 1`` times. Source: windows of proportionate fair scheduling (Baruah, Cohen, Plaxton,
    Varvel 1996), earliest deadline first. Cost: O(log sources) for each pick.

    Examples
    --------
    >>> list(exact_order([1, 1, 2]))
    [2, 0, 1, 2]
    """
    period = sum(weights)
    picked = [0] * len(weights)
    waiting: list[tuple[int, int]] = [(0, i) for i in range(len(weights))]
    begun: list[tuple[int, int]] = []
    for slot in range(period):
        while waiting and waiting[0][0] <= slot:
            _, source = heappop(waiting)
            heappush(begun, (-(-(picked[source] + 1) * period // weights[source]), source))
        _, source = heappop(begun)
        picked[source] += 1
        heappush(waiting, (picked[source] * period // weights[source], source))
        yield source


class ExactMixing:
    """The default order: `exact_order`, each lane at another place of its period.

    Lanes that all began at its start would draw a rare source in the same step.
    """

    def __init__(self, percents: Sequence[float]) -> None:
        weights = integer_weights(percents)
        self._period = sum(weights)
        self._order = exact_order(weights)
        if self._period < _BLOCK:
            # A block is many periods.
            self._order = iter(list(self._order) * (_BLOCK // self._period))
            self._period *= _BLOCK // self._period
        self._known: list[int] = []

    def picks(self, lane: int, start: int) -> Iterator[int]:
        """Yield the picks of a lane from its pick ``start`` on."""
        slot = (int(lane * _GOLDEN % 1.0 * self._period) + start) % self._period
        while True:
            if slot >= len(self._known):
                self._known += islice(self._order, slot + _BLOCK - len(self._known))
            picks = self._known[slot : slot + _BLOCK]
            yield from picks
            slot = (slot + len(picks)) % self._period


class CogdataMixing:
    """The order of cogdata: lowest accumulated ``1 / percent`` next, the first by the rank."""

    def __init__(self, percents: Sequence[float]) -> None:
        self._steps = [1 / percent for percent in percents]

    def picks(self, rank: int, start: int) -> Iterator[int]:
        """Yield the picks of a rank from its pick ``start`` on."""
        return islice(self._from_begin(rank), start, None)

    def _from_begin(self, rank: int) -> Iterator[int]:
        passed = [0.0] * len(self._steps)
        pick = rank % len(passed)
        while True:
            yield pick
            passed[pick] += self._steps[pick]
            if min(passed) >= 1:
                passed = [value - 1 for value in passed]
            pick = passed.index(min(passed))


def _round(ratios: Sequence[Fraction]) -> list[int]:
    whole = sum(ratios)
    return list(largest_remainder([float(ratio / whole) for ratio in ratios], _MAX_PERIOD))
