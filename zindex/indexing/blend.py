"""The build of a blend, for one split of a run.

The greedy order is computed in chunks in parallel, although each position depends on all before
it. The task of a chunk starts a warm-up earlier, from counts in proportion to the weights, and
reaches the true order after a few positions. This is proven for every build: the counts at the end
of each chunk must equal those from which the next one was computed, from position 0 on. A chunk
that fails is computed again from the true counts, and only proven chunks are written.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.execution.executor import Held
from zindex.execution.task_limit import TaskLimit
from zindex.indexing.blend_arrays import compute_scalable, draw_greedily, locate_samples
from zindex.indexing.permutation import Permutation
from zindex.indexing.store_build import BuildResult, StoreBuild, store_together
from zindex.io import files
from zindex.io.objects import Place
from zindex.kernels.blend import advance_blend, guess_counts
from zindex.plan.blend_plan import BlendPlan
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

logger = logging.getLogger(__name__)

# Positions of the warm-up before a chunk, and more of them for many datasets.
_WARM_UP, _WARM_UP_PER_DATASET = 1 << 14, 16
# Chunks in memory per thread, computed or waiting for a proof or for their writing.
_CHUNKS_PER_THREAD = 3
# Attempts of a build, while builders of other blends in the same order remove its scratch files.
_NUM_ATTEMPTS = 8
# Writing has priority: it frees memory.
_WRITE, _COMPUTE = 3, 0


class GreedyChunk(NamedTuple):
    """One shard of a greedy blend, computed but not proven."""

    dataset_index: AnyArray
    dataset_sample_index: AnyArray
    #: Digest of the counts from which it was computed.
    start: str
    #: Shape (datasets,), int64: samples drawn of each dataset up to its end.
    stop_counts: Int64Array


def compute_chunk(
    plan: BlendPlan, root: Place, shard: int, counts: Int64Array | None = None
) -> GreedyChunk:
    """Task: compute one shard of a greedy blend, from given counts or after a warm-up."""
    start, stop = plan.dataset_layout.shard_bounds(shard)
    counts = _warm_up(plan, start) if counts is None else counts.copy()
    begin = digest_counts(counts)
    found = _read_chunk(plan, root, shard, counts)
    datasets, samples = found or draw_greedily(plan, counts, start, stop)
    return GreedyChunk(datasets, samples, begin, counts)


def _warm_up(plan: BlendPlan, start: int) -> Int64Array:
    """Return the counts at a position, almost certainly the true ones."""
    margin = _WARM_UP + _WARM_UP_PER_DATASET * plan.num_datasets
    first = max(0, start - margin)
    counts = guess_counts(plan.shares, first)
    advance_blend(plan.shares, counts, first, start)
    return counts


def _read_chunk(
    plan: BlendPlan, root: Place, shard: int, counts: Int64Array
) -> tuple[AnyArray, AnyArray] | None:
    """Return a stored shard, which was proven before, and advance the counts to its end.

    Returns None if its samples do not continue from the counts, which are wrong then.
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


def describe_chunk(chunk: GreedyChunk) -> tuple[str, str]:
    """Task: return digests of the counts before and after a chunk, which neighbours must share."""
    return chunk.start, digest_counts(chunk.stop_counts)


def count_chunk(chunk: GreedyChunk) -> Int64Array:
    """Task: return the samples drawn of each dataset up to the end of a chunk."""
    return chunk.stop_counts


def store_chunk(plan: BlendPlan, root: Place, shard: int, chunk: GreedyChunk) -> list[ShardResult]:
    """Task: write one proven chunk."""
    return _store(plan, root, shard, chunk.dataset_index, chunk.dataset_sample_index)


def _store(
    plan: BlendPlan, root: Place, shard: int, datasets: AnyArray, samples: AnyArray
) -> list[ShardResult]:
    """Write one shard of both arrays, which no build reads again."""
    return [
        store_shard(root, plan.dataset_layout, shard, lambda: datasets, cached=False, whole=True),
        store_shard(root, plan.sample_layout, shard, lambda: samples, cached=False, whole=True),
    ]


def find_scalable_shard(plan: BlendPlan, root: Place, shard: int) -> list[ShardResult]:
    """Task: return the receipts of a stored shard of both arrays; empty if one is missing."""
    layouts = (plan.dataset_layout, plan.sample_layout)
    receipts = [find_receipt(root, layout, shard) for layout in layouts]
    found = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
    return found if len(found) == len(layouts) else []


def store_scalable_shard(
    plan: BlendPlan, root: Place, shard: int, numbers: AnyArray | None
) -> list[ShardResult]:
    """Task: store one shard of a scalable blend, from its shard of the permutation, if given."""
    if numbers is None:
        datasets, samples = compute_scalable(plan, *plan.dataset_layout.shard_bounds(shard))
    else:
        datasets, samples = locate_samples(plan, numbers)
    return _store(plan, root, shard, datasets, samples)


def digest_counts(counts: Int64Array) -> str:
    """Return the digest of the counts at a border of chunks, for certificates: 16 hex digits."""
    return hashlib.sha256(counts.astype("<i8", copy=False).data).hexdigest()[:16]


