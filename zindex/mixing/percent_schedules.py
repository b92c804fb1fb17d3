"""Percents of a mixture that are constant, or change at given samples of the stream."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

#: First sample of each piece, ascending from 0, and the percent from there on.
Schedule = tuple[tuple[int, float], ...]
#: Only ratios of percents matter; those of nested mixtures are fractions.
Percent = float | Fraction


def is_percent(value: Any) -> bool:
    """Return whether a value is a finite number >= 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def to_fraction(percent: Percent) -> Fraction:
    """Return a percent as it is written in decimals."""
    return percent if isinstance(percent, Fraction) else Fraction(repr(float(percent)))


def parse_percent(percent: Any) -> Schedule | None:
    """Return the pieces of a percent, a number or a mapping; None if it is neither.

    Examples
    --------
    >>> parse_percent({0: 0.5, 1_000_000: 0.2})
    ((0, 0.5), (1000000, 0.2))
    >>> parse_percent(0.3)
    ((0, 0.3),)
    """
    pieces = percent if isinstance(percent, Mapping) else {0: percent}
    starts = [start for start in pieces if type(start) is int and start >= 0]
    if len(starts) < len(pieces) or 0 not in pieces or not all(map(is_percent, pieces.values())):
        return None
    return tuple(sorted(pieces.items()))


def percent_at(schedule: Schedule, sample: int) -> float:
    """Return the percent at a sample."""
    return [percent for start, percent in schedule if start <= sample][-1]


def mean_percents(percents: Sequence[Any], num_samples: float) -> list[float]:
    """Return the mean percents of some samples from the first one on, in proportion.

    Examples
    --------
    >>> mean_percents([{0: 1, 60: 3}, 1], 80)
    [0.5625, 0.4375]
    """
    schedules = [parse_percent(percent) or ((0, 0.0),) for percent in percents]
    if all(len(schedule) == 1 for schedule in schedules):
        return [schedule[0][1] for schedule in schedules]
    starts = sorted({start for schedule in schedules for start, _ in schedule})
    means = [0.0] * len(schedules)
    for start, stop in zip(starts, [*starts[1:], math.inf], strict=True):
        current = [percent_at(schedule, start) for schedule in schedules]
        length = max(0.0, min(stop, max(num_samples, 1)) - start)
        if length == math.inf:  # an endless run has the last percents
            return current
        for number, percent in enumerate(current):
            means[number] += percent / sum(current) * length / max(num_samples, 1)
    return means


def is_read(percent: Any) -> bool:
    """Return whether a percent is > 0 at any sample."""
    return any(value for _, value in parse_percent(percent) or ())


def ends_unread(percent: Any) -> bool:
    """Return whether a percent is > 0 at first or later, but finally 0.

    Examples
    --------
    >>> [ends_unread(percent) for percent in (0, {0: 1, 60: 0}, {0: 1, 60: 0, 90: 1})]
    [False, True, False]
    """
    schedule = parse_percent(percent) or ((0, 0.0),)
    return is_read(percent) and not schedule[-1][1]
