"""Picks of a lane of several; their shares: tests/mixing/test_pick_orders.py."""

from typing import Any

import numpy as np
import pytest

from zindex.arrays import Int64Array
from zindex.kernels._jit import interpret
from zindex.kernels.lane_picks import LAG_BITS, count_picks, halve_picks

_ONE = 1 << LAG_BITS


def pick_all(
    ratios: list[int], num_lanes: int, num_steps: int, num_ahead: int = 0, *, compiled: bool = True
) -> tuple[Int64Array, int]:
    """Return the picks of all lanes, shape (lanes, steps), and how many were forced."""
    count: Any = count_picks if compiled else interpret(count_picks)
    halve: Any = halve_picks if compiled else interpret(halve_picks)
    shares = [ratio * _ONE // sum(ratios) for ratio in ratios]
    shares[0] += _ONE - sum(shares)
    divided = np.array([divmod(share * num_lanes, _ONE) for share in shares], np.int64)
    whole, parts = divided.T.copy()
    lags = np.zeros(len(shares), np.int64)
    shape = num_steps + num_ahead, min(len(shares), num_lanes)
    steps = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape[0], np.int64)
    count(whole, parts, num_lanes, lags, num_steps, *steps, 1 << 62, parts)
    assert lags.sum() == 0
    assert np.abs(lags).max() < _ONE

    def divide(size: int, steps: Any) -> tuple[list[Int64Array], int]:
        if size == 1:
            return [steps[0][:num_steps, 0]], 0
        found, total = [], 0
        for is_second in (False, True):
            own = [array.copy() for array in steps]
            counts = np.zeros((2, len(shares)), np.int64)
            rates = whole + parts / _ONE
            rows, forced = halve(size, is_second, rates, tuple(counts), num_steps, num_steps, *own)
            half = size - size // 2 if is_second else size // 2
            picks, more = divide(half, [array[:rows] for array in own])
            found += picks
            total += forced + more
        return found, total

    picks, num_forced = divide(num_lanes, steps)
    return np.array(picks), num_forced


@pytest.mark.parametrize("ratios", [[1], [4, 2, 1, 1], [15, 1], [7, 5, 3, 2]])
@pytest.mark.parametrize("num_lanes", [1, 2, 3, 6])
def test_the_kernel_picks_as_its_source_does(ratios: list[int], num_lanes: int) -> None:
    found = [
        pick_all(ratios, num_lanes, 32, 16, compiled=compiled)[0] for compiled in (True, False)
    ]
    assert np.array_equal(*found)


def test_a_lane_alone_picks_the_earliest_deadline() -> None:
    found, _ = pick_all([5, 2, 1], 1, 16)
    assert found[0].tolist() == [0, 1, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 0, 2, 1, 0]


def test_no_pick_is_forced_if_all_steps_are_considered() -> None:
    rng = np.random.default_rng(3)
    for _ in range(25):
        ratios = (1 + rng.exponential(size=rng.integers(2, 12)) ** 4 * 1000).astype(int).tolist()
        num_lanes = int(rng.integers(2, 14))
        found, num_forced = pick_all(ratios, num_lanes, 600)
        assert num_forced == 0
        shares = np.array(ratios) / sum(ratios)
        counts = np.cumsum(found[:, :, None] == np.arange(len(ratios)), axis=1)
        due = np.arange(1, 601)[:, None] * shares
        assert np.abs(counts - due).max() < 1 + 1e-9
        assert np.abs(counts.sum(0) - num_lanes * due).max() < 1 + 1e-9
        # The samples of a lane are those of all, divided and rounded.
        total = counts.sum(0)
        assert np.all((counts == total // num_lanes) | (counts == -(-total // num_lanes)))
