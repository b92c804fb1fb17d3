"""The plan of a blend: shares, exact counts, layouts and dtypes, identity, every refusal."""

import hashlib
import math
import re
from typing import Any

import numpy as np
import pytest

from zindex.errors import ConfigError, PlanError, ZindexError
from zindex.plan.blend_plan import (
    BLEND_VERSIONS,
    MAX_BLEND_SAMPLES,
    MAX_DATASETS,
    MAX_INT16_DATASETS,
    BlendPlan,
    PermutationPlan,
)
from zindex.plan.split import normalize
from zindex.store.layout import ChunkGrid


def make_weighted(num_samples: int = 10, **changes: Any) -> BlendPlan:
    """Return a blend of two datasets, 3 to 1."""
    settings: dict[str, Any] = {"split": "train", "order": "scalable"}
    return BlendPlan.weighted([3, 1], num_samples, **(settings | changes))


def test_weights_are_normalised() -> None:
    plan = make_weighted()
    assert plan.weights.tolist() == [0.75, 0.25]
    assert plan.weights.dtype == np.float64
    assert plan.sizes is None
    assert (plan.num_datasets, plan.num_samples) == (2, 10)
    assert plan.counts.tolist() == [8, 2]  # 7.5 and 2.5: the first of two halves


def test_sizes_are_drawn_whole() -> None:
    plan = BlendPlan.exhaustive([3, 1, 4], split="valid")
    assert plan.num_samples == 8
    assert plan.counts.tolist() == [3, 1, 4]
    assert plan.weights.tolist() == [3 / 8, 1 / 8, 4 / 8]
    assert plan.order == "megatron"


def test_weights_are_those_of_megatron_core() -> None:
    theirs = pytest.importorskip("megatron.core.datasets.utils").normalize
    generator = np.random.default_rng(7)
    for num_datasets in (1, 2, 9, 1000):
        given = generator.pareto(1.0, num_datasets).tolist()
        # Its builder normalises the weights of the configuration, its blend those of the builder.
        plan = BlendPlan.weighted(normalize(given), 10, split="train")
        assert plan.weights.tolist() == theirs(theirs(given))


def test_layouts() -> None:
    plan = make_weighted(grid=ChunkGrid(2, 4))
    shown = [(layout.name, layout.dtype, layout.length) for layout in plan.layouts]
    assert shown == [
        ("dataset_index", "int16", 10),
        ("dataset_sample_index", "int32", 10),
        ("dataset_weight", "float64", 2),
        ("dataset_count", "int64", 2),
    ]
    assert [layout.num_shards for layout in plan.layouts] == [3, 3, 1, 1]
    assert plan.nbytes == 10 * 2 + 10 * 4 + 2 * 8 + 2 * 8
    minimal = make_weighted(stored="minimal")
    assert [layout.name for layout in minimal.layouts] == ["dataset_weight", "dataset_count"]
    assert minimal.nbytes == 32
    assert minimal.dataset_layout.length == 10  # not stored, yet readers count by it


@pytest.mark.parametrize(
    ("num_datasets", "dtype"), [(MAX_INT16_DATASETS, "int16"), (MAX_INT16_DATASETS + 1, "int32")]
)
def test_many_datasets_have_wider_ids(num_datasets: int, dtype: str) -> None:
    plan = BlendPlan.exhaustive([1] * num_datasets, split="train")
    assert plan.dataset_layout.dtype == dtype


@pytest.mark.parametrize(
    ("weights", "num_samples", "dtype"),
    [
        ([1.0], 2**31 - 1, "int32"),  # one dataset has all samples and no more
        ([1.0], 2**31, "int64"),
        ([0.5, 0.5], 2**32 - (1 << 22), "int32"),  # half of them, and room for greed
        ([0.5, 0.5], 2**32, "int64"),
        ([0.001] * 1000, 10**12, "int32"),
    ],
)
def test_dtype_of_the_samples(weights: list[float], num_samples: int, dtype: str) -> None:
    plan = BlendPlan.weighted(weights, num_samples, split="train")
    assert plan.sample_layout.dtype == dtype


@pytest.mark.parametrize(
    ("num_samples", "dtype"), [(10, "uint32"), (2**32, "uint32"), (2**32 + 1, "int64")]
)
def test_permutation_follows_from_the_samples_alone(num_samples: int, dtype: str) -> None:
    plan = make_weighted(num_samples, seed=7, shuffle="uniform", grid=ChunkGrid(2, 4))
    expected = PermutationPlan(num_samples, 7, "train", "uniform", ChunkGrid(2, 4))
    assert plan.permutation == expected
    assert expected.dtype == dtype
    assert BlendPlan.weighted([9], num_samples, split="train").permutation != expected


