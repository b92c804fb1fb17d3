"""An index that is opened before it is built: built here, or waited for."""

import asyncio
import dataclasses
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clocks import Clock
from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex, naive_megatron
from tests.indexing.runs import ensure_index, with_build
from zindex.errors import NotReadyError, PlanError, VerificationError
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing import ensure
from zindex.indexing.coordination import BuilderWatch, Rank
from zindex.indexing.ensure import BuildRequest, Builds, build_store
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.store_build import find_index
from zindex.store.commit import begin_store
from zindex.store.heartbeat import write_first_heartbeat

LENGTHS = [3, 0, 5, 2, 7, 4, 6]


@pytest.fixture
def planned(write_corpus: WriteCorpus, plan_index: PlanIndex) -> tuple[Any, Any]:
    return plan_index(write_corpus(LENGTHS), num_samples=9, chunk=2)


@pytest.fixture
def needed(planned: tuple[Any, Any], tmp_path: Path) -> BuildRequest:
    plan, source = planned
    return BuildRequest(plan, str(tmp_path), source)


class RankClock(Clock):
    """A clock that ranks use."""

    def rank(self, number: int, **settings: float) -> Rank:
        return Rank(number, **settings, clock=self.monotonic, sleep=self.sleep)


@pytest.fixture
def clock() -> RankClock:
    return RankClock()


def build(plan: Any, source: Any, folder: Path) -> Any:
    return run_builds(build_store(plan, source, folder, SerialExecutor())).store


def obtain(rank: Rank, needs: list[BuildRequest]) -> list[Any]:
    stores: list[Any] = []
    with Builds(rank) as builds:
        for needed in needs:
            builds.add(needed, stores.append)
        builds.finish()
    return stores


