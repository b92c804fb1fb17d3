"""The build of a blend, for one split of a run.

The greedy order is computed in chunks in parallel, although each position depends on all earlier
ones. The task of a chunk starts a warm-up earlier, from counts in proportion to the weights, and
converges to the true order after a few positions. Every build proves this: the counts at the end of
each chunk must equal those from which the next one was computed, from position 0 on. A chunk that
fails is recomputed from the true counts, and only proven chunks are written.

The permutation of the scalable order depends only on the number of samples, which the configuration
specifies. It is therefore computed shard by shard while datasets are still being opened.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, VerificationError
from zindex.execution.executor import Executor, Held
from zindex.execution.task_limit import TaskLimit
from zindex.indexing import uniform_shuffle
from zindex.indexing.blend_arrays import (
    compute_permutation,
    compute_scalable,
    draw_greedily,
    locate_samples,
)
from zindex.indexing.store_build import BuildResult, StoreBuild, store_together
from zindex.indexing.task_size import batch_shards
from zindex.io import files
from zindex.io.local import local_path
from zindex.io.objects import ObjectPath, Place, PlaceLike, is_remote
from zindex.kernels.blend import advance_blend, guess_counts
from zindex.plan.blend_plan import BlendPlan, PermutationPlan
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

R = TypeVar("R")
T = TypeVar("T")

#: Bytes of the permutation that workers hold until the datasets are open.
_AHEAD_NBYTES = 1 << 29
# Priority over all work on datasets, but below tasks that free memory.
_PRIORITY = 2


class Permutation:
    """The shards of one permutation, each computed once and held by its worker.

    Parameters
    ----------
    plan
        What to compute.
    executor
        Where the tasks run.
    folder
        Directory of the index stores; the scratch files of a uniform shuffle are in it.
    priority
        Added to the priorities of all tasks.

    Notes
    -----
    `start` submits the first shards, as many as fit in memory. The others are submitted by `take`,
    or, if keyed, computed by the task that needs them. A shard can be taken once.
    """

    def __init__(
        self, plan: PermutationPlan, executor: Executor, folder: PlaceLike, priority: int = 0
    ) -> None:
        self.plan = plan
        self._priority = priority + _PRIORITY
        self.executor = executor
        if plan.shuffle == "uniform":
            self.scratch = scratch_folder(plan, folder)
        self._uniform = uniform_shuffle.UniformShuffle(plan.num_samples, plan.seed, plan.split)
        self._scattered: asyncio.Task[Int64Array] | None = None
        self._buckets: dict[int, asyncio.Task[None]] = {}
        self._shards: dict[int, asyncio.Task[Held]] = {}

    def start(self) -> None:
        """Submit the first shards; requires a running event loop."""
        layout = self.plan.layout
        nbytes = layout.shard_length * self.plan.dtype.itemsize
        for shard in range(min(layout.num_shards, max(1, _AHEAD_NBYTES // nbytes))):
            self._shards[shard] = asyncio.create_task(self._compute(shard))

    @property
    def num_taken(self) -> int:
        """Number of shards, the first ones, that `take` returns; tasks compute the others."""
        is_keyed = self.plan.shuffle == "keyed"
        return len(self._shards) if is_keyed else self.plan.layout.num_shards

    async def take(self, shard: int) -> Held | None:
        """Return one shard, as a task argument; None if the task must compute it."""
        task = self._shards.pop(shard, None)
        if task is not None:
            return await task
        return None if self.plan.shuffle == "keyed" else await self._compute(shard)

    async def close(self) -> None:
        """Cancel and release the shards that were not taken."""
        tasks = [*self._shards.values(), *self._buckets.values()]
        if self._scattered is not None:
            tasks.append(self._scattered)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shards.clear()

    async def remove_scratch(self) -> None:
        """Remove the scratch files.

        Another builder may still need them; it will recompute them.
        """
        if self.plan.shuffle == "uniform":
            await asyncio.to_thread(uniform_shuffle.remove_scratch, self.scratch)

    async def _compute(self, shard: int) -> Held:
        start, stop = self.plan.layout.shard_bounds(shard)
        name = f"permutation-{self.plan.name}-{shard}"
        if self.plan.shuffle == "keyed":
            return await self._hold(name, compute_permutation, self.plan, start, stop)
        counts = await self._scatter()
        starts = uniform_shuffle.start_buckets(counts)
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
        await asyncio.gather(*(self._bucket(b, counts) for b in range(first, last + 1)))
        reads = (self._uniform, self.scratch, starts, start, stop)
        return await self._hold(name, uniform_shuffle.read_positions, *reads)

    async def _scatter(self) -> Int64Array:
        """Return the number of samples from each part in each bucket; scatter them once."""
        if self._scattered is None:
            self._scattered = asyncio.create_task(self._scatter_parts())
        return await asyncio.shield(self._scattered)

    async def _scatter_parts(self) -> Int64Array:
        name = f"scatter-{self.plan.name}"
        parts = range(self._uniform.num_parts)
        tasks = (self._run(f"{name}-{part}", uniform_shuffle.scatter_part, part) for part in parts)
        return np.stack(await asyncio.gather(*tasks))

    async def _bucket(self, bucket: int, counts: Int64Array) -> None:
        """Shuffle one bucket, once for all shards that need it."""
        if bucket not in self._buckets:
            pieces = uniform_shuffle.locate_pieces(counts, bucket)
            name = f"bucket-{self.plan.name}-{bucket}"
            self._buckets[bucket] = asyncio.create_task(
                self._run(name, uniform_shuffle.shuffle_pieces, bucket, pieces)
            )
        await asyncio.shield(self._buckets[bucket])

    async def _run(self, name: str, function: Callable[..., R], *args: Any) -> R:
        return await self.executor.run(
            function, self._uniform, self.scratch, *args, key=name, priority=self._priority
        )

    async def _hold(self, name: str, function: Callable[..., Any], *args: Any) -> Held:
        return await self.executor.hold(function, *args, key=name, priority=self._priority)


def scratch_folder(plan: PermutationPlan, folder: PlaceLike) -> Path:
    """Return the directory of a uniform shuffle's scratch files."""
    if is_remote(folder):
        raise ConfigError(
            f"shuffle: uniform needs an index folder in a file system for its scratch files, got "
            f"{folder}; set shuffle: keyed, or build at a path and copy the blend"
        )
    assert not isinstance(folder, ObjectPath)
    return local_path(folder) / f"{SHUFFLE_PREFIX}{plan.name}"


