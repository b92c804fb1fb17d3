import asyncio
from functools import partial

import numpy as np
import pytest

from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing import blend as module
from zindex.indexing.blend import Permutation
from zindex.indexing.blend_arrays import compute_permutation
from zindex.indexing.uniform_shuffle import UniformShuffle, permute_all
from zindex.plan.blend_plan import PermutationPlan
from zindex.store.layout import ChunkGrid

GRID = ChunkGrid(chunk_length=4, shard_length=16)


class CountingExecutor(SerialExecutor):
    """Runs tasks at once and remembers their names and priorities."""

    def __init__(self):
        super().__init__()
        self.calls = []

    async def run(self, function, *args, key, priority=0):
        self.calls.append((key.split("-")[0], priority))
        await asyncio.sleep(0)
        return await super().run(function, *args, key=key, priority=priority)


def take_all(permutation: Permutation, *, ahead: bool) -> list[np.ndarray]:
    async def main():
        if ahead:
            permutation.start()
        shards = range(permutation.plan.layout.num_shards)
        taken = await asyncio.gather(*map(permutation.take, shards))
        await permutation.close()
        return taken

    return run_builds(main())


@pytest.mark.parametrize("num_samples", [1, 16, 100])
def test_a_keyed_permutation(tmp_path, num_samples):
    plan = PermutationPlan(num_samples, 7, "train", "keyed", GRID)
    executor = CountingExecutor()
    # What was not begun is left to the task that needs it.
    later = take_all(Permutation(plan, executor, tmp_path), ahead=False)
    assert later == [None] * plan.layout.num_shards
    assert not executor.calls
    shards = take_all(Permutation(plan, executor, tmp_path), ahead=True)
    whole = np.concatenate(shards)
    assert sorted(whole.tolist()) == list(range(num_samples))
    assert np.array_equal(whole, compute_permutation(plan, 0, num_samples))
    assert not list(tmp_path.iterdir())


def test_a_uniform_permutation_scatters_once(tmp_path, monkeypatch):
    short_parts = partial(UniformShuffle, min_part_length=30)
    monkeypatch.setattr(module.uniform_shuffle, "UniformShuffle", short_parts)
    plan = PermutationPlan(100, 7, "valid", "uniform", GRID)
    executor = CountingExecutor()
    permutation = Permutation(plan, executor, tmp_path)
    whole = np.concatenate(take_all(permutation, ahead=True))
    expected = permute_all(UniformShuffle(100, 7, "valid", min_part_length=30))
    assert np.array_equal(whole, expected)
    stages = [stage for stage, _ in executor.calls]
    assert stages.count("scatter") == stages.count("bucket") == 4
    assert stages.count("permutation") == 7
    assert permutation.scratch.is_dir()
    run_builds(permutation.remove_scratch())
    assert not list(tmp_path.iterdir())


def test_no_more_shards_wait_than_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_AHEAD_NBYTES", 3 * 16 * 4)
    plan = PermutationPlan(100, 7, "train", "keyed", GRID)
    executor = CountingExecutor()

    async def main():
        permutation = Permutation(plan, executor, tmp_path)
        permutation.start()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(executor.calls) == 3
        assert len(await permutation.take(0)) == 16
        assert len(executor.calls) == 3
        assert await permutation.take(5) is None
        await permutation.close()

    run_builds(main())
    # No task of a dataset runs before it.
    assert {priority for _, priority in executor.calls} == {2}


def test_it_is_closed_before_it_is_done(tmp_path):
    plan = PermutationPlan(10_000, 7, "train", "uniform", GRID)

    async def main():
        permutation = Permutation(plan, CountingExecutor(), tmp_path)
        permutation.start()
        await asyncio.sleep(0)
        await permutation.close()
        assert len(asyncio.all_tasks()) == 1

    run_builds(main())
