"""The permutation of a whole run, computed ahead of the blend that uses it.

It depends only on the number of samples, which the configuration names. So it is computed shard by
shard while datasets are still being opened.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.execution.executor import Executor, Held
from zindex.indexing.blend_arrays import compute_permutation
from zindex.indexing.uniform_shuffle import (
    UniformShuffle,
    locate_pieces,
    read_positions,
    remove_scratch,
    scatter_part,
    shuffle_pieces,
    start_buckets,
)
from zindex.io.local import local_path
from zindex.io.objects import ObjectPath, PlaceLike, is_remote
from zindex.plan.blend_plan import PermutationPlan

R = TypeVar("R")

#: Bytes of the permutation that workers keep until the datasets are open.
_AHEAD_NBYTES = 1 << 29
# Before all work on datasets, and after tasks that free memory.
_PRIORITY = 2


class Permutation:
    """The shards of one permutation, each computed once and kept on its worker.

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
            self.scratch = _scratch_folder(plan, folder)
        self._uniform = UniformShuffle(plan.num_samples, plan.seed, plan.split)
        self._scattered: asyncio.Task[Int64Array] | None = None
        self._buckets: dict[int, asyncio.Task[None]] = {}
        self._shards: dict[int, asyncio.Task[Held]] = {}

    def start(self) -> None:
        """Submit the first shards; this needs a running event loop."""
        layout = self.plan.layout
        nbytes = layout.shard_length * self.plan.dtype.itemsize
        for shard in range(min(layout.num_shards, max(1, _AHEAD_NBYTES // nbytes))):
            self._shards[shard] = asyncio.create_task(self._compute(shard))

    async def take(self, shard: int) -> Held | None:
        """Return one shard, as an argument of a task; None: the task must compute it."""
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

        Another builder may still need them; it then computes them again.
        """
        if self.plan.shuffle == "uniform":
            await asyncio.to_thread(remove_scratch, self.scratch)

    async def _compute(self, shard: int) -> Held:
        start, stop = self.plan.layout.shard_bounds(shard)
        name = f"permutation-{self.plan.name}-{shard}"
        if self.plan.shuffle == "keyed":
            return await self._hold(name, compute_permutation, self.plan, start, stop)
        counts = await self._scatter()
        starts = start_buckets(counts)
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
        await asyncio.gather(*(self._bucket(b, counts) for b in range(first, last + 1)))
        reads = (self._uniform, self.scratch, starts, start, stop)
        return await self._hold(name, read_positions, *reads)

    async def _scatter(self) -> Int64Array:
        """Return the number of samples from each part in each bucket; scatter them once."""
        if self._scattered is None:
            self._scattered = asyncio.create_task(self._scatter_parts())
        return await asyncio.shield(self._scattered)

    async def _scatter_parts(self) -> Int64Array:
        name = f"scatter-{self.plan.name}"
        parts = range(self._uniform.num_parts)
        tasks = (self._run(f"{name}-{part}", scatter_part, part) for part in parts)
        return np.stack(await asyncio.gather(*tasks))

    async def _bucket(self, bucket: int, counts: Int64Array) -> None:
        """Shuffle one bucket, once for all shards that need it."""
        if bucket not in self._buckets:
            pieces = locate_pieces(counts, bucket)
            name = f"bucket-{self.plan.name}-{bucket}"
            self._buckets[bucket] = asyncio.create_task(
                self._run(name, shuffle_pieces, bucket, pieces)
            )
        await asyncio.shield(self._buckets[bucket])

    async def _run(self, name: str, function: Callable[..., R], *args: Any) -> R:
        return await self.executor.run(
            function, self._uniform, self.scratch, *args, key=name, priority=self._priority
        )

    async def _hold(self, name: str, function: Callable[..., Any], *args: Any) -> Held:
        return await self.executor.hold(function, *args, key=name, priority=self._priority)


def _scratch_folder(plan: PermutationPlan, folder: PlaceLike) -> Path:
    """Return the directory of a uniform shuffle's scratch files."""
    if is_remote(folder):
        raise ConfigError(
            f"shuffle: uniform needs an index folder in a file system for its scratch files, got "
            f"{folder}; set shuffle: keyed, or build at a path and copy the blend"
        )
    assert not isinstance(folder, ObjectPath)
    return local_path(folder) / f"shuffle-{plan.name}"
