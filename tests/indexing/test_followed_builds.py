"""Builds in the background of readers: continued, taken over, failed, and cancelled at exit."""

import asyncio
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.forked import Forked, run_fresh
from tests.indexing.blends import GRID, naive_greedy
from tests.indexing.conftest import PlanIndex, naive_megatron
from zindex.errors import NotReadyError, StoreError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import blend as blend_module
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds
from zindex.plan.blend_plan import BlendPlan
from zindex.store.open import FollowedStore, Store

LENGTHS = [3, 0, 5, 2, 7, 4, 6]
WEIGHTS = np.array([0.5, 0.3, 0.2])
NUM_SAMPLES = 100
# Seconds that a reader waits for a shard: no test ends by it.
PATIENCE = 240.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def planned(write_corpus: WriteCorpus, plan_index: PlanIndex) -> tuple[Any, Any]:
    return plan_index(write_corpus(LENGTHS), num_samples=9, chunk=2)


def plan_blend(**settings: Any) -> BlendPlan:
    values: dict[str, Any] = {"split": "train", "order": "megatron", "grid": GRID} | settings
    return BlendPlan.weighted(WEIGHTS.tolist(), NUM_SAMPLES, **values)


class Gates:
    """Lets a blend's shards be written one by one; all of them when the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = [threading.Event() for _ in range(20)]
        self.error: Exception | None = None
        store_chunk = blend_module.store_chunk

        def store(plan: BlendPlan, root: Any, shard: int, chunk: Any) -> Any:
            assert self.events[shard].wait(60)
            if self.error is not None:
                raise self.error
            return store_chunk(plan, root, shard, chunk)

        monkeypatch.setattr(blend_module, "store_chunk", store)

    def open(self, *shards: int) -> None:
        for shard in shards:
            self.events[shard].set()

    def open_all(self) -> None:
        self.open(*range(len(self.events)))


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Gates(monkeypatch)
    yield made
    made.open_all()


def follow(builds: Builds, *needs: BuildRequest) -> list[list[Store]]:
    """Build stores in the background; return the stores that each receiver gets."""
    received: list[list[Store]] = []
    with builds:
        for needed in needs:
            received.append([])
            builds.add(needed, received[-1].append)
        builds.finish()
    return received


def test_shards_are_read_while_others_are_missing(tmp_path: Path, gates: Gates) -> None:
    datasets, samples = naive_greedy(WEIGHTS, NUM_SAMPLES)
    builds = Builds(Rank(), PATIENCE)
    (received,) = follow(builds, BuildRequest(plan_blend(), str(tmp_path)))
    (store,) = received
    assert isinstance(store, FollowedStore)
    gates.open(0, 2)
    assert store["dataset_index"][:16].tolist() == datasets[:16]
    assert store["dataset_sample_index"][:16].tolist() == samples[:16]
    assert store["dataset_sample_index"][32:48].tolist() == samples[32:48]
    hurried = replace(store, patience=0.05)
    with pytest.raises(NotReadyError, match=r"dataset_index/c/1 of .* within 0.05 s, 4 of 16"):
        hurried["dataset_index"][16]
    opener = threading.Timer(0.05, gates.open, [1])
    opener.start()
    assert store["dataset_index"][10:40].tolist() == datasets[10:40]
    opener.join()
    assert len(received) == 1
    gates.open_all()
    builds.wait()
    assert type(received[1]) is Store
    for name, expected in (("dataset_index", datasets), ("dataset_sample_index", samples)):
        assert received[1][name][:].tolist() == store[name][:].tolist() == expected


def test_indices_and_blends_side_by_side(planned: tuple[Any, Any], tmp_path: Path) -> None:
    plan, source = planned
    folder = str(tmp_path)
    other = replace(plan, seed=8)
    builds = Builds(Rank(), PATIENCE)
    needs = [BuildRequest(plan, folder, source), BuildRequest(plan_blend(), folder)]
    needs += [BuildRequest(other, folder, source), BuildRequest(plan, folder, source)]
    received = follow(builds, *needs)
    for each, expected in (
        (received[0], naive_megatron(plan, np.array(LENGTHS))),
        (received[2], naive_megatron(other, np.array(LENGTHS))),
    ):
        names = ("document_index", "sample_index", "shuffle_index")
        for name, values in zip(names, expected, strict=True):
            np.testing.assert_array_equal(each[0][name][:], values)
    builds.wait()
    assert [[type(store) for store in each] for each in received] == [[FollowedStore, Store]] * 4
    assert received[0][1] == received[3][1]
    again = follow(Builds(Rank(), PATIENCE), *needs)
    assert [[type(store) for store in each] for each in again] == [[Store]] * 4


def test_a_store_that_cannot_be_followed_is_awaited_before_blends(
    planned: tuple[Any, Any], tmp_path: Path
) -> None:
    """As an index whose number of samples is known at its end only."""
    plan, source = planned
    blend = BuildRequest(plan_blend(), str(tmp_path))

    class Uncomputable(BuildRequest):
        is_computable = False

        async def build(self, executor: Any) -> Any:
            while not (blend.root / "zarr.json").exists():
                await asyncio.sleep(0.005)
            return await super().build(executor)

    index = Uncomputable(plan, str(tmp_path), source)
    order: list[str] = []
    builds = Builds(Rank(), PATIENCE)
    with builds:
        builds.add(blend, lambda store: order.append(f"blend {type(store).__name__}"))
        builds.add(index, lambda store: order.append(f"index {type(store).__name__}"))
        builds.finish()
        assert order[:2] == ["blend FollowedStore", "index Store"]
    builds.wait()
    assert order == ["blend FollowedStore", "index Store", "blend Store"]


def test_a_failed_build_is_raised_at_the_next_read_and_reported(
    tmp_path: Path, gates: Gates
) -> None:
    reported: list[Exception] = []
    builds = Builds(Rank(), 30, reported.append)
    ((store,),) = follow(builds, BuildRequest(plan_blend(), str(tmp_path)))
    gates.open(0)
    assert store["dataset_index"][0] == 0
    gates.error = StoreError("the disk is full")
    gates.open_all()
    for row in (99, 0):
        with pytest.raises(StoreError, match="the disk is full"):
            store["dataset_index"][row]
    with pytest.raises(StoreError, match="the disk is full"):
        builds.wait()
    assert list(map(str, reported)) == ["the disk is full"]


def test_a_receiver_that_refuses_is_a_failed_build(tmp_path: Path) -> None:
    """Such as a blend that draws too many samples of a dataset."""

    def refuse(store: Store) -> None:
        if not isinstance(store, FollowedStore):
            raise StoreError("too few")

    builds = Builds(Rank(), PATIENCE)
    with builds:
        builds.add(BuildRequest(plan_blend(), str(tmp_path)), refuse)
        builds.finish()
    with pytest.raises(StoreError, match="too few"):
        builds.wait()


def test_an_error_of_the_caller_stops_the_builds(tmp_path: Path, gates: Gates) -> None:
    before = set(threading.enumerate())

    def fail() -> None:
        with Builds(Rank(), PATIENCE) as builds:
            builds.add(BuildRequest(plan_blend(), str(tmp_path)), lambda store: None)
            gates.open_all()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    after = set(threading.enumerate()) - before
    assert "zindex-builds" not in {thread.name for thread in after}


def test_another_rank_follows_what_this_one_builds(tmp_path: Path, gates: Gates) -> None:
    datasets, _ = naive_greedy(WEIGHTS, NUM_SAMPLES)
    needed = BuildRequest(plan_blend(), str(tmp_path))
    builder, follower = Builds(Rank(), PATIENCE), Builds(Rank(1, takeover=60), PATIENCE)
    (received,) = follow(follower, needed)
    follow(builder, needed)
    gates.open(0)
    assert received[0]["dataset_index"][:16].tolist() == datasets[:16]
    gates.open_all()
    follower.wait()
    builder.wait()
    assert [type(store) for store in received] == [FollowedStore, Store]


def test_news_of_another_rank_end_the_wait(tmp_path: Path) -> None:
    def listen() -> None:
        raise StoreError("rank 0: the disk is full")

    def read() -> None:
        builds = Builds(Rank(1, listen=listen), PATIENCE)
        ((store,),) = follow(builds, BuildRequest(plan_blend(), str(tmp_path)))
        store["dataset_index"][0]

    with pytest.raises(StoreError, match="rank 0: the disk is full"):
        read()


KILLED = """
import os, sys
from tests.indexing.test_followed_builds import plan_blend
from zindex.indexing import blend
from zindex.indexing.ensure import build_store
from zindex.execution.executor import SerialExecutor, run_builds

