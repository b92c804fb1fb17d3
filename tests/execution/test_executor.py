"""Executors: results, errors that say where, clusters that end with their block."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import distributed  # noqa: F401  (its defaults are what a cluster must leave as they were)
import psutil
import pytest
from dask.sizeof import sizeof
from distributed import Scheduler

from tests.cluster.dask_processes import local_processes
from tests.forked import run_fresh
from zindex.errors import ConfigError, FingerprintMismatchError, NotReadyError, SourceError
from zindex.execution import dask_executor
from zindex.execution.dask_executor import DaskExecutor, settle
from zindex.execution.executor import (
    Executor,
    SerialExecutor,
    embedded_client,
    open_executor,
    report_unless_ended,
    run_builds,
)
from zindex.execution.reconnecting_client import RECONNECT_SECONDS
from zindex.execution.worker_tasks import keep

# Threads that Dask shares between all clusters of a process and never ends.
SHARED_THREADS = ("Dask-Offload", "Dask-Callback-Thread")


def add(left: int, right: int) -> int:
    return left + right


def fail(kind: str) -> None:
    if kind == "not ready":
        raise NotReadyError("store is not built yet", num_done=3, num_shards=7)
    if kind == "caused":
        try:
            os.stat("/no/such/file")
        except OSError as error:
            raise SourceError("no such file, value 41") from error
    raise ValueError(f"no kind {kind}")


def fail_once(marker: Path) -> str:
    """Fail like a full disk on the first call only."""
    if marker.exists():
        return "done"
    marker.write_text("")
    raise OSError(28, "No space left on device")


def worker_pid() -> int:
    return os.getpid()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with embedded_client(2) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    with local_processes(2) as connected:
        yield connected


@pytest.fixture(params=["serial", "client", "processes"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "serial":
        return SerialExecutor()
    return DaskExecutor(request.getfixturevalue(request.param))


def run(executor: Executor, function: Any, *arguments: Any, key: str = "task") -> Any:
    async def main() -> Any:
        return await executor.run(function, *arguments, key=key)

    return run_builds(main())


class TestEveryExecutor:
    def test_returns_results_in_order(self, executor: Executor) -> None:
        async def main() -> list[int]:
            sums = (executor.run(add, i, 10, key=f"add-{i}", priority=i % 2) for i in range(20))
            return await asyncio.gather(*sums)

        assert run_builds(main()) == [*range(10, 30)]

    def test_error_carries_the_name_of_its_task(self, executor: Executor) -> None:
        with pytest.raises(NotReadyError, match="not built yet") as caught:
            run(executor, fail, "not ready", key="samples-7")
        assert caught.value.__notes__ == ["in task samples-7"]
        assert (caught.value.num_done, caught.value.num_shards) == (3, 7)
        assert isinstance(caught.value, FileNotFoundError)

    def test_first_error_of_a_group_is_raised_alone(self, executor: Executor) -> None:
        async def main() -> None:
            async with asyncio.TaskGroup() as outer:
                outer.create_task(inner())

        async def inner() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(executor.run(fail, "caused", key="first"))
                group.create_task(asyncio.sleep(60))

        with pytest.raises(SourceError, match="value 41") as caught:
            run_builds(main())
        assert caught.value.__notes__ == ["in task first"]

    def test_task_may_be_run_again(self, executor: Executor) -> None:
        assert [run(executor, add, 1, 2), run(executor, add, 1, 2)] == [3, 3]


def test_cause_is_kept() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(SerialExecutor().run(fail, "caused", key="first"))

    with pytest.raises(SourceError) as caught:
        run_builds(main())
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_operating_system_errors_are_tried_again(client: Any, tmp_path: Path) -> None:
    assert run(DaskExecutor(client), fail_once, tmp_path / "marker") == "done"


def test_held_result_is_made_again_where_its_worker_dies(processes: Any) -> None:
    executor = DaskExecutor(processes)

    async def main() -> tuple[int, int]:
        held = await executor.hold(worker_pid, key="hold")
        first = await executor.run(int, held, key="first")
        os.kill(first, signal.SIGKILL)
        return first, await executor.run(int, held, key="second")

    first, second = run_builds(main())
    assert first != second
    processes.wait_for_workers(2)  # later tests look at the children of this process


def fake_client(workers: dict[str, int]) -> Any:
    return SimpleNamespace(
        asynchronous=False, status="running", nthreads=lambda **settings: dict(workers)
    )


def test_threads_of_late_workers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    workers: dict[str, int] = {}
    executor = DaskExecutor(fake_client(workers))
    assert executor.num_threads == 1
    workers |= {"a": 4, "b": 3}
    assert executor.num_threads == 1
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
    # Not the clock of Dask's event loops, whose timers would wait a minute longer.
    monkeypatch.setattr(dask_executor, "time", later)
    assert executor.num_threads == 7


def test_held_result_weighs_what_it_holds() -> None:
    held = keep(bytes, (1000,), "key")
    assert 1000 < sizeof(held) < 2000


def test_held_result_is_freed_with_the_last_reference(client: Any) -> None:
    """At once, not when Python next looks for cycles; a result made of it does not keep it."""

    async def main() -> list[str]:
        executor = DaskExecutor(client)
        first = await executor.hold(bytes, 1000, key="freed-first")
        second = await executor.hold(len, first, key="freed-second")
        assert await executor.run(int, second, key="freed-read") == 1000
        del first
        while len(names := [key for key in client.futures if key.startswith("freed")]) > 1:
            await asyncio.sleep(0.01)
        del second
        while any(key.startswith("freed") for key in client.futures):
            await asyncio.sleep(0.01)
        return names

    gc.disable()
    try:
        (name,) = run_builds(main())
    finally:
        gc.enable()
    assert name.startswith("freed-second")


def test_our_errors_are_not_tried_again(client: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def refuse() -> None:
        with open(calls, "a") as stream:
            stream.write("called\n")
        raise FingerprintMismatchError("other content, 17")

    with pytest.raises(FingerprintMismatchError, match="17"):
        run(DaskExecutor(client), refuse)
    assert calls.read_text() == "called\n"


def test_task_of_the_same_key_looks_at_the_disk_again(client: Any, tmp_path: Path) -> None:
    executor = DaskExecutor(client)

    async def list_twice() -> list[list[str]]:
        held = [await executor.hold(os.listdir, tmp_path, key="same")]
        (tmp_path / "shard").write_text("")
        held.append(await executor.hold(os.listdir, tmp_path, key="same"))
        return [await executor.run(list, names, key="show") for names in held]

    assert run_builds(list_twice()) == [[], ["shard"]]


def test_second_attempt_does_not_meet_the_error_of_the_first(client: Any, tmp_path: Path) -> None:
    executor, place = DaskExecutor(client), tmp_path / "place"

    async def list_twice() -> list[str]:
        try:
            await executor.hold(os.listdir, place, key="same")
        except FileNotFoundError as error:
            place.mkdir()
            return [str(error), *await executor.run(os.listdir, place, key="same")]
        raise AssertionError

    (message,) = run_builds(list_twice())
    assert message.endswith(f"'{place}'")


def test_late_task_of_a_failed_build_is_let_go(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = DaskExecutor(client)

    async def main() -> None:
        waiting = executor.run(wait_for, tmp_path / "end", key="waiting")
        refused = executor.run(fail, "not ready", key="refused")
        await asyncio.gather(waiting, refused)

    with pytest.raises(NotReadyError):
        run_builds(main())
    (tmp_path / "end").write_text("")
    assert run(executor, add, 2, 2, key="next") == 4
    assert "Error in callback" not in caplog.text
    assert "is closed" not in caplog.text


def test_result_that_comes_after_the_build_gave_up_is_dropped() -> None:
    async def main() -> bool:
        finished = asyncio.get_running_loop().create_future()
        finished.cancel()
        settle(finished, 7, None)
        return finished.cancelled()

    assert asyncio.run(main())


def test_cancelled_future_ends_the_build(client: Any, tmp_path: Path) -> None:
    """A cluster that is shut down under a build is an error, not a wait without end."""
    executor = DaskExecutor(client)

    def cancel() -> None:
        from distributed import Future

        while not (keys := [key for key in client.futures if key.startswith("waiting")]):
            time.sleep(0.01)
        client.cancel([Future(key, client) for key in keys])

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Exception, match="waiting") as caught:
        run(executor, wait_for, tmp_path / "end", key="waiting")
    thread.join()
    (tmp_path / "end").write_text("")
    assert caught.value.__notes__ == ["in task waiting"]


def test_asynchronous_client_is_refused() -> None:
    from distributed import Client

    async def main() -> None:
        async with Client(
            processes=False, n_workers=1, asynchronous=True, dashboard_address="127.0.0.1:0"
        ) as client:
            with (
                pytest.raises(ConfigError, match=r"got an asynchronous one; create it without"),
                open_executor(client),
            ):
                pass

    asyncio.run(main())


def test_a_given_executor_is_used_unchanged() -> None:
    serial = SerialExecutor()
    with open_executor(serial) as executor:
        assert executor is serial


def test_an_invalid_client_is_an_error() -> None:
    class LocalCluster:
        def __repr__(self) -> str:
            return "LocalCluster(8 workers)"

    for wrong, shown in (
        (LocalCluster(), r"LocalCluster\(8 workers\)"),
        (ThreadPoolExecutor(1), r"<\S+ThreadPoolExecutor .*"),
    ):
        with (
            pytest.raises(ConfigError, match=f"got {shown}; connect a client"),
            open_executor(wrong),
        ):
            pass


def test_address_of_a_scheduler_is_connected(processes: Any) -> None:
    with open_executor(processes.scheduler.address) as executor:
        assert run(executor, worker_pid) != os.getpid()
        connected = executor.client
        assert connected._timeout == RECONNECT_SECONDS
    assert connected.status == "closed"
    assert processes.status == "running"


def test_address_without_a_scheduler_is_refused() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
            pytest.raises(ConfigError, match=f"must answer at {address}, none does"),
            open_executor(address),
        ):
            pass


def test_ambient_client_is_used(processes: Any) -> None:
    with processes.as_current(), open_executor() as executor:
        assert executor.client is processes
        assert run(executor, worker_pid) != os.getpid()


def test_without_a_client_the_tasks_run_here() -> None:
    with open_executor() as executor:
        assert run(executor, worker_pid) == os.getpid()


def listening_ports() -> list[Any]:
    return [item.laddr for item in psutil.Process().net_connections() if item.status == "LISTEN"]


def own_threads() -> set[threading.Thread]:
    return {item for item in threading.enumerate() if not item.name.startswith(SHARED_THREADS)}


def assert_threads_end(before: set[threading.Thread]) -> None:
    """Wait for new threads to end; what an earlier test left to end by itself may be gone."""
    deadline = time.monotonic() + 60
    while own_threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not own_threads() - before


def test_embedded_cluster_listens_nowhere_and_leaves_nothing() -> None:
    process = psutil.Process()
    ports, threads, children = listening_ports(), own_threads(), process.children()
    settings = dask.config.get("distributed.worker.memory.spill")
    with embedded_client(3) as first, embedded_client(1) as second:
        assert run(DaskExecutor(first), add, 1, 2) + run(DaskExecutor(second), add, 3, 4) == 10
        assert sum(first.nthreads().values()) == 3
        assert set(listening_ports()) <= set(ports)
    assert_threads_end(threads)
    assert set(process.children()) <= set(children)
    assert dask.config.get("distributed.worker.memory.spill") == settings


def test_an_embedded_cluster_leaves_nothing_in_memory() -> None:
    folders = len(sys.path_importer_cache)
    with embedded_client(1) as client:
        nodes = [
            weakref.ref(node) for node in gc.get_objects() if issubclass(type(node), Scheduler)
        ]
        assert run(DaskExecutor(client), add, 1, 2) == 3
    del client
    gc.collect()
    others = {id(node) for node in gc.get_objects() if issubclass(type(node), Scheduler)}
    assert nodes
    assert sum(node() is not None for node in nodes) == len(others) <= len(nodes) - 1
    assert len(sys.path_importer_cache) <= folders


def test_embedded_cluster_ends_with_an_error_too() -> None:
    threads = own_threads()
    with pytest.raises(SourceError, match="41"), open_executor() as executor:
        run(executor, fail, "caused")
    assert_threads_end(threads)


def test_a_wait_that_runs_out_as_the_cluster_ends_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(report_unless_ended)
    for error in (TimeoutError("waited"), ValueError("wrong")):
        left: asyncio.Future[None] = loop.create_future()
        left.set_exception(error)
        del left, error
        gc.collect()
    loop.close()
    assert "waited" not in caplog.text
    assert "ValueError: wrong" in caplog.text
    with embedded_client(1) as client:
        assert client.loop.asyncio_loop.get_exception_handler() is report_unless_ended


def test_builds_run_inside_a_running_event_loop() -> None:
    """As in a notebook."""

    async def notebook() -> tuple[int, str]:
        with open_executor() as executor:
            total = run(executor, add, 20, 3)
        with pytest.raises(NotReadyError) as caught:
            run(SerialExecutor(), fail, "not ready", key="cell")
        return total, caught.value.__notes__[0]

    assert asyncio.run(notebook()) == (23, "in task cell")


def test_distributed_is_not_imported_to_look_for_a_client() -> None:
    code = """
import sys
from zindex.execution.executor import SerialExecutor, ambient_client, open_executor, run_builds
assert ambient_client() is None
with open_executor(SerialExecutor()) as executor:
    async def main():
        return await executor.run(len, "abc", key="task")
    assert run_builds(main()) == 3
assert "distributed" not in sys.modules
assert "dask" not in sys.modules
"""
    run_fresh("-c", code, check=True)