def test_builder_builds(planned: tuple[Any, Any], tmp_path: Path) -> None:
    plan, source = planned
    store = ensure_index(plan, source, str(tmp_path))
    for array, expected in zip(
        open_index_arrays(store), naive_megatron(plan, np.array(LENGTHS)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(array), expected)


WAITING = Rank(1, timeout=0, takeover=math.inf)


@pytest.mark.parametrize("rank", [None, WAITING])
def test_finished_index_is_opened(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: Rank | None
) -> None:
    expected = build(*planned, tmp_path)
    monkeypatch.setattr(ensure, "_BuildLoop", None)
    assert ensure_index(*planned, str(tmp_path), rank) == expected


def test_waiting_process_gets_what_another_commits(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    found = ensure.find_index

    def look(store_plan: Any) -> Any:
        store = found(store_plan)
        looked.set()
        return store

    monkeypatch.setattr(ensure, "find_index", look)

    def build_later() -> None:
        assert looked.wait(60)
        build(*planned, tmp_path)

    builder = threading.Thread(target=build_later)
    builder.start()
    store = ensure_index(*planned, str(tmp_path), Rank(1, timeout=200, takeover=math.inf))
    builder.join()
    assert store == find_index(planned[0].store_plan(tmp_path))


def test_a_timeout_names_the_missing_store(
    planned: tuple[Any, Any], tmp_path: Path, clock: RankClock
) -> None:
    store = build(*planned, tmp_path)
    (store.root / "zarr.json").unlink()
    (store.root / "sample_index" / "c" / "0" / "0").unlink()
    num_shards = planned[0].store_plan(tmp_path).num_shards
    message = (
        rf"{store.root} must be committed within 0 s, {num_shards - 1} of {num_shards} shards are "
        "finished; check the building rank"
    )
    with pytest.raises(NotReadyError, match=message) as caught:
        ensure_index(*planned, str(tmp_path), clock.rank(1, timeout=0.1))
    assert clock.now < 5
    assert (caught.value.num_done, caught.value.num_shards) == (num_shards - 1, num_shards)


def test_wait_for_nothing_at_all(planned: tuple[Any, Any], tmp_path: Path) -> None:
    num_shards = planned[0].store_plan(tmp_path).num_shards
    with pytest.raises(NotReadyError, match=f"0 of {num_shards} shards are finished"):
        ensure_index(*planned, str(tmp_path), WAITING)


def test_wait_says_how_many_are_missing(planned: tuple[Any, Any], tmp_path: Path) -> None:
    other = dataclasses.replace(planned[0], seed=8)
    needs = [BuildRequest(plan, str(tmp_path), planned[1]) for plan in (planned[0], other)]
    with pytest.raises(NotReadyError, match=r"shards are finished \(1 more are missing\); check"):
        obtain(WAITING, needs)


def test_waits_grow_and_differ(planned: tuple[Any, Any], tmp_path: Path, clock: RankClock) -> None:
    """Thousands of ranks do not ask at the same moment, nor more often than every few seconds."""
    with pytest.raises(NotReadyError, match="within 60 s, 0 of"):
        ensure_index(*planned, str(tmp_path), clock.rank(1, timeout=60, takeover=math.inf))
    pauses = clock.pauses
    assert sum(pauses) == pytest.approx(60)
    limits = [min(2.0, 0.05 * 2**i) for i in range(len(pauses))]
    pairs = list(zip(pauses, limits, strict=True))
    assert all(limit / 2 <= pause <= limit for pause, limit in pairs[:-1])
    assert pauses[-1] <= limits[-1]
    assert len(set(pauses)) == len(pauses)


@pytest.mark.parametrize("rank", [None, Rank(1)])
def test_damage_is_raised_without_a_wait(
    planned: tuple[Any, Any], tmp_path: Path, rank: Rank | None
) -> None:
    """A rank does not wait an hour for an index that will never be right."""
    root = build(*planned, tmp_path).root / "zarr.json"
    content = root.read_text()
    root.write_text(content.replace('"seed":7', '"seed":8'))
    assert root.read_text() != content
    with pytest.raises(VerificationError, match=rf"{root} fails its digest"):
        ensure_index(*planned, str(tmp_path), rank)


@pytest.mark.parametrize("number", [1, 2, 3, 8, 1000])
def test_later_ranks_take_over_later(
    planned: tuple[Any, Any], tmp_path: Path, clock: RankClock, number: int
) -> None:
    rank = clock.rank(number, takeover=10)
    assert rank.patience == pytest.approx(10 * (1 + math.log2(number)))
    store = ensure_index(*planned, str(tmp_path), rank)
    assert rank.patience <= clock.now < rank.patience + 5
    assert store == build(*planned, tmp_path)


def test_no_rank_takes_over_from_a_builder_with_progress(
    needed: BuildRequest, planned: tuple[Any, Any], tmp_path: Path, clock: RankClock
) -> None:
    """A finished shard or a heartbeat counts; in the long run, only a shard does."""
    store = build(*planned, tmp_path)
    (store.root / "zarr.json").unlink()
    shard = store.root / "sample_index" / "c" / "0" / "0"
    content = shard.read_bytes()
    shard.unlink()
    watch = BuilderWatch(clock.rank(1, takeover=10))
    seen = []

    def look(after: float) -> None:
        clock.now += after
        seen.append(watch.is_over([needed.store_plan]))

    look(0)
    look(9)
    shard.write_bytes(content)
    look(2)
    for _ in range(9):
        touched = (store.root / "_zindex" / "plan.json").stat().st_mtime_ns + 1
        os.utime(store.root / "_zindex" / "plan.json", ns=(touched, touched))
        look(9.9)
    assert not any(seen)
    look(11)
    assert seen[-1]


def test_no_rank_takes_over_from_a_builder_without_a_plan(
    needed: BuildRequest, clock: RankClock
) -> None:
    watch = BuilderWatch(clock.rank(1, takeover=10))
    write_first_heartbeat(needed.root)
    for step in range(1, 10):
        assert not watch.is_over([needed.store_plan])
        os.utime(needed.root / "_zindex" / "alive", ns=(step, step))
        clock.now += 9
    assert not watch.is_over([needed.store_plan])
    clock.now += 11
    assert watch.is_over([needed.store_plan])


def test_a_builder_with_a_heartbeat_but_no_progress_is_given_up(
    needed: BuildRequest, planned: tuple[Any, Any], tmp_path: Path, clock: RankClock
) -> None:
    store = build(*planned, tmp_path)
    (store.root / "zarr.json").unlink()
    watch = BuilderWatch(clock.rank(1, takeover=10))
    for step in range(1, 30):
        touched = store.root / "_zindex" / "plan.json"
        os.utime(touched, ns=(step, step))
        if watch.is_over([needed.store_plan]):
            break
        clock.now += 5
    assert clock.now == 100


def test_builder_writes_a_heartbeat(needed: BuildRequest) -> None:
    """While a build computes without finishing a shard, its plan is touched."""
    plan_file = needed.root / "_zindex" / "plan.json"

    async def touched(executor: Any) -> Any:
        await asyncio.to_thread(begin_store, needed.store_plan)
        os.utime(plan_file, ns=(1, 1))
        while plan_file.stat().st_mtime_ns == 1:
            await asyncio.sleep(0.01)
        return await needed.build(executor)

    slow = with_build(needed, touched)
    assert obtain(Rank(0, takeover=0.1), [slow]) == [find_index(needed.store_plan)]


def test_many_are_built_in_parallel_and_each_once(planned: tuple[Any, Any], tmp_path: Path) -> None:
    plan, source = planned
    started = 0
    all_started = asyncio.Event()

    def wait_for_all(needed: BuildRequest) -> BuildRequest:
        async def build_with_others(executor: Any) -> Any:
            nonlocal started
            started += 1
            if started == 5:
                all_started.set()
            await all_started.wait()
            return await needed.build(executor)

        return with_build(needed, build_with_others)

    got: dict[int, list[Any]] = {seed: [] for seed in range(5)}
    with Builds(Rank()) as builds:
        for seed in [*range(5), *range(5)]:
            needed = BuildRequest(dataclasses.replace(plan, seed=seed), str(tmp_path), source)
            builds.add(wait_for_all(needed), got[seed].append)
        builds.finish()
    assert started == 5
    assert [[store.spec["seed"] for store in got[seed]] for seed in got] == [[i, i] for i in got]


def test_an_error_ends_all_builds(planned: tuple[Any, Any], tmp_path: Path) -> None:
    plan, source = planned
    needed = BuildRequest(plan, str(tmp_path), source)
    ended = []

    async def never(executor: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("never")

    async def fail(executor: Any) -> Any:
        raise PlanError("no")

    other = BuildRequest(dataclasses.replace(plan, seed=8), str(tmp_path), source)
    needs = [with_build(needed, never), with_build(other, fail)]
    with pytest.raises(PlanError, match=r"^no$"):
        obtain(Rank(), needs)
    assert ended == ["never"]


def test_an_error_is_raised_by_the_next_add(planned: tuple[Any, Any], tmp_path: Path) -> None:
    """Opening datasets for an hour ends once a build has failed in the background."""
    plan, source = planned

    async def fail(executor: Any) -> Any:
        raise PlanError("no")

    def add_many() -> None:
        with Builds(Rank()) as builds:
            for seed in range(10_000):
                needed = BuildRequest(dataclasses.replace(plan, seed=seed), str(tmp_path), source)
                builds.add(with_build(needed, fail), print)
                time.sleep(0.01)
            raise AssertionError("no error was raised")

    with pytest.raises(PlanError, match=r"^no$"):
        add_many()


def test_small_builds_run_in_parallel(planned: tuple[Any, Any], tmp_path: Path) -> None:
    """Their tasks wait for the disk at the same time, and are named in errors."""
    meeting = threading.Barrier(2, timeout=200)

    async def meet(executor: Any) -> Any:
        await executor.run(meeting.wait, key="meet")
        await executor.run(divmod, 1, 0, key="divide")

    plan, source = planned
    needs = [
        BuildRequest(dataclasses.replace(plan, seed=seed), str(tmp_path), source) for seed in (1, 2)
    ]
    with pytest.raises(ZeroDivisionError) as caught:
        obtain(Rank(), [with_build(needed, meet) for needed in needs])
    assert caught.value.__notes__ == ["in task divide"]


def test_leaving_ends_all_builds(needed: BuildRequest) -> None:
    begun = threading.Event()

    async def never(executor: Any) -> Any:
        begun.set()
        await asyncio.sleep(3600)

    def leave() -> None:
        with Builds(Rank()) as builds:
            builds.add(with_build(needed, never), print)
            assert begun.wait(60)
            raise KeyError("left")

    with pytest.raises(KeyError, match="left"):
        leave()


@pytest.mark.parametrize("number", [0, 1])
def test_news_of_a_failure_end_waiting_and_building(needed: BuildRequest, number: int) -> None:

    async def never(executor: Any) -> Any:
        await asyncio.sleep(3600)

    def listen() -> None:
        raise PlanError("rank 7: no")

    with pytest.raises(PlanError, match="rank 7: no"):
        obtain(Rank(number, listen=listen), [with_build(needed, never)])
