"""Orders of parts and samples."""

from collections.abc import Iterator

import numpy as np
import pytest

from zindex.loading import stream_orders as orders
from zindex.loading.stream_orders import (
    block_order,
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


def test_cogdatas_buffer_of_size_0_keeps_the_order() -> None:
    assert list(orders.shuffle_like_cogdata(iter(range(9)), 0, seed=1)) == list(range(9))
    assert sorted(orders.shuffle_like_cogdata(iter(range(9)), 1, seed=1)) == list(range(9))
