"""The build of a run as one Dask graph: the bytes of a build, real dependencies, readable keys."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.utils import key_split

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import LENGTHS, make_config, make_run
from tests.trees import all_files, shard_stamps
from zindex.config import RunConfig
from zindex.errors import PlanError, VerificationError
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.indexing import blend, build_graph, store_build
from zindex.indexing.index_tasks import IndexTasks
from zindex.ingest.length_source import LengthSource
from zindex.plan.packing import PackingRules
from zindex.store.commit import begin_store
from zindex.store.layout import ChunkGrid

RUNS: dict[str, dict[str, Any]] = {
    "megatron": {"order": "megatron"},
    "scalable": {"order": "scalable"},
    "uniform": {"order": "scalable", "shuffle": "uniform"},
    "minimal": {"order": "scalable", "store": "minimal"},
    "packed": {"packing": PackingRules()},
}


@pytest.fixture(params=RUNS)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return RUNS[request.param]


def build_elsewhere(config: RunConfig, tmp_path: Path) -> dict[str, bytes]:
    """Return the files of an ordinary build."""
    other = replace(config, index=str(tmp_path / "elsewhere"))
    zindex.build(other, SerialExecutor())
    return all_files(Path(other.index))


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_it_commits_the_bytes_of_a_build(
    tmp_path: Path, write_corpus: WriteCorpus, settings: dict[str, Any], scheduler: str
) -> None:
    config = make_run(tmp_path, write_corpus, **settings)
    build = zindex.plan_graph(config)
    assert not Path(config.index).exists()
    results = build.compute(scheduler=scheduler)
    assert all_files(Path(config.index)) == build_elsewhere(config, tmp_path)
    assert all(done.num_written == done.num_shards for done in results.values())
    again = zindex.build(config, SerialExecutor())
    assert {key: done.store for key, done in again.items()} == {
        key: done.store for key, done in results.items()
    }
    assert not any(done.num_written for done in again.values())
    # Of a finished run only the last task is left.
    assert [key_split(key) for key in zindex.plan_graph(config).dask] == ["finish"]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_many_small_indices_are_bundled(
    tmp_path: Path, write_corpus: WriteCorpus, order: Any
) -> None:
    rng = np.random.default_rng(1)
    paths = [write_corpus(rng.integers(1, 9, 3).tolist(), name=f"d{i}") for i in range(20)]
    config = make_config(tmp_path, *paths, split="1,0,0", order=order, grid=ChunkGrid())
    build = zindex.plan_graph(config, num_threads=1)
    assert {key_split(key) for key in build.dask} == {"bundle", "finish"}
    assert len(build.dask) == 11
    assert len(build.compute(scheduler="sync")) == 20
    assert all_files(Path(config.index)) == build_elsewhere(config, tmp_path)


def stages_of(build: Any) -> dict[str, set[str]]:
    """Return the stages that each stage needs, as a dashboard names them."""
    found = defaultdict[str, set[str]](set)
    for name, needed in build.dask.dependencies.items():
        found[key_split(name)] |= set(map(key_split, needed))
    return found


def test_tasks_depend_on_what_they_read(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    stages = stages_of(zindex.plan_graph(make_run(tmp_path, write_corpus)))
    begin = {"begin-web-train"}
    assert stages["documents-web-train"] == begin
    assert stages["count-web-train"] == begin | {"documents-web-train"}
    assert stages["starts-web-train"] == begin | {"count-web-train"}
    assert stages["samples-web-train"] == begin | {"starts-web-train"}
    assert stages["shuffle-web-train"] == begin | {"documents-web-train"}
    assert stages["store-blend-train"] == {"begin-blend-train", "blend-blend-train"}
    assert stages["finish"] == {
        f"commit-{name}-{split}"
        for name in ("web", "code", "blend")
        for split in ("train", "valid")
    }
    config = make_run(tmp_path, write_corpus, order="scalable")
    build = zindex.plan_graph(config)
    stages = stages_of(build)
    assert stages["shuffle-web-train"] == begin
    assert stages["starts-web-train"] == begin | {"documents-web-train"}
    assert stages["blend-blend-train"] == {"begin-blend-train"}
    # Two graphs of a run share no key: each looks at the disk.
    assert not zindex.plan_graph(config).dask.keys() & build.dask.keys()


def test_keys_of_a_build_are_readable(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    keys: list[str] = []

    class Recorder(SerialExecutor):
        async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
            keys.append(key)
            return await super().run(function, *args, key=key, priority=priority)

    zindex.build(make_run(tmp_path, write_corpus, order="scalable"), Recorder())
    assert {"shuffle-web-train-3", "samples-code-valid-0", "blend-blend-train-3"} <= set(keys)


def test_a_cluster_computes_it(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    with embedded_client(2) as client:
        results = client.compute(zindex.plan_graph(config)).result(timeout=120)
    assert results.keys() == zindex.build(config).keys()
    assert all_files(Path(config.index)) == build_elsewhere(config, tmp_path)


def test_an_interrupted_build_is_resumed(
    tmp_path: Path,
    write_corpus: WriteCorpus,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_run(tmp_path, write_corpus, **settings)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    for module in (build_graph, store_build):
        monkeypatch.setattr(module, "commit_store", fail)
    for build in (
        lambda: zindex.plan_graph(config).compute(scheduler="sync"),
        lambda: zindex.build(config, SerialExecutor()),
    ):
        with pytest.raises(OSError, match="No space left"):
            build()
    monkeypatch.undo()
    left = shard_stamps(Path(config.index))
    assert left
    results = zindex.plan_graph(config).compute(scheduler="sync")
    assert any(done.num_written < done.num_shards for done in results.values())
    assert left.items() <= shard_stamps(Path(config.index)).items()
    assert all_files(Path(config.index)) == build_elsewhere(config, tmp_path)


def test_stored_samples_are_not_counted_again(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS, name="web"), split="1,0,0")
    store = zindex.build(config, SerialExecutor())[config.datasets[0].path, "train"].store
    (store.root / "zarr.json").unlink()
    (store.root / "shuffle_index/c/0").unlink()
    monkeypatch.setattr(IndexTasks, "count_document_shard", None)
    monkeypatch.setattr(LengthSource, "lengths", None)
    build = zindex.plan_graph(config)
    assert not {"count-web-train", "samples-web-train"} & set(stages_of(build))
    [result] = build.compute(scheduler="sync").values()
    assert result.num_written == 1
    assert result.store == store


def test_a_grid_on_which_a_store_was_begun_is_adopted(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS, name="web"), split="1,0,0")
    other = replace(config, grid=ChunkGrid(3, 9))
    early = zindex.plan_graph(config)
    [item] = build_graph.plan_run(other)
    begin_store(item.plan.store_plan(config.index))
    with pytest.raises(PlanError, match=r"begun on the chunk grid of this graph.* plan the graph"):
        early.compute(scheduler="sync")
    [result] = zindex.plan_graph(config).compute(scheduler="sync").values()
    assert result.store.layouts["document_index"].shard_length == 9


def test_a_wrong_guess_is_computed_again(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus)
    expected = build_elsewhere(config, tmp_path)
    monkeypatch.setattr(blend, "_warm_up", lambda plan, start: np.zeros(2, np.int64))
    zindex.plan_graph(config).compute(scheduler="sync")
    assert all_files(Path(config.index)) == expected


def test_wrong_lengths_are_an_error(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lengths of no other test: this process keeps them, and they are wrong.
    config = make_config(tmp_path, write_corpus([91, 17, 53, 29], name="web"), split="1,0,0")
    lengths = LengthSource.lengths
    monkeypatch.setattr(
        LengthSource, "lengths", lambda self, start, stop: lengths(self, start, stop) + 1
    )
    with pytest.raises(VerificationError, match="its lengths sum to"):
        zindex.plan_graph(config).compute(scheduler="sync")


def test_a_large_packed_index_is_an_error(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus, packing=PackingRules())
    monkeypatch.setattr(build_graph, "MAX_ROWS_IN_MEMORY", 5)
    with pytest.raises(PlanError, match=r"at most 5 documents .* of .*web has \d+; use zindex bu"):
        zindex.plan_graph(config)
