"""Orders in which worker slots pick the sources of a mixture."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from zindex.arrays import Int64Array
from zindex.errors import StateMismatchError
from zindex.kernels import lane_picks as kernels
from zindex.mixing.lane_picks import CHECKPOINT_PICKS, Checkpoint, LanePicks, find_shares
from zindex.mixing.pick_orders import CogdataMixing, ExactMixing, Mixing


def pick(
    mixing: Mixing,
    stop: int,
    *,
    start: int = 0,
    slot: tuple[int, int] = (0, 1),
    checkpoint: Checkpoint | None = None,
) -> tuple[list[int], Checkpoint | None]:
    """Return the picks of a slot from one number to another, and the last checkpoint."""
    picks: list[int] = []
    for block, report in mixing.blocks(*slot, start, checkpoint):
        checkpoint = report or checkpoint
        picks += block
        if len(picks) >= stop - start:
            return picks[: stop - start], checkpoint
    raise AssertionError("an order of picks does not end")


def pick_all(percents: Sequence[float], num_slots: int, num_steps: int) -> Int64Array:
    """Return the picks of all slots, shape (slots, steps)."""
    mixing = ExactMixing(percents)
    picks = [pick(mixing, num_steps, slot=(lane, num_slots))[0] for lane in range(num_slots)]
    return np.array(picks, np.int64)


def count_errors(percents: Sequence[float], picks: Int64Array) -> NDArray[np.float64]:
    """Return picks beyond the shares: shape (sources, slots, steps)."""
    whole = sum(map(Fraction, percents))
    # In float64, the errors of some thousand steps are exact to 1e-12.
    steps = np.arange(1, picks.shape[1] + 1)
    return np.array(
        [
            np.cumsum(picks == source, axis=1) - steps * float(Fraction(percent) / whole)
            for source, percent in enumerate(percents)
        ]
    )


def find_errors(percents: Sequence[float], num_slots: int, num_steps: int) -> tuple[float, float]:
    """Return the largest errors of a slot and of all slots together."""
    errors = count_errors(percents, pick_all(percents, num_slots, num_steps))
    return float(np.abs(errors).max()), float(np.abs(errors.sum(1)).max())


@pytest.mark.parametrize(
    "percents", [[1], [0.25, 0.25, 0.5], [0.7, 0.2, 0.1], [1e-9, 1e9], [0, 3, 1], [1 / 3, 1e-300]]
)
def test_shares_are_exact(percents: list[float]) -> None:
    shares = find_shares(percents)
    assert shares.sum() == 1 << 55
    whole = sum(Fraction(repr(float(percent))) for percent in percents)
    for share, percent in zip(shares.tolist(), percents, strict=True):
        exact = Fraction(repr(float(percent))) / whole
        assert abs(Fraction(share, 1 << 55) - exact) < Fraction(len(percents), 1 << 55)


MIXTURES: list[list[float]] = [
    [1, 1],
    [0.5, 0.3, 0.2],
    [99, 1],
    [1e-9, 1e9, 1],
    [0.123456, 0.5, 0.376544],
    [1] * 7,
    [1 / 3, 1 / 3, 1 / 3 - 1e-3, 5e-4, 5e-4],
    [1, 1, 1, 0.01, 0.01, 0.01, 0.01],
    [2.0**-i for i in range(12)],
    [1 / i for i in range(1, 17)],
]


@pytest.mark.parametrize("num_slots", [1, 2, 5, 16, 24])
def test_each_source_has_its_share_in_each_slot_and_over_all(num_slots: int) -> None:
    rng = np.random.default_rng(5)
    mixtures = MIXTURES + [
        (rng.exponential(size=rng.integers(2, 17)) ** rng.integers(1, 5)).tolist() for _ in range(6)
    ]
    for percents in mixtures if num_slots < 16 else mixtures[-7:]:
        of_slots, of_all = find_errors(percents, num_slots, 3000 if num_slots < 16 else 800)
        assert of_slots < 1 + 1e-9, percents
        assert of_all < 1 + 1e-9, percents


@pytest.mark.slow
def test_shares_hold_over_many_slots_and_picks() -> None:
    rng = np.random.default_rng(9)
    num_off = num_counts = 0
    for _ in range(12):
        num_slots = int(rng.choice([2, 3, 8, 12, 32, 96]))
        percents = (rng.exponential(size=rng.integers(2, 24)) ** rng.integers(1, 6)).tolist()
        table = pick_all(percents, num_slots, 12_000)
        errors = count_errors(percents, table)
        assert np.abs(errors.sum(1)).max() < 1 + 1e-6, percents
        assert np.abs(errors).max() < 2, percents
        num_off += int((np.abs(errors) > 1 + 1e-9).sum())
        num_counts += errors.size
    assert num_off < num_counts / 100_000


@given(
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8), st.integers(1, 9), st.integers(1, 60)
)
def test_no_source_is_a_sample_off(percents: list[float], num_slots: int, num_steps: int) -> None:
    assert max(find_errors(percents, num_slots, num_steps)) < 1 + 1e-9


def test_lanes_of_different_depth_pick_the_same_steps() -> None:
    # For a few sources few picks are computed at a time, which must be those of all lanes.
    percents = [3.4504096, 0.92048003, 0.68542785, 0.66351622, 0.36361566, 0.1, 0.1000001]
    assert max(find_errors(percents, 3, 300)) < 1 + 1e-9


def test_a_thousand_sources_have_their_shares() -> None:
    percents = [1 / (i + 1) for i in range(1000)]
    assert find_errors(percents, 1, 3000)[0] < 1 + 1e-9


def test_a_rare_source_is_drawn_by_one_slot_at_a_time() -> None:
    mixing = ExactMixing([99, 1])
    first = [pick(mixing, 100, slot=(lane, 10))[0].index(1) for lane in range(10)]
    assert len(set(first)) == 10


@pytest.mark.parametrize("percents", [[0, 1, 0], [1, 0, 3]])
def test_a_source_of_percent_0_is_never_picked(percents: list[float]) -> None:
    picks, _ = pick(ExactMixing(percents), 300)
    assert set(picks) == {source for source, percent in enumerate(percents) if percent}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 99))
def test_an_order_resumes_at_any_pick(percents: list[int], lane: int, start: int) -> None:
    for mixing in (ExactMixing(percents), CogdataMixing(percents, lane)):
        whole, _ = pick(mixing, start + 50, slot=(lane, 4))
        assert pick(mixing, start + 50, start=start, slot=(lane, 4))[0] == whole[start:]


def test_a_single_source_needs_no_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ([0, 2.5, 0], [1])
    checkpoint = pick(ExactMixing([1, 1e-9]), 5000)[1]
    expected = {}
    for percents, lane in itertools.product(pieces, range(6)):
        picks = LanePicks(lane, 6, [0] * len(percents))
        picks.open(percents, 0)
        picks._only = None  # computes them
        picks.period = picks._repeated = 0
        expected[len(percents), lane] = [*picks.advance(64)], picks.checkpoint()
    monkeypatch.setattr(kernels, "count_picks", None)
    for percents, lane in itertools.product(pieces, range(6)):
        picks = LanePicks(lane, 6, [0] * len(percents))
        picks.open(percents, 0)
        picks.period = picks._repeated = 0
        found = [*picks.advance(64)], picks.checkpoint()
        assert found == expected[len(percents), lane]
    assert pick(ExactMixing([1]), 9000, start=500) == ([0] * 8500, None)
    assert pick(ExactMixing([3]), 6000, start=5000, checkpoint=checkpoint) == (
        [0] * 1000,
        checkpoint,
    )


def test_without_lanes_picks_do_not_depend_on_loaded_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    percents = [0.31, 0.03, 1 / 3, 0.2]
    expected, checkpoint = pick(ExactMixing(percents), 5000)
    resumed = pick(ExactMixing(percents), 5000, start=4500, checkpoint=checkpoint)
    monkeypatch.setattr("zindex.mixing.lane_picks.is_loaded", lambda kernel: False)
    monkeypatch.setattr("zindex.mixing.lane_picks.use_numpy", lambda cost: True)
    assert pick(ExactMixing(percents), 700)[0] == expected[:700]
    again = pick(ExactMixing(percents), 5000, start=4500, checkpoint=checkpoint)
    assert again == resumed


@pytest.mark.parametrize("slot", [(0, 1), (2, 3), (17, 20)])
@pytest.mark.parametrize("start", [CHECKPOINT_PICKS - 1, CHECKPOINT_PICKS, 9_001])
def test_an_order_resumes_from_a_checkpoint(slot: tuple[int, int], start: int) -> None:
    percents = [0.123456789, 0.5, 0.376543211]
    whole, _ = pick(ExactMixing(percents), 12_000, slot=slot)
    _, checkpoint = pick(ExactMixing(percents), start + 1, slot=slot)
    assert (checkpoint is None) == (start < CHECKPOINT_PICKS)
    rest, _ = pick(ExactMixing(percents), 12_000, start=start, slot=slot, checkpoint=checkpoint)
    assert rest == whole[start:]


@pytest.mark.parametrize("num_slots", [2, 7, 16])
def test_shares_are_exact_at_the_end_of_a_period_which_repeats(num_slots: int) -> None:
    percents = [0.12, 0.5, 0.301, 0.079]
    table = pick_all(percents, num_slots, 3000)
    ends = np.cumsum(table[:, :, None] == np.arange(4), axis=1)[:, 999::1000]
    assert np.all(ends == np.arange(1, 4)[:, None] * [120, 500, 301, 79])
    assert np.abs(count_errors(percents, table)).max() < 1 + 1e-9
    rest, checkpoint = pick(ExactMixing(percents), 10**9 + 900, start=10**9, slot=(1, num_slots))
    assert rest == table[1, :900].tolist()
    assert checkpoint is None


def test_a_checkpoint_of_other_percents_begins_with_exact_shares() -> None:
    _, checkpoint = pick(ExactMixing([1, 2]), 5000)
    other = ExactMixing([2, 1])
    picks = pick(other, 6000, start=5000, checkpoint=checkpoint)[0]
    assert picks == pick(other, 6000, start=5000)[0]
    assert abs(picks.count(0) - 667) <= 1


@pytest.mark.parametrize("change", [{2: "22"}, {2: "2x2"}, {0: 99_999}])
def test_a_damaged_checkpoint_is_refused(change: dict[int, object]) -> None:
    mixing = ExactMixing([1, 2, 4])
    _, checkpoint = pick(mixing, 5000)
    assert checkpoint is not None
    for place, value in change.items():
        checkpoint[place] = value
    with pytest.raises(StateMismatchError, match="must have 3 digits, of at most 5000 picks, got"):
        pick(mixing, 6000, start=5000, checkpoint=checkpoint)


def test_exhausted_sources_are_replaced_by_percent_whichever_are_known() -> None:
    mixing = ExactMixing([1, 6, 2, 1])
    drawn = [mixing.replace(step, 0, [1, 2]) for step in range(4000)]
    assert abs(drawn.count(1) - 3000) < 120
    for step, source in enumerate(drawn):
        assert mixing.replace(step, 0, [0, 1, 2, 3]) in (source, 0, 3)


def test_orders_of_picks_are_part_of_the_format() -> None:
    mixing = ExactMixing([0.5, 0.3, 0.2])
    assert pick(mixing, 12)[0] == [0, 1, 0, 2, 0, 1, 0, 0, 2, 1, 0, 1]
    assert pick(mixing, 12, slot=(1, 2))[0] == [1, 0, 0, 0, 2, 1, 2, 0, 0, 1, 1, 0]
    assert pick(mixing, 12, slot=(17, 18))[0] == [2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 2, 0]


def test_a_piece_that_ends_within_a_block_continues_its_counts() -> None:
    percents = [3.0**-i for i in range(12)]
    for stop in (1, 64, 333):
        lanes = [LanePicks(lane, 6, [0] * 12) for lane in range(6)]
        picked = []
        for lane in lanes:
            lane.open(percents, 0)
            picked.append([*lane.advance(min(stop, 64))])
            while lane.step < stop:
                picked[-1] += [*lane.advance(min(64, stop - lane.step))]
            lane.open(percents, stop)
            while lane.step < 500:
                picked[-1] += [*lane.advance(64)]
        errors = count_errors(percents, np.array(picked))
        assert np.abs(errors).max() < 1.5
        assert np.abs(errors.sum(1)).max() < 1 + 1e-6
