"""Edits of a run as arithmetic: segments, what is used, what comes next, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, PlanError
from zindex.plan.journal import (
    BlendFacts,
    Change,
    ConsumedFacts,
    RunState,
    Source,
    check_change,
    consumed_ranges,
    cut_windows,
    plan_next,
)
from zindex.plan.segments import Segment


def make_state(**settings: Any) -> RunState:
    sources = tuple(Source(d, 70, 80, sequence_length=4, seed=1) for d in range(2))
    used = tuple(ConsumedFacts(d, 0, 0, 0) for d in range(2))
    values: dict[str, Any] = {
        "datasets": ("web", "code"),
        "weights": (7.0, 3.0),
        "consumed_tokens": (0, 0),
        "sequence_length": 4,
        "sources": sources,
        "blends": (BlendFacts((0, 1), (0.7, 0.3), None, 100, 1, used),),
        "segments": (Segment(0, 100, 0, 0),),
    }
    return RunState(**(values | settings))


def make_change(**settings: Any) -> Change:
    return Change(**({"reweight": {}, "add": {}} | settings))


def test_consumed_ranges_are_those_of_one_blend() -> None:
    segments = (Segment(0, 5, 0, 0), Segment(5, 9, 1, 0), Segment(9, 30, 1, 6))
    state = make_state(segments=segments, skipped=((0, 5, 8), (1, 4, 6), (1, 40, 50)))
    assert consumed_ranges(state, 0, 30) == ([(0, 5)], [(5, 8)])
    assert consumed_ranges(state, 1, 11) == ([(0, 4), (6, 8)], [(4, 6), (40, 50)])


def test_a_state_round_trips_through_json() -> None:
    cut = Source(1, None, 9, sequence_length=8, seed=2, parent=0, blend=1, windows=(4, 9))
    added = BlendFacts((0,), None, (5,), 5, 3, (), (ConsumedFacts(0, 1, 2, 1),), "edit-train-ab")
    base = make_state()
    state = make_state(
        datasets=("web", "code", "/added"),
        weights=(7.0, None, 0.1),
        consumed_tokens=(0, 0, 5),
        sources=(*base.sources, cut),
        blends=(*base.blends, added),
        skipped=((0, 5, 8),),
    )
    text = json.dumps(state.to_json(2))
    assert "web" not in text
    assert RunState.from_json(json.loads(text), ("web", "code")) == state


@pytest.mark.parametrize(
    ("change", "position", "kind", "message"),
    [
        ({"drop": (0,)}, 101, PlanError, "the run of 100 samples, got position 101"),
        ({"drop": (0,)}, -1, PlanError, "got position -1"),
        ({"drop": (0,)}, 9, PlanError, "before the last one, at position 10, got 9"),
        ({}, 10, ConfigError, "must change something"),
        ({"skip": (9, 12)}, 10, PlanError, r"in \[10, 100\).*got \[9, 12\)"),
        ({"skip": (12, 12)}, 10, PlanError, r"got \[12, 12\)"),
        ({"skip": (12, 101)}, 10, PlanError, r"got \[12, 101\)"),
        ({"reweight": {0: 0.0}}, 10, ConfigError, "got 0.0 for 'web'"),
        ({"reweight": {0: float("nan")}}, 10, ConfigError, "got nan for 'web'"),
        ({"add": {"new": -1.0}}, 10, ConfigError, "got -1.0 for 'new'"),
        ({"add": {"new": float("inf")}}, 10, ConfigError, "got inf for 'new'"),
        ({"reweight": {0: 1.0}, "drop": (0,)}, 10, ConfigError, "'web' is to be dropped and"),
        ({"drop": (0, 1)}, 10, PlanError, "got all dropped"),
        ({"sequence_length": 4}, 10, ConfigError, "not 4, the run's, got 4"),
        ({"sequence_length": 0}, 10, ConfigError, "got 0"),
        ({"num_samples": 10}, 10, PlanError, "more samples than the 10 before its edit, got 10"),
    ],
)
def test_wrong_edits_are_refused(
    change: dict[str, Any], position: int, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check_change(make_state(), make_change(**change), position, last=10)


def test_a_dropped_dataset_can_only_be_added() -> None:
    state = make_state(weights=(7.0, None))
    with pytest.raises(ConfigError, match="'code' was dropped; add it"):
        check_change(state, make_change(reweight={1: 2.0}), 10, last=0)
    check_change(state, make_change(add={"code": 2.0}), 10, last=0)


def test_weights_stay_in_the_scale_of_the_run() -> None:
    change = make_change(reweight={1: 9.0}, add={"new": 4.0})
    state, coming = plan_next(make_state(), change, 40, [40, 20], seed=3)
    assert state.datasets == ("web", "code", "new")
    assert state.weights == coming.weights == (7.0, 9.0, 4.0)
    assert (coming.datasets, coming.sizes, coming.num_samples) == ((0, 1, 2), None, 60)
    assert state.segments == (Segment(0, 40, 0, 0),)
    assert state.consumed_tokens == (0, 0, 0)


def test_a_dropped_dataset_returns_under_its_number() -> None:
    state, coming = plan_next(make_state(), make_change(drop=(0,)), 40, [40, 20], seed=3)
    assert (state.weights, coming.datasets, coming.weights) == ((None, 3.0), (1,), (3.0,))
    dropped = make_state(weights=(None, 3.0))
    state, coming = plan_next(dropped, make_change(add={"web": 1.0}), 40, [0, 60], seed=3)
    assert (state.weights, coming.datasets) == ((1.0, 3.0), (0, 1))


@pytest.mark.parametrize(
    ("change", "num_samples"),
    [
        ({"drop": (0,)}, 60),
        # 60 samples of 4 tokens are 40 of 6.
        ({"sequence_length": 6}, 40),
        ({"sequence_length": 7}, 34),
        ({"num_samples": 50}, 10),
        ({"num_samples": 50, "sequence_length": 6}, 10),
    ],
)
def test_the_run_keeps_its_length_or_its_tokens(change: dict[str, Any], num_samples: int) -> None:
    assert plan_next(make_state(), make_change(**change), 40, [42, 18], seed=3)[1].num_samples == (
        num_samples
    )


@pytest.mark.parametrize(
    ("change", "datasets", "sizes"),
    [
        ({"drop": (1,)}, (0,), (41,)),
        ({"sequence_length": 2}, (0, 1), (82, 38)),
        ({"sequence_length": 80}, (0,), (2,)),
    ],
)
def test_given_numbers_of_samples_stay_given(
    change: dict[str, Any], datasets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    blend = BlendFacts((0, 1), None, (70, 30), 100, 1, ())
    _, coming = plan_next(make_state(blends=(blend,)), make_change(**change), 40, [41, 19], seed=3)
    assert (coming.datasets, coming.sizes, coming.weights) == (datasets, sizes, None)
    assert coming.num_samples == sum(sizes)


def test_weights_of_given_numbers_are_shares() -> None:
    blend = BlendFacts((0, 1), None, (70, 30), 100, 1, ())
    state = make_state(blends=(blend,))
    _, coming = plan_next(state, make_change(add={"new": 0.5}), 40, [45, 15], seed=3)
    assert (coming.weights, coming.num_samples) == ((0.75, 0.25, 0.5), 60)


def test_an_edit_leaves_samples_to_draw() -> None:
    with pytest.raises(PlanError, match="position 100 must leave samples to draw, got none"):
        plan_next(make_state(), make_change(drop=(0,)), 100, [0, 0], seed=3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_windows_tile_what_is_left(sizes: list[int], old: int, new: int) -> None:
    bounds = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    windows = cut_windows(bounds, old, new)
    total = bounds[-1] * old // new
    assert (windows[-1] if windows else 0) == total
    assert list(windows) == sorted(set(windows))
    # A sample is in the range in which it starts.
    for sample in range(total):
        window = next(i for i, stop in enumerate(windows) if sample < stop)
        start = windows[window - 1] if window else 0
        ranges = {
            next(i for i, bound in enumerate(bounds) if k * new < bound * old)
            for k in range(start, windows[window])
        }
        assert len(ranges) == 1
