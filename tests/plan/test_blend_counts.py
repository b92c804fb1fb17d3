"""Largest remainders: laws in rational arithmetic, and ties by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.plan.blend_plan import largest_remainder

ordinary = st.floats(0, 1, exclude_min=True)
# From the smallest subnormal to the largest float.
any_size = st.floats(0, exclude_min=True, allow_infinity=False)
tied = st.sampled_from([1.0, 2.0, 0.1, 1 / 3])
heavy_tailed = st.integers(0, 40).map(lambda power: 2.0**-power)
tiny = st.sampled_from([5e-324, 1e-320, 2.0**-1022, 1.0])
weights = st.one_of(
    *(st.lists(kind, min_size=1, max_size=30) for kind in (ordinary, any_size, tied, tiny)),
    st.lists(heavy_tailed, min_size=1, max_size=200),
)
sizes = st.integers(0, 100) | st.integers(0, 10**12)


def apportion(weights: list[float], size: int) -> list[int]:
    """The reference: Hamilton's method in fractions."""
    exact = [Fraction(weight) for weight in weights]
    quotas = [size * weight / sum(exact) for weight in exact]
    counts = [math.floor(quota) for quota in quotas]
    rests = [
        (count - quota, d) for d, (quota, count) in enumerate(zip(quotas, counts, strict=True))
    ]
    for _, d in sorted(rests)[: size - sum(counts)]:
        counts[d] += 1
    return counts


def check(weights: list[float], size: int) -> None:
    counts = largest_remainder(weights, size)
    assert counts.dtype == np.int64
    assert counts.sum() == size
    total = sum(map(Fraction, weights))
    for weight, count in zip(weights, counts.tolist(), strict=True):
        assert abs(count - size * Fraction(weight) / total) < 1
    assert counts.tolist() == apportion(weights, size)


@given(weights, sizes)
@example([5e-324, 1.7e308], 10**12)
@example([5e-324] * 3, 10**12)
@example([0.1, 0.2, 0.3], 10**12)
def test_counts_sum_to_the_size_and_are_within_one(values: list[float], size: int) -> None:
    check(values, size)


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1), st.integers(1, 1000), sizes)
def test_many_datasets(seed: int, num_datasets: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    check((generator.pareto(0.5, num_datasets) + 1e-9).tolist(), size)


@pytest.mark.parametrize(
    ("values", "size", "counts"),
    [
        ([1, 1, 1], 4, [2, 1, 1]),  # equal remainders: the lowest index first
        ([1, 1, 1], 5, [2, 2, 1]),
        ([1, 1, 1, 1], 1, [1, 0, 0, 0]),
        ([1, 3, 1, 3], 4, [1, 2, 0, 1]),  # four remainders of a half
        ([0.1, 0.1, 0.8], 5, [1, 0, 4]),  # 0.5, 0.5 and 4.0, all but: the floats are a bit more
        ([3, 1], 0, [0, 0]),
        ([7], 10**12, [10**12]),
        ([5e-324, 1.0], 10**12, [0, 10**12]),
        ([0.5, 0.25, 0.25], 2**62, [2**61, 2**60, 2**60]),  # nothing is rounded on the way
    ],
)
def test_by_hand(values: list[float], size: int, counts: list[int]) -> None:
    assert largest_remainder(values, size).tolist() == counts
    assert largest_remainder(np.array(values, np.float64), size).tolist() == counts


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ([], "none"),
        ([1.0, 0.0], "0.0 for dataset 1"),
        ([-1.0, 0.0], "-1.0 for dataset 0"),
        ([1.0, math.nan], "nan for dataset 1"),
        ([math.inf], "inf for dataset 0"),
    ],
)
def test_weights_must_be_positive_numbers(values: list[float], got: str) -> None:
    with pytest.raises(PlanError, match=f"weights must be positive numbers, got {got}; leave"):
        largest_remainder(values, 10)
