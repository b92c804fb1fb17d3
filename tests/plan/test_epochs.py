"""Epochs and sample counts: literal loops, exact fractions, golden cases."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.plan.epochs import EpochPlan, plan_epochs


def plan_by_loop(
    tokens: int, num_samples: int | None, *, sequence_length: int, extra_token: int
) -> tuple[int, bool, int]:
    """Return (epochs, separate, samples before the last epoch) as Megatron Core finds them."""
    if num_samples is None:
        return 1, False, 0
    num_epochs, total = 1, tokens
    while total < num_samples * sequence_length + extra_token:
        num_epochs += 1
        total += tokens
    if num_epochs == 1:
        return 1, False, 0
    sans = ((num_epochs - 1) * tokens - extra_token) // sequence_length
    last = num_samples - sans
    per_epoch = (tokens - extra_token) // sequence_length
    assert 0 <= last <= per_epoch + 1
    return num_epochs, last < int(0.80 * per_epoch), sans


@given(
    tokens=st.integers(1, 500),
    num_samples=st.none() | st.integers(0, 300),
    sequence_length=st.integers(1, 40),
    extra_token=st.integers(0, 1),
    drop_last=st.booleans(),
)
def test_epochs_are_those_of_the_loop(
    tokens: int, num_samples: int | None, drop_last: bool, **sizes: int
) -> None:
    plan = plan_epochs(tokens, num_samples, drop_last=drop_last, **sizes)
    num_epochs, separate, sans = plan_by_loop(tokens, num_samples, **sizes)
    assert (plan.num_epochs, plan.separate_final_epoch) == (num_epochs, separate)
    assert plan.count_sans_final(**sizes) == sans
    assert plan.tokens_per_epoch == tokens
    exact = Fraction(num_epochs * tokens - sizes["extra_token"], sizes["sequence_length"])
    assert plan.num_samples == (math.floor(exact) if drop_last else math.ceil(exact))
    if num_samples is not None:
        assert plan.num_samples >= num_samples
        assert sans <= plan.num_samples


@given(
    tokens=st.integers(1, 10**15),
    num_samples=st.integers(0, 10**14),
    sequence_length=st.integers(1, 2**20),
    extra_token=st.integers(0, 1),
    drop_last=st.booleans(),
)
def test_large_numbers_are_exact(
    tokens: int, num_samples: int, sequence_length: int, extra_token: int, drop_last: bool
) -> None:
    sizes = {"sequence_length": sequence_length, "extra_token": extra_token}
    plan = plan_epochs(tokens, num_samples, drop_last=drop_last, **sizes)
    wanted = num_samples * sequence_length + extra_token
    assert plan.num_epochs == max(1, math.ceil(Fraction(wanted, tokens)))
    exact = Fraction(plan.num_epochs * tokens - extra_token, sequence_length)
    assert plan.num_samples == (math.floor(exact) if drop_last else math.ceil(exact))
    assert plan.num_samples >= num_samples
    if plan.num_epochs > 1:
        before = Fraction((plan.num_epochs - 1) * tokens - extra_token, sequence_length)
        sans = plan.count_sans_final(sequence_length, extra_token)
        assert sans == math.floor(before) < num_samples


#: 27 tokens, samples of 4 + x: (N, x, drop_last) -> (epochs, separate, sans, samples).
GOLDEN = [
    ((None, 1, True), (1, False, 0, 6)),  # (27 - 1) // 4
    ((None, 0, True), (1, False, 0, 6)),  # 27 // 4
    ((None, 0, False), (1, False, 0, 7)),  # a last sample of three tokens
    ((0, 1, True), (1, False, 0, 6)),  # none asked for: still one pass
    ((6, 1, True), (1, False, 0, 6)),  # exactly one pass: 6 * 4 + 1 <= 27
    ((7, 1, True), (2, True, 6, 13)),  # 29 > 27; one of the last epoch's six is less than 80 %
    ((9, 1, True), (2, True, 6, 13)),  # 3 < int(0.8 * 6) = 4
    ((10, 1, True), (2, False, 6, 13)),  # 4 is not less than 4
    ((13, 1, True), (2, False, 6, 13)),  # all of two passes
    ((15, 1, True), (3, True, 13, 20)),  # 2 of the third
    ((20, 1, True), (3, False, 13, 20)),
    ((13, 0, True), (2, False, 6, 13)),
    ((14, 0, True), (3, True, 13, 20)),  # 56 > 54
]


@pytest.mark.parametrize(("asked", "expected"), GOLDEN)
def test_golden(asked: tuple[int | None, int, bool], expected: tuple[int, bool, int, int]) -> None:
    num_samples, extra_token, drop_last = asked
    plan = plan_epochs(
        27, num_samples, sequence_length=4, extra_token=extra_token, drop_last=drop_last
    )
    num_epochs, separate, sans, count = expected
    assert plan == EpochPlan(num_epochs, separate, count, tokens_per_epoch=27)
    assert plan.count_sans_final(4, extra_token) == sans


@pytest.mark.parametrize(
    ("tokens", "sequence_length", "samples", "float32_samples"),
    [
        (195_400_000, 13, 15_030_770, 15_030_769),  # Megatron Core is one short
        (300_000_000_000, 2048, 146_484_375, 146_484_368),
        (10**15, 8192, 122_070_312_500, None),
    ],
)
def test_a_partial_sample_is_counted_exactly(
    tokens: int, sequence_length: int, samples: int, float32_samples: int | None
) -> None:
    plan = plan_epochs(
        tokens, None, sequence_length=sequence_length, extra_token=0, drop_last=False
    )
    assert plan.num_samples == samples == -(-tokens // sequence_length)
    if float32_samples is not None:
        rounded = np.ceil(np.float32(tokens) / np.float32(sequence_length))
        assert int(rounded) == float32_samples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((27, 9, 0, 1), "sequence_length must be at least 1, got 0"),
        ((27, 9, -4, 1), "sequence_length must be at least 1, got -4"),
        ((27, -1, 4, 1), "num_samples must be at least 0, got -1"),
        ((0, 9, 4, 1), "a split must hold tokens, got 0 for 9 samples"),
        ((0, None, 4, 1), "a split must hold tokens, got 0 for None samples"),
    ],
)
def test_impossible_numbers_are_refused(
    arguments: tuple[int, int | None, int, int], message: str
) -> None:
    tokens, num_samples, sequence_length, extra_token = arguments
    with pytest.raises(PlanError, match=re.escape(message)):
        plan_epochs(tokens, num_samples, sequence_length=sequence_length, extra_token=extra_token)
