"""GPT indices: built shard by shard, several small ones per task, and opened for reading."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np

from zindex.arrays import AnyArray
from zindex.execution.executor import Executor, SerialExecutor, run_builds, run_together
from zindex.execution.task_graph import Task, TaskGraph, run_graph
from zindex.execution.timeline import Span, Timeline
from zindex.indexing.index_arrays import IndexArrays, compute_index_arrays, is_few
from zindex.indexing.index_graph import add_index, check_tokens, shard_results
from zindex.indexing.index_tasks import (
    IndexTasks,
    save_generator,
    shuffle_samples,
    shuffle_shards,
    start_documents,
)
from zindex.indexing.length_cache import evict_lengths, order_lengths
from zindex.indexing.store_build import (
    FIRST,
    BuildResult,
    StoreBuild,
    find_shards,
    ignore_progress,
    task_key,
)
from zindex.indexing.task_size import batch_items, estimate_build
from zindex.ingest.length_source import LengthSource
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.io.request_threads import map_in_threads
from zindex.plan.build_plan import MAX_SHARD_LENGTH
from zindex.plan.index_plan import IndexPlan
from zindex.store.layout import ArrayLayout
from zindex.store.shard_files import ShardResult, store_all_shards, store_shard

R = TypeVar("R")

#: Fewer small indices than this are built like large ones.
MIN_SMALL = 16
#: Maximum indices per task; a worker that dies loses only the one in progress.
MAX_INDICES = 32
#: Most seconds of a task with several indices, unless tasks take longer in all of the build.
BUNDLE_SECONDS = 0.5
#: Tasks per thread, so that all threads finish at about the same time.
TASKS_PER_THREAD = 8

#: Maximum rows of an index that one process builds in memory; larger builds resume from each shard.
MAX_ROWS_IN_MEMORY = 1 << 27
#: Shards of lengths in memory that wait for memory of documents being written.
MAX_UNSAVED = 8

#: A plan, and the lengths to build it from.
SmallIndex = tuple[IndexPlan, LengthSource]
#: The results of a batch of small indices, in order, and when its tasks ran.
BuiltBatch = tuple[list[BuildResult], list[Span]]


@dataclass(kw_only=True)
class IndexBuild(StoreBuild[IndexPlan]):
    """The build of one index."""

    source: LengthSource

    async def store_arrays(self) -> tuple[list[ShardResult], dict[str, Any]]:
        """Store documents, sample boundaries and the shuffle, in parallel if possible."""
        await self.begin()
        plan, tasks = self.plan, IndexTasks(self.plan, self.root, self.source)
        facts = plan.described_sizes
        if is_small(plan) and is_few(plan):
            return await self.store("arrays", store_small, plan, self.root, self.source), facts
        is_local = isinstance(self.executor, SerialExecutor) and plan.num_rows <= MAX_ROWS_IN_MEMORY
        folder = self.root / plan.document_layout.name
        try:
            if plan.order == "megatron" and is_local and not files.list_names(folder):
                return await self._store_from_memory(tasks), facts
            # Only samples need lengths: if all samples are stored, no lengths are read.
            samples = await asyncio.to_thread(find_shards, self.root, plan.sample_layout)
            graph = TaskGraph()
            stored = add_index(
                graph, str, plan, tasks, self.task_seconds, has_samples=samples is not None
            )
            values = await run_graph(graph, self._run_task)
            self.advance(len(samples or ()))
        finally:
            evict_lengths(self.source, self.root)
        results = chain.from_iterable(shard_results(values[task.key]) for task in stored)
        return [*results, *(samples or ())], facts

    async def _run_task(self, task: Task, args: tuple[Any, ...]) -> Any:
        """Run a task of the graph, on the client if it is short; report the shards it stored."""
        stage, *numbers = task.key
        if stage == "starts":
            return task.function(*args)
        is_first = stage in ("documents", "count")
        is_first |= stage == "shuffle" and self.plan.order == "megatron"
        options = self.task(stage, next(iter(numbers), None), FIRST * is_first)
        value = await self.executor.run(task.function, *args, **options)
        if stage != "count":
            self.advance(len(shard_results(value)))
        return value

    async def _store_from_memory(self, tasks: IndexTasks) -> list[ShardResult]:
        """Store Megatron's order from memory, so that no computation waits for the disk.

        An interrupted build resumes shard by shard instead.
        """
        plan, run = self.plan, self.executor.run
        documents, state = await run(start_documents, plan, **self.task("begin"))
        boundaries = np.empty(plan.sample_layout.shape, plan.sample_layout.dtype)
        stored: list[asyncio.Task[ShardResult]] = []
        limit = asyncio.Semaphore(MAX_UNSAVED)

        published = asyncio.Event()
        if self.publish is None:
            published.set()

        async def store(layout: ArrayLayout, array: AnyArray, shard: int) -> ShardResult:
            await published.wait()  # until then all processors compute
            values = array[slice(*layout.shard_bounds(shard))]
            # In separate threads, because they wait for the disk.
            return await asyncio.to_thread(store_shard, self.root, layout, shard, lambda: values)

        def save(layout: ArrayLayout, array: AnyArray, shard: int) -> None:
            stored.append(group.create_task(store(layout, array, shard)))
            stored[-1].add_done_callback(lambda task: self.advance(1))

        async def count(shard: int, saved: asyncio.Task[Any]) -> int:
            start, stop = plan.document_layout.shard_bounds(shard)
            arguments = plan, self.source, documents[start:stop]
            async with limit:
                lengths = await run(order_lengths, *arguments, **self.task("count", shard, FIRST))
                tasks.ordered[shard] = lengths
                if self.publish is None:  # from here on lengths use the memory of the documents
                    await asyncio.wait([saved])
                    documents[start:stop] = lengths
                    tasks.ordered[shard] = documents[start:stop]
            return int(lengths.sum(dtype=np.int64))

        async def bound(shard: int) -> None:
            bounds = plan.sample_layout.shard_bounds(shard)
            arguments = *tasks.find_partitions(sums[:-1], *bounds), *bounds
            task = self.task("samples", shard, FIRST)
            boundaries[slice(*bounds)] = await run(tasks.compute_boundaries, *arguments, **task)
            save(plan.sample_layout, boundaries, shard)

        async with asyncio.TaskGroup() as group:
            counts: dict[int, asyncio.Task[int]] = {}
            shards = shuffle_shards(plan, documents, state)
            while True:
                task = self.task("documents", len(stored), 2 * FIRST)
                if (shard := await run(next, shards, None, **task)) is None:
                    break
                save(plan.document_layout, documents, shard)
                counts[shard] = group.create_task(count(shard, stored[-1]))
            save_state = run(save_generator, self.root, state.copy(), **self.task("generator"))
            group.create_task(save_state)
            task = self.task("shuffle", priority=2 * FIRST)
            samples = group.create_task(run(shuffle_samples, plan, state, **task))
            sums = [0, *accumulate([await counts[shard] for shard in sorted(counts)])]
            check_tokens(plan, self.source, sums[-1])
            evict_lengths(self.source, self.root)
            await run_together(map(bound, range(plan.sample_layout.num_shards)))
            shuffled = await samples
            if self.publish is not None:
                self.publish(IndexArrays(documents, boundaries, shuffled))
                published.set()
            for shard in range(plan.shuffle_layout.num_shards):
                save(plan.shuffle_layout, shuffled, shard)
        return [task.result() for task in stored]


def store_small(plan: IndexPlan, root: Place, source: LengthSource) -> list[ShardResult]:
    """Task: store every array of a small index, unless all exist."""
    found = [find_shards(root, layout) for layout in plan.layouts]
    if None in found:
        lengths = source.lengths(plan.start, plan.stop)
        check_tokens(plan, source, plan.epochs.num_epochs * int(lengths.sum(dtype=np.int64)))
        arrays = compute_index_arrays(plan, lengths)._asdict()
        values = [np.asarray(arrays[layout.name]) for layout in plan.layouts]
        store = partial(store_all_shards, root)
        found = [*map_in_threads(files.num_writers(root), store, plan.layouts, values)]
    return [result for results in found for result in results or ()]


def is_small(plan: IndexPlan) -> bool:
    """Return whether an index has one shard of documents and one of samples."""
    layouts = (plan.document_layout, plan.sample_layout, plan.shuffle_layout)
    return all(layout.num_shards <= 1 for layout in layouts)


def is_built_whole(plan: IndexPlan, task_seconds: float) -> bool:
    """Return whether one task builds an index from start to commit, among many like it.

    If it has several shards, it must not take longer than the tasks that store them would.
    """
    is_short = plan.num_rows <= MAX_SHARD_LENGTH and estimate_build(plan) <= task_seconds
    return is_short or is_small(plan)


def batch_small(
    plans: Sequence[IndexPlan], num_threads: int, task_seconds: float = 0.0
) -> list[range]:
    """Group small indices into batches, one per task.

    Parameters
    ----------
    plans
        The small indices.
    num_threads
        Tasks that run at a time.
    task_seconds
        Seconds that a task should compute at least.

    Notes
    -----
    Law: the batches are consecutive and cover all indices.
    """
    sizes = [estimate_build(plan) for plan in plans]
    room = max(task_seconds, bundle_seconds(sum(sizes), num_threads))
    return batch_items(sizes, MAX_INDICES, room)


def bundle_seconds(work_seconds: float, num_threads: int) -> float:
    """Return how long a task may take that builds several of all small indices."""
    return min(BUNDLE_SECONDS, work_seconds / (TASKS_PER_THREAD * num_threads))


async def build_small(
    indices: Sequence[SmallIndex],
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = ignore_progress,
    finish: Callable[[Place, BuildResult], None] = lambda root, result: None,
    task_seconds: float = 0.0,
) -> list[BuildResult]:
    """Build and commit small indices, or their missing shards, several per task.

    An index whose arrays have a single shard is built faster than Dask schedules its tasks, so one
    task builds several indices, each from start to commit.

    Parameters
    ----------
    indices
        What to build, and from which lengths.
    folder, executor, advance
        As for `build_store`.
    finish
        Called with the directory of each finished store, and its result.
    task_seconds
        Seconds that a task should compute at least.

    Returns
    -------
    results
        The result of each index, in order.
    """
    place = place_of(folder)

    async def one(numbers: range) -> list[BuildResult]:
        key = task_key(indices[numbers[0]][0].store_plan(place).root, "bundle", len(numbers))
        given = [indices[number] for number in numbers]
        results, spans = await executor.run(build_batch, given, place, key=key)
        executor.timeline.add(spans)
        advance(sum(result.num_shards for result in results))
        for result in results:
            finish(result.store.root, result)
        return results

    batches = batch_small([plan for plan, _ in indices], executor.num_threads, task_seconds)
    return list(chain.from_iterable(await run_together(map(one, batches))))


def build_batch(indices: Sequence[SmallIndex], folder: Place) -> BuiltBatch:
    """Task: build and commit small indices in order, keeping finished ones."""
    timeline = Timeline()

    async def build() -> list[BuildResult]:
        executor = SerialExecutor(timeline)
        return [
            await IndexBuild(plan=plan, source=source, folder=folder, executor=executor).build()
            for plan, source in indices
        ]

    return run_builds(build()), timeline.spans
