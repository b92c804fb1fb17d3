"""Tasks on clusters that lose their scheduler, their workers, and what these held."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.client import FutureCancelledError

from tests.cluster.dask_processes import DaskProcesses
from zindex.errors import ClusterLostError
from zindex.execution import dask_executor
from zindex.execution.dask_executor import DaskExecutor, _judge, _LostTaskError
from zindex.execution.executor import run_builds


def note(path: Path, value: int) -> int:
    """Return a value, and write down that it was made."""
    with path.open("a") as stream:
        stream.write(f"{value}\n")
    return value


def add(path: Path, name: str, *values: int) -> int:
    with path.open("a") as stream:
        stream.write(f"{name}\n")
    return sum(values)


def wait_for(path: Path, started: Path) -> str:
    with started.open("a") as stream:
        stream.write("started\n")
    while not path.exists():
        time.sleep(0.01)
    return "done"


def die_with(value: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def until(happened: Callable[[], bool], *tasks: "asyncio.Task[Any]") -> None:
    """Wait for something that tasks make happen; one that fails says more than a long wait."""
    while not happened():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    with DaskProcesses(tmp_path_factory.mktemp("dask")) as running:
        yield running


@pytest.fixture(scope="module")
def client(processes: DaskProcesses) -> Iterator[Any]:
    with processes.connect() as connected:
        yield connected


class TestLostScheduler:
    def test_tasks_are_submitted_again(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        executor = DaskExecutor(client)
        started, end = tmp_path / "started", tmp_path / "end"

        async def main() -> list[str]:
            tasks = [
                asyncio.create_task(executor.run(wait_for, end, started, key=f"wait-{number}"))
                for number in range(5)
            ]
            await until(lambda: started.exists() and len(started.read_text().split()) >= 2, *tasks)
            processes.signal("scheduler")
            await until(lambda: client.status != "running")
            end.write_text("")
            return await asyncio.gather(*tasks)

        assert run_builds(main()) == ["done"] * 5

    def test_held_results_are_made_again_once(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        executor, log = DaskExecutor(client), tmp_path / "log"

        async def main() -> list[int]:
            first = await executor.hold(add, log, "first", 1, key="first")
            second = await executor.hold(add, log, "second", first, 2, key="second")
            third = await executor.hold(add, log, "third", second, 3, key="third")
            # The last reference but that of the recipes: what is made of it needs it again.
            del first, second
            processes.signal("scheduler")
            await until(lambda: client.status != "running")
            return await asyncio.gather(
                *(executor.run(int, third, key=f"read-{number}") for number in range(8))
            )

        assert run_builds(main()) == [6] * 8
        assert log.read_text().split() == ["first", "second", "third"] * 2

    def test_scheduler_that_ends_in_order_is_lost_as_well(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        """As when a job that holds it is preempted."""
        executor = DaskExecutor(client)
        started, end = tmp_path / "started", tmp_path / "end"

        def close(dask_scheduler: Any) -> None:
            dask_scheduler.loop.add_callback(dask_scheduler.close)

        async def main() -> str:
            task = asyncio.create_task(executor.run(wait_for, end, started, key="wait"))
            await until(started.exists, task)
            await asyncio.to_thread(client.run_on_scheduler, close)
            await until(lambda: client.status != "running")
            end.write_text("")
            return await task

        assert run_builds(main()) == "done"

    def test_restarted_cluster_is_lost_as_well(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        """As by ``Client.restart``, which keeps the connection and forgets all tasks."""
        executor, log = DaskExecutor(client), tmp_path / "log"

        async def main() -> int:
            held = await executor.hold(add, log, "held", 3, 4, key="held")
            await asyncio.to_thread(client.restart, wait_for_workers=False)
            return await executor.run(int, held, key="read")

        assert run_builds(main()) == 7

    def test_scheduler_that_does_not_come_back_is_one_sentence(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        executor = DaskExecutor(client, patience=0.3)
        processes.take_down("scheduler")
        try:
            with pytest.raises(ClusterLostError) as caught:
                run_builds(executor.run(int, 5, key="five"))
        finally:
            processes.bring_up("scheduler")
        assert re.fullmatch(
            rf"the Dask scheduler at {processes.address} must be there while a build runs, it was "
            r"lost and not found again within \d+ s; finished shards stay on disk, and the same "
            r"build resumes from them once .* are started \(Client\(timeout=\.\.\.\) waits .*\)",
            str(caught.value),
        )
        assert caught.value.__notes__ == ["in task five"]

    def test_a_build_goes_on_here_without_a_cluster_that_it_can_do_without(
        self, processes: DaskProcesses, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "log"
        monkeypatch.setattr(client, "is_dispensable", True)
        executor = DaskExecutor(client)

        async def main() -> list[int]:
            first = await executor.hold(add, log, "first", 1, key="first")
            second = await executor.hold(add, log, "second", first, 2, key="second")
            processes.take_down("scheduler")
            executor.patience = 0.3
            await until(lambda: client.status != "running")
            third = await executor.hold(add, log, "third", second, 3, key="third")
            processes.bring_up("scheduler")  # too late
            await until(lambda: client.status == "running")
            return await asyncio.gather(
                *(executor.run(add, log, "read", third, number, key="read") for number in range(3))
            )

        assert run_builds(main()) == [6, 7, 8]
        assert log.read_text().split() == [*["first", "second"] * 2, "third", *["read"] * 3]

    def test_task_that_is_submitted_just_then_is_lost_as_well(
        self, processes: DaskProcesses, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Dask keeps it for a later scheduler, and says nothing while there is none."""
        executor, submit = DaskExecutor(client, patience=0.3), client.submit

        def lose_and_submit(*args: Any, **settings: Any) -> Any:
            processes.take_down("scheduler")
            while client.status == "running":
                time.sleep(0.001)
            return submit(*args, **settings)

        with monkeypatch.context() as patched:
            patched.setattr(client, "submit", lose_and_submit)
            try:
                with pytest.raises(ClusterLostError, match=r"and not found again within \d+ s"):
                    run_builds(executor.run(int, 5, key="five"))
            finally:
                processes.bring_up("scheduler")
        assert run_builds(DaskExecutor(client).run(int, 6, key="six")) == 6

    def test_client_that_looks_for_no_scheduler_ends_the_build(
        self, processes: DaskProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its search may end in an error, and then its tasks hear of nothing any more."""
        monkeypatch.setattr(dask_executor, "_LONG_POLL_SECONDS", 0.01)
        started, end = tmp_path / "started", tmp_path / "end"

        async def look_for_none() -> None:
            client.scheduler_comm = None

        async def main() -> None:
            task = asyncio.create_task(executor.run(wait_for, end, started, key="w"))
            await until(started.exists, task)
            processes.signal("scheduler")
            await task

        with processes.connect() as client:
            executor = DaskExecutor(client, patience=0.3)
            monkeypatch.setattr(client, "_reconnect", look_for_none)
            with pytest.raises(ClusterLostError, match=r"and not found again within \d+ s"):
                run_builds(main())
        end.write_text("")

    def test_task_that_is_lost_again_and_again_is_given_up(
        self, processes: DaskProcesses, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dask_executor, "_MAX_LOSSES", 2)
        executor, started = DaskExecutor(client), tmp_path / "started"

        async def main() -> None:
            task = asyncio.create_task(executor.run(wait_for, tmp_path / "end", started, key="w-7"))
            await until(started.exists, task)
            processes.signal("scheduler")
            await until(lambda: started.read_text() == "started\n" * 2, task)
            processes.signal("scheduler")
            await task

        with pytest.raises(ClusterLostError, match=r"task w-7 must be done .* was lost 2 times"):
            run_builds(main())
        (tmp_path / "end").write_text("")

    def test_cancelled_build_does_not_wait_for_the_scheduler(
        self, processes: DaskProcesses, client: Any, tmp_path: Path
    ) -> None:
        executor, started = DaskExecutor(client), tmp_path / "started"

        async def main() -> None:
            task = asyncio.create_task(executor.run(wait_for, tmp_path / "end", started, key="w"))
            await until(started.exists, task)
            processes.take_down("scheduler")
            await until(lambda: executor._lost is not None, task)
            task.cancel()
            await task

        try:
            with pytest.raises(asyncio.CancelledError):
                run_builds(main())
        finally:
            processes.bring_up("scheduler")
            (tmp_path / "end").write_text("")


def test_closed_client_ends_the_build(processes: DaskProcesses, tmp_path: Path) -> None:
    client, started = processes.connect(), tmp_path / "started"
    executor = DaskExecutor(client)

    async def main() -> None:
        task = asyncio.create_task(executor.run(wait_for, tmp_path / "end", started, key="w"))
        await until(started.exists, task)
        await asyncio.to_thread(client.close)
        await task

    with pytest.raises(ClusterLostError, match=f"at {processes.address} must be there"):
        run_builds(main())
    (tmp_path / "end").write_text("")


def test_task_that_kills_its_workers_is_named(
    processes: DaskProcesses, client: Any, tmp_path: Path
) -> None:
    def allow_one(dask_scheduler: Any) -> None:
        dask_scheduler.allowed_failures = 1

    executor = DaskExecutor(client)

    async def main() -> None:
        held = await executor.hold(int, 3, key="held")
        await executor.run(die_with, held, key="store-blend-17")

    client.run_on_scheduler(allow_one)
    try:
        with pytest.raises(ClusterLostError) as caught:
            run_builds(main())
    finally:
        processes.signal("scheduler")
    assert re.fullmatch(
        r"task store-blend-17 must leave its worker alive, 2 workers died over it, the last at "
        r"tcp://127\.0\.0\.1:\d+; read the end of that worker's log: .* finished shards stay .*",
        str(caught.value),
    )


def test_losses_are_told_from_errors() -> None:
    future = SimpleNamespace(status="finished", client=SimpleNamespace(status="running"))
    broken, wrong = OSError("in <TCP>: Stream is closed"), ValueError("17")
    assert isinstance(_judge(future, broken), _LostTaskError)
    assert isinstance(_judge(future, asyncio.CancelledError()), _LostTaskError)
    assert _judge(future, wrong) is wrong
    assert _judge(future, None) is None
    by_user = FutureCancelledError("task", None)
    assert _judge(future, by_user) is by_user
    restarted = FutureCancelledError("task", "scheduler-restart")
    assert isinstance(_judge(future, restarted), _LostTaskError)
    failed = SimpleNamespace(status="error", client=SimpleNamespace(status="running"))
    assert _judge(failed, broken) is broken
    future.client.status = "closed"
    assert isinstance(_judge(future, by_user), _LostTaskError)
    assert isinstance(_judge(future, AttributeError("gather")), _LostTaskError)
