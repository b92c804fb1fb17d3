"""One blend from plan to commit: the coroutine that orders the tasks of one split's blend.

The greedy order is computed in chunks side by side although each position depends on all before.
A chunk starts a warm-up early, from counts in proportion to the weights, and falls into the true
order after a few positions. That this has happened is proven, not hoped for: the counts at the end
of each chunk must be those with which the next one started, from position 0 on. A chunk that does
not meet this is computed again from the true counts, and only proven chunks are written.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.building.blend_arrays import (
    AnyArray,
    compute_scalable,
    draw_greedily,
    locate_samples,
)
from zindex.building.executor import Executor, Held, run_together
from zindex.building.index_store import BuildResult, commit_index, find_built, name_store, task_key
from zindex.building.permutation import Permutation
from zindex.errors import VerificationError
from zindex.kernels.blend import (
    advance_blend,
    advance_blend_exhaustive,
    guess_counts,
    guess_counts_exhaustive,
)
from zindex.plan.blend_plan import BlendPlan
from zindex.store import files
from zindex.store.commit import StorePlan, begin_store
from zindex.store.objects import Place, PlaceLike
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

logger = logging.getLogger(__name__)

Int64Array = npt.NDArray[np.int64]

# Positions before a chunk from which it is computed, and more of them for many datasets.
_WARM_UP, _WARM_UP_PER_DATASET = 1 << 14, 16
# Chunks that wait for the proof of an earlier one, or to be written, for each thread.
_CHUNKS_PER_THREAD = 3
# Times that a build begins, while builders of other blends in the same order end before it.
_NUM_ATTEMPTS = 8
# Writing comes first: it frees memory.
_WRITE, _COMPUTE = 3, 0


def blend_store_plan(plan: BlendPlan, folder: PlaceLike) -> StorePlan:
    """Return the store that a blend goes to: a directory named by split and fingerprint."""
    spec = plan.spec | {"store": plan.stored}
    return name_store(f"blend-{plan.split}", spec, plan.layouts, plan.grid, folder)


async def build_blend(
    plan: BlendPlan,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = lambda num_shards: None,
    *,
    permutation: Permutation | None = None,
) -> BuildResult:
    """Build one blend, or what is missing of it, and commit it.

    Parameters
    ----------
    plan
        What to build.
    folder
        Directory of the index stores.
    executor
        Where the tasks run.
    advance
        Called with a number of shards whenever so many more are finished.
    permutation
        The permutation of a scalable blend, if it was begun before; its plan must be the blend's.

    Raises
    ------
    FingerprintMismatchError
        If the place holds something else.

    Notes
    -----
    Law: the result does not depend on chunks, workers, threads or interruptions.
    """
    for _ in range(_NUM_ATTEMPTS - 1):
        try:
            return await _build(plan, folder, executor, advance, permutation)
        except (VerificationError, FileNotFoundError):
            if plan.shuffle != "uniform":
                raise
            # Another builder that needed the same order was faster, and removed the scratch files.
            permutation = None
    return await _build(plan, folder, executor, advance, permutation)


async def _build(
    plan: BlendPlan,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None],
    permutation: Permutation | None,
) -> BuildResult:
    """Build one blend as far as no other builder interferes."""
    store_plan = blend_store_plan(plan, folder)
    found = find_built(store_plan, advance)
    if found is not None:
        return found
    store_plan = await asyncio.to_thread(begin_store, store_plan)
    plan = replace(plan, grid=store_plan.grid or plan.grid)
    if permutation is not None and permutation.plan != plan.permutation:
        await permutation.close()
        permutation = None
    if permutation is None:
        permutation = Permutation(plan.permutation, executor, folder)
    tasks = _BlendTasks(plan, store_plan, executor, advance)
    facts: dict[str, Any] = {"num_samples": plan.num_samples, "num_datasets": plan.num_datasets}
    try:
        if plan.order == "scalable":
            counts = plan.counts
            results = await tasks.scalable(permutation) if plan.stored == "all" else []
        else:
            results, counts, borders = await tasks.greedy()
            facts["certificate"] = {"borders": borders}
    finally:
        await permutation.close()
    results += await asyncio.to_thread(tasks.store_datasets, counts)
    # Before the commit, for a builder that dies between the two never comes back to them.
    await permutation.remove_scratch()
    return await commit_index(store_plan, results, facts)


class GreedyChunk(NamedTuple):
    """One shard of a greedy blend, computed and not yet proven."""

    dataset_index: AnyArray
    dataset_sample_index: AnyArray
    #: Digest of the counts from which it was computed.
    start: str
    #: Shape (datasets,), int64: samples drawn of each dataset up to its end.
    stop_counts: Int64Array


class ChunkEnds(NamedTuple):
    """Digests of the counts before and after a chunk: what must fit between neighbours."""

    start: str
    stop: str


def compute_chunk(
    plan: BlendPlan, root: Place, shard: int, counts: Int64Array | None = None
) -> GreedyChunk:
    """Task: one shard of a greedy blend, from given counts or from a guess a warm-up before."""
    start, stop = plan.dataset_layout.shard_bounds(shard)
    counts = _warm_up(plan, start) if counts is None else counts.copy()
    begin = digest_counts(counts)
    found = _read_chunk(plan, root, shard, counts)
    datasets, samples = found or draw_greedily(plan, counts, start, stop)
    return GreedyChunk(datasets, samples, begin, counts)


def _warm_up(plan: BlendPlan, start: int) -> Int64Array:
    """Return the counts at a position, most probably the true ones."""
    margin = _WARM_UP + _WARM_UP_PER_DATASET * plan.num_datasets
    first = max(0, start - margin)
    if plan.sizes is None:
        counts = guess_counts(plan.weights, first)
        advance_blend(plan.weights, counts, first, start)
    else:
        counts = guess_counts_exhaustive(plan.sizes, first)
        advance_blend_exhaustive(plan.sizes, counts, first, start)
    return counts


def _read_chunk(
    plan: BlendPlan, root: Place, shard: int, counts: Int64Array
) -> tuple[AnyArray, AnyArray] | None:
    """Return a shard that is on disk, hence proven before, and move the counts to its end.

    One whose samples do not go on from the counts is not taken: then the counts are wrong.
    """
    layouts = (plan.dataset_layout, plan.sample_layout)
    if any(find_receipt(root, layout, shard, whole=True) is None for layout in layouts):
        return None
    bounds = plan.dataset_layout.shard_bounds(shard)
    datasets, samples = (open_reader(root, layout).read(*bounds) for layout in layouts)
    drawn, first = np.unique(datasets, return_index=True)
    if not np.array_equal(samples[first], counts[drawn]):
        return None
    counts += np.bincount(datasets, minlength=plan.num_datasets)
    return datasets, samples


def describe_chunk(chunk: GreedyChunk) -> ChunkEnds:
    """Task: what a chunk needs of its neighbours to be right."""
    return ChunkEnds(chunk.start, digest_counts(chunk.stop_counts))


def count_chunk(chunk: GreedyChunk) -> Int64Array:
    """Task: the samples drawn of each dataset up to the end of a chunk."""
    return chunk.stop_counts


def store_chunk(plan: BlendPlan, root: Place, shard: int, chunk: GreedyChunk) -> list[ShardResult]:
    """Task: write one proven chunk."""
    return _store(plan, root, shard, chunk.dataset_index, chunk.dataset_sample_index)


def _store(
    plan: BlendPlan, root: Place, shard: int, datasets: AnyArray, samples: AnyArray
) -> list[ShardResult]:
    """Write one shard of both arrays; no build reads them again."""
    return [
        store_shard(root, plan.dataset_layout, shard, lambda: datasets, cached=False, whole=True),
        store_shard(root, plan.sample_layout, shard, lambda: samples, cached=False, whole=True),
    ]


def find_scalable_shard(plan: BlendPlan, root: Place, shard: int) -> list[ShardResult]:
    """Task: the receipts of a shard that is there already; none if any is missing."""
    layouts = (plan.dataset_layout, plan.sample_layout)
    receipts = [find_receipt(root, layout, shard) for layout in layouts]
    found = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
    return found if len(found) == len(layouts) else []


def store_scalable_shard(
    plan: BlendPlan, root: Place, shard: int, numbers: AnyArray | None
) -> list[ShardResult]:
    """Task: one shard of a scalable blend, from its part of the permutation or both at once."""
    if numbers is None:
        datasets, samples = compute_scalable(plan, *plan.dataset_layout.shard_bounds(shard))
    else:
        datasets, samples = locate_samples(plan, numbers)
    return _store(plan, root, shard, datasets, samples)


def digest_counts(counts: Int64Array) -> str:
    """Return what a certificate says of the counts at a border of chunks: 16 hex digits."""
    return hashlib.sha256(counts.astype("<i8", copy=False).data).hexdigest()[:16]


@dataclass(frozen=True)
class _BlendTasks:
    """The stages of one blend."""

    plan: BlendPlan
    store_plan: StorePlan
    executor: Executor
    advance: Callable[[int], None]

    @property
    def root(self) -> Place:
        return self.store_plan.root

    def store_datasets(self, counts: Int64Array) -> list[ShardResult]:
        """Store what there is one of for each dataset."""
        results = store_all_shards(self.root, self.plan.weight_layout, self.plan.weights)
        results += store_all_shards(self.root, self.plan.count_layout, counts)
        self.advance(len(results))
        return results

    async def _each_shard(self, one: Callable[[int], Any]) -> list[ShardResult]:
        """Run a coroutine for every shard, a bounded number of them at a time, in order."""
        window, size = asyncio.Semaphore(0), 0

        def widen() -> None:
            """Let more shards in where workers have joined."""
            nonlocal size
            wanted = _CHUNKS_PER_THREAD * self.executor.num_threads
            while size < wanted:
                window.release()
                size += 1

        async def bounded(shard: int) -> list[ShardResult]:
            async with window:
                results: list[ShardResult] = await one(shard)
            widen()
            self.advance(len(results))
            return results

        widen()
        by_shard = await run_together(map(bounded, range(self.plan.dataset_layout.num_shards)))
        return [result for results in by_shard for result in results]

    async def scalable(self, permutation: Permutation) -> list[ShardResult]:
        """Store every shard as soon as its part of the permutation is there."""
        plan, run = self.plan, self.executor.run
        is_new = not files.list_names(self.root / plan.dataset_layout.name)

        async def one(shard: int) -> list[ShardResult]:
            if not is_new:
                key = task_key(self.root, "find", shard)
                found = await run(find_scalable_shard, plan, self.root, shard, key=key)
                if found:
                    return found
            numbers = await permutation.take(shard)
            key = task_key(self.root, "blend", shard)
            return await run(
                store_scalable_shard, plan, self.root, shard, numbers, key=key, priority=_WRITE
            )

        # Computed here once, the counts travel with the plan.
        assert int(plan.counts.sum()) == plan.num_samples
        return await self._each_shard(one)

    async def greedy(self) -> tuple[list[ShardResult], Int64Array, list[str]]:
        """Store every chunk once the one before it proves it right.

        Returns
        -------
        results
            The receipts of all shards.
        counts
            Shape (datasets,), int64: samples drawn of each dataset.
        borders
            Digests of the counts at every border of chunks, as both sides found them.
        """
        plan, executor = self.plan, self.executor
        num_shards = plan.dataset_layout.num_shards
        if not num_shards:
            return [], np.zeros(plan.num_datasets, np.int64), []
        proven = [asyncio.get_running_loop().create_future() for _ in range(num_shards)]
        held: dict[int, Held] = {}
        borders = [""] * (num_shards + 1)

        async def compute(shard: int, counts: Int64Array | None) -> ChunkEnds:
            stage = "blend" if counts is None else "again"
            held[shard] = await executor.hold(
                compute_chunk,
                plan,
                self.root,
                shard,
                counts,
                key=task_key(self.root, stage, shard),
                priority=_COMPUTE,
            )
            key = task_key(self.root, f"describe_{stage}", shard)
            return await executor.run(describe_chunk, held[shard], key=key, priority=_WRITE)

        async def count(shard: int) -> Int64Array:
            return await executor.run(
                count_chunk, held[shard], key=task_key(self.root, "count", shard)
            )

        async def one(shard: int) -> list[ShardResult]:
            ends = await compute(shard, None)
            if shard:
                await proven[shard - 1]
                if ends.start != borders[shard]:
                    logger.info("%s: shard %d is computed again", self.root.name, shard)
                    ends = await compute(shard, await count(shard - 1))
                del held[shard - 1]
            borders[shard], borders[shard + 1] = ends
            proven[shard].set_result(None)
            key = task_key(self.root, "store", shard)
            return await executor.run(
                store_chunk, plan, self.root, shard, held[shard], key=key, priority=_WRITE
            )

        results = await self._each_shard(one)
        counts = await count(num_shards - 1)
        return results, counts, borders
