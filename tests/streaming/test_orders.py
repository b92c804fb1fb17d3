"""Orders of parts, samples and picks."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.streaming import orders
from zindex.streaming.orders import (
    CogdataMixing,
    ExactMixing,
    block_order,
    exact_order,
    integer_weights,
    keyed_order,
    shuffle_like_cogdata,
    shuffle_samples,
)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 4097, (1 << 16) + 1])
def test_keyed_orders_are_permutations(size: int) -> None:
    places = np.arange(size)
    order = keyed_order(places, size, seed=1, name="a", epoch=0)
    assert np.array_equal(np.sort(order), places)
    half = keyed_order(places[::2], size, seed=1, name="a", epoch=0)
    assert np.array_equal(half, order[::2])


@pytest.mark.parametrize("size", [100, (1 << 16) + 1])
@pytest.mark.parametrize("other", [{"seed": 2}, {"name": "b"}, {"epoch": 1}])
def test_keyed_orders_depend_on_all_of_their_key(size: int, other: dict[str, object]) -> None:
    places, key = np.arange(size), {"seed": 1, "name": "a", "epoch": 0}
    one, two = (keyed_order(places, size, **k) for k in (key, key | other))  # type: ignore[arg-type]
    assert np.mean(one == two) < 0.1


def test_keyed_orders_are_part_of_the_format() -> None:
    order = keyed_order(np.arange(10), 10, seed=7, name="wiki", epoch=3)
    assert order.tolist() == [9, 4, 0, 6, 2, 5, 7, 8, 3, 1]
    samples = shuffle_samples(range(12), 5, key=(7, "wiki", 3, 2))
    assert list(samples) == [2, 3, 4, 6, 5, 1, 9, 11, 7, 0, 8, 10]


@pytest.mark.parametrize(("size", "block"), [(1, 10), (7, 10), (25, 10), (30, 10), (101, 100)])
def test_block_orders_are_permutations_that_stay_in_their_blocks(size: int, block: int) -> None:
    places = np.arange(size)
    order = block_order(places, size, seed=5, block=block)
    assert np.array_equal(np.sort(order), places)
    assert np.array_equal(order // block, places // block)
    assert np.array_equal(block_order(places[::3], size, seed=5, block=block), order[::3])


@pytest.mark.parametrize("num_samples", [0, 1, 5, 6, 40])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 100])
def test_buffers_lose_nothing(num_samples: int, size: int) -> None:
    key = (1, "a", 0, 0)
    assert sorted(shuffle_samples(range(num_samples), size, key=key)) == list(range(num_samples))
    assert sorted(shuffle_like_cogdata(range(num_samples), max(size, 1), seed=3)) == list(
        range(num_samples)
    )


def test_a_buffer_holds_no_more_than_its_size() -> None:
    taken: list[int] = []

    def samples() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    for number, _ in enumerate(shuffle_samples(samples(), 10, key=(1, "a", 0, 0)), 1):
        assert len(taken) - number <= 10


def test_small_and_large_orders_meet_at_a_fixed_size() -> None:
    assert orders._MAX_SORTED == 1 << 16


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
def test_an_order_resumes_at_any_pick(weights: list[int], worker_slot: int, start: int) -> None:
    for mixing in (ExactMixing(weights), CogdataMixing(weights)):
        whole = list(islice(mixing.picks(worker_slot, 0), start + 50))
        assert list(islice(mixing.picks(worker_slot, start), 50)) == whole[start:]


@pytest.mark.parametrize("worker_slot", [0, 1, 2, 17])
def test_orders_longer_than_a_block_resume(worker_slot: int) -> None:
    mixing = ExactMixing([0.12345, 0.5, 0.37655])
    whole = list(islice(mixing.picks(worker_slot, 0), 150_000))
    assert (
        list(islice(ExactMixing([0.12345, 0.5, 0.37655]).picks(worker_slot, 99_990), 50_010))
        == whole[99_990:]
    )
    assert abs(whole[:100_000].count(0) - 12_345) <= 1


def test_worker_slots_draw_a_rare_source_at_different_times() -> None:
    mixing = ExactMixing([99, 1])
    first = [list(islice(mixing.picks(worker_slot, 0), 100)).index(1) for worker_slot in range(10)]
    assert len(set(first)) == 10
