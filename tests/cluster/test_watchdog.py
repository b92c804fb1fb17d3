"""The watchdog logs once what is stuck, once when it recovers, and harms no build."""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.dask_processes import DaskProcesses
from zindex.cluster.watchdog import ClusterView, Watchdog, WorkerView, view_cluster

ADDRESS = "tcp://10.0.0.1:8786"


class FakeClient:
    """A client whose scheduler reports what a test sets."""

    def __init__(self, *workers: WorkerView) -> None:
        self.status = "running"
        self.scheduler = SimpleNamespace(address=ADDRESS)
        self.workers = [*workers]
        self.waiting: list[str] = []
        self.num_steps = 0
        self.error: Exception | None = None

    def run_on_scheduler(self, function: Any, *, callback_timeout: float) -> ClusterView:
        assert function is view_cluster
        assert callback_timeout <= 10
        if self.error is not None:
            raise self.error
        first = self.waiting[0] if self.waiting else ""
        return ClusterView(self.workers, len(self.waiting), first, self.num_steps)


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what watchdogs have logged, without other threads' records."""
    return [record for record in caplog.records if record.name == "zindex.cluster"]


class Scene:
    """A watchdog of a fake client, at times that a test sets."""

    def __init__(
        self, caplog: pytest.LogCaptureFixture, client: FakeClient, *args: Any, **settings: Any
    ) -> None:
        self.now = 1000.0
        self.caplog = caplog
        self.watchdog = Watchdog(client, *args, clock=lambda: self.now, **settings)
        caplog.set_level(logging.INFO, "zindex.cluster")

    def look(self, seconds: float = 0.0) -> list[str]:
        """Return what is logged some seconds later."""
        self.now += seconds
        self.caplog.clear()
        self.watchdog.check()
        return [record.getMessage() for record in own_records(self.caplog)]


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Callable[..., Scene]:
    return lambda client, *args, **settings: Scene(caplog, client, *args, **settings)


def worker(
    name: str = "node-0", *, silence: float = 0.2, num_tasks: int = 0, **running: float
) -> WorkerView:
    port = 40000 + int(name.rpartition("-")[2])
    return WorkerView(name, f"tcp://10.0.0.2:{port}", "10.0.0.2", silence, num_tasks, running)


def test_cluster_that_works_is_silent(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker("node-0"), worker("node-1"))
    client.waiting = ["store-blend-0"]
    scene = stage(client, 2)
    for step in range(50):
        client.num_steps = step
        assert scene.look(10) == []


def test_lost_scheduler_is_logged_once_and_when_it_is_back(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker())
    scene = stage(client)
    client.status = "connecting"
    assert scene.look() == [f"the scheduler at {ADDRESS} does not answer"]
    assert scene.look(10) == []
    client.status = "running"
    assert scene.look(10) == [f"the scheduler at {ADDRESS} answers again"]
    client.error = TimeoutError("timed out after 5 s")  # such as one that is stopped
    assert scene.look(10) == [f"the scheduler at {ADDRESS} does not answer"]


def test_silent_worker_is_named(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker("node-0"), worker("node-1", silence=12.4, num_tasks=3))
    scene = stage(client)
    place = "worker node-1 at tcp://10.0.0.2:40001"
    assert scene.look() == [f"{place} has sent no heartbeat for 12 s; it has 3 tasks"]
    client.workers[1] = worker("node-1", silence=17.0)
    assert scene.look(5) == []
    client.workers[1] = worker("node-1")
    assert scene.look(5) == [f"{place} sends heartbeats again"]
    client.workers[1] = worker("node-1", silence=9.0)
    assert scene.look(5) == [f"{place} has sent no heartbeat for 9 s; it has 0 tasks"]
    del client.workers[1]
    assert scene.look(5) == [f"{place} is lost; its tasks are rescheduled"]


def test_silence_of_a_worker_outlasts_a_lost_scheduler(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker(silence=12.0))
    scene = stage(client)
    assert len(scene.look()) == 1
    client.status = "connecting"
    assert scene.look(5) == [f"the scheduler at {ADDRESS} does not answer"]
    client.status = "running"
    assert scene.look(5) == [f"the scheduler at {ADDRESS} answers again"]


