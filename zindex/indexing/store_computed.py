"""Store small indices that this process has computed, for later processes."""

import logging
import multiprocessing

import numpy as np

from zindex.errors import ZindexError
from zindex.indexing.background_build import BackgroundBuild, before_exit
from zindex.indexing.blend import digest_counts
from zindex.indexing.blend_arrays import BlendArrays, count_errors
from zindex.indexing.index_arrays import IndexArrays
from zindex.io.objects import PlaceLike
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import BuildPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import begin_store, commit_store
from zindex.store.shard_files import ShardResult, store_all_shards

logger = logging.getLogger(__name__)

#: Rows of an index, and work of a blend, above which opening a store is faster than computing.
MIN_STORED_ROWS = 1 << 16
MIN_STORED_ERRORS = 1 << 23

Planned = IndexPlan | BlendPlan
Arrays = IndexArrays | BlendArrays


def is_worth_storing(plan: BuildPlan) -> bool:
    """Return whether the process that computes a small index or blend stores it for later ones."""
    if isinstance(plan, BlendPlan):
        # The certificate of several shards is made by their build.
        return is_worth_opening(plan) and plan.dataset_layout.num_shards == 1
    return isinstance(plan, IndexPlan) and plan.num_build_rows > MIN_STORED_ROWS


def is_worth_opening(plan: BlendPlan) -> bool:
    """Return whether opening a blend is faster than computing it."""
    return count_errors(plan, plan.num_samples) > MIN_STORED_ERRORS


def store_computed(plan: Planned, folder: PlaceLike, arrays: Arrays) -> None:
    """Store what this process has computed in the background, if worthwhile.

    The process exits after the commit. Only the speed of later processes depends on it, so a
    failure is only logged.
    """

    def store() -> None:
        try:
            store_arrays(plan, folder, arrays)
        except (OSError, ZindexError) as error:
            logger.info(
                "cannot store an index in %s, so each process computes it: %s", folder, error
            )

    # Loader workers, which are daemonic, would all store the same index.
    if is_worth_storing(plan) and not multiprocessing.current_process().daemon:
        before_exit(BackgroundBuild(store, "zindex-keep").join)


def store_arrays(plan: Planned, folder: PlaceLike, arrays: Arrays) -> None:
    """Store and commit an index, or a blend of one shard, from memory."""
    store_plan = begin_store(plan.store_plan(folder))
    results: list[ShardResult] = []
    for layout in store_plan.layouts:
        # Only the weights of a blend are not among the results.
        values = np.asarray(getattr(arrays, layout.name, getattr(plan, "weights", None)))
        results += store_all_shards(store_plan.root, layout, values)
    facts = plan.described_sizes
    if isinstance(arrays, BlendArrays) and plan.order == "megatron":
        borders = np.zeros_like(arrays.dataset_count), arrays.dataset_count
        facts |= {"certificate": {"borders": list(map(digest_counts, borders))}}
    commit_store(store_plan, [result.receipt for result in results], facts)
