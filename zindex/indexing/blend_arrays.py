"""The arrays of a blend as a reader sees them: stored, computed on read, or in memory."""

from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.indexing.computed_arrays import ComputedArray
from zindex.indexing.uniform_shuffle import UniformShuffle, permute_all
from zindex.kernels import numpy_budget
from zindex.kernels._greedy import run_blend
from zindex.kernels._jit import is_compiled, is_loaded
from zindex.kernels.bijection import permute_range
from zindex.kernels.blend import blend_range
from zindex.kernels.locate import locate
from zindex.kernels.numpy_blend import blend_in_numpy
from zindex.plan.blend_plan import BlendPlan, PermutationPlan
from zindex.plan.keys import Stage, split_key
from zindex.store.open import Store
from zindex.store.rows import RowReader

# Errors that numpy computes while the kernel is loaded, and while it is compiled.
_LOADING_ERRORS, _COMPILING_ERRORS = 1 << 27, 1 << 31
# Cost of a position besides the errors of all datasets, and in the scalable order, in errors.
_GREEDY_ERRORS, _KEYED_ERRORS = 32, 256


class BlendArrays(NamedTuple):
    """The arrays that map a position of a run to a dataset and one of its samples."""

    #: Shape (samples,): positions to dataset ids.
    dataset_index: RowReader | AnyArray
    #: Shape (samples,): positions to positions in that dataset.
    dataset_sample_index: RowReader | AnyArray
    #: Shape (datasets,), int64: samples that the whole blend draws of each dataset. For a greedy
    #: blend that is still being built, a reader that waits for the end of the build.
    dataset_count: Int64Array


def compute_scalable(
    plan: BlendPlan, start: int, stop: int, block_length: int = 1 << 18
) -> tuple[AnyArray, AnyArray]:
    """Return positions ``[start, stop)`` of a keyed scalable blend.

    Returns
    -------
    dataset_index, dataset_sample_index
        Shape (stop - start,) each.
    """
    datasets, samples = empty_blend(plan, stop - start)
    # The permutation of a block fits in the CPU cache; each dataset look-up builds a table.
    step = max(block_length, 16 * plan.num_datasets)
    for first in range(start, stop, step):
        numbers = compute_permutation(plan.permutation, first, min(first + step, stop))
        block = slice(first - start, first - start + len(numbers))
        locate(numbers, plan.counts, datasets[block], samples[block])
    return datasets, samples


def compute_permutation(plan: PermutationPlan, start: int, stop: int) -> AnyArray:
    """Task: return positions ``[start, stop)`` of a keyed permutation.

    Returns
    -------
    numbers
        Shape (stop - start,), uint32 or int64, each in ``[0, plan.num_samples)``.
    """
    numbers = np.empty(stop - start, plan.dtype)
    keys = split_key(plan.seed, Stage.BLEND, plan.split)
    permute_range(start, plan.num_samples, keys, 0, numbers)
    return numbers