def test_spec_of_the_scalable_order() -> None:
    shares = np.array([0.75, 0.25], "<f8").tobytes()
    assert make_weighted(seed=7).spec == {
        "algorithm": "scalable",
        "algorithm_version": BLEND_VERSIONS["scalable"],
        "kind": "blend",
        "split": "train",
        "num_datasets": 2,
        "num_samples": 10,
        "exhaustive": False,
        "shares_digest": hashlib.sha256(shares).hexdigest(),
        "seed": 7,
        "shuffle": "keyed",
    }


def test_spec_of_megatrons_order_has_no_seed() -> None:
    plan = BlendPlan.exhaustive([3, 1], split="train", seed=7)
    sizes = np.array([3, 1], "<i8").tobytes()
    assert plan.spec["shares_digest"] == hashlib.sha256(sizes).hexdigest()
    assert plan.spec["exhaustive"] is True
    assert not {"seed", "shuffle"} & set(plan.spec)
    assert plan.spec == BlendPlan.exhaustive([3, 1], split="train", seed=8).spec


def test_spec_holds_what_decides_the_values() -> None:
    base = make_weighted().spec
    others = [
        make_weighted(11),
        make_weighted(split="valid"),
        make_weighted(seed=7),
        make_weighted(shuffle="uniform"),
        make_weighted(order="megatron"),
        BlendPlan.weighted([1, 3], 10, split="train", order="scalable"),
        BlendPlan.exhaustive([3, 1], split="train", order="scalable"),
    ]
    specs = [str(plan.spec) for plan in others]
    assert str(base) not in specs
    assert len(set(specs)) == len(specs)
    # How it is stored and cut does not; nor does the scale of the weights.
    for plan in (
        make_weighted(stored="minimal"),
        make_weighted(grid=ChunkGrid(2, 4)),
        BlendPlan.weighted([6, 2], 10, split="train", order="scalable"),
    ):
        assert plan.spec == base


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"order": "random"}, ConfigError, "order must be one of megatron, scalable, got 'random'"),
        ({"stored": "some"}, ConfigError, "store must be one of all, minimal, got 'some'"),
        ({"shuffle": "no"}, ConfigError, "shuffle must be one of keyed, uniform, got 'no'"),
        ({"split": "dev"}, ConfigError, "split must be one of train, valid, test, got"),
        (
            {"stored": "minimal", "order": "megatron"},
            ConfigError,
            "needs order='scalable' and shuffle='keyed', got order='megatron' and shuffle='keyed'",
        ),
        (
            {"stored": "minimal", "shuffle": "uniform"},
            ConfigError,
            "got order='scalable' and shuffle='uniform'",
        ),
        ({"num_samples": -1}, PlanError, f"must have 0 to {MAX_BLEND_SAMPLES:,} samples, got -1"),
        (
            {"num_samples": 2**62 + 1},
            PlanError,
            "0 to 4,611,686,018,427,387,904 samples, got 4,611,686,018,427,387,905",
        ),
    ],
)
def test_settings_that_are_refused(
    changes: dict[str, Any], error: type[ZindexError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_weighted(**changes)


@pytest.mark.parametrize(
    ("weights", "got"),
    [
        ([1.0, 0.0], "0.0 for dataset 1 of 2"),
        ([-1.0], "-1.0 for dataset 0 of 1"),
        ([1.0, -1.0], "-1.0 for dataset 1 of 2"),
        ([0.0], "0.0 for dataset 0 of 1"),
        ([1.0, math.nan, 2.0], "nan for dataset 1 of 3"),
        ([1.0, math.inf], "inf for dataset 1 of 2"),
        ([1e-320, 1e300], "1e-320 for dataset 0 of 2"),  # its share would be 0
        ([1e308, 1e308], "1e+308 for dataset 0 of 2"),  # their sum is infinite
    ],
)
def test_weights_that_are_refused(weights: list[float], got: str) -> None:
    message = f"positive numbers, also relative to each other, got {got}; leave that dataset out"
    with pytest.raises(PlanError, match=re.escape(message)):
        BlendPlan.weighted(weights, 10, split="train")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([3, 0], "sizes of a blend must be positive, got 0 for dataset 1 of 2; leave"),
        ([-3], "sizes of a blend must be positive, got -3 for dataset 0 of 1"),
        ([2**62, 1], "samples, got 4,611,686,018,427,387,905 of all datasets; leave some out"),
        ([], f"a blend must have 1 to {MAX_DATASETS:,} datasets, got 0"),
        ([1] * (MAX_DATASETS + 1), "datasets, got 1,000,001; merge some"),
    ],
)
def test_sizes_that_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        BlendPlan.exhaustive(sizes, split="train")


def test_a_blend_may_be_empty_or_as_large_as_can_be() -> None:
    assert make_weighted(0).counts.tolist() == [0, 0]
    assert make_weighted(2**62).counts.tolist() == [3 * 2**60, 2**60]