def test_long_task_is_named_with_its_worker(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker(**{"store-blend-7-0123456789ab": 299.0, "count-1": 2.0}))
    scene = stage(client, task_limit=300)
    assert scene.look() == []
    client.workers = [worker(**{"store-blend-7-0123456789ab": 304.0})]
    place = "worker node-0 at tcp://10.0.0.2:40000"
    assert scene.look(5) == [f"task store-blend-7 has run for 304 s on {place} (host 10.0.0.2)"]
    client.workers = [worker(**{"store-blend-7-0123456789ab": 309.0})]
    assert scene.look(5) == []
    client.workers = [worker()]
    assert scene.look(5) == [f"task store-blend-7 no longer runs on {place}"]


def test_no_progress_is_logged(stage: Callable[..., Scene]) -> None:
    """As where Dask has lost a message: no task runs, and none ends."""
    client = FakeClient(worker())
    client.waiting = ["count-gpt-3-0123456789ab", "count-gpt-4-0123456789ab"]
    scene = stage(client, task_limit=60)
    assert scene.look() == scene.look(60) == []
    assert scene.look(5) == [
        "no task has begun or ended for 65 s, 2 are not finished, such as count-gpt-3"
    ]
    client.num_steps = 1
    assert scene.look(5) == ["tasks begin and end again"]
    client.waiting = []  # an idle cluster is not stuck
    assert scene.look() == scene.look(1000) == []


def test_a_cluster_without_workers_is_logged(stage: Callable[..., Scene]) -> None:
    client = FakeClient()
    client.waiting = ["count-1"]
    scene = stage(client, 2)
    assert scene.look() == scene.look(20) == []
    no_worker = f"no worker is connected to the scheduler at {ADDRESS}"
    assert scene.look(5) == [f"{no_worker}, 1 tasks wait for one"]
    assert scene.look(5) == []
    client.workers = [worker("node-0"), worker("node-1")]
    assert scene.look(5) == [f"workers are connected to the scheduler at {ADDRESS} again"]


def test_missing_nodes_are_logged(stage: Callable[..., Scene]) -> None:
    client = FakeClient(worker("node-0"))
    scene = stage(client, 3, start_limit=60)
    assert scene.look() == scene.look(60) == []
    assert scene.look(5) == ["1 of 3 workers are connected"]
    client.workers.append(worker("node-1"))
    assert scene.look(5) == ["2 of 3 workers are connected"]
    assert scene.look(5) == []
    client.workers.append(worker("node-2"))
    assert scene.look(5) == ["all 3 workers are connected"]
    # A worker that is started again is not missed at once.
    del client.workers[1:]
    assert scene.look(5) == scene.look(55) == []


def test_its_own_errors_are_swallowed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zindex.cluster")
    client = FakeClient(worker())
    client.error = ModuleNotFoundError("No module named 'zindex'")  # on a scheduler of others
    with Watchdog(client, interval=0.01):
        while "could not look" not in caplog.text:
            time.sleep(0.01)
    assert {record.levelno for record in own_records(caplog)} == {logging.DEBUG}


def test_it_ends_with_its_client() -> None:
    client = FakeClient(worker())
    with Watchdog(client, interval=0.01) as watchdog:
        client.status = "closed"
        watchdog.thread.join(60)
        assert not watchdog.thread.is_alive()


def test_real_cluster_that_loses_its_parts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zindex.cluster")

    def wait_for(words: str) -> str:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if found := [line for line in caplog.messages if words in line]:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"{words!r} is not logged, but {caplog.messages}")

    limits: dict[str, Any] = {"interval": 0.1, "task_limit": 1.0, "silence_limit": 2.0}
    ttl = {"distributed.scheduler.worker-ttl": "1s"}
    with (
        DaskProcesses(tmp_path, **ttl) as processes,
        processes.connect() as client,
        Watchdog(client, len(processes.workers), **limits),
    ):
        future = client.submit(time.sleep, 20, key="slow-0123456789ab", pure=False)
        line = wait_for("task slow has run for")
        name = line.partition(" on worker ")[2].partition(" ")[0]
        future.cancel()
        pid = processes.signal(name, signal.SIGSTOP)
        wait_for(f"worker {name} at tcp://127.0.0.1:")
        wait_for("is lost; its tasks are rescheduled")
        os.kill(pid, signal.SIGCONT)
        processes.take_down("scheduler")
        wait_for(f"the scheduler at {processes.address} does not answer")
        processes.bring_up("scheduler")
        wait_for(f"the scheduler at {processes.address} answers again")
