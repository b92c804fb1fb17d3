"""Run tasks inline, in threads or on a Dask cluster, and choose among them.

Builds are coroutines that await tasks; an executor decides where a task runs. A task is a
module-level function of small arguments that writes its own shards and returns receipts or counts.
An array that later tasks need stays on the worker that computed it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar, Unpack

from zindex.errors import ConfigError
from zindex.execution.dask_executor import DaskExecutor, TaskOptions
from zindex.execution.reconnecting_client import connect_client
from zindex.execution.timeline import Timeline
from zindex.execution.worker_tasks import named
from zindex.io.machine import count_cpus
from zindex.io.request_threads import DaemonPool

R = TypeVar("R")

# A task that writes its shard waits for about as long as it computes.
_NUM_IO_THREADS = 2

#: A reference to a result on a worker; only usable as an argument of later tasks.
Held = Any


class Executor(Protocol):
    """Runs the tasks of a build."""

    @property
    def num_threads(self) -> int:
        """Concurrent tasks."""

    @property
    def overhead(self) -> float:
        """Seconds per task in which no other task can be submitted."""

    @property
    def timeline(self) -> Timeline:
        """Records the tasks."""

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result; higher priorities start first."""

    async def hold(
        self, function: Callable[..., Any], *args: Any, **task: Unpack[TaskOptions]
    ) -> Held:
        """Run one task and keep its result on the worker, as an argument of later tasks.

        The result is freed with the last reference to the returned object. Results that later tasks
        use together should have neighbouring positions in [0, 1), so that few are transferred.
        """


class SerialExecutor:
    """Runs every task immediately in this thread: the reference implementation of an executor."""

    num_threads = 1
    overhead = 0.0

    def __init__(self, timeline: Timeline | None = None) -> None:
        self.timeline = timeline or Timeline()

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        with named(key), self.timeline.span(key):
            return function(*args)

    async def hold(
        self, function: Callable[..., Any], *args: Any, **task: Unpack[TaskOptions]
    ) -> Held:
        """Run one task and return its result."""
        return await self.run(function, *args, key=task["key"], priority=task.get("priority", 0))


class ThreadExecutor(SerialExecutor):
    """Runs tasks in daemon threads, highest priority first; kernels release the GIL.

    A background build must not outlive the training run that started it.

    Parameters
    ----------
    num_threads
        Concurrent tasks; None means one per core, plus two that wait for the disk.
    timeline
        Records the tasks.
    """

    def __init__(self, num_threads: int | None = None, timeline: Timeline | None = None) -> None:
        super().__init__(timeline)
        self.num_threads = num_threads or count_cpus() + _NUM_IO_THREADS
        self._pool = DaemonPool(self.num_threads, "zindex-task")

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        with named(key):
            timed = self.timeline.span(key)(function)
            return await asyncio.wrap_future(self._pool.submit(timed, *args, priority=priority))

    def close(self) -> None:
        """Wait for the running tasks and end the threads; pending tasks never start."""
        self._pool.stop()


@contextmanager
def open_executor(client: Any = None, timeline: Timeline | None = None) -> Iterator[Executor]:
    """Yield the executor of a client: the given one, the ambient one, or threads of this process.

    Parameters
    ----------
    client
        A ``distributed.Client``, the address of a scheduler, an ``Executor``, or None. With None
        the process's current client is used, or else threads: kernels release the GIL.
    timeline
        Records the tasks; a given executor has its own.

    Raises
    ------
    ConfigError
        If no scheduler answers at the address, or the client is something else.
    """
    if isinstance(client, str):
        with connect_client(client) as connected:
            yield DaskExecutor(connected, timeline)
    elif hasattr(client, "submit") and hasattr(client, "asynchronous"):
        yield DaskExecutor(client, timeline)
    elif hasattr(client, "run"):
        yield client
    elif client is not None:
        raise ConfigError(
            f"client must be a distributed.Client or a scheduler's address, got {client!r}; "
            "connect a client to the cluster first"
        )
    elif (ambient := ambient_client()) is not None:
        yield DaskExecutor(ambient, timeline)
    else:
        with closing(ThreadExecutor(timeline=timeline)) as threads:
            yield threads


#: Clients that are connecting in the background; once connected, they are the process's default.
coming_clients: list[Future[Any]] = []


def ambient_client() -> Any:
    """Return the process's current Dask client, or None; never imports distributed.

    Waits for a client that is connecting.
    """
    for client in coming_clients:
        client.result()
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


@contextmanager
def embedded_client(num_threads: int | None = None) -> Iterator[Any]:
    """Start a Dask cluster inside this process, and end it with the block.

    Parameters
    ----------
    num_threads
        Threads of its single worker; None means one per core, plus two that wait for the disk.
        Kernels release the GIL.
    """
    import dask
    from distributed import Client, Scheduler, SpecCluster, Worker

    settings = {
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.admin.tick.limit": "1h",
        "distributed.worker.profile.enabled": False,  # displayed on dashboard pages, which it lacks
    }
    options = {"protocol": "inproc://"}
    scheduler = {"cls": without_pages(Scheduler), "options": options}
    size = {"nthreads": num_threads or count_cpus() + _NUM_IO_THREADS, "memory_limit": 0}
    worker = {"cls": without_pages(Worker), "options": options | size}
    with (
        _forgotten_nodes(),
        dask.config.set(settings),
        SpecCluster({0: worker}, scheduler, silence_logs=logging.WARNING) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.loop.asyncio_loop.set_exception_handler(report_unless_ended)
        yield client


@contextmanager
def _forgotten_nodes() -> Iterator[None]:
    """Release what Dask and Python keep of the nodes of a block: 0.7 MB of handlers and folders."""
    import distributed.core

    known = set(sys.path_importer_cache)
    yield
    # An unbounded cache, keyed by bound methods, which keep their nodes alive.
    getattr(distributed.core._expects_comm, "cache_clear", int)()
    for path in sys.path_importer_cache.keys() - known:
        if not os.path.exists(path):  # a node's scratch folder, which Dask adds to sys.path
            sys.path_importer_cache.pop(path, None)


def report_unless_ended(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an unhandled error, unless it is a timeout of an event loop that has ended.

    Dask's message batches wait for each other with a timeout of milliseconds, and closing a
    cluster does not cancel them.
    """
    if loop.is_running() or not isinstance(context.get("exception"), TimeoutError):
        loop.default_exception_handler(context)


@cache
def without_pages(node: Any) -> Any:
    """Return a subclass of a Dask node that serves no web pages.

    Without a dashboard Dask still serves metrics and a proxy to every machine that can reach it.
    """
    return type(node.__name__, (node,), {"start_http_server": lambda *args, **kwargs: None})


def run_builds(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to completion, even if this thread already has an event loop.

    Of several errors the first one is raised; those of tasks that it cancelled add no information.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(main)
    with ThreadPoolExecutor(1, thread_name_prefix="zindex-build") as pool:
        return pool.submit(_run, main).result()


def _run(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in a new event loop of this thread."""
    with raise_first():
        return asyncio.run(main)


async def run_together(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run coroutines concurrently; the first error cancels the others and is raised."""
    with raise_first():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in tasks]


@contextmanager
def raise_first() -> Iterator[None]:
    """Raise the first error of a group, or of nested groups, instead of the group."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
