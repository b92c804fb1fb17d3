"""One index from plan to commit: the coroutine that orders the tasks of one dataset and split."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from zindex.building.documents import (
    count_document_shard,
    store_document_shard,
    store_shuffled_documents,
)
from zindex.building.executor import Executor
from zindex.building.held import drop_held
from zindex.building.index_store import BuildResult, commit_index, find_built, name_store, task_key
from zindex.building.samples import find_partitions, store_sample_shard
from zindex.building.shuffle import store_shuffle_shard, store_shuffled_samples
from zindex.building.source import LengthSource
from zindex.errors import VerificationError
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import StorePlan, begin_store
from zindex.store.objects import Place, PlaceLike
from zindex.store.shard_files import ShardResult

R = TypeVar("R")

# Tasks that others wait for start first.
_FIRST, _LAST = 1, 0


def index_store_plan(plan: IndexPlan, folder: PlaceLike) -> StorePlan:
    """Return the store that an index goes to: a directory named by split and fingerprint."""
    spec = plan.spec | {"store": plan.stored}
    return name_store(f"gpt-{plan.split}", spec, plan.layouts, plan.grid, folder)


async def build_index(
    plan: IndexPlan,
    source: LengthSource,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = lambda num_shards: None,
) -> BuildResult:
    """Build one index, or what is missing of it, and commit it.

    An index that was begun on another grid is finished on that one.

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
    FingerprintMismatchError
        If the place holds something else.
    VerificationError
        If the lengths do not add up to the tokens that the source names.
    """
    store_plan = index_store_plan(plan, folder)
    found = find_built(store_plan, advance)
    if found is not None:
        return found
    store_plan = await asyncio.to_thread(begin_store, store_plan)
    plan = replace(plan, grid=store_plan.grid or plan.grid)
    tasks = _IndexTasks(plan, source, store_plan, executor, advance)
    try:
        async with asyncio.TaskGroup() as group:
            if plan.order == "scalable":
                shuffle = group.create_task(tasks.shuffle_scalable())
                documents, num_tokens = await tasks.documents_scalable()
            else:
                documents = await tasks.documents_megatron()
                shuffle = group.create_task(tasks.shuffle_megatron())
                num_tokens = await tasks.count_documents()
            samples = group.create_task(tasks.samples(tasks.token_starts(num_tokens)))
    finally:
        drop_held(source, store_plan.root)
    results = [*documents, *samples.result(), *shuffle.result()]
    facts = {"num_samples": plan.num_samples, "num_documents": plan.num_documents}
    return await commit_index(store_plan, results, facts)


@dataclass(frozen=True)
class _IndexTasks:
    """The stages of one index; each awaits the tasks of one array."""

    plan: IndexPlan
    source: LengthSource
    store_plan: StorePlan
    executor: Executor
    advance: Callable[[int], None]

    @property
    def root(self) -> Place:
        return self.store_plan.root

    async def _each(
        self,
        stage: str,
        function: Callable[..., R],
        arguments: Callable[[int], tuple[Any, ...]],
        *,
        num_shards: int,
        priority: int = _LAST,
        stores: bool = True,
    ) -> list[R]:
        """Run one task per shard of an array; it takes plan, root, its arguments and the shard."""

        async def one(shard: int) -> R:
            key = task_key(self.root, stage, shard)
            result = await self.executor.run(
                function, self.plan, self.root, *arguments(shard), shard, key=key, priority=priority
            )
            self.advance(int(stores))
            return result

        return list(await asyncio.gather(*(one(shard) for shard in range(num_shards))))

    async def documents_scalable(self) -> tuple[list[ShardResult], list[int]]:
        """Compute every shard of the document index by itself, and count its tokens."""
        done = await self._each(
            "documents",
            store_document_shard,
            lambda shard: (self.source,),
            num_shards=self.plan.document_layout.num_shards,
            priority=_FIRST,
            stores=self.plan.stored == "all",
        )
        results = [shard.result for shard in done if shard.result is not None]
        return results, [shard.num_tokens for shard in done]

    async def documents_megatron(self) -> list[ShardResult]:
        """Shuffle all documents in one task, as the legacy generator demands."""
        results = await self.executor.run(
            store_shuffled_documents,
            self.plan,
            self.root,
            key=task_key(self.root, "documents"),
            priority=_FIRST,
        )
        self.advance(len(results))
        return results

    async def count_documents(self) -> list[int]:
        """Count the tokens of every stored shard of the document index."""
        return await self._each(
            "count",
            count_document_shard,
            lambda shard: (self.source,),
            num_shards=self.plan.document_layout.num_shards,
            priority=_FIRST,
            stores=False,
        )

    def token_starts(self, num_tokens: list[int]) -> list[int]:
        """Return the stream position of each document shard's first token."""
        sums = [0, *accumulate(num_tokens)]
        expected = self.plan.epochs.num_epochs * self.plan.epochs.tokens_per_epoch
        if sums[-1] != expected:
            raise VerificationError(
                f"{self.source.path} must hold {expected} tokens in {self.plan.split}, its lengths "
                f"sum to {sums[-1]}; convert it again"
            )
        return sums[:-1]

    async def samples(self, token_starts: list[int]) -> list[ShardResult]:
        """Compute every shard of the sample index from the documents before and in it."""
        return await self._each(
            "samples",
            store_sample_shard,
            lambda shard: (self.source, *find_partitions(self.plan, token_starts, shard)),
            num_shards=self.plan.sample_layout.num_shards,
        )

    async def shuffle_scalable(self) -> list[ShardResult]:
        """Compute every shard of the shuffle index by itself; nothing need be known before."""
        if self.plan.stored == "minimal":
            return []
        num_shards = self.plan.shuffle_layout.num_shards
        return await self._each(
            "shuffle", store_shuffle_shard, lambda shard: (), num_shards=num_shards
        )

    async def shuffle_megatron(self) -> list[ShardResult]:
        """Shuffle all samples in one task, going on from the documents' generator."""
        if not self.plan.num_samples:
            return []
        results = await self.executor.run(
            store_shuffled_samples,
            self.plan,
            self.root,
            key=task_key(self.root, "shuffle"),
            priority=_FIRST,
        )
        self.advance(len(results))
        return results
