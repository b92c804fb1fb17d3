"""Small indices are built in batches, with the same bytes as single builds."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from tests.indexing.runs import make_config
from tests.trees import all_files
from zindex.execution.executor import SerialExecutor
from zindex.indexing import index as index_module
from zindex.indexing import run as building_run
from zindex.indexing import store_build
from zindex.indexing.index import BUNDLE_SECONDS, MAX_INDICES, batch_small, is_small
from zindex.indexing.task_size import estimate_build
from zindex.store.layout import ChunkGrid

NUM_DATASETS = 20
GRID = ChunkGrid(4, 64)


class FakePlan:
    """The part of a plan that batches depend on."""

    layouts = ()

    def __init__(self, num_rows: int) -> None:
        self.num_build_rows = num_rows


@given(
    rows=st.lists(st.sampled_from([1, 1000, 1 << 21, 1 << 23, 1 << 24]), max_size=200),
    num_threads=st.integers(1, 300),
    task_seconds=st.sampled_from([0.0, 0.1, 2.0]),
)
def test_batches_cover_all_and_are_bounded(
    rows: list[int], num_threads: int, task_seconds: float
) -> None:
    plans: Any = [FakePlan(count) for count in rows]
    cut = batch_small(plans, num_threads, task_seconds)
    assert [number for batch in cut for number in batch] == list(range(len(rows)))
    for batch in cut:
        assert 1 <= len(batch) <= MAX_INDICES
        seconds = sum(estimate_build(plans[number]) for number in batch)
        assert len(batch) == 1 or seconds <= max(task_seconds, BUNDLE_SECONDS)


def test_each_thread_gets_several_batches() -> None:
    plans: Any = [FakePlan(1)] * 640
    assert len(batch_small(plans, 4)) == 32
    assert len(batch_small(plans, 1000)) == 640
    # Unless the client could not submit them all while one of them computes.
    assert len(batch_small(plans, 1000, 8 * estimate_build(plans[0]))) == 80


def test_small_means_one_shard_of_each_array(
    write_corpus: WriteCorpus, plan_index: PlanIndex
) -> None:
    prefix = write_corpus([3] * 16)
    assert is_small(plan_index(prefix, chunk=4)[0])
    assert not is_small(plan_index(prefix, chunk=3)[0])
    assert not is_small(plan_index(prefix, chunk=4, sequence_length=2)[0])


@pytest.fixture
def members(write_corpus: WriteCorpus) -> list[str]:
    """Many corpora, the last of them a large one."""
    small = [
        write_corpus([5, 7, 3 + number, 9], name=f"small-{number}")
        for number in range(NUM_DATASETS - 1)
    ]
    return [*small, write_corpus([5, 7, 3, 9] * 60, name="large")]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_batched_indices_are_the_same_bytes(
    members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    def build(folder: str, client: Any) -> dict[str, bytes]:
        config = make_config(
            tmp_path, *members, order=order, grid=GRID, index=str(tmp_path / folder), split="9,1,0"
        )
        results = zindex.build(config, client)
        assert all(result.num_written == result.num_shards for result in results.values())
        again = zindex.build(config, SerialExecutor())
        assert [result.num_written for result in again.values()] == [0] * len(again)
        assert list(again) == list(results)
        return all_files(tmp_path / folder)

    batched = build("batched", None)
    monkeypatch.setattr(building_run, "MIN_SMALL", 10**9)
    assert build("single", SerialExecutor()) == batched


def test_tasks_are_few_and_their_steps_are_recorded(members: list[str], tmp_path: Path) -> None:
    config = make_config(tmp_path, *members, grid=GRID, split="100,0,0", order="scalable")
    executor = SerialExecutor()
    zindex.build(config, executor)
    stages = [span.stage for span in executor.timeline.spans]
    assert stages.count("bundle") == len(
        batch_small([FakePlan(8)] * (NUM_DATASETS - 1), num_threads=1)  # type: ignore[list-item]
    )
    assert stages.count("arrays") == NUM_DATASETS - 1
    assert stages.count("documents") == 4  # the large one has tasks of its own


def test_indices_that_a_batch_finished_before_an_error_are_kept(
    members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, *members[:-1], grid=GRID, split="100,0,0")
    commit_store = store_build.commit_store
    committed: list[Path] = []

    def fail_at_the_tenth(store_plan: Any, *arguments: Any) -> None:
        if len(committed) == 9:
            raise OSError(28, "No space left on device")
        commit_store(store_plan, *arguments)
        committed.append(store_plan.root)

    monkeypatch.setattr(store_build, "commit_store", fail_at_the_tenth)
    with pytest.raises(OSError, match="No space left"):
        zindex.build(config, SerialExecutor())
    monkeypatch.undo()
    again = zindex.build(config, SerialExecutor())
    kept = {result.store.root for result in again.values() if not result.num_written}
    assert set(committed) <= kept


def test_progress_names_many_indices_together(
    members: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zindex")
    config = make_config(tmp_path, *members, grid=GRID, split="100,0,0")
    zindex.build(config, SerialExecutor(), progress=True)
    ends = [record.message for record in caplog.records if "shards in" in record.message]
    assert sorted(message.split(" in ")[0] for message in ends) == [
        f"{NUM_DATASETS - 1} small indices: {3 * (NUM_DATASETS - 1)} shards",
        "large train: 16 shards",
    ]


def test_workers_elsewhere_find_relative_folders(
    members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    build_batch = index_module.build_batch

    def build_elsewhere(indices: Any, folder: Any) -> Any:
        seen.append(folder)
        return build_batch(indices, folder)

    monkeypatch.setattr(index_module, "build_batch", build_elsewhere)
    config = make_config(tmp_path, *members, grid=GRID, split="100,0,0", index="index")
    zindex.build(config, SerialExecutor())
    assert seen
    assert all(os.path.isabs(folder) for folder in seen)