def locate_samples(plan: BlendPlan, numbers: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the datasets and samples for shuffled numbers of a scalable blend.

    Parameters
    ----------
    plan
        A plan with ``order="scalable"``.
    numbers
        Shape (positions,), uint32 or int64: a span of the run's permutation.

    Returns
    -------
    dataset_index, dataset_sample_index
        Shape (positions,) each.
    """
    datasets, samples = empty_blend(plan, len(numbers))
    locate(numbers, plan.counts, datasets, samples)
    return datasets, samples


def empty_blend(plan: BlendPlan, num_positions: int) -> tuple[AnyArray, AnyArray]:
    """Return empty arrays for a number of positions of a blend."""
    return (
        np.empty(num_positions, plan.dataset_layout.dtype),
        np.empty(num_positions, plan.sample_layout.dtype),
    )


def draw_greedily(
    plan: BlendPlan, counts: Int64Array, start: int, stop: int
) -> tuple[AnyArray, AnyArray]:
    """Return positions ``[start, stop)`` of Megatron's blend; advance ``counts`` in place."""
    datasets, samples = empty_blend(plan, stop - start)
    if start == 0 and _is_sooner_in_numpy(plan, stop):
        blend_in_numpy(plan.shares, plan.weights, counts, datasets, samples)
    else:
        blend_range(plan.shares, counts, start, datasets, samples)
    return datasets, samples


def count_errors(plan: BlendPlan, num_positions: int) -> int:
    """Return the work of numpy for positions of a blend, in errors of about 1 ns."""
    if plan.order == "scalable":
        return num_positions * _KEYED_ERRORS
    return num_positions * (plan.num_datasets + _GREEDY_ERRORS)


def _is_sooner_in_numpy(plan: BlendPlan, num_positions: int) -> bool:
    """Return whether numpy draws positions before the kernel would be ready."""
    if is_loaded(run_blend) or numpy_budget.is_exhausted():
        return False
    num_errors = count_errors(plan, num_positions)
    if num_errors > _LOADING_ERRORS:  # looking up a compiled kernel takes milliseconds
        return num_errors <= _COMPILING_ERRORS and not is_compiled(run_blend)
    return True


def open_blend_arrays(store: Store) -> BlendArrays:
    """Return the arrays of a committed blend; only the counts are read eagerly.

    Parameters
    ----------
    store
        A blend store, built with ``store="all"`` or ``"minimal"``.
    """
    counts: Int64Array = store[schema.DATASET_COUNT.name][:]
    if schema.DATASET_INDEX.name in store:
        datasets = store[schema.DATASET_INDEX.name]
        return BlendArrays(datasets, store[schema.DATASET_SAMPLE_INDEX.name], counts)
    weights = store[schema.DATASET_WEIGHT.name][:]
    return _computed(BlendPlan.from_spec(store.spec, weights, counts))


def follow_blend_arrays(store: Store, plan: BlendPlan) -> BlendArrays:
    """Return the arrays of a blend that is still being built, read lazily.

    Parameters
    ----------
    store
        The followed store.
    plan
        The blend; arrays that its order can compute on read are available immediately.
    """
    if plan.order == "scalable" and plan.shuffle == "keyed":
        return _computed(plan)
    counts: Any = plan.counts if plan.order == "scalable" else store[schema.DATASET_COUNT.name]
    datasets = store[schema.DATASET_INDEX.name]
    return BlendArrays(datasets, store[schema.DATASET_SAMPLE_INDEX.name], counts)


def compute_blend_arrays(plan: BlendPlan) -> BlendArrays:
    """Return the arrays of a blend that is not stored.

    With ``stored="minimal"`` they are computed on read, otherwise immediately, in memory.
    """
    if plan.stored == "minimal":
        return _computed(plan)
    if plan.order == "scalable" and plan.shuffle == "uniform":
        numbers = permute_all(UniformShuffle(plan.num_samples, plan.seed, plan.split))
        return BlendArrays(*locate_samples(plan, numbers), plan.counts)
    if plan.order == "scalable":
        return BlendArrays(*compute_scalable(plan, 0, plan.num_samples), plan.counts)
    counts = np.zeros(plan.num_datasets, np.int64)
    return BlendArrays(*draw_greedily(plan, counts, 0, plan.num_samples), counts)


def _computed(plan: BlendPlan) -> BlendArrays:
    """Return arrays that are computed on read."""
    return BlendArrays(
        ComputedArray(plan.dataset_layout, plan, _compute_datasets),
        ComputedArray(plan.sample_layout, plan, _compute_samples),
        plan.counts,
    )


def _compute_datasets(plan: BlendPlan, start: int, stop: int) -> AnyArray:
    return compute_scalable(plan, start, stop)[0]


def _compute_samples(plan: BlendPlan, start: int, stop: int) -> AnyArray:
    return compute_scalable(plan, start, stop)[1]
