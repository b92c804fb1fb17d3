"""Picks of several lanes; their shares: tests/streaming/test_mixing.py."""

import numpy as np
import pytest

from zindex.kernels.lane_picks import COST_REACH, LAG_BITS, pick_alone, pick_block

GAINS = np.arange(-COST_REACH, COST_REACH)


@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.25, 0.125, 0.125], [0.9375, 0.0625]])
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_the_kernel_picks_as_its_source_does(shares: list[float], num_lanes: int) -> None:
    parts = np.array(shares) * (1 << LAG_BITS)
    found = []
    for kernel in (pick_block, pick_block.py_func):
        lags = np.zeros((num_lanes, len(shares)), np.int64)
        group_lags = np.zeros(len(shares), np.int64)
        picks = np.empty((32, num_lanes), np.int64)
        kernel(parts.astype(np.int64), lags, group_lags, GAINS, picks)
        # All periods end.
        assert not lags.any()
        assert not group_lags.any()
        found.append(picks)
    assert np.array_equal(*found)
    for lane in range(num_lanes):
        counts = np.cumsum(np.eye(len(shares))[found[0][:, lane]], axis=0)
        assert np.abs(counts - np.arange(1, 33)[:, None] * shares).max() < 1


def test_a_lane_alone_is_never_a_sample_off() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        percents = rng.exponential(size=rng.integers(1, 17)) ** rng.integers(0, 6)
        shares = (percents / percents.sum() * (1 << LAG_BITS)).astype(np.int64)
        shares[shares.argmax()] += (1 << LAG_BITS) - shares.sum()
        lags, picks = np.zeros(len(shares), np.int64), np.empty(1, np.int64)
        for _ in range(2000):
            pick_alone(shares, lags, picks)
            assert lags.sum() == 0
            assert np.abs(lags).max() < 1 << LAG_BITS


def test_the_kernel_of_a_lane_alone_picks_as_its_source_does() -> None:
    shares = np.array([5, 2, 1], np.int64) << (LAG_BITS - 3)
    found = []
    for kernel in (pick_alone, pick_alone.py_func):
        picks = np.empty(16, np.int64)
        kernel(shares, np.zeros(3, np.int64), picks)
        found.append(picks.tolist())
    assert found[0] == found[1] == [0, 1, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 0, 2, 1, 0]
