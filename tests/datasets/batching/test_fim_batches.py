"""Draws of one key, and texts of ids."""

import numpy as np
import pytest

from zindex.datasets.batching.fim_batches import Draws
from zindex.plan.keys import fill_key

GOLDEN = [139, 576, 87, 866]


def test_draws_are_frozen() -> None:
    draws = Draws(fill_key(1234, "train", 5))
    assert [draws.below(1000) for _ in range(4)] == GOLDEN
    again = Draws(fill_key(1234, "train", 5))
    assert [again.is_chosen(0.5) for _ in range(4)] == [value < 500 for value in GOLDEN]


def test_draws_are_even() -> None:
    draws = Draws(np.array([1, 2], np.uint64))
    counts = np.bincount([draws.below(5) for _ in range(5000)], minlength=5)
    assert counts.min() > 900
    assert sum(draws.is_chosen(0.3) for _ in range(5000)) == pytest.approx(1500, abs=150)
    assert not any(draws.is_chosen(0.0) for _ in range(100))
    assert all(draws.is_chosen(1.0) for _ in range(100))


def test_keys_differ_by_seed_split_and_sample() -> None:
    keys = {
        tuple(fill_key(seed, split, sample).tolist())
        for seed in (1, 2)
        for split in ("train", "valid")
        for sample in (0, 1, 2**40)
    }
    assert len(keys) == 12
