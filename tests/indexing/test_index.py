"""Indices of both orders against naive ones: any chunks, any executor, any interruption."""

import multiprocessing
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex, naive_megatron, naive_scalable
from tests.indexing.runs import cut_before_every_write
from tests.trees import all_files
from zindex.errors import VerificationError
from zindex.execution.executor import SerialExecutor, embedded_client, open_executor, run_builds
from zindex.indexing import index as building_index
from zindex.indexing.ensure import build_store
from zindex.indexing.index_arrays import compute_index_arrays, open_index_arrays
from zindex.indexing.index_tasks import IndexTasks
from zindex.indexing.store_build import find_index
from zindex.store.commit import begin_store
from zindex.store.layout import ChunkGrid, PaddedGrid
from zindex.store.verify import verify_store

LENGTHS = [3, 0, 5, 2, 7, 0, 0, 4, 6, 40, 1, 9, 8, 2, 2, 30, 5, 6, 7, 3]


@pytest.fixture
def plan_all(write_corpus: WriteCorpus, plan_index: PlanIndex) -> PlanIndex:
    """Plan an index over LENGTHS."""
    return partial(plan_index, write_corpus(LENGTHS))


def build(plan: Any, source: Any, folder: Path, executor: Any = None) -> Any:
    return run_builds(build_store(plan, source, folder, executor or SerialExecutor()))


