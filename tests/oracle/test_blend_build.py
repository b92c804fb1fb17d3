"""Blends built and stored on real workers, against Megatron Core's helpers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from zindex.execution.executor import DaskExecutor, run_builds
from zindex.indexing.blend_arrays import open_blend_arrays
from zindex.indexing.ensure import build_store
from zindex.plan.blend_plan import BlendPlan
from zindex.store.layout import ChunkGrid


@pytest.fixture(scope="module")
def helpers() -> Any:
    """Give Megatron Core's compiled helpers."""
    return pytest.importorskip("megatron.core.datasets.helpers_cpp")


def draw_plan(rng: np.random.Generator) -> BlendPlan:
    """Return a random blend on a random grid."""
    num_datasets = int(rng.integers(1, 200))
    kind = rng.integers(3)
    weights = [rng.random, rng.standard_exponential, np.ones][kind](num_datasets) + 1e-3
    chunk_length = int(rng.integers(1, 500))
    grid = ChunkGrid(chunk_length, chunk_length * int(rng.integers(1, 8)))
    settings = {"split": "train", "grid": grid}
    if rng.random() < 0.5:
        sizes = np.maximum(1, (weights * rng.integers(1, 100)).astype(np.int64))
        return BlendPlan.exhaustive(sizes, **settings)
    return BlendPlan.weighted(weights, int(rng.integers(1, 20_000)), **settings)


def draw_with_helpers(helpers: Any, plan: BlendPlan) -> tuple[np.ndarray, np.ndarray]:
    datasets = np.zeros(plan.num_samples, np.int16)
    samples = np.zeros(plan.num_samples, np.int64)
    if plan.sizes is None:
        shape = (plan.num_datasets, plan.num_samples)
        helpers.build_blending_indices(datasets, samples, plan.weights, *shape, False)
    else:
        helpers.build_exhaustive_blending_indices(datasets, samples, plan.sizes, plan.num_datasets)
    return datasets, samples


@pytest.mark.parametrize("case", numbers(8, 20))
def test_any_grid_and_any_workers_give_megatrons_blend(
    helpers: Any, cluster_client: Any, tmp_path: Path, case: int
) -> None:
    plan = draw_plan(np.random.default_rng(case))
    executor = DaskExecutor(cluster_client)
    store = run_builds(build_store(plan, None, tmp_path, executor)).store
    arrays = open_blend_arrays(store)
    datasets, samples = draw_with_helpers(helpers, plan)
    np.testing.assert_array_equal(arrays.dataset_index[:], datasets)
    np.testing.assert_array_equal(arrays.dataset_sample_index[:], samples)
    counts = np.bincount(datasets, minlength=plan.num_datasets)
    np.testing.assert_array_equal(arrays.dataset_count, counts)
