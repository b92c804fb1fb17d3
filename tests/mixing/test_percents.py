"""Percents that change: each source has its share of each piece."""

import numpy as np
import pytest

from zindex.mixing.percent_schedules import Schedule
from zindex.mixing.percents import LanePieces
from zindex.mixing.pick_orders import ExactMixing


def take(children: list[tuple[str, Schedule]], lane: int, num_lanes: int, stop: int) -> list[int]:
    """Return the picks of a worker slot."""
    pieces = LanePieces(children, None, iteration=0, base=0, step=num_lanes, process=0)
    picks = list[int]()
    for block, _ in ExactMixing(pieces).blocks(lane, num_lanes, 0):
        picks += block
        if len(picks) >= stop:
            break
    return picks[:stop]


@pytest.mark.parametrize("num_lanes", [1, 2, 5, 16])
def test_each_source_has_its_share_in_each_piece(num_lanes: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(3):
        lengths = rng.choice([3, 20, 100, 400], size=8)
        starts = np.concatenate([[0], lengths.cumsum()]).tolist()
        percents = rng.random((int(rng.integers(2, 8)), 8)) ** 3 + 1e-3
        children: list[tuple[str, Schedule]] = [
            (str(n), tuple(zip([s * num_lanes for s in starts[:-1]], row.tolist(), strict=True)))
            for n, row in enumerate(percents)
        ]
        shares = np.repeat(percents / percents.sum(0), lengths, axis=1).cumsum(1)
        whole = np.zeros((len(percents), starts[-1] + 1))
        for lane in range(num_lanes):
            picks = np.array(take(children, lane, num_lanes, starts[-1]))
            counts = (picks == np.arange(len(percents))[:, None]).cumsum(1)
            errors = np.concatenate([np.zeros((len(percents), 1)), counts - shares], axis=1)
            assert np.abs(errors).max() < 1 + 1e-6
            whole = whole + errors
        assert np.abs(whole).max() < 1 + 1e-6


def test_a_rare_source_has_its_share_of_many_short_pieces() -> None:
    often = tuple((100 * number, 1 + number % 2) for number in range(200))
    picks = take([("often", often), ("rare", ((0, 0.005),))], 0, 1, 20_000)
    assert abs(picks.count(1) - 10_000 * (0.005 / 1.005 + 0.005 / 2.005)) < 2