@dataclass(kw_only=True)
class BlendBuild(StoreBuild[BlendPlan]):
    """The build of one blend."""

    #: The permutation of a scalable blend, if it was started before.
    permutation: Permutation | None = None

    async def build(self) -> BuildResult:
        """Build the blend, again if another builder of the same order interferes."""
        for _ in range(_NUM_ATTEMPTS - 1):
            try:
                return await super().build()
            except (VerificationError, FileNotFoundError):
                if self.plan.shuffle != "uniform":
                    raise
                # Another builder of the same order was faster, and removed the scratch files.
                self.permutation = None
        return await super().build()

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Store both long arrays, then weights and counts."""
        await self.begin()
        plan = self.plan
        permutation = self.permutation
        if permutation is not None and permutation.plan != plan.permutation:
            await permutation.close()
            permutation = None
        if permutation is None:
            permutation = Permutation(plan.permutation, self.executor, self.folder, self.priority)
        facts: dict[str, Any] = {"num_samples": plan.num_samples, "num_datasets": plan.num_datasets}
        try:
            if plan.order == "scalable":
                counts = plan.counts
                results = await self._scalable(permutation) if plan.stored == "all" else []
            else:
                results, counts, borders = await self._greedy()
                facts["certificate"] = {"borders": borders}
        finally:
            await permutation.close()
        results += await asyncio.to_thread(self._store_datasets, counts)
        # Before the commit: a builder that dies after it never returns to the scratch files.
        await permutation.remove_scratch()
        return results, facts

    def _store_datasets(self, counts: Int64Array) -> list[ShardResult]:
        """Store the arrays with one value per dataset."""
        results = []
        arrays = zip(self.plan.share_layouts, (self.plan.weights, counts), strict=True)
        for layout, values in arrays:
            results += store_all_shards(self.root, layout, values)
        self.advance(len(results))
        return results

    async def _each_shard(
        self, one: Callable[[int], Awaitable[list[ShardResult]]]
    ) -> list[ShardResult]:
        """Run a coroutine for every shard, a bounded number of them at a time, in order."""
        limit = TaskLimit(lambda: _CHUNKS_PER_THREAD * self.executor.num_threads)

        async def bounded(shard: int) -> list[ShardResult]:
            async with limit.slot(0):
                return await one(shard)

        return await store_together(map(bounded, range(self.plan.dataset_layout.num_shards)))

    async def _scalable(self, permutation: Permutation) -> list[ShardResult]:
        """Store every shard as soon as its shard of the permutation is computed."""
        plan, root = self.plan, self.root
        is_new = not files.list_names(root / plan.dataset_layout.name)

        async def one(shard: int) -> list[ShardResult]:
            if not is_new:
                found = await self.store(
                    "find", find_scalable_shard, plan, root, shard, number=shard
                )
                if found:
                    return found
            args = (plan, root, shard, await permutation.take(shard))
            return await self.store(
                "blend", store_scalable_shard, *args, number=shard, priority=_WRITE
            )

        # Computed here once, the counts travel with the plan.
        assert int(plan.counts.sum()) == plan.num_samples
        return await self._each_shard(one)

    async def _greedy(self) -> tuple[list[ShardResult], Int64Array, list[str]]:
        """Store every chunk once the chunk before it proves it right.

        Returns
        -------
        results
            The receipts of all shards.
        counts
            Shape (datasets,), int64: samples drawn of each dataset.
        borders
            Digests of the counts at every border of chunks, on which both sides agree.
        """
        plan, root = self.plan, self.root
        num_shards = plan.dataset_layout.num_shards
        if not num_shards:
            return [], np.zeros(plan.num_datasets, np.int64), []
        proven = [asyncio.get_running_loop().create_future() for _ in range(num_shards)]
        chunks: dict[int, Held] = {}
        borders = [""] * (num_shards + 1)

        async def compute(shard: int, counts: Int64Array | None) -> tuple[str, str]:
            stage = "blend" if counts is None else "again"
            chunks[shard] = await self.executor.hold(
                compute_chunk, plan, root, shard, counts, **self.task(stage, shard, _COMPUTE)
            )
            return await self.executor.run(
                describe_chunk, chunks[shard], **self.task(f"describe_{stage}", shard, _WRITE)
            )

        async def count(shard: int) -> Int64Array:
            return await self.executor.run(count_chunk, chunks[shard], **self.task("count", shard))

        async def one(shard: int) -> list[ShardResult]:
            ends = await compute(shard, None)
            if shard:
                await proven[shard - 1]
                if ends[0] != borders[shard]:
                    logger.info("%s: shard %d is computed again", root.name, shard)
                    ends = await compute(shard, await count(shard - 1))
                del chunks[shard - 1]
            borders[shard], borders[shard + 1] = ends
            proven[shard].set_result(None)
            args = (plan, root, shard, chunks[shard])
            return await self.store("store", store_chunk, *args, number=shard, priority=_WRITE)

        results = await self._each_shard(one)
        counts = await count(num_shards - 1)
        return results, counts, borders
