"""Tests of shuffles: bad orders are found, ideal ones and those of every kind of run pass."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.inspection.answers.brute_force import KINDS, draw_run
from tests.reporting.orders import draw_order, make_order
from zindex.arrays import Int64Array
from zindex.inspection.answers.run_order import RunOrder
from zindex.reporting.observations import observe
from zindex.reporting.shuffle_quality import measure_shuffle, rank_places

SIZE = 4096


def _blocks(rng: np.random.Generator) -> Int64Array:
    return np.concatenate([rng.permutation(512) + 512 * number for number in range(8)])


BAD: dict[str, Callable[[np.random.Generator], Int64Array]] = {
    "sorted": lambda rng: np.arange(SIZE),
    "backwards": lambda rng: np.arange(SIZE)[::-1],
    "shuffled in blocks": _blocks,
    "shuffle buffer": lambda rng: np.argsort(np.arange(SIZE) + 400 * rng.random(SIZE)),
    "strides": lambda rng: np.arange(SIZE) * 5 % SIZE,
    "pairs": lambda rng: np.arange(SIZE).reshape(-1, 2)[rng.permutation(SIZE // 2)].reshape(-1),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("num_datasets", [1, 3])
def test_bad_orders_are_found(name: str, num_datasets: int) -> None:
    rng = np.random.default_rng(0)
    documents = np.repeat(BAD[name](rng), num_datasets)
    datasets = np.tile(np.arange(num_datasets), SIZE)
    tests = measure_shuffle(make_order(datasets, documents))
    assert "bad" in {test.verdict for test in tests}
    assert any(test.words.startswith("Not random: ") for test in tests)


def test_a_drifting_mix_is_found() -> None:
    rng = np.random.default_rng(0)
    datasets = (rng.random(SIZE) < np.linspace(0.2, 0.4, SIZE)).astype(np.int64)
    seen = make_order(datasets, rng.permutation(SIZE))
    verdicts = {test.name: test.verdict for test in measure_shuffle(seen, [(0, SIZE)])}
    assert verdicts.pop("mix") == "bad"
    assert "bad" not in verdicts.values()
    # The weights changed at the middle: each half has a mix of its own.
    halves = np.where(np.arange(SIZE) < SIZE // 2, rng.random(SIZE) < 0.2, rng.random(SIZE) < 0.6)
    seen = make_order(halves.astype(np.int64), rng.permutation(SIZE))
    parts = [(0, SIZE // 2), (SIZE // 2, SIZE)]
    assert measure_shuffle(seen, parts)[-1].verdict == "good"
    assert measure_shuffle(seen, [(0, SIZE)])[-1].verdict == "bad"


@pytest.mark.parametrize("shape", [(64, 1, 10**9), (3000, 1, 40), (4000, 3, 500), (6000, 150, 90)])
def test_ideal_orders_pass(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(7)
    p_values: dict[str, list[float]] = {}
    for _ in range(40):
        seen = draw_order(rng, *shape)
        for test in measure_shuffle(seen, [(0, shape[0])]):
            assert test.verdict != "bad"
            if test.p_value is not None:
                p_values.setdefault(test.name, []).append(test.p_value)
    assert {"uniformity", "locality", "batches"} <= p_values.keys()
    for values in p_values.values():
        assert 0.35 < np.mean(values) < 0.8
        assert np.mean(np.array(values) < 0.05) < 0.18


def test_more_even_than_random() -> None:
    datasets = np.tile([0, 0, 1], 1000)
    rng = np.random.default_rng(0)
    test = measure_shuffle(make_order(datasets, rng.permutation(3000)), [(0, 3000)])[-1]
    assert (test.verdict, test.words) == ("even", "More even than a random order.")


def test_too_few_samples() -> None:
    zeros = np.zeros(5, np.int64)
    for test in measure_shuffle(make_order(zeros, np.arange(5)), [(0, 5)]):
        assert (test.verdict, test.words) == ("unknown", "Too few samples to test.")
    same = measure_shuffle(make_order(np.zeros(500, np.int64), np.zeros(500, np.int64)))
    assert {test.verdict for test in same} == {"unknown"}


def test_places_are_mean_ranks() -> None:
    seen = make_order(np.array([0, 1, 0, 0, 1, 0]), np.array([5, 2, 3, 5, 1, 9]))
    assert rank_places(seen).tolist() == [0.5, 0.75, 0.125, 0.5, 0.25, 0.875]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(200, 202))
def test_runs_pass(kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, seed, tmp_path, write_corpus)
    order = RunOrder(run.config, run.split)
    mixes = [(each.start, each.stop) for each in order.segments if order.plans]
    tests = measure_shuffle(observe(order), mixes)
    assert not [test for test in tests if test.verdict == "bad"]
