import pickle

import numpy as np
import pytest

from tests.indexing.blends import GRID, naive_greedy
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing import blend_arrays
from zindex.indexing.blend_arrays import (
    compute_blend_arrays,
    compute_permutation,
    open_blend_arrays,
)
from zindex.indexing.ensure import build_store
from zindex.plan.blend_plan import BlendPlan

WEIGHTS = [0.5, 0.2, 0.25, 0.05]


def make_plan(**settings) -> BlendPlan:
    return BlendPlan.weighted(
        WEIGHTS, 100, **({"split": "train", "seed": 3, "grid": GRID} | settings)
    )


def test_greedy_in_memory():
    arrays = compute_blend_arrays(make_plan())
    datasets, samples = naive_greedy(np.array(WEIGHTS), 100)
    assert arrays.dataset_index.tolist() == datasets
    assert arrays.dataset_sample_index.tolist() == samples
    assert arrays.dataset_count.tolist() == np.bincount(datasets).tolist()
    assert (arrays.dataset_index.dtype, arrays.dataset_sample_index.dtype) == (np.int16, np.int32)


@pytest.mark.parametrize("shuffle", ["keyed", "uniform"])
def test_scalable_gives_every_sample_once(shuffle):
    arrays = compute_blend_arrays(make_plan(order="scalable", shuffle=shuffle))
    pairs = list(zip(arrays.dataset_index, arrays.dataset_sample_index, strict=True))
    assert len(set(pairs)) == 100
    counts = np.bincount(arrays.dataset_index).tolist()
    assert counts == arrays.dataset_count.tolist() == [50, 20, 25, 5]
    for dataset, count in enumerate(counts):
        assert sorted(j for d, j in pairs if d == dataset) == list(range(count))


def test_a_keyed_blend_is_its_permutation():
    plan = make_plan(order="scalable")
    numbers = compute_permutation(plan.permutation, 0, 100)
    datasets, samples = blend_arrays.compute_scalable(plan, 0, 100, block_length=33)
    assert np.array_equal(np.cumsum([0, 50, 20, 25])[datasets] + samples, numbers)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_minimal_is_computed_on_read(tmp_path, exhaustive):
    def plan(stored):
        settings = {"split": "test", "order": "scalable", "stored": stored, "grid": GRID}
        if exhaustive:
            return BlendPlan.exhaustive([40, 1, 59], **settings)
        return BlendPlan.weighted([1, 1e-9, 2], 100, **settings)

    expected = compute_blend_arrays(plan("all"))
    done = run_builds(build_store(plan("minimal"), None, tmp_path, SerialExecutor()))
    assert sorted(done.store.layouts) == ["dataset_count", "dataset_weight"]
    for arrays in (compute_blend_arrays(plan("minimal")), open_blend_arrays(done.store)):
        arrays = pickle.loads(pickle.dumps(arrays))
        for ours, theirs in zip(arrays, expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours[:], theirs)
        assert arrays.dataset_index[-1] == expected.dataset_index[-1]


def test_an_empty_blend():
    arrays = compute_blend_arrays(BlendPlan.weighted([1, 2], 0, split="train"))
    assert [len(array) for array in arrays] == [0, 0, 2]