real = blend.store_chunk
def store(plan, root, shard, chunk):
    if shard == 3:
        print("three shards", flush=True)
        sys.stdin.read()
    return real(plan, root, shard, chunk)
blend.store_chunk = store
run_builds(build_store(plan_blend(), None, sys.argv[1], SerialExecutor()))
"""


def test_a_killed_builder_is_noticed_and_another_continues(tmp_path: Path) -> None:
    datasets, _ = naive_greedy(WEIGHTS, NUM_SAMPLES)
    with Forked("-c", KILLED, str(tmp_path)) as builder:
        assert builder.stdout.readline() == "three shards\n"
        needed = BuildRequest(plan_blend(), str(tmp_path))
        waiting = Builds(Rank(1, takeover=3600), 0.05)
        ((store,),) = follow(waiting, needed)
        assert store["dataset_index"][:48].tolist() == datasets[:48]
        builder.send_signal(signal.SIGKILL)
    with pytest.raises(NotReadyError, match=r"shard dataset_index/c/3 of .* 6 of 16 shards are"):
        store["dataset_index"][48]
    before = {path: path.stat().st_ino for path in needed.root.rglob("c/*")}
    builds = Builds(Rank(1, takeover=0.2), PATIENCE)
    (received,) = follow(builds, needed)
    assert received[0]["dataset_index"][:].tolist() == datasets
    assert store["dataset_index"][48:].tolist() == datasets[48:]
    builds.wait()
    assert {path: path.stat().st_ino for path in before} == before


LEFT = """
import sys, threading
from tests.indexing.test_followed_builds import plan_blend
from zindex.indexing import blend
from zindex.indexing.ensure import BuildRequest, Builds
from zindex.indexing.coordination import Rank

