"""Splits of records: by number, seed and fractions alone."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, PlanError
from zindex.keyed.record_split import RecordSplit
from zindex.plan.split import SPLIT_NAMES


@given(st.integers(0, 2**40), st.integers(1, 300), st.sampled_from(["99,1", "6,3,1", "1,0,1"]))
def test_splits_are_disjoint_and_complete_wherever_records_are_looked_at(
    seed: int, num_records: int, weights: str
) -> None:
    split = RecordSplit(weights, seed)
    assigned = split.assign(np.arange(num_records))
    for number, name in enumerate(SPLIT_NAMES):
        expected = np.flatnonzero(assigned == number)
        if len(expected):
            assert split.find(name, num_records).tolist() == expected.tolist()
        else:
            with pytest.raises(PlanError, match="a split must have records, got none of"):
                split.find(name, num_records)
    some = np.array([num_records - 1, 0], np.int32)
    assert split.assign(some).tolist() == assigned[[-1, 0]].tolist()


def test_records_that_are_added_change_nothing_before_them() -> None:
    split = RecordSplit("9,1", 3)
    before, after = split.find("valid", 1000), split.find("valid", 3000)
    assert after[: len(before)].tolist() == before.tolist()
    assert after[len(before)] >= 1000


def test_sizes_are_near_the_fractions_and_grow_with_them() -> None:
    split = RecordSplit("90,9,1", 5)
    num_records = (1 << 20) + 10_000  # two blocks
    found = [len(split.find(name, num_records)) / num_records for name in SPLIT_NAMES]
    assert found == pytest.approx([0.9, 0.09, 0.01], abs=2e-3)
    tests = {
        weights: set(RecordSplit(weights, 5).find("test", 1000).tolist())
        for weights in ("80,10,10", "70,10,20")
    }
    assert tests["80,10,10"] < tests["70,10,20"]


def test_the_hash_is_frozen_and_each_seed_has_its_own() -> None:
    records = np.arange(1000)
    splits = [RecordSplit("1,1,1", seed).assign(records) for seed in (0, 1)]
    digest = hashlib.sha256(splits[0].tobytes()).hexdigest()
    assert digest == "0c20ee98fe1fbefddfd33c8f55d3088709f04e0c3059e12fc93c671d0c2f66e1"
    assert 0.5 < (splits[0] != splits[1]).mean() < 0.8


def test_an_empty_last_split_gets_nothing_of_rounding() -> None:
    # The fractions of train and valid add up to less than 1 in float64.
    for weights in ("1,0,0", "0.7,0.2,0.1", "1,5,0", "3,7,0"):
        sizes = np.bincount(RecordSplit(weights).assign(np.arange(20_000)), minlength=3)
        wanted = [float(weight) > 0 for weight in weights.split(",")]
        assert (sizes > 0).tolist() == wanted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("0,0",), "split must hold one to three numbers with a sum above 0, got '0,0'"),
        (("9,1", -1), "seed must be a whole number of at least 0, got -1"),
        (("9,1", True), "seed must be a whole number of at least 0, got True"),
    ],
)
def test_settings_are_checked(settings: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RecordSplit(*settings)


def test_names_and_empty_splits() -> None:
    with pytest.raises(ConfigError, match="must be one of train, valid, test, got 'val'"):
        RecordSplit("9,1").find("val", 10)
    with pytest.raises(PlanError, match="got none of 10 for 'test' of '9,1'; raise its weight, or"):
        RecordSplit("9,1").find("test", 10)
    with pytest.raises(PlanError, match="got none of 0 for 'train'"):
        RecordSplit("9,1").find("train", 0)


@pytest.mark.parametrize("weights", ["99,-1", "1e2,1", "99;1", "1,2,3,4", "", "9, ", [99, 1]])
def test_weights_must_be_numbers_with_commas_between(weights: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be one to three numbers from 0 on with commas"):
        RecordSplit(weights)
