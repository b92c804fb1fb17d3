"""The shuffle index: which sample stands at each position of the run."""

import numpy as np
import numpy.typing as npt

from zindex.building.documents import read_generator
from zindex.kernels.bijection import permute_range
from zindex.kernels.legacy_shuffle import legacy_shuffle
from zindex.plan.index_plan import IndexPlan
from zindex.plan.keys import Stage
from zindex.store.objects import Place
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard


def compute_shuffle(plan: IndexPlan, start: int, stop: int) -> npt.NDArray[np.integer]:
    """Return positions ``[start, stop)`` of the scalable order's shuffle index.

    Returns
    -------
    samples
        Shape (stop - start,), uint32 or int64, sample ids.

    Notes
    -----
    Law: the samples of each epoch fill that epoch's positions, in an order of their own. Cost:
    O(positions), however many epochs there are.
    """
    samples = np.empty(stop - start, plan.shuffle_layout.dtype)
    position = start
    while position < stop:
        epoch = plan.epoch_of_sample(position)
        first, last = plan.samples_of_epoch(epoch)
        upto = min(stop, last)
        keys = plan.round_keys(Stage.SAMPLE, epoch)
        out = samples[position - start : upto - start]
        permute_range(position - first, last - first, keys, first, out)
        position = upto
    return samples


def store_shuffle_shard(plan: IndexPlan, root: Place, shard: int) -> ShardResult:
    """Task: one shard of the scalable order's shuffle index."""
    start, stop = plan.shuffle_layout.shard_bounds(shard)
    return store_shard(root, plan.shuffle_layout, shard, lambda: compute_shuffle(plan, start, stop))


def store_shuffled_samples(plan: IndexPlan, root: Place) -> list[ShardResult]:
    """Task: all shards of Megatron's shuffle index, from the generator the documents left."""
    layout = plan.shuffle_layout
    shards = range(layout.num_shards)
    receipts = [find_receipt(root, layout, shard) for shard in shards]
    found = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
    if len(found) == len(shards):
        return found
    return store_all_shards(root, layout, shuffle_samples(plan, read_generator(root)))


def shuffle_samples(plan: IndexPlan, state: npt.NDArray[np.uint32]) -> npt.NDArray[np.integer]:
    """Return Megatron's shuffle index.

    Parameters
    ----------
    plan
        A plan with ``order="megatron"``.
    state
        Shape (625,), uint32: MT19937 after the documents were shuffled; it is advanced.

    Notes
    -----
    Source: Megatron Core ``_build_shuffle_index``.
    """
    samples = np.arange(plan.num_samples, dtype=plan.shuffle_layout.dtype)
    if plan.epochs.separate_final_epoch:
        num_first = plan.epochs.num_samples_sans_final_epoch
        legacy_shuffle(samples[:num_first], state)
        # An empty second range is no range: Megatron draws nothing for it.
        legacy_shuffle(samples[num_first:], state)
    else:
        legacy_shuffle(samples, state)
    return samples
