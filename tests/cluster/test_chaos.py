"""Builds on clusters whose processes are killed and stopped: right results, nothing made twice."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.cluster.dask_processes import DaskProcesses
from tests.conftest import WriteCorpus
from tests.trees import all_files, shard_stamps
from zindex import schema
from zindex.execution.dask_executor import DaskExecutor
from zindex.execution.executor import run_builds
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.shard_files import ShardResult, store_shard

#: Seconds within which a build goes on after a process of its cluster is killed. Where other tests
#: run beside, it may take longer.
PROGRESS_SECONDS, LOADED_SECONDS = 30, 100
#: Seconds within which the tasks of a stopped worker run elsewhere, also beside other tests.
REROUTE_SECONDS = 200
#: Processes that are killed in turn, in a random order.
ROLES = ("scheduler", "worker-0", "worker-1", "rank")


def wait_until(happened: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def make_settings(write_corpus: WriteCorpus, **settings: Any) -> dict[str, Any]:
    """Return a blend of three corpora, greedy unless set otherwise, with their indices."""
    datasets = [
        {
            "path": write_corpus([3 + i * (j + 1) % 29 for i in range(1200)], name=f"corpus-{j}"),
            "weight": j + 1.0,
        }
        for j in range(3)
    ]
    return {
        "datasets": datasets,
        "sequence_length": 16,
        "split": "100,0,0",
        "samples": {"train": 3600},
        "order": "megatron",
        "grid": {"chunk_length": 128, "shard_length": 128},
    } | settings


def build_under_fire(
    processes: DaskProcesses,
    settings: dict[str, Any],
    num_kills: int,
    rng: np.random.Generator,
    seconds: float,
) -> list[str]:
    """Build once while processes are killed, up to so many; return which were."""
    folder, killed = Path(settings["index"]), []
    finished: dict[str, tuple[int, int]] = {}

    def is_over() -> bool:
        return processes.poll_build() is not None

    def goes_on(num_writes: int) -> bool:
        return len(processes.list_writes()) >= num_writes or is_over()

    start = len(processes.list_writes())
    processes.start_build(settings)
    pause = int(rng.integers(1, 20))
    for _ in range(num_kills):
        count = len(processes.list_writes())
        wait_until(lambda n=count + pause: goes_on(n), seconds, f"progress after {killed}")
        if is_over():
            break
        finished |= shard_stamps(folder)
        name = str(rng.choice(ROLES))
        processes.signal(name)
        killed.append(name)
        pause = int(rng.integers(1, 40))
    wait_until(is_over, 2 * seconds, f"the end of the build, after {killed}")
    assert processes.poll_build() == 0, (processes.folder / "rank.log").read_text()
    # What was finished before a process was killed is still that file, and was not made again.
    after = shard_stamps(folder)
    assert [path for path, stamp in finished.items() if after[path] != stamp] == []
    again = [write["path"] for write in processes.list_writes()[start:] if not write["is_new"]]
    # A worker that lost its scheduler ends the task that it is at; so does the one in its place.
    assert len(again) <= len(processes.workers) * len(killed), again
    return killed


def check_chaos(
    settings: dict[str, Any], tmp_path: Path, num_kills: int, seconds: float
) -> list[str]:
    """Kill processes during builds, each of which must end like an undisturbed one."""
    rng, killed, num_builds = np.random.default_rng(2026), list[str](), 0
    with DaskProcesses(tmp_path / "dask") as processes:
        calm = settings | {"index": str(tmp_path / "calm")}
        build_under_fire(processes, calm, 0, rng, LOADED_SECONDS)
        expected = all_files(tmp_path / "calm", unfinished=False)
        while len(killed) < num_kills:
            folder = tmp_path / f"index-{num_builds}"
            config = settings | {"index": str(folder)}
            killed += build_under_fire(processes, config, num_kills - len(killed), rng, seconds)
            assert all_files(folder, unfinished=False) == expected
            num_builds += 1
    return killed


@pytest.mark.timeout(280)
def test_killed_processes_change_nothing(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    assert len(check_chaos(make_settings(write_corpus), tmp_path, 2, LOADED_SECONDS)) == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        # Both hold on workers what later tasks take together.
        pytest.param({"order": "scalable", "shuffle": "uniform", "packing": {}}, id="packed"),
    ],
)
def test_many_killed_processes_change_nothing(
    settings: dict[str, Any], write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    config = make_settings(write_corpus, **settings)
    killed = check_chaos(config, tmp_path, 30, PROGRESS_SECONDS)
    assert (len(killed), set(killed)) == (30, set(ROLES))


LAYOUT = ArrayLayout.plan(schema.SHUFFLE_INDEX, 64, np.int32, ChunkGrid(64, 64))


def store_slowly(root: Path, marks: Path) -> ShardResult:
    """Write a shard; say which process is at it, and wait for a sign."""

    def compute() -> Any:
        (marks / f"at-{os.getpid()}").touch()
        while not (marks / "go").exists():
            time.sleep(0.01)
        return np.arange(64, dtype=np.int32)

    return store_shard(root, LAYOUT, 0, compute)


def make_zeros(num_bytes: int) -> tuple[int, Any]:
    """Return an array, and the process that made it."""
    return os.getpid(), np.zeros(num_bytes, np.uint8)


def find_maker(made: tuple[int, Any]) -> int:
    return made[0]


def find_makers(first: tuple[int, Any], second: tuple[int, Any]) -> tuple[int, int, int]:
    return first[0], second[0], os.getpid()


@pytest.fixture(
    params=[
        # Dask waits for ten heartbeats at least, which are five seconds.
        pytest.param({"distributed.scheduler.worker-ttl": "1s"}, id="short"),
        pytest.param({}, id="usual", marks=pytest.mark.slow),
    ]
)
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DaskProcesses]:
    with DaskProcesses(tmp_path / "dask", **request.param) as running:
        yield running


class TestStoppedWorker:
    """A process that hangs keeps its connections: only its silence tells."""

    def test_its_task_runs_elsewhere_and_its_late_write_does_no_harm(
        self, processes: DaskProcesses, tmp_path: Path
    ) -> None:
        root, marks = tmp_path / "store", tmp_path / "marks"
        marks.mkdir()

        async def main(executor: DaskExecutor) -> tuple[ShardResult, int]:
            task = asyncio.create_task(executor.run(store_slowly, root, marks, key="slow"))
            while not (names := os.listdir(marks)):
                await asyncio.sleep(0.01)
            stopped = int(names[0].removeprefix("at-"))
            os.kill(stopped, signal.SIGSTOP)
            (marks / "go").touch()
            return await asyncio.wait_for(task, REROUTE_SECONDS), stopped

        with processes.connect() as client:
            _, stopped = run_builds(main(DaskExecutor(client)))
        path = root / LAYOUT.shard_key(0)
        stamp, content = path.stat(), path.read_bytes()
        os.kill(stopped, signal.SIGCONT)
        # It lost its place meanwhile, so it ends; mostly after its write.
        wait_until(lambda: not psutil.pid_exists(stopped), LOADED_SECONDS, "the end of the worker")
        # On a busy machine the other worker may be lost as well, and start again.
        is_new = [write["is_new"] for write in processes.list_writes()]
        assert is_new == [True] + [False] * (len(is_new) - 1)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
        assert path.read_bytes() == content
        assert [item for item in root.rglob("*") if item.is_file()] == [path]
        with processes.connect():
            pass  # it comes back as another

    def test_what_another_fetches_from_it_is_made_again(self, processes: DaskProcesses) -> None:
        async def main(executor: DaskExecutor) -> tuple[int, int, tuple[int, int, int]]:
            here, there = 0.9, 0.1
            large = await executor.hold(make_zeros, 1 << 27, key="large", place=here)
            small = [
                await executor.hold(make_zeros, 1 << 22, key=f"small-{number}", place=there)
                for number in range(2)
            ]
            # The first fetch opens the connection that the second one hangs on.
            stopped, own, _ = await executor.run(find_makers, small[0], large, key="first")
            assert stopped == await executor.run(find_maker, small[1], key="find")
            os.kill(stopped, signal.SIGSTOP)
            second = executor.run(find_makers, small[1], large, key="second")
            return stopped, own, await asyncio.wait_for(second, REROUTE_SECONDS)

        with processes.connect() as client:
            stopped, own, second = run_builds(main(DaskExecutor(client)))
            assert stopped != own
            assert second == (own, own, own)
            os.kill(stopped, signal.SIGCONT)
