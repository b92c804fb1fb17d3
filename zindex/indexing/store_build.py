"""The build of one store: find it, begin it, run a task per shard, commit it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, starmap
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import NotReadyError, PlanError, StoreNotFoundError, VerificationError
from zindex.execution.executor import Executor, run_together
from zindex.indexing.computed_arrays import fill_shuffle
from zindex.indexing.task_size import batch_shards
from zindex.io.objects import Place, PlaceLike
from zindex.plan.build_plan import BuildPlan, CountedPlan, count_epochs
from zindex.store.commit import StorePlan, begin_store, commit_store, read_plan
from zindex.store.heartbeat import remove_first_heartbeat, write_first_heartbeat
from zindex.store.layout import CHUNK_LENGTH, ArrayLayout, parse_layouts
from zindex.store.open import Store, open_reader, open_store
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

P = TypeVar("P", bound=BuildPlan)
C = TypeVar("C", bound=CountedPlan)
R = TypeVar("R")

#: Priority of tasks that other tasks wait for.
FIRST = 1


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The outcome of one build."""

    store: Store
    #: Shards that this build computed and wrote; the others already existed.
    num_written: int
    num_shards: int


def ignore_progress(num_shards: int) -> None:
    """Ignore progress."""


def open_index(store_plan: StorePlan) -> Store:
    """Return the committed store of a plan; raises as `open_store` does."""
    return open_store(store_plan.root, kind="index", expected=store_plan.fingerprint)


def find_index(store_plan: StorePlan) -> Store | None:
    """Return the committed store of a plan, or None if it is not finished."""
    try:
        return open_index(store_plan)
    except (NotReadyError, StoreNotFoundError):
        return None


def task_key(root: Place, stage: str, number: int | None = None, label: str = "") -> str:
    """Return the key of a task; its first word names the stage of the build.

    Examples
    --------
    >>> from pathlib import Path
    >>> task_key(Path("index/gpt-train-06b"), "shuffle", 3, "web-train")
    'shuffle-web-train-3'
    """
    suffix = "" if number is None else f"-{number}"
    return f"{stage}-{label or root.name[:28]}{suffix}"


@dataclass(kw_only=True)
class StoreBuild(Generic[P]):
    """One build of one store, resumed from existing shards.

    A subclass implements `store_arrays`, starting with `begin`. Tasks get small arguments, write
    whole shards and are idempotent, so a build may be interrupted and repeated, also by several
    builders concurrently.
    """

    plan: P
    #: Directory of the index stores.
    folder: PlaceLike
    executor: Executor
    #: Called with the number of shards that were finished since the last call.
    advance: Callable[[int], None] = ignore_progress
    #: Dataset and split for task names; by default those of the directory.
    label: str = ""
    #: Added to the priorities of all tasks.
    priority: int = 0
    #: Seconds that a task should compute at least; see `choose_task_seconds`.
    task_seconds: float = 0.0
    #: Called with all arrays once they are computed, before they are stored, if computed by this
    #: process.
    publish: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        self.store_plan = self.plan.store_plan(self.folder)

    @property
    def root(self) -> Place:
        """Directory of the store."""
        return self.store_plan.root

    async def build(self) -> BuildResult:
        """Build the store, or its missing shards, and commit it.

        Raises
        ------
        FingerprintMismatchError
            If the directory has other content.

        Notes
        -----
        Law: the result does not depend on the grid, the executor or interruptions.
        """
        store = find_index(self.store_plan)
        if store is not None:
            self.advance(self.store_plan.num_shards)
            return BuildResult(store, num_written=0, num_shards=store.num_shards)
        results, facts = await self.store_arrays()
        receipts = [result.receipt for result in results]
        await asyncio.to_thread(commit_store, self.store_plan, receipts, dict(facts))
        return BuildResult(
            open_index(self.store_plan),
            num_written=sum(result.written for result in results),
            num_shards=self.store_plan.num_shards,
        )

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Store every array; return the results of all shards, and facts for the attributes."""
        raise NotImplementedError

    async def begin(self, store_plan: StorePlan | None = None) -> None:
        """Write the store's plan, or adopt the grid of an existing one."""
        self.store_plan = await asyncio.to_thread(begin_store, store_plan or self.store_plan)
        self.plan = replace(self.plan, grid=self.store_plan.grid or self.plan.grid)

    def task(self, stage: str, number: int | None = None, priority: int = 0) -> dict[str, Any]:
        """Return the key and the priority of a task of a stage, for the executor."""
        key = task_key(self.root, stage, number, self.label)
        return {"key": key, "priority": self.priority + priority}

    async def store(
        self,
        stage: str,
        function: Callable[..., ShardResult | list[ShardResult]],
        *args: Any,
        number: int | None = None,
        priority: int = 0,
    ) -> list[ShardResult]:
        """Run one task that stores a shard or several, and report them as progress."""
        found = await self.executor.run(function, *args, **self.task(stage, number, priority))
        results = found if isinstance(found, list) else [found]
        self.advance(len(results))
        return results

    async def store_shards(
        self,
        stage: str,
        function: Callable[..., ShardResult],
        layout: ArrayLayout,
        arguments: Callable[[int], tuple[Any, ...]],
    ) -> list[ShardResult]:
        """Run a function for every shard of an array, with arguments that depend on its number."""
        return await store_together(
            self.store(stage, store_each, function, list(map(arguments, shards)), number=shards[0])
            for shards in batch_shards(layout, self.task_seconds)
        )


