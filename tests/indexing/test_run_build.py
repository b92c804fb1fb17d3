"""Runs that are built in the background: futures of their stores, on one rank and on several."""

import asyncio
import os
import signal
import threading
from concurrent.futures import CancelledError, as_completed, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import zindex
from tests.conftest import WriteCorpus
from tests.forked import Forked
from tests.indexing.runs import LENGTHS, make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import run as run_module
from zindex.indexing import store_build
from zindex.plan.blend_plan import BlendPlan


@pytest.fixture
def config(write_corpus: WriteCorpus, tmp_path: Path) -> RunConfig:
    members = (
        DatasetConfig(write_corpus(LENGTHS, name="web"), weight=3.0),
        DatasetConfig(write_corpus(LENGTHS * 2, name="blend"), weight=1.0),
    )
    return make_config(tmp_path, *members, samples={"train": 40}, split="60,40,0")


class Gate:
    """Holds the commits of stores with a prefix until it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        commit_store = store_build.commit_store

        def commit(plan: Any, *args: Any) -> None:
            if plan.root.name.startswith(prefix):
                self.reached.set()
                assert self.opened.wait(60)
            commit_store(plan, *args)

        monkeypatch.setattr(store_build, "commit_store", commit)


def test_every_store_has_a_future(config: RunConfig) -> None:
    building = zindex.begin_build(config)
    assert {split: sorted(row) for split, row in building.futures.items()} == {
        split: ["blend", "blend-2", "web"] for split in ("train", "valid", "test")
    }
    futures = [future for row in building.futures.values() for future in row.values()]
    assert set(as_completed(futures, timeout=120)) == set(futures)
    results = building.wait()
    assert building.is_done
    assert {key: done.store for key, done in results.items()} == {
        key: done.store for key, done in zindex.build(config).items()
    }
    web, code = (member.path for member in config.datasets)
    assert building.futures["train"]["web"].result() == results[web, "train"]
    assert building.futures["valid"]["blend-2"].result() == results[code, "valid"]
    assert building.futures["train"]["blend"].result() == results[None, "train"]
    # Nothing is needed of a split without documents.
    assert [future.result() for future in building.futures["test"].values()] == [None] * 3
    again = zindex.begin_build(config)
    assert [done.num_written for done in again.wait().values()] == [0] * 6


def test_a_future_is_done_before_the_run_is(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "blend")
    called = threading.Event()
    building = zindex.begin_build(config)
    web, blend = (building.futures["train"][name] for name in ("web", "blend"))
    web.add_done_callback(lambda future: called.set())

    async def look() -> Any:
        result = await web
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(blend, 0.01)
        return result

    result = asyncio.run(look())
    assert result.num_written == result.num_shards
    assert called.wait(60)
    assert gate.reached.wait(60)
    assert not blend.done()
    assert not building.is_done
    gate.opened.set()
    # A waiter that gave up has not ended the build.
    assert asyncio.run(_wait_for(blend)).store.kind == "index"
    building.wait()
    assert building.is_done


async def _wait_for(future: Any) -> Any:
    return await future


def test_one_build_is_cancelled_and_the_others_are_finished(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    build_store = run_module.build_store

    async def build(plan: Any, *args: Any, **settings: Any) -> Any:
        if isinstance(plan, BlendPlan) and plan.split == "train":
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()
        return await build_store(plan, *args, **settings)

    monkeypatch.setattr(run_module, "build_store", build)
    building = zindex.begin_build(config)
    blend = building.futures["train"]["blend"]
    assert begun.wait(60)
    assert blend.cancel()
    assert blend.cancel()
    assert blend in wait([blend], timeout=60).done
    assert ended.wait(60)
    with pytest.raises(CancelledError, match=r"^the build of train/blend was cancelled; its"):
        building.wait()
    with pytest.raises(CancelledError, match="train/blend"):
        _ = building.is_done
    assert building.futures["valid"]["blend"].result().store.kind == "index"  # type: ignore[union-attr]
    assert building.futures["train"]["web"].result() is not None
    monkeypatch.undo()
    results = zindex.begin_build(config).wait()
    assert [key for key, done in results.items() if done.num_written] == [(None, "train")]


def test_all_builds_are_cancelled(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "")
    building = zindex.begin_build(config)
    assert gate.reached.wait(60)
    building.cancel()
    gate.opened.set()
    with pytest.raises(CancelledError, match="train/web"):
        building.wait()
    assert all(future.cancelled() for future in building.futures["train"].values())


def test_a_store_of_two_datasets_is_built_for_the_one_that_is_not_cancelled(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_corpus(LENGTHS, name=name, tokens=[seed] * 60) for seed, name in enumerate("ab")]
    config = make_config(tmp_path, *paths)
    gate = Gate(monkeypatch, "gpt")
    building = zindex.begin_build(config)
    assert gate.reached.wait(60)
    first, second = (building.futures["train"][name] for name in "ab")
    assert first.cancel()
    gate.opened.set()
    result = second.result(60)
    assert result is not None
    assert result.num_written == result.num_shards
    with pytest.raises(CancelledError, match="of train/a was"):
        building.wait()


def test_an_error_reaches_every_future(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_build, "commit_store", fail)
    building = zindex.begin_build(config, SerialExecutor())
    for split in ("train", "valid"):
        for future in building.futures[split].values():
            assert isinstance(future.exception(60), OSError)
    with pytest.raises(OSError, match="No space"):
        building.wait()
    with pytest.raises(OSError, match="No space"):
        _ = building.is_done


def test_a_run_that_cannot_be_planned(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(
        tmp_path, write_corpus(LENGTHS, name="web"), samples={"test": 5}, split="1,0"
    )
    building = zindex.begin_build(config)
    with pytest.raises(PlanError, match=r"test of .*web must hold tokens"):
        building.futures["test"]["web"].result(60)


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_bundles_of_small_indices_have_futures(
    write_corpus: WriteCorpus, tmp_path: Path, order: Any
) -> None:
    rng = np.random.default_rng(1)
    paths = [write_corpus(rng.integers(1, 9, 3).tolist(), name=f"d{i}") for i in range(20)]
    config = make_config(tmp_path, *paths, split="1,0,0", order=order)
    building = zindex.begin_build(config)
    for future in building.futures["train"].values():
        result = future.result(120)
        assert result is not None
        assert result.num_written
    assert len(building.wait()) == 20


def write_run(config: RunConfig, tmp_path: Path) -> str:
    values = {
        "datasets": [{"path": item.path, "weight": item.weight} for item in config.datasets],
        "sequence_length": 4,
        "split": "60,40,0",
        "samples": {"train": 40},
        "index": "index",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "run.yaml")


def start_rank(run: str, rank: int, takeover: float = 100.0) -> Forked:
    return Forked("-m", "tests.indexing.rank_build", run, str(rank), str(takeover))


def test_a_run_is_done_on_no_rank_before_everything_is_committed(
    config: RunConfig, tmp_path: Path
) -> None:
    run = write_run(config, tmp_path)
    with start_rank(run, 0) as first, start_rank(run, 1) as second, start_rank(run, 2) as third:
        ranks = [first, second, third]
        for rank in ranks:
            assert rank.stdout.readline() == "web\n", rank.communicate()
            assert rank.stdout.readline() == "waiting\n"
        for _ in range(2):  # the blends of two splits
            print(file=first.stdin, flush=True)
        outcomes = [rank.communicate() for rank in ranks]
    for rank, (printed, errors) in zip(ranks, outcomes, strict=True):
        assert rank.returncode == 0, errors
        assert printed == outcomes[0][0]
        assert printed.startswith("done ['blend-train-")


def test_a_rank_that_waits_takes_over_from_one_that_is_killed(
    config: RunConfig, tmp_path: Path
) -> None:
    run = write_run(config, tmp_path)
    with start_rank(run, 0) as builder:
        assert builder.stdout.readline() == "web\n"
        with start_rank(run, 1, takeover=1.0) as waiting:
            assert waiting.stdout.readline() == "web\n", waiting.communicate()
            assert waiting.stdout.readline() == "waiting\n"
            os.kill(builder.pid, signal.SIGKILL)
            printed, errors = waiting.communicate()
    assert waiting.returncode == 0, errors
    assert printed.startswith("done")
