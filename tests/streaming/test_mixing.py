"""Orders of picks by weight."""

from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.streaming.mixing import CogdataMixing, ExactMixing, exact_order, integer_weights


@pytest.mark.parametrize(
    ("percents", "weights"),
    [
        ([1], [1]),
        ([0.25, 0.25, 0.5], [1, 1, 2]),
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([1, 3], [1, 3]),
        ([30, 10], [3, 1]),
        ([1e-3, 1], [1, 1000]),
    ],
)
def test_short_decimals_are_exact(percents: list[float], weights: list[int]) -> None:
    assert integer_weights(percents) == weights


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_other_ratios_are_rounded(percents: list[float]) -> None:
    weights = integer_weights(percents)
    assert min(weights) >= 1
    assert sum(weights) <= (1 << 16) + len(percents)
    for weight, percent in zip(weights, percents, strict=True):
        assert abs(weight / sum(weights) - percent / sum(percents)) < 1e-3


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_every_source_keeps_its_share_at_every_pick(weights: list[int]) -> None:
    picked = [0] * len(weights)
    for number, pick in enumerate(exact_order(weights), 1):
        picked[pick] += 1
        for source, weight in enumerate(weights):
            assert abs(picked[source] - Fraction(number * weight, sum(weights))) < 1
    assert picked == weights


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 99))
def test_an_order_goes_on_at_any_pick(weights: list[int], lane: int, start: int) -> None:
    for mixing in (ExactMixing(weights), CogdataMixing(weights)):
        whole = list(islice(mixing.picks(lane, 0), start + 50))
        assert list(islice(mixing.picks(lane, start), 50)) == whole[start:]


@pytest.mark.parametrize("lane", [0, 1, 2, 17])
def test_orders_longer_than_a_block_go_on(lane: int) -> None:
    mixing = ExactMixing([0.12345, 0.5, 0.37655])
    whole = list(islice(mixing.picks(lane, 0), 150_000))
    assert (
        list(islice(ExactMixing([0.12345, 0.5, 0.37655]).picks(lane, 99_990), 50_010))
        == whole[99_990:]
    )
    assert abs(whole[:100_000].count(0) - 12_345) <= 1


def test_lanes_draw_a_rare_source_at_different_times() -> None:
    mixing = ExactMixing([99, 1])
    first = [list(islice(mixing.picks(lane, 0), 100)).index(1) for lane in range(10)]
    assert len(set(first)) == 10
