"""Stored inverses: their values, their tasks, resumed builds and damage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zindex
from tests.cli.commands import succeed
from tests.conftest import WriteCorpus
from tests.indexing.runs import ElsewhereExecutor, make_run
from tests.inspection.answers.test_info import write_yaml
from tests.killing import Killed, death_before
from tests.maintenance.test_garbage import make_old
from zindex.config import RunConfig
from zindex.errors import VerificationError
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.execution.progress import open_progress
from zindex.indexing import inverse as inverses
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.inverse import build_inverses, find_inverse, look_up
from zindex.indexing.run_plan import plan_run
from zindex.indexing.store_build import find_index
from zindex.io import local
from zindex.maintenance.garbage import find_garbage
from zindex.maintenance.repairs.named_stores import find_stores
from zindex.store.folder_group import read_names

UNIFORM = {"order": "scalable", "shuffle": "uniform"}


def build_all(config: RunConfig, executor: Any = None) -> list[Any]:
    with open_progress(False) as shown:
        plan, executor = plan_run(config), executor or SerialExecutor()
        return run_builds(build_inverses(plan, config.index, executor, shown))


@pytest.mark.parametrize("task_length", [1, 9, 1 << 26])
def test_values(
    task_length: int, tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inverses.InverseBuild, "task_length", task_length)
    config = make_run(tmp_path, write_corpus, samples={"train": 200, "valid": 200, "test": 0})
    zindex.build(config, SerialExecutor())
    built = build_all(config, ElsewhereExecutor(tmp_path))
    assert all(result.num_written == result.num_shards for result in built)
    for item in plan_run(config).indices:
        inverse = find_inverse(item.plan, config.index)
        store = find_index(item.plan.store_plan(config.index))
        assert inverse is not None and store is not None  # noqa: PT018
        assert inverse.document_row is not None
        arrays = open_index_arrays(store)
        documents = np.asarray(arrays.document_index)
        shuffled = np.asarray(arrays.shuffle_index)
        assert item.plan.epochs.num_epochs > 1
        assert np.array_equal(inverse.document_row, np.argsort(documents, kind="stable"))
        assert np.array_equal(inverse.sample_position, np.argsort(shuffled))
    again = build_all(config)
    assert len(again) == 4
    assert not any(result.num_written for result in again)


def test_uniform_blends(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus, **UNIFORM)
    zindex.build(config, SerialExecutor(), inverse=True)
    [blend, _] = plan_run(config).blends
    found = find_inverse(blend.plan, config.index)
    store = find_index(blend.plan.store_plan(config.index))
    assert found is not None and store is not None  # noqa: PT018
    assert found.document_row is None
    datasets, samples = np.asarray(store["dataset_index"]), store["dataset_sample_index"]
    numbers = np.where(datasets == 1, blend.plan.counts[0], 0) + np.asarray(samples)
    assert np.array_equal(found.sample_position, np.argsort(numbers))
    assert all(find_inverse(item.plan, config.index) is None for item in plan_run(config).members)


def test_a_killed_build_is_resumed(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config, SerialExecutor())
    with pytest.raises((Killed, BaseExceptionGroup)), death_before(5, (local, "write_once")):
        build_all(config)
    results = build_all(config)
    num_shards = sum(result.num_shards for result in results)
    assert 0 < sum(result.num_written for result in results) < num_shards


def test_damage(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config, SerialExecutor(), inverse=True)
    item = plan_run(config).indices[0]
    inverse = find_inverse(item.plan, config.index)
    assert inverse is not None
    for wrong in (np.zeros(4, np.int64), np.full(4, 10**9)):
        with pytest.raises(VerificationError, match="sample_position must be the inverse of its"):
            look_up(inverse.sample_position, np.arange(4), (wrong[:1], wrong[0] + 1))
    # An order that has one value twice, and another one never.
    store = find_index(item.plan.store_plan(config.index))
    assert store is not None
    plan = inverses.InversePlan.of(item.plan)
    assert plan is not None
    tasks = inverses.InverseTasks(plan, tmp_path / "other", store.root)
    array = plan.arrays[1]._replace(num_occurrences=2)
    with pytest.raises(VerificationError, match=r"shuffle_index of .* must have every value 2 tim"):
        tasks.store_shards(array, range(1))


def test_commands_know_them(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    succeed("build", run_file, "--inverse")
    index = Path(config.index)
    stores = [path for path in index.iterdir() if path.name.startswith("inverse-")]
    assert len(stores) == 4
    named = [store.root.name for store in find_stores(str(run_file))]
    assert {store.name for store in stores} <= {*named}
    succeed("verify", run_file)
    assert {store.name for store in stores} <= {*zarr.open_group(index, mode="r").group_keys()}
    names = read_names(index)
    assert {names[store.name].datasets for store in stores} == {("web",), ("code",)}
    assert "inverse of an index" in succeed("info", stores[0])
    make_old(index)
    assert find_garbage(index, [run_file]) == []
