"""A sentence mapping from plan to commit: documents scanned for samples, some beside the others.

Samples are counted first, since nothing can be stored before it is known how many there are before
each run of documents. Where Megatron draws targets one after the other, the counts are a chain of
tasks; otherwise all run side by side, and so do those that store. The counts are stored first: with
them a build that died, or one shard that was lost, needs no further count.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.executor import Executor, run_together
from zindex.building.index_store import BuildResult, commit_index, find_built, name_store, task_key
from zindex.building.mapping_tasks import (
    SentenceSource,
    count_partitions,
    seed_targets,
    store_row_shard,
    store_shuffled_mapping,
)
from zindex.building.packing import find_starts
from zindex.building.packing_tasks import store_packed_shuffle_shard
from zindex.errors import PlanError
from zindex.plan.packing import count_epochs
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.commit import StorePlan, begin_store
from zindex.store.layout import ArrayLayout
from zindex.store.life import end_first_life, show_first_life
from zindex.store.objects import Place, PlaceLike
from zindex.store.shard_files import ShardResult, store_all_shards

Int64Array = npt.NDArray[np.int64]

# Sentences that one task scans at least, of several epochs if need be: tasks cost milliseconds.
_TASK_LENGTH = 1 << 23
# Tasks that others wait for start first.
_FIRST = 1


def mapping_store_plan(plan: MappingPlan, folder: PlaceLike) -> StorePlan:
    """Return the store that a mapping goes to, its arrays about as large as they will be."""
    spec = plan.spec | {"store": plan.stored}
    return name_store(f"{plan.kind}-{plan.split}", spec, plan.estimated_layouts, plan.grid, folder)


async def build_mapping(
    plan: MappingPlan,
    source: SentenceSource,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = lambda num_shards: None,
) -> BuildResult:
    """Build one sentence mapping, or what is missing of it, and commit it.

    Parameters
    ----------
    plan, source
        What to build, from which sentences.
    folder
        Directory of the index stores.
    executor
        Where the tasks run.
    advance
        Called with a number of shards whenever so many more are finished.

    Raises
    ------
    PlanError
        If no document gives a sample.
    FingerprintMismatchError
        If the place holds something else.

    Notes
    -----
    Law: the result does not depend on the grid, the executor or interruptions.
    """
    store_plan = mapping_store_plan(plan, folder)
    found = find_built(store_plan, advance)
    if found is not None:
        return found
    tasks = _MappingTasks(plan, source, store_plan.root, executor, advance)
    try:
        starts = await asyncio.to_thread(find_starts, store_plan.root, schema.SCAN_OFFSET)
        if starts is None:
            # Nothing is stored while sentences are counted, which may take long.
            await asyncio.to_thread(show_first_life, store_plan.root)
            starts = await tasks.count()
        facts = mapping_facts(plan, starts)
        sizes = (len(starts) - 1, facts["num_rows"], facts["num_samples"])
        exact = StorePlan(
            store_plan.root, store_plan.kind, store_plan.spec, plan.layouts(*sizes), plan.grid
        )
        store_plan = await asyncio.to_thread(begin_store, exact)
        results = await tasks.store(starts, store_plan.layouts)
    finally:
        end_first_life(store_plan.root)
    return await commit_index(store_plan, results, facts)


def mapping_facts(plan: MappingPlan, starts: Int64Array) -> dict[str, Any]:
    """Return what the attributes of a mapping tell of its sizes.

    Parameters
    ----------
    plan
        The plan.
    starts
        Shape (partitions + 1, 2), int64: sample and drawn target at which each partition starts.
    """
    num_rows = int(starts[-1, 0])
    num_samples = int(find_sample_starts(plan, starts)[-1])
    num_epochs = (len(starts) - 1) // plan.partitions_per_epoch
    if plan.repeats:
        num_epochs = num_samples // num_rows
    return {
        "num_samples": num_samples,
        "num_rows": num_rows,
        "num_epochs": num_epochs,
        "num_documents": plan.num_documents,
    }


def find_sample_starts(plan: MappingPlan, starts: Int64Array) -> Int64Array:
    """Return the sample at which each epoch starts, and the number of samples of all of them.

    Parameters
    ----------
    plan, starts
        As of `mapping_facts`.

    Returns
    -------
    sample_starts
        Shape (epochs + 1,), int64.
    """
    if not plan.repeats:
        return np.ascontiguousarray(starts[:: plan.partitions_per_epoch, 0])
    num_rows = int(starts[-1, 0])
    num_epochs = max(1, -(-(plan.num_requested or 1) // num_rows))
    return np.arange(num_epochs + 1) * num_rows


def near_partitions(starts: Int64Array, start: int, stop: int) -> tuple[int, int, int, int]:
    """Return the partitions that reach into samples ``[start, stop)``; see `compute_rows`."""
    firsts = starts[:-1, 0].tolist()
    first = max(0, bisect_right(firsts, start) - 1)
    return first, bisect_left(firsts, stop), int(starts[first, 0]), int(starts[first, 1])


@dataclass(frozen=True)
class _MappingTasks:
    """The stages of one mapping."""

    plan: MappingPlan
    source: SentenceSource
    root: Place
    executor: Executor
    advance: Callable[[int], None]

    async def count(self) -> Int64Array:
        """Scan epoch after epoch until there are enough samples; return where partitions start."""
        plan, per_epoch = self.plan, self.plan.partitions_per_epoch
        starts, num_epochs = np.zeros((1, 2), np.int64), 1
        wanted = None if plan.repeats else plan.num_requested
        memory = seed_targets(plan.seed) if plan.is_chained else None
        while True:
            counts, memory = await self._count(len(starts) - 1, num_epochs * per_epoch, memory)
            starts = np.concatenate([starts, starts[-1] + np.cumsum(counts, axis=0)])
            num_samples = int(starts[-1, 0])
            if not num_samples:
                raise PlanError(
                    f"{plan.split} of {self.source.sentences.path} must hold documents of at least "
                    f"{plan.min_num_sentences} sentences, none too long, its {plan.num_documents:,}"
                    " give no sample; split documents into sentences, or give it a larger share"
                )
            enough = count_epochs(starts[::per_epoch, 0], wanted)
            if enough is not None:
                return starts[: enough * per_epoch + 1]
            assert wanted is not None
            num_epochs = max(num_epochs + 1, -(-wanted * num_epochs // num_samples))

    async def _count(self, start: int, stop: int, memory: Any) -> tuple[Int64Array, Any]:
        """Return the counts of partitions, and the generator after them."""
        num_sentences = max(1, self.plan.num_sentences // self.plan.partitions_per_epoch)
        step = max(1, _TASK_LENGTH // num_sentences)

        def run(first: int, memory: Any) -> Coroutine[Any, Any, tuple[Int64Array, Any]]:
            return self.executor.run(
                count_partitions,
                self.plan,
                self.source,
                first,
                min(first + step, stop),
                memory,
                key=task_key(self.root, "count", first),
                priority=_FIRST,
            )

        firsts = range(start, stop, step)
        if memory is None:
            parts = await run_together(run(first, None) for first in firsts)
            return np.concatenate([counts for counts, _ in parts]), None
        chained = []
        for first in firsts:
            counts, memory = await run(first, memory)
            chained.append(counts)
        return np.concatenate(chained), memory

    async def store(
        self, starts: Int64Array, layouts: tuple[ArrayLayout, ...]
    ) -> list[ShardResult]:
        """Store every array, the counts first."""
        by_name = {layout.name: layout for layout in layouts}
        offsets, rows = by_name[schema.SCAN_OFFSET.name], by_name[schema.SENTENCE_INDEX.name]
        key = task_key(self.root, "starts", 0)
        done = await self.executor.run(store_all_shards, self.root, offsets, starts, key=key)
        self.advance(len(done))
        work = [self._store_rows(rows, shard, starts) for shard in range(rows.num_shards)]
        shuffle = by_name.get(schema.SHUFFLE_INDEX.name)
        if shuffle is not None and self.plan.order == "megatron":
            work.append(self._shuffle_all(shuffle))
        elif shuffle is not None:
            shards = range(shuffle.num_shards)
            work += [self._shuffle_one(shuffle, shard, starts) for shard in shards]
        return [*done, *(result for results in await run_together(work) for result in results)]

    async def _store_rows(
        self, layout: ArrayLayout, shard: int, starts: Int64Array
    ) -> list[ShardResult]:
        near = near_partitions(starts, *layout.shard_bounds(shard))
        key = task_key(self.root, "sentences", shard)
        wanted = (self.plan, self.source, self.root, layout, shard, near)
        return self._finish([await self.executor.run(store_row_shard, *wanted, key=key)])

    async def _shuffle_all(self, layout: ArrayLayout) -> list[ShardResult]:
        # The longest task, and it waits for nothing.
        key = task_key(self.root, "shuffle")
        wanted = (self.plan, self.root, layout)
        return self._finish(
            await self.executor.run(store_shuffled_mapping, *wanted, key=key, priority=_FIRST)
        )

    async def _shuffle_one(
        self, layout: ArrayLayout, shard: int, starts: Int64Array
    ) -> list[ShardResult]:
        key = task_key(self.root, "shuffle", shard)
        wanted = (self.plan, find_sample_starts(self.plan, starts), self.root, layout, shard)
        return self._finish([await self.executor.run(store_packed_shuffle_shard, *wanted, key=key)])

    def _finish(self, results: list[ShardResult]) -> list[ShardResult]:
        self.advance(len(results))
        return results
