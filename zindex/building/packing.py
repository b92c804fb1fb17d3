"""A packed index from plan to commit: documents into samples, one partition beside the other.

Partitions are packed first, since nothing can be stored before it is known how many samples the
ones before have. What comes of a partition is held where it was made until the shards that it
reaches into are written. The starts of all partitions are stored first: with them a build that
died, or one shard that was lost, needs only the partitions that it still lacks.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.executor import Executor, Held, run_together
from zindex.building.held import drop_held
from zindex.building.index_store import BuildResult, commit_index, find_built, name_store, task_key
from zindex.building.packing_tasks import (
    describe_run,
    pack_partitions,
    store_offset_shard,
    store_packed_shuffle_shard,
    store_part_shard,
    take_offsets,
)
from zindex.building.source import LengthSource
from zindex.errors import PlanError, StoreNotFoundError, VerificationError
from zindex.plan.packing import PackingLayouts, PackingPlan, count_epochs
from zindex.store.commit import StorePlan, begin_store, read_plan
from zindex.store.layout import ArrayLayout
from zindex.store.life import end_first_life, show_first_life
from zindex.store.objects import Place, PlaceLike
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards

Int64Array = npt.NDArray[np.int64]

# Documents that one task packs at least, of several epochs if need be: tasks cost milliseconds.
_TASK_LENGTH = 1 << 20
# Tasks that others wait for start first.
_FIRST, _LAST = 1, 0


def packing_store_plan(plan: PackingPlan, folder: PlaceLike) -> StorePlan:
    """Return the store that a packed index goes to, its arrays about as large as they will be."""
    spec = plan.spec | {"store": plan.stored}
    layouts = plan.estimated_layouts.stored
    return name_store(f"packed-{plan.split}", spec, layouts, plan.grid, folder)


async def build_packing(
    plan: PackingPlan,
    source: LengthSource,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = lambda num_shards: None,
) -> BuildResult:
    """Build one packed index, or what is missing of it, and commit it.

    Parameters
    ----------
    plan, source
        What to build, from which lengths.
    folder
        Directory of the index stores.
    executor
        Where the tasks run.
    advance
        Called with a number of shards whenever so many more are finished.

    Raises
    ------
    PlanError
        If no document is left to be packed.
    FingerprintMismatchError
        If the place holds something else.
    VerificationError
        If the lengths do not add up to the tokens that the source names.

    Notes
    -----
    Law: the result does not depend on the grid, the executor or interruptions.
    """
    store_plan = packing_store_plan(plan, folder)
    found = find_built(store_plan, advance)
    if found is not None:
        return found
    tasks = _PackingTasks(plan, source, store_plan.root, executor, advance)
    try:
        starts = await asyncio.to_thread(find_starts, store_plan.root)
        if starts is None:
            # Nothing is stored while documents are packed, which may take long.
            await asyncio.to_thread(show_first_life, store_plan.root)
            starts = await tasks.count()
        sizes = (len(starts) - 1, int(starts[-1, 0]), int(starts[-1, 1]))
        exact = replace(store_plan, layouts=plan.layouts(*sizes).stored)
        store_plan = await asyncio.to_thread(begin_store, exact)
        results = await tasks.store(starts, store_plan.layouts)
    finally:
        tasks.held.clear()
        drop_held(source, store_plan.root)
        end_first_life(store_plan.root)
    return await commit_index(store_plan, results, packing_facts(plan, starts))


def packing_facts(plan: PackingPlan, starts: Int64Array) -> dict[str, Any]:
    """Return what the attributes of a packed index tell of its sizes.

    Parameters
    ----------
    plan
        The plan.
    starts
        Shape (partitions + 1, 3), int64: sample, part and token at which each partition starts.
    """
    num_samples, num_parts, num_tokens = starts[-1].tolist()
    return {
        "num_samples": num_samples,
        "num_parts": num_parts,
        "num_tokens": num_tokens,
        "num_epochs": (len(starts) - 1) // plan.partitions_per_epoch,
        "num_documents": plan.num_documents,
        "padding_share": padding_share(plan, num_samples, num_tokens),
    }


def padding_share(plan: PackingPlan, num_samples: int, num_tokens: int) -> float:
    """Return the share of the room of all samples that no token fills."""
    return 1 - num_tokens / max(1, num_samples * plan.room)


def find_starts(
    root: Place, offset: schema.ArraySpec = schema.PARTITION_OFFSET
) -> Int64Array | None:
    """Return where the partitions of an index start that was begun, or None if it is not known.

    Parameters
    ----------
    root
        The store.
    offset
        The array that holds them.

    Returns
    -------
    starts
        Shape (partitions + 1, columns), int64; of packed documents: sample, part and token.
    """
    try:
        stored = read_plan(root)
    except StoreNotFoundError:
        return None
    layouts = [ArrayLayout.from_json(fields) for fields in stored["arrays"]]
    layout = next(item for item in layouts if item.name == offset.name)
    try:
        return open_reader(root, layout).read(0, layout.length)
    except VerificationError:  # a shard is missing or damaged
        return None


@dataclass(frozen=True)
class _PackingTasks:
    """The stages of one packed index."""

    plan: PackingPlan
    source: LengthSource
    root: Place
    executor: Executor
    advance: Callable[[int], None]
    #: Partitions that one task packs, from the first one on.
    runs: list[tuple[int, int]] = field(default_factory=list)
    #: What is packed or being packed.
    held: "dict[tuple[int, int], asyncio.Task[tuple[Held, Held]]]" = field(default_factory=dict)

    def _cut(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return partitions ``[start, stop)`` as the runs that one task packs."""
        num_documents = -(-self.plan.num_documents // self.plan.partitions_per_epoch)
        step = max(1, _TASK_LENGTH // num_documents)
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    async def _pack(self, run: tuple[int, int]) -> tuple[Held, Held]:
        """Pack partitions, once, and keep them and their offsets where they are."""
        task = self.held.get(run)
        if task is None:
            task = self.held[run] = asyncio.create_task(self._pack_now(run))
        return await task

    async def _pack_now(self, run: tuple[int, int]) -> tuple[Held, Held]:
        # Shards take neighbouring partitions, each epoch's from its first to its last worker.
        per_epoch = self.plan.partitions_per_epoch
        place = run[0] % per_epoch / per_epoch
        packed = await self.executor.hold(
            pack_partitions,
            self.plan,
            self.source,
            *run,
            key=task_key(self.root, "pack", run[0]),
            priority=_FIRST,
            place=place,
        )
        key = task_key(self.root, "offsets", run[0])
        offsets = await self.executor.hold(take_offsets, packed, key=key, priority=_FIRST)
        return packed, offsets

    async def _count(self, run: tuple[int, int]) -> Int64Array:
        _, offsets = await self._pack(run)
        key = task_key(self.root, "count", run[0])
        counts: Int64Array = await self.executor.run(
            describe_run, offsets, key=key, priority=_FIRST
        )
        return counts

    async def count(self) -> Int64Array:
        """Pack epoch after epoch until there are enough samples; return where partitions start."""
        plan, per_epoch = self.plan, self.plan.partitions_per_epoch
        starts, num_epochs = np.zeros((1, 3), np.int64), 1
        while True:
            runs = self._cut(len(starts) - 1, num_epochs * per_epoch)
            self.runs.extend(runs)
            counts = np.concatenate(await run_together(map(self._count, runs)))
            starts = np.concatenate([starts, starts[-1] + np.cumsum(counts, axis=0)])
            num_samples = int(starts[-1, 0])
            if not num_samples:
                raise PlanError(
                    f"{plan.split} of {self.source.path} must hold documents to pack, none of its "
                    f"{plan.num_documents:,} is left with long_documents: "
                    f"{plan.rules.long_documents} and room for {plan.room:,} tokens; use split"
                )
            enough = count_epochs(starts[::per_epoch, 0], plan.num_wanted)
            if enough is not None:
                starts = starts[: enough * per_epoch + 1]
                break
            assert plan.num_wanted is not None
            num_epochs = max(num_epochs + 1, -(-plan.num_wanted * num_epochs // num_samples))
        self._check(starts)
        return starts

    def _check(self, starts: Int64Array) -> None:
        """Check that no token is missing where none may be."""
        plan = self.plan
        if plan.rules.long_documents != "split":
            return
        num_epochs = (len(starts) - 1) // plan.partitions_per_epoch
        # Cuts of long documents repeat a token where samples draw an extra one.
        least = num_epochs * plan.tokens_per_epoch
        if starts[-1, 2] < least or (not plan.extra_token and starts[-1, 2] > least):
            raise VerificationError(
                f"{self.source.path} must hold {plan.tokens_per_epoch} tokens in {plan.split}, its "
                f"lengths sum to {starts[-1, 2] // num_epochs}; convert it again"
            )

    async def store(self, starts: Int64Array, stored: tuple[ArrayLayout, ...]) -> list[ShardResult]:
        """Store every array, packing again what is not held of the shards that are missing."""
        layouts = _by_name(stored)
        done = await self.executor.run(
            store_all_shards,
            self.root,
            layouts.partition,
            starts,
            key=task_key(self.root, "starts", 0),
        )
        self.advance(len(done))
        num_partitions = len(starts) - 1
        runs = [run for run in self.runs or self._cut(0, num_partitions) if run[0] < num_partitions]
        work: list[Coroutine[Any, Any, ShardResult]] = []
        for layout, column in ((layouts.part, 1), (layouts.sample, 0)):
            firsts = [int(starts[start, column]) for start, _ in runs]
            for shard in range(layout.num_shards):
                start, stop = layout.shard_bounds(shard)
                near = runs[max(0, bisect_right(firsts, start) - 1) : bisect_left(firsts, stop)]
                work.append(self._store_one(layout, shard, starts, near))
        if layouts.shuffle is not None:
            sample_starts = starts[:: self.plan.partitions_per_epoch, 0]
            work += [
                self._shuffle_one(layouts.shuffle, shard, sample_starts)
                for shard in range(layouts.shuffle.num_shards)
            ]
        return [*done, *await run_together(work)]

    async def _store_one(
        self, layout: ArrayLayout, shard: int, starts: Int64Array, runs: list[tuple[int, int]]
    ) -> ShardResult:
        """Store a shard of parts or of offsets, unless it is there."""
        receipt = await asyncio.to_thread(find_receipt, self.root, layout, shard)
        if receipt is not None:
            result = ShardResult(receipt, written=False)
        elif layout.name == schema.PART_INDEX.name:
            packed = [(await self._pack(run))[0] for run in runs]
            firsts = [int(starts[start, 1]) for start, _ in runs]
            result = await self._run(store_part_shard, layout, shard, firsts, *packed)
        else:
            packed = [(await self._pack(run))[1] for run in runs]
            pairs = [(int(starts[start, 0]), int(starts[start, 1])) for start, _ in runs]
            result = await self._run(store_offset_shard, layout, shard, pairs, *packed)
        self.advance(1)
        return result

    async def _run(
        self, function: Callable[..., ShardResult], layout: ArrayLayout, shard: int, *rest: Any
    ) -> ShardResult:
        key = task_key(self.root, layout.name, shard)
        return await self.executor.run(
            function, self.root, layout, shard, *rest, key=key, priority=_LAST
        )

    async def _shuffle_one(
        self, layout: ArrayLayout, shard: int, sample_starts: Int64Array
    ) -> ShardResult:
        result = await self.executor.run(
            store_packed_shuffle_shard,
            self.plan,
            sample_starts,
            self.root,
            layout,
            shard,
            key=task_key(self.root, "shuffle", shard),
        )
        self.advance(1)
        return result


def _by_name(layouts: tuple[ArrayLayout, ...]) -> PackingLayouts:
    """Return the layouts of a packed index's store."""
    names = {layout.name: layout for layout in layouts}
    return PackingLayouts(
        names[schema.PARTITION_OFFSET.name],
        names[schema.PART_INDEX.name],
        names[schema.SAMPLE_OFFSET.name],
        names.get(schema.SHUFFLE_INDEX.name),
    )