real = blend.store_chunk
def store(plan, root, shard, chunk):
    if shard:
        threading.Event().wait(0.3)
    return real(plan, root, shard, chunk)
blend.store_chunk = store
received = []
with Builds(Rank(int(sys.argv[2]), takeover=3600), 240) as builds:
    builds.add(BuildRequest(plan_blend(), sys.argv[1]), received.append)
    builds.finish()
if sys.argv[2] == "0":
    print(received[0]["dataset_index"][0])
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_exits_while_it_builds(tmp_path: Path, rank: int) -> None:
    """Quietly, with the shards that are finished."""
    done = run_fresh("-c", LEFT, str(tmp_path), str(rank))
    assert (done.returncode, done.stdout, done.stderr) == (0, "" if rank else "0\n", "")
    assert not list(tmp_path.rglob("*.partial"))


def test_a_fork_ends_without_the_builds_of_its_parent(tmp_path: Path, gates: Gates) -> None:
    builds = Builds(Rank(), PATIENCE)
    follow(builds, BuildRequest(plan_blend(), str(tmp_path)))
    builds._process += 1  # as it is in a fork
    builds.stop()
    assert not builds._is_stopped
    builds._process -= 1
    gates.open_all()
    builds.wait()


def test_tasks_of_a_blend_run_after_those_of_indices(tmp_path: Path) -> None:
    priorities: list[int] = []

    class Recorder(SerialExecutor):
        async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
            priorities.append(priority)
            return await super().run(function, *args, key=key, priority=priority)

    class Recorded(BuildRequest):
        async def build(self, executor: Any) -> Any:
            return await super().build(Recorder())

    with Builds(Rank(), PATIENCE) as builds:
        builds.add(Recorded(plan_blend(), str(tmp_path)), lambda store: None)
        builds.finish()
    builds.wait()
    assert priorities
    assert max(priorities) < 0