logger = logging.getLogger(__name__)

# Positions of the warm-up before a chunk; more for many datasets.
_WARM_UP, _WARM_UP_PER_DATASET = 1 << 14, 16
# Chunks in memory per thread: computed, or waiting to be proven or written.
_CHUNKS_PER_THREAD = 3
# Attempts of a build, while builders of other blends in the same order remove its scratch files.
_NUM_ATTEMPTS = 8
# Writing has priority because it frees memory.
_WRITE, _COMPUTE = 3, 0

#: Name prefix of the folders of uniform shuffles in the index folder.
SHUFFLE_PREFIX = "shuffle-"


class GreedyChunk(NamedTuple):
    """One shard of a greedy blend, computed but not yet proven."""

    dataset_index: AnyArray
    dataset_sample_index: AnyArray
    #: Digest of the counts from which it was computed.
    start: str
    #: Shape (datasets,), int64: samples drawn of each dataset up to its end.
    stop_counts: Int64Array


def compute_chunk(
    plan: BlendPlan, root: Place, shard: int, counts: Int64Array | None = None
) -> GreedyChunk:
    """Task: return one shard of a greedy blend, stored or from `draw_chunk`."""
    if counts is None:
        counts = _warm_up(plan, plan.dataset_layout.shard_bounds(shard)[0])
    stop_counts = counts.copy()
    found = _read_chunk(plan, root, shard, stop_counts)
    if found is None:
        return draw_chunk(plan, shard, counts)
    return GreedyChunk(*found, digest_counts(counts), stop_counts)


def draw_chunk(plan: BlendPlan, shard: int, counts: Int64Array | None = None) -> GreedyChunk:
    """Task: compute one shard of a greedy blend, from given counts or after a warm-up."""
    start, stop = plan.dataset_layout.shard_bounds(shard)
    counts = _warm_up(plan, start) if counts is None else counts.copy()
    begin = digest_counts(counts)
    return GreedyChunk(*draw_greedily(plan, counts, start, stop), begin, counts)


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

    Returns None if its samples do not continue from the counts, which means that these are wrong.
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
    """Task: return digests of the counts before and after a chunk; neighbours must agree."""
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
    """Write one shard of both arrays, bypassing the page cache."""
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


