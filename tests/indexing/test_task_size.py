"""Tasks do enough work to be worth their overhead, and store the same shards however many each."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import LENGTHS, make_config, make_run
from tests.trees import all_files, shard_stamps
from zindex import schema
from zindex.execution.executor import SerialExecutor
from zindex.indexing.task_size import (
    batch_items,
    batch_shards,
    choose_task_seconds,
    count_tasks,
    estimate_seconds,
)
from zindex.plan.packing import PackingRules
from zindex.store.layout import ArrayLayout, ChunkGrid


class ClusterLike:
    """Runs tasks in this thread, as a cluster of many threads does with tasks of some overhead."""

    num_threads = 1000

    def __init__(self, overhead: float = 3e-3) -> None:
        self.overhead = overhead
        serial = SerialExecutor()
        self.run, self.hold, self.timeline = serial.run, serial.hold, serial.timeline


@given(st.floats(0, 1e6), st.integers(1, 10**5), st.floats(1e-6, 1))
def test_more_threads_never_make_smaller_tasks(work: float, threads: int, overhead: float) -> None:
    few, more = (choose_task_seconds(work, number, overhead) for number in (threads, 2 * threads))
    assert 0 <= few <= more
    # All submissions take at most as long as a task, if tasks fill their time.
    assert more == 0 or more**2 <= work * overhead * (1 + 1e-9)


def test_without_overhead_each_shard_is_a_task() -> None:
    assert choose_task_seconds(1e6, 10**5, 0.0) == 0.0
    layout = ArrayLayout.plan(schema.SHUFFLE_INDEX, 100, "uint32", ChunkGrid(4, 8))
    assert batch_shards(layout, 0.0) == [range(shard, shard + 1) for shard in range(13)]


@given(st.integers(1, 300), st.integers(0, 300), st.floats(0, 1))
def test_batches_of_shards_are_equal_and_cover_all(num: int, first: int, seconds: float) -> None:
    layout = ArrayLayout.plan(schema.SHUFFLE_INDEX, 8 * num, "uint32", ChunkGrid(4, 8))
    first = min(first, num)
    batches = batch_shards(layout, seconds, first)
    assert [shard for batch in batches for shard in batch] == list(range(first, num))
    sizes = [len(batch) for batch in batches]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(batches) == count_tasks(num - first, 8, seconds)
    assert all(size == 1 or estimate_seconds(8 * size, size) <= seconds for size in sizes)


def test_batches_of_items() -> None:
    assert batch_items([], 3, 10) == []
    assert batch_items([4, 4, 4, 20, 1, 1, 1, 1], 3, 10) == [
        range(2),
        range(2, 3),
        range(3, 4),
        range(4, 7),
        range(7, 8),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"order": "megatron"},
        {"order": "scalable"},
        {"order": "scalable", "shuffle": "uniform"},
        {"packing": PackingRules()},
    ],
    ids=["megatron", "scalable", "uniform", "packed"],
)
def test_fewer_tasks_store_the_same_shards(
    tmp_path: Path, write_corpus: WriteCorpus, settings: dict[str, Any]
) -> None:
    def build(name: str, executor: ClusterLike) -> Any:
        own = settings | {"index": str(tmp_path / name)}
        return zindex.build(make_run(tmp_path, write_corpus, **own), executor)

    alone, together = ClusterLike(0.0), ClusterLike()
    build("alone", alone)
    build("together", together)
    assert len(together.timeline.spans) < len(alone.timeline.spans)
    assert all_files(tmp_path / "together") == all_files(tmp_path / "alone")


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_a_task_of_several_shards_stores_only_the_missing_ones(
    tmp_path: Path, write_corpus: WriteCorpus, order: Any
) -> None:
    config = make_run(tmp_path, write_corpus, order=order)
    zindex.build(config, ClusterLike())
    folder = Path(config.index)
    expected, stamps = all_files(folder), shard_stamps(folder)
    lost = next(path for path in stamps if "sample_index" in path and path.endswith("/1/0"))
    Path(lost).unlink()
    for root in folder.glob("*/zarr.json"):
        root.unlink()
    results = zindex.build(config, ClusterLike())
    assert sum(result.num_written for result in results.values()) == 1
    assert all_files(folder) == expected
    kept = {path: stamp for path, stamp in shard_stamps(folder).items() if path != lost}
    assert kept == {path: stamp for path, stamp in stamps.items() if path != lost}


@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("grid", [ChunkGrid(), ChunkGrid(4, 32)], ids=["one shard", "several"])
def test_many_datasets_are_few_tasks(
    tmp_path: Path, write_corpus: WriteCorpus, grid: ChunkGrid, order: Any
) -> None:
    paths = [write_corpus([*LENGTHS * 4, number], name=f"d{number}") for number in range(1, 41)]

    def build(name: str, executor: ClusterLike) -> list[str]:
        settings = {"order": order, "grid": grid, "split": "1,0,0", "index": str(tmp_path / name)}
        zindex.build(make_config(tmp_path, *paths, **settings), executor)
        return [span.stage for span in executor.timeline.spans]

    stages = build("together", ClusterLike())
    # 40 indices of 12 ms, or of 24 to 28 ms, in tasks of at most 38 or 55 ms.
    assert stages.count("bundle") == (14 if grid == ChunkGrid() else 30)
    build("alone", ClusterLike(0.0))
    assert all_files(tmp_path / "together") == all_files(tmp_path / "alone")
