"""Sources have their shares over whole runs: nested, and across other numbers of worker slots."""

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, ids_of, pairs
from zindex.streaming import MergedDataset, merge_states

Shares = dict[str, Fraction]


def make(percents: dict[str, Any], **settings: Any) -> MergedDataset:
    return MergedDataset([Items(name, 1000, one) for name, one in percents.items()], **settings)


def nest(percent: float, percents: dict[str, Any], **settings: Any) -> MergedDataset:
    dataset = make(percents, **settings)
    dataset.percent = percent
    return dataset


def find_error(run: Run, shares: Shares, before: Counter[str]) -> float:
    """Return how many samples a source is off its share at most, over all ranks."""
    counts = before + Counter(sample["__datasetname__"] for sample in run.samples())
    total = sum(counts.values())
    return float(max(abs(counts[name] - total * share) for name, share in shares.items()))


def step(run: Run, num_workers: int) -> None:
    """Deliver one sample of each worker slot."""
    for rank in run.ranks:
        for _ in range(max(1, num_workers)):
            rank.step()


PERCENTS = {"a": 0.5, "b": 0.3, "c": 0.17, "d": 0.02, "e": 0.01}


@pytest.mark.parametrize("percents", [PERCENTS, {"a": 0.5123456789, "b": 0.3, "c": 0.1, "d": 1e-3}])
def test_shares_hold_across_other_numbers_of_worker_slots(percents: dict[str, float]) -> None:
    rng = random.Random(6)
    whole = sum(Fraction(str(percent)) for percent in percents.values())
    shares = {name: Fraction(str(percent)) / whole for name, percent in percents.items()}
    state: Any = None
    before: Counter[str] = Counter()
    for num_ranks, num_workers in ((5, 0), (2, 3), (4, 3), (1, 0), (3, 2), (7, 1), (1, 2)):
        run = Run(lambda: make(percents), num_ranks, num_workers, state, ahead=0)
        errors = []
        for _ in range(rng.randint(20, 40)):
            step(run, num_workers)
            errors.append(find_error(run, shares, before))
        # What ranks that ran ahead owe is given first.
        assert max(errors[2:]) < 1 + 1e-6
        run.advance(rng.randint(0, 40), lambda step, ranks: rng.randrange(ranks))
        state = run.merged_states()
        before += Counter(sample["__datasetname__"] for sample in run.samples())


def test_shares_hold_after_percents_were_set_and_sources_added() -> None:
    run = Run(lambda: make({"a": 1, "b": 1, "c": 3}), 2, 2, ahead=0)
    for _ in range(37):
        step(run, 2)
    at = run.set_percents({"c": 0.5})
    for _ in range(400):
        step(run, 2)
    run.advance(7, lambda step, ranks: 0)
    picked = Counter(sample["__datasetname__"] for sample in run.samples())
    total = sum(picked.values())
    due = {
        name: Fraction(at * of, 5) + (total - at) * Fraction(to) / Fraction(5, 2)
        for name, of, to in (("a", 1, 1), ("b", 1, 1), ("c", 3, Fraction(1, 2)))
    }
    percents = {"a": 1, "b": 2, "c": 0.5, "d": 1.5}
    later = Run(lambda: make(percents), 3, 0, run.merged_states(), ahead=0)
    for number in range(1, 90):
        step(later, 0)
        found = picked + Counter(sample["__datasetname__"] for sample in later.samples())
        for name, percent in percents.items():
            error = found[name] - due.get(name, 0) - Fraction(3 * number) * Fraction(percent) / 5
            assert abs(error) < 1 + 1e-6 or number < 3


def flat_and_nested() -> MergedDataset:
    inner = make({"c": 2, "d": 1, "e": 0.03})
    within = nest(7, {"f": 1, "g": 2})
    outer = MergedDataset([*inner.datasets, within])
    outer.percent = 0.4
    return MergedDataset([Items("a", 1000, 0.5), Items("b", 1000, 0.1), outer])


def test_the_shares_of_nested_mixtures_multiply() -> None:
    whole = Fraction("10.03")
    within = {"c": 2 / whole, "d": 1 / whole, "e": Fraction("0.03") / whole}
    within |= {"f": Fraction(7, 3) / whole, "g": Fraction(14, 3) / whole}
    shares = {"a": Fraction("0.5"), "b": Fraction("0.1")}
    shares |= {name: share * Fraction("0.4") for name, share in within.items()}
    for num_ranks, num_workers in ((1, 0), (3, 2)):
        run = Run(flat_and_nested, num_ranks, num_workers, ahead=0)
        for _ in range(300):
            step(run, num_workers)
            assert find_error(run, shares, Counter()) < 1 + 1e-6
        for rank in run.ranks:
            slots = max(1, num_workers)
            for worker in range(slots):
                names = [sample["__datasetname__"] for sample in rank.delivered[worker::slots]]
                for stop in range(1, len(names) + 1):
                    counts = Counter(names[:stop])
                    assert all(
                        abs(counts[name] - stop * shares[name]) < 1 + 1e-6 for name in shares
                    )


def test_exhausted_sources_of_a_nested_mixture_are_replaced_within_it() -> None:
    def make_finite() -> MergedDataset:
        inner = MergedDataset([Items("b", 20, 1), Items("c", 400, 1)], cyclic=False)
        inner.percent = 1
        return MergedDataset([Items("a", 400, 1), inner], cyclic=False)

    run = Run(make_finite, 1, 0)
    run.advance(700)
    names = [sample["__datasetname__"] for sample in run.samples()]
    assert Counter(names[:700])["a"] == 350
    states = merge_states([run.ranks[0].states])
    rest = Run(make_finite, 1, 0, states).drain()
    assert run.ids() + rest.ids() == Run(make_finite, 1, 0).drain().ids()


@pytest.mark.parametrize(
    "settings",
    [
        {"samples_per_pick": 2},
        {"mixing": "cogdata_mix"},
        {"stop_on_first": True, "cyclic": False},
        {"customized_yield_fn": pairs, "yield_segment": 9},
    ],
)
def test_other_nested_mixtures_keep_an_order_of_their_own(settings: dict[str, Any]) -> None:
    def make_other() -> MergedDataset:
        return MergedDataset([Items("a", 1000, 1), nest(1, {"b": 1, "c": 3}, **settings)])

    run = Run(make_other, 1, 0)
    run.advance(400)
    assert "mix /1/ @0/1" in run.ranks[0].states
    assert abs(sum("a:" in ids_of(sample)[0] for sample in run.samples()) - 200) <= 1
