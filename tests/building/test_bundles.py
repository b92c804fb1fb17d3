"""Small indices are built many to a task, and come out as those that are built one by one."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zindex
from tests.building.conftest import PlanIndex
from tests.building.runs import make_config
from tests.conftest import WriteCorpus
from zindex.building import bundles, index_store
from zindex.building import run as building_run
from zindex.building.bundles import MAX_INDICES, MAX_ROWS, cut_bundles, is_small
from zindex.building.executor import SerialExecutor
from zindex.store.layout import ChunkGrid

NUM_DATASETS = 20
GRID = ChunkGrid(4, 64)


class FakePlan:
    """As much of a plan as its weight in a bundle needs."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_samples = 0


@given(
    rows=st.lists(st.sampled_from([1, 1000, MAX_ROWS // 3, MAX_ROWS, 2 * MAX_ROWS]), max_size=200),
    num_threads=st.integers(1, 300),
)
def test_bundles_cover_all_and_are_bounded(rows: list[int], num_threads: int) -> None:
    plans: Any = [FakePlan(count) for count in rows]
    cut = cut_bundles(plans, num_threads)
    assert [number for bundle in cut for number in bundle] == list(range(len(rows)))
    for bundle in cut:
        assert 1 <= len(bundle) <= MAX_INDICES
        assert len(bundle) == 1 or sum(rows[number] for number in bundle) <= MAX_ROWS


def test_each_thread_gets_several_bundles() -> None:
    plans: Any = [FakePlan(1)] * 640
    assert len(cut_bundles(plans, 4)) == 32
    assert len(cut_bundles(plans, 1000)) == 640


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
def test_bundled_indices_are_the_same_bytes(
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
        files = [path for path in (tmp_path / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in files}

    bundled = build("bundled", None)
    monkeypatch.setattr(building_run, "MIN_SMALL", 10**9)
    assert build("single", SerialExecutor()) == bundled


def test_tasks_are_few_and_their_steps_are_told(members: list[str], tmp_path: Path) -> None:
    config = make_config(tmp_path, *members, grid=GRID, split="100,0,0", order="scalable")
    executor = SerialExecutor()
    zindex.build(config, executor)
    stages = [span.stage for span in executor.timeline.spans]
    assert stages.count("bundle") == len(
        cut_bundles([FakePlan(8)] * (NUM_DATASETS - 1), num_threads=1)  # type: ignore[list-item]
    )
    shards = sum(span.key.startswith("documents-") for span in executor.timeline.spans)
    assert shards == NUM_DATASETS - 1 + 4  # the large one has tasks of its own


def test_what_a_bundle_finished_before_an_error_is_kept(
    members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, *members[:-1], grid=GRID, split="100,0,0")
    commit_store = index_store.commit_store
    committed: list[Path] = []

    def fail_at_the_tenth(store_plan: Any, *arguments: Any) -> None:
        if len(committed) == 9:
            raise OSError(28, "No space left on device")
        commit_store(store_plan, *arguments)
        committed.append(store_plan.root)

    monkeypatch.setattr(index_store, "commit_store", fail_at_the_tenth)
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
    build_bundle = bundles.build_bundle

    def build_elsewhere(indices: Any, folder: Any) -> Any:
        seen.append(folder)
        return build_bundle(indices, folder)

    monkeypatch.setattr(bundles, "build_bundle", build_elsewhere)
    config = make_config(tmp_path, *members, grid=GRID, split="100,0,0", index="index")
    zindex.build(config, SerialExecutor())
    assert seen
    assert all(os.path.isabs(folder) for folder in seen)
