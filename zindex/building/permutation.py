"""The permutation of a whole run, made shard by shard before anyone asks for it.

All that it needs is the number of samples, which the training inputs name. So it is computed while
datasets are still being opened; the shards of a blend then take theirs as it is.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zindex.building.blend_arrays import compute_permutation
from zindex.building.executor import Executor, Held
from zindex.building.uniform_shuffle import (
    UniformShuffle,
    locate_pieces,
    read_positions,
    remove_scratch,
    scatter_part,
    shuffle_pieces,
    start_buckets,
)
from zindex.errors import ConfigError
from zindex.plan.blend_plan import PermutationPlan
from zindex.store.local import local_path
from zindex.store.objects import ObjectPath, PlaceLike, is_remote

R = TypeVar("R")
Int64Array = npt.NDArray[np.int64]

#: Bytes of permutation that wait on the workers for datasets to be opened.
_AHEAD_NBYTES = 1 << 29
# Before all that datasets need; only what frees memory comes before it.
_PRIORITY = 2


class Permutation:
    """The shards of one permutation, each computed once and kept on the worker that computed it.

    Parameters
    ----------
    plan
        What to compute.
    executor
        Where the tasks run.
    folder
        Directory of the index stores; a uniform shuffle keeps its scratch files in it.

    Notes
    -----
    The first shards are submitted by `start`, as many as may wait in memory; the others when they
    are asked for, or, if keyed, by the task itself that needs them. A shard is handed out once.
    """

    def __init__(self, plan: PermutationPlan, executor: Executor, folder: PlaceLike) -> None:
        self.plan = plan
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
        """Return one shard, as a later task takes it; None: that task is to compute it."""
        task = self._shards.pop(shard, None)
        if task is not None:
            return await task
        return None if self.plan.shuffle == "keyed" else await self._compute(shard)

    async def close(self) -> None:
        """Let go of the shards that nobody took."""
        tasks = [*self._shards.values(), *self._buckets.values()]
        if self._scattered is not None:
            tasks.append(self._scattered)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shards.clear()

    async def remove_scratch(self) -> None:
        """Remove the scratch files: nothing needs them any more.

        Another builder may still need them; it finds them missing and makes them anew.
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
        """Return how many samples of each part went to each bucket, scattering them once."""
        if self._scattered is None:
            self._scattered = asyncio.create_task(self._scatter_parts())
        return await asyncio.shield(self._scattered)

    async def _scatter_parts(self) -> Int64Array:
        parts = range(self._uniform.num_parts)
        return np.stack(await asyncio.gather(*map(self._scatter_part, parts)))

    async def _scatter_part(self, part: int) -> Int64Array:
        return await self._run(f"scatter-{self.plan.name}-{part}", scatter_part, part)

    async def _bucket(self, bucket: int, counts: Int64Array) -> None:
        """Shuffle one bucket, once however many shards need it."""
        if bucket not in self._buckets:
            pieces = locate_pieces(counts, bucket)
            name = f"bucket-{self.plan.name}-{bucket}"
            self._buckets[bucket] = asyncio.create_task(
                self._run(name, shuffle_pieces, bucket, pieces)
            )
        await asyncio.shield(self._buckets[bucket])

    async def _run(self, name: str, function: Callable[..., R], *args: Any) -> R:
        return await self.executor.run(
            function, self._uniform, self.scratch, *args, key=name, priority=_PRIORITY
        )

    async def _hold(self, name: str, function: Callable[..., Any], *args: Any) -> Held:
        return await self.executor.hold(function, *args, key=name, priority=_PRIORITY)


def _scratch_folder(plan: PermutationPlan, folder: PlaceLike) -> Path:
    """Return the directory of a uniform shuffle's scratch files."""
    if is_remote(folder):
        raise ConfigError(
            f"shuffle: uniform needs an index folder in a file system for its scratch files, got "
            f"{folder}; set shuffle: keyed, or build at a path and copy the blend"
        )
    assert not isinstance(folder, ObjectPath)
    return local_path(folder) / f"shuffle-{plan.name}"