def store_scalable_shards(
    plan: BlendPlan, root: Place, shards: range, numbers: AnyArray | None
) -> list[ShardResult]:
    """Task: store shards of a scalable blend that do not exist; see `store_scalable_shard`."""
    results = []
    for shard in shards:
        found = find_scalable_shard(plan, root, shard)
        results += found or store_scalable_shard(plan, root, shard, numbers)
    return results


def store_shares(plan: BlendPlan, root: Place, counts: Int64Array) -> list[ShardResult]:
    """Store the arrays with one value per dataset."""
    results = []
    for layout, values in zip(plan.share_layouts, (plan.weights, counts), strict=True):
        results += store_all_shards(root, layout, values)
    return results


def digest_counts(counts: Int64Array) -> str:
    """Return the digest of the counts at a chunk boundary, for certificates: 16 hex digits."""
    return hashlib.sha256(counts.astype("<i8", copy=False).data).hexdigest()[:16]


@dataclass(kw_only=True)
class BlendBuild(StoreBuild[BlendPlan]):
    """The build of one blend."""

    #: The permutation of a scalable blend, if it was started earlier.
    permutation: Permutation | None = None

    async def build(self) -> BuildResult:
        """Build the blend, again if another builder of the same order interferes."""
        for _ in range(_NUM_ATTEMPTS - 1):
            try:
                return await super().build()
            except (VerificationError, FileNotFoundError):
                if self.plan.shuffle != "uniform":
                    raise
                # Another builder of the same order finished first and removed the scratch files.
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
        facts = plan.described_sizes
        try:
            if plan.order == "scalable":
                counts = plan.counts
                results = await self._scalable(permutation) if plan.stored == "all" else []
            else:
                results, counts, borders = await self._greedy()
                facts["certificate"] = {"borders": borders}
        finally:
            await permutation.close()
        shares = await asyncio.to_thread(store_shares, plan, self.root, counts)
        self.advance(len(shares))
        results += shares
        # Before the commit: a builder that dies after the commit never returns to the scratch
        # files.
        await permutation.remove_scratch()
        return results, facts

    async def _each(
        self, one: Callable[[T], Awaitable[list[ShardResult]]], items: Iterable[T]
    ) -> list[ShardResult]:
        """Run a coroutine for every item, a bounded number of them at a time, in order."""
        limit = TaskLimit(lambda: _CHUNKS_PER_THREAD * self.executor.num_threads)

        async def bounded(item: T) -> list[ShardResult]:
            async with limit.slot(0):
                return await one(item)

        return await store_together(map(bounded, items))

    async def _scalable(self, permutation: Permutation) -> list[ShardResult]:
        """Store each shard as soon as its shard of the permutation is computed."""
        plan, root = self.plan, self.root
        is_new = not files.list_names(root / plan.dataset_layout.name)
        num_taken = permutation.num_taken

        async def one(shards: range) -> list[ShardResult]:
            number, numbers = shards[0], None
            if number < num_taken:
                if not is_new:
                    find = find_scalable_shard
                    if found := await self.store("find", find, plan, root, number, number=number):
                        return found
                numbers = await permutation.take(number)
            args = (plan, root, shards, numbers)
            return await self.store(
                "blend", store_scalable_shards, *args, number=number, priority=_WRITE
            )

        # Computed once here, the counts are sent with the plan.
        assert int(plan.counts.sum()) == plan.num_samples
        batches = [range(shard, shard + 1) for shard in range(num_taken)]
        batches += batch_shards(plan.dataset_layout, self.task_seconds, num_taken)
        return await self._each(one, batches)

    async def _greedy(self) -> tuple[list[ShardResult], Int64Array, list[str]]:
        """Store each chunk once the previous chunk proves it correct.

        Returns
        -------
        results
            The receipts of all shards.
        counts
            Shape (datasets,), int64: samples drawn of each dataset.
        borders
            Digests of the counts at every chunk boundary, on which both chunks agree.
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
                    logger.info("%s: recomputing shard %d", root.name, shard)
                    ends = await compute(shard, await count(shard - 1))
                del chunks[shard - 1]
            borders[shard], borders[shard + 1] = ends
            proven[shard].set_result(None)
            args = (plan, root, shard, chunks[shard])
            return await self.store("store", store_chunk, *args, number=shard, priority=_WRITE)

        results = await self._each(one, range(num_shards))
        counts = await count(num_shards - 1)
        return results, counts, borders