def store_each(
    function: Callable[..., ShardResult], arguments: Iterable[tuple[Any, ...]]
) -> list[ShardResult]:
    """Task: store shards, one after the other."""
    return list(starmap(function, arguments))


async def store_together(
    work: Iterable[Coroutine[Any, Any, list[ShardResult]]],
) -> list[ShardResult]:
    """Run coroutines that store shards concurrently; return all their results in order."""
    return list(chain.from_iterable(await run_together(work)))


@dataclass(kw_only=True)
class CountedBuild(StoreBuild[C], Generic[C]):
    """A build that must count its samples before it can store any of them.

    Partitions are counted epoch after epoch until there are enough samples. The starts of all
    partitions are stored first, so that a resumed build, or one that replaces a lost shard, does
    not count again.
    """

    #: The array of partition starts.
    starts_spec: ClassVar[schema.ArraySpec]
    #: Minimum rows per counting task, over several epochs: a task costs milliseconds.
    task_length: int

    def split(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return partitions ``[start, stop)`` as ranges for one task each."""
        rows = -(-self.plan.rows_per_epoch // self.plan.partitions_per_epoch)
        step = max(1, self.task_length // max(1, rows))
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    async def count(self, start: int, stop: int) -> Int64Array:
        """Count partitions ``[start, stop)``, several tasks at a time; see `count_range`."""
        ranges = self.split(start, stop)
        return np.concatenate(await run_together(starmap(self.count_range, ranges)))

    async def count_range(self, start: int, stop: int) -> Int64Array:
        """Run the task that counts some partitions: samples in the first column."""
        raise NotImplementedError

    def no_samples(self) -> PlanError:
        """Return the error for a split without samples."""
        raise NotImplementedError

    def check_starts(self, starts: Int64Array) -> None:
        """Check the starts of all partitions."""

    async def store_counted(
        self, layouts: Mapping[str, ArrayLayout], starts: Int64Array
    ) -> list[ShardResult]:
        """Store all arrays except the partition starts and the shuffle."""
        raise NotImplementedError

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Count, unless the counts are stored, then store every array."""
        root, spec = self.root, self.starts_spec
        # Nothing is stored while documents are counted, which may take long.
        is_long = self.plan.num_build_rows > CHUNK_LENGTH
        try:
            starts = await asyncio.to_thread(find_starts, root, spec)
            if starts is None:
                if is_long:
                    await asyncio.to_thread(write_first_heartbeat, root)
                starts = await self.count_epochs()
            layouts, facts = self.plan.describe(starts)
            exact = StorePlan(root, "index", self.store_plan.spec, layouts, self.plan.grid)
            await self.begin(exact)
            by_name = {layout.name: layout for layout in self.store_plan.layouts}
            results = await self.store(
                "starts", store_all_shards, root, by_name[spec.name], starts, number=0
            )
            work = [self.store_counted(by_name, starts)]
            if schema.SHUFFLE_INDEX.name in by_name:
                work.append(self.store_shuffle(by_name[schema.SHUFFLE_INDEX.name], starts))
            return results + await store_together(work), facts
        finally:
            if is_long:
                remove_first_heartbeat(root)

    async def count_epochs(self) -> Int64Array:
        """Count epoch after epoch until there are enough samples; return the partition starts."""
        plan, per_epoch = self.plan, self.plan.partitions_per_epoch
        starts = np.zeros((1, self.starts_spec.num_columns), np.int64)
        num_epochs = 1
        while True:
            counts = await self.count(len(starts) - 1, num_epochs * per_epoch)
            starts = np.concatenate([starts, starts[-1] + np.cumsum(counts, axis=0)])
            num_samples = int(starts[-1, 0])
            if not num_samples:
                raise self.no_samples()
            enough = count_epochs(starts[::per_epoch, 0], plan.num_wanted)
            if enough is not None:
                starts = starts[: enough * per_epoch + 1]
                self.check_starts(starts)
                return starts
            assert plan.num_wanted is not None
            num_epochs = max(num_epochs + 1, -(-plan.num_wanted * num_epochs // num_samples))

    async def store_shuffle(self, layout: ArrayLayout, starts: Int64Array) -> list[ShardResult]:
        """Store a shuffle within epochs."""
        args = (self.plan, self.plan.sample_starts(starts), self.root, layout)
        return await self.store_shards(
            "shuffle", store_shuffle_shard, layout, lambda shard: (*args, shard)
        )


def store_shuffle_shard(
    plan: CountedPlan, sample_starts: Int64Array, root: Place, layout: ArrayLayout, shard: int
) -> ShardResult:
    """Task: store one shard of a shuffle within epochs."""
    start, stop = layout.shard_bounds(shard)

    def compute() -> AnyArray:
        values: AnyArray = np.empty(stop - start, layout.dtype)
        fill_shuffle(plan, sample_starts, start, values)
        return values

    return store_shard(root, layout, shard, compute)


def find_starts(root: Place, spec: schema.ArraySpec) -> Int64Array | None:
    """Return the partition starts of an index that was begun, or None if they are not stored.

    Parameters
    ----------
    root
        The store.
    spec
        The array that holds them.

    Returns
    -------
    starts
        Shape (partitions + 1, columns), int64; for packed documents: sample, part and token.
    """
    try:
        stored = read_plan(root)
    except StoreNotFoundError:
        return None
    layouts = parse_layouts(stored["arrays"], root)
    layout = next(item for item in layouts if item.name == spec.name)
    try:
        return open_reader(root, layout).read(0, layout.length)
    except VerificationError:  # a shard is missing or damaged
        return None


def find_shards(
    root: Place, layout: ArrayLayout, *, whole: bool = False
) -> list[ShardResult] | None:
    """Return the results of all shards of an array, or None if any shard is missing."""
    results = []
    for shard in range(layout.num_shards):
        receipt = find_receipt(root, layout, shard, whole=whole)
        if receipt is None:
            return None
        results.append(ShardResult(receipt, written=False))
    return results


def store_whole_array(
    root: Place, layout: ArrayLayout, compute: Callable[[], AnyArray]
) -> list[ShardResult]:
    """Store all shards of an array that only one task can compute, unless all exist."""
    found = find_shards(root, layout)
    return store_all_shards(root, layout, compute()) if found is None else found
