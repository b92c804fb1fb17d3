"""The blend kernels draw what Megatron Core's compiled helpers draw, element for element."""

import itertools
from typing import Any

import numpy as np
import pytest

from zindex.kernels.blend import advance_blend, blend_range, guess_counts

WARM_UP = 2**14
KINDS = ("uniform", "heavy", "lognormal", "equal", "tied", "sizes", "near", "nearer", "giant")


@pytest.fixture(scope="module")
def helpers() -> Any:
    pytest.importorskip("megatron.core")
    from megatron.core.datasets import helpers_cpp

    return helpers_cpp


def make_weights(kind: str, datasets: int, rng: np.random.Generator) -> Any:
    """Give normalised weights of one of the shapes that blends have."""
    uniform = rng.random(datasets) + 1e-9
    weights = {
        "uniform": lambda: uniform,
        "heavy": lambda: rng.pareto(1.0, datasets) + 1e-6,
        "lognormal": lambda: np.exp(2.0 * rng.standard_normal(datasets)),
        "equal": lambda: np.ones(datasets),
        "tied": lambda: rng.integers(1, 8, datasets),
        "sizes": lambda: rng.integers(1, max(3, datasets // 3), datasets),
        "near": lambda: 1.0 + 1e-3 * uniform,
        "nearer": lambda: 1.0 + 1e-12 * uniform,
        "giant": lambda: np.where(np.arange(datasets) == datasets // 2, 999.0 * datasets, uniform),
    }[kind]()
    return weights / weights.sum()


def draw_in_chunks(blend: Any, shares: Any, cuts: list[int]) -> tuple[Any, Any, list[Any]]:
    """Draw with the counts carried over cuts; return draws, and the counts at each cut."""
    counts = np.zeros(shares.size, np.int64)
    dataset, sample = np.empty(cuts[-1], np.int16), np.empty(cuts[-1], np.int64)
    states = [counts.copy()]
    for start, stop in itertools.pairwise(cuts):
        blend(shares, counts, start, dataset[start:stop], sample[start:stop])
        states.append(counts.copy())
    return dataset, sample, states


def choose(trial: int) -> tuple[np.random.Generator, str, int]:
    """Give the generator, the kind of weights and the number of datasets of a trial."""
    rng = np.random.default_rng(trial)
    return rng, KINDS[trial % len(KINDS)], int(np.exp(rng.uniform(np.log(2), np.log(1001))))


def choose_cuts(rng: np.random.Generator, size: int) -> list[int]:
    return sorted({0, size, *rng.integers(0, size + 1, rng.integers(0, 5)).tolist()})


@pytest.mark.parametrize("batch", range(10))
def test_weighted_blends(helpers: Any, batch: int) -> None:
    guessed = 0
    for trial in range(batch * 100, batch * 100 + 100):
        rng, kind, datasets = choose(trial)
        weights = make_weights(kind, datasets, rng)
        # Megatron's helper takes time in proportion to both.
        size = int(10 ** rng.uniform(3, 5)) if trial % 100 else 10**6
        size = min(size, 20_000_000 // datasets)
        theirs = np.empty(size, np.int16), np.empty(size, np.int64)
        helpers.build_blending_indices(*theirs, weights, datasets, size, False)
        cuts = choose_cuts(rng, size)
        *ours, states = draw_in_chunks(blend_range, weights, cuts)
        assert np.array_equal(ours[0], theirs[0]), (trial, kind, datasets)
        assert np.array_equal(ours[1], theirs[1]), (trial, kind, datasets)
        assert np.array_equal(states[-1], np.bincount(theirs[0], minlength=datasets))
        start = cuts[len(cuts) // 2]
        counts = guess_counts(weights, max(0, start - WARM_UP))
        advance_blend(weights, counts, max(0, start - WARM_UP), start)
        guessed += np.array_equal(counts, states[len(cuts) // 2])
    assert guessed >= 95


@pytest.mark.parametrize("batch", range(3))
def test_exhaustive_blends(helpers: Any, batch: int) -> None:
    for trial in range(batch * 100, batch * 100 + 100):
        rng, kind, datasets = choose(trial)
        total = max(datasets, min(int(10 ** rng.uniform(3, 5)), 20_000_000 // datasets))
        sizes = np.maximum(make_weights(kind, datasets, rng) * total, 1).astype(np.int64)
        size = int(sizes.sum())
        theirs = np.empty(size, np.int16), np.empty(size, np.int64)
        helpers.build_exhaustive_blending_indices(*theirs, sizes, datasets)
        *ours, states = draw_in_chunks(blend_range, sizes, choose_cuts(rng, size))
        assert np.array_equal(ours[0], theirs[0]), (trial, kind, datasets)
        assert np.array_equal(ours[1], theirs[1]), (trial, kind, datasets)
        assert np.array_equal(states[-1], sizes)
        assert np.array_equal(guess_counts(sizes, size), sizes)


@pytest.mark.parametrize("start", [10**9, 10**12])
@pytest.mark.parametrize("datasets", [3, 30, 300, 1000])
def test_chunks_from_guesses_meet_far_away(start: int, datasets: int) -> None:
    for kind in ("uniform", "heavy", "lognormal", "equal", "tied"):
        weights = make_weights(kind, datasets, np.random.default_rng(datasets))
        end = None
        for first in range(start, start + 3 * WARM_UP, WARM_UP):
            counts = guess_counts(weights, first - WARM_UP)
            advance_blend(weights, counts, first - WARM_UP, first)
            assert end is None or np.array_equal(counts, end), (kind, first)
            advance_blend(weights, counts, first, first + WARM_UP)
            end = counts