def assert_equal(arrays: Any, expected: tuple[np.ndarray, ...]) -> None:
    for got, want in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any),
    num_samples=st.none() | st.integers(0, 60),
    sequence_length=st.integers(1, 25),
    extra_token=st.integers(0, 1),
    drop_last=st.booleans(),
    chunk=st.sampled_from([1, 2, 3, 7, 1000]),
    order=st.sampled_from(["megatron", "scalable", "minimal"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_order_equals_its_naive_reference(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    order: str,
    plan_index: PlanIndex,
    **choices: Any,
) -> None:
    from zindex.formats.idx_writer import write_index

    folder = tmp_path_factory.mktemp("law")
    write_index(folder / "a.idx", np.uint16, lengths, range(len(lengths) + 1), None)
    np.zeros(sum(lengths), np.uint16).tofile(folder / "a.bin")
    plan, source = plan_index(
        str(folder / "a"),
        order="megatron" if order == "megatron" else "scalable",
        stored="minimal" if order == "minimal" else "all",
        **choices,
    )
    naive = naive_megatron if order == "megatron" else naive_scalable
    expected = naive(plan, np.array(lengths))
    result = build(plan, source, folder / "index")
    assert_equal(open_index_arrays(result.store), expected)
    assert_equal(compute_index_arrays(plan, source.lengths(0, len(lengths))), expected)
    assert result.num_written == result.num_shards


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_part_of_a_dataset_names_its_own_documents(
    plan_all: PlanIndex, tmp_path: Path, order: str
) -> None:
    plan, source = plan_all(start=4, stop=15, num_samples=40, order=order)
    arrays = open_index_arrays(build(plan, source, tmp_path / "index").store)
    naive = naive_megatron if order == "megatron" else naive_scalable
    assert_equal(arrays, naive(plan, np.array(LENGTHS)))
    assert set(np.asarray(arrays.document_index)) == set(range(4, 15))


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_executors_agree(plan_all: PlanIndex, tmp_path: Path, order: str) -> None:
    plan, source = plan_all(num_samples=60, chunk=1, order=order)
    serial = build(plan, source, tmp_path / "serial").store
    with embedded_client(2) as client, open_executor(client) as executor:
        embedded = build(plan, source, tmp_path / "embedded", executor).store
    assert_equal(open_index_arrays(embedded), open_index_arrays(serial))
    assert all_files(serial.root) == all_files(embedded.root)


def test_finished_index_is_opened_not_built(plan_all: PlanIndex, tmp_path: Path) -> None:
    plan, source = plan_all()
    first = build(plan, source, tmp_path)
    again = build(plan, source, tmp_path)
    assert (again.num_written, again.num_shards) == (0, first.num_shards)
    assert again.store == first.store


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_an_index_begun_by_an_earlier_version_is_finished_with_its_padding(
    plan_all: PlanIndex, tmp_path: Path, order: str
) -> None:
    plan, source = plan_all(grid=ChunkGrid(), order=order)
    earlier, _ = plan_all(grid=PaddedGrid(), order=order)
    begin_store(earlier.store_plan(tmp_path))
    finished = build(plan, source, tmp_path).store
    assert tuple(finished.layouts.values()) == earlier.layouts != plan.layouts
    assert verify_store(finished.root).is_sound
    fresh = build(plan, source, tmp_path / "fresh").store
    assert tuple(fresh.layouts.values()) == plan.layouts
    assert_equal(open_index_arrays(finished), open_index_arrays(fresh))


def test_any_grid_finds_and_finishes_an_index_begun_on_another(
    plan_all: PlanIndex, tmp_path: Path
) -> None:
    fine, source = plan_all(chunk=1)
    coarse, _ = plan_all(chunk=64)
    root = fine.store_plan(tmp_path).root
    assert coarse.store_plan(tmp_path).root == root
    begin_store(fine.store_plan(tmp_path))
    finished = build(coarse, source, tmp_path)
    assert finished.store.layouts["document_index"] == fine.document_layout
    assert (
        finished.num_written
        == finished.num_shards
        == sum(layout.num_shards for layout in fine.layouts)
    )
    for plan in (fine, coarse):
        again = build(plan, source, tmp_path)
        assert (again.num_written, again.num_shards) == (0, finished.num_shards)


def test_a_worker_with_cached_lengths_of_another_grid(
    plan_all: PlanIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of a worker outlives a build: only the process of the client evicts."""
    monkeypatch.setattr(building_index, "evict_lengths", lambda source, root: None)
    golden = None
    for chunk in (4, 1, 2, 64, 1):
        plan, source = plan_all(num_samples=60, order="scalable", chunk=chunk)
        store = build(plan, source, tmp_path).store
        arrays = [np.asarray(array) for array in open_index_arrays(store)]
        golden = arrays if golden is None else golden
        assert_equal(arrays, tuple(golden))
        shutil.rmtree(store.root)


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_death_before_every_write(
    plan_all: PlanIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Cut at the k-th write for every k: not ready, then resumed with no finished shard redone."""
    plan, source = plan_all(chunk=2, order=order)
    golden = open_index_arrays(build(plan, source, tmp_path / "golden").store)
    total = cut_before_every_write(
        plan,
        source,
        tmp_path,
        monkeypatch,
        lambda store: assert_equal(open_index_arrays(store), golden),
    )
    assert total > len(plan.layouts) * 2


def _build_once(plan: Any, source: Any, folder: Path, barrier: Any, results: Any) -> None:
    barrier.wait()
    result = build(plan, source, folder)
    results.put((result.store.fingerprint, result.num_written))


def test_parallel_builders_share_the_work(plan_all: PlanIndex, tmp_path: Path) -> None:
    plan, source = plan_all(num_samples=60, chunk=1)
    context = multiprocessing.get_context("forkserver")
    barrier, results = context.Barrier(3), context.Queue()
    arguments = (plan, source, tmp_path, barrier, results)
    processes = [context.Process(target=_build_once, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    done = [results.get() for _ in processes]
    assert {fingerprint for fingerprint, _ in done} == {find_index_or_fail(plan, tmp_path)}
    golden = build(plan, source, tmp_path / "alone")
    assert sum(num_written for _, num_written in done) == golden.num_shards
    assert not list(tmp_path.rglob("*.partial"))


def find_index_or_fail(plan: Any, folder: Path) -> str:
    store = find_index(plan.store_plan(folder))
    assert store is not None
    return store.fingerprint


def test_lengths_that_do_not_add_up_are_refused(
    plan_all: PlanIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, source = plan_all(order="scalable")
    done = IndexTasks.store_document_shard

    def miscount(*args: Any, counted: bool) -> Any:
        results, num_tokens = done(*args, counted=counted)
        return results, num_tokens + 1

    monkeypatch.setattr(IndexTasks, "store_document_shard", miscount)
    with pytest.raises(VerificationError, match=r"must hold 140 tokens in train.* sum to 1\d\d"):
        build(plan, source, tmp_path)
    assert find_index(plan.store_plan(tmp_path)) is None
