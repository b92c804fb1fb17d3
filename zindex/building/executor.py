"""Where tasks run: inline, or on a Dask cluster.

Builds are coroutines that await tasks; an executor decides where a task runs. A task is a module
level function of small arguments that writes its own shards and returns receipts or counts. An
array that a later task needs is held where it was made.
"""

import asyncio
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from zindex.building.timeline import Span, Timeline, measure
from zindex.errors import ConfigError, ZindexError

R = TypeVar("R")

# A task that writes its shard waits for about as long as it computes.
_WAITING_THREADS = 2
# Seconds after which the threads of a cluster are counted anew: workers may join late.
_COUNT_SECONDS = 2.0

#: Stands for a result that stays on a worker; an argument of later tasks, and nothing else.
Held = Any


class Executor(Protocol):
    """What a build needs from the place where its tasks run."""

    @property
    def num_threads(self) -> int:
        """Tasks that run at a time."""
        ...

    @property
    def timeline(self) -> Timeline:
        """Where the tasks are recorded."""
        ...

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result; higher priorities start first."""
        ...

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Held:
        """Run one task whose result stays where it was made; a later task takes it as argument.

        The result lives until the last reference to what is returned is gone. Results that later
        tasks take together come from neighbouring places in [0, 1), so that few of them travel.
        """
        ...


class SerialExecutor:
    """Runs every task at once, in this thread: the readable definition of an executor."""

    num_threads = 1

    def __init__(self, timeline: Timeline | None = None) -> None:
        self.timeline = timeline or Timeline()

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        with _named(key), self.timeline.span(key):
            return function(*args)

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Held:
        """Run one task and return its result."""
        return await self.run(function, *args, key=key, priority=priority)


class DaskExecutor:
    """Runs tasks on a Dask cluster.

    Parameters
    ----------
    client
        A synchronous ``distributed.Client``.
    timeline
        Where the tasks are recorded.
    """

    def __init__(self, client: Any, timeline: Timeline | None = None) -> None:
        if client.asynchronous:
            raise ConfigError(
                "client must be a synchronous distributed.Client, got an asynchronous one; "
                "create it without asynchronous=True"
            )
        self.client = client
        self.timeline = timeline or Timeline()
        self._threads: list[str] = []
        self._next_count = -math.inf

    @property
    def num_threads(self) -> int:
        """Tasks that run at a time on the workers that are there, or were a moment ago."""
        return max(1, len(self._list_threads()))

    def _list_threads(self) -> list[str]:
        """Return the address of each thread's worker."""
        now = time.monotonic()
        if now >= self._next_count:
            counts = sorted(self.client.nthreads().items())
            self._threads = [address for address, count in counts for _ in range(count)]
            self._next_count = now + _COUNT_SECONDS
        return self._threads

    def _worker_at(self, place: float | None) -> str | None:
        """Return the worker for what is made at a place, each having places by its threads."""
        threads = self._list_threads()
        return None if place is None or not threads else threads[int(place * len(threads))]

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        future = self._submit(_call, function, args, key, priority)
        done = await self._finish(future, key, fetch=True)
        self.timeline.add(done.spans)
        if done.error is not None:
            with _named(key):
                raise done.error
        outcome: R = done.outcome
        return outcome

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Held:
        """Run one task and return the Dask future of its result."""
        future = self._submit(_keep, function, args, key, priority, self._worker_at(place))
        await self._finish(future, key, fetch=False)
        return future

    def _submit(
        self,
        call: Callable[..., Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        key: str,
        priority: int,
        worker: str | None = None,
    ) -> Any:
        # Of two tasks of one name Dask runs the first only. Yet tasks of one key may differ: those
        # of a second attempt, which must look at the disk, or of another grid.
        name = f"{key}-{uuid.uuid4().hex[:12]}"
        return self.client.submit(
            call,
            function,
            args,
            key,
            key=name,
            priority=priority,
            retries=2,
            pure=False,
            workers=worker,
            # Another one may be idle, and this one may be gone.
            allow_other_workers=worker is not None,
        )

    async def _finish(self, future: Any, key: str, *, fetch: bool) -> Any:
        """Wait for a Dask future, and return its result if it is to be fetched."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()

        def pass_on(done: Any) -> None:
            """Hand the outcome to the waiting coroutine; runs in a thread of the client."""
            outcome, error = None, None
            try:
                if fetch or done.status != "finished":
                    outcome = done.result()
            except Exception as caught:
                error = caught
            with suppress(RuntimeError):  # the build is over, and its event loop closed
                loop.call_soon_threadsafe(_settle, finished, outcome, error)

        future.add_done_callback(pass_on)
        try:
            with _named(key):
                return await finished
        except asyncio.CancelledError:
            future.cancel()
            raise


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome of a task as it comes back from a worker."""

    outcome: Any
    error: ZindexError | None
    spans: list[Span]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The result of a task as it stays on a worker."""

    value: Any
    spans: list[Span]

    def __sizeof__(self) -> int:
        """Return the bytes of the value too: Dask weighs by them what to move and what to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def _call(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> _Done:
    """Run a task on a worker; our own errors are results, so that Dask does not try them again."""
    spans = [span for argument in args if isinstance(argument, _Kept) for span in argument.spans]
    try:
        with measure(key, spans):
            outcome = function(*_values(args))
    except ZindexError as error:
        return _Done(None, error, spans)
    return _Done(outcome, None, spans)


def _keep(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> _Kept:
    """Run a task on a worker whose result stays there."""
    spans: list[Span] = []
    with measure(key, spans):
        value = function(*_values(args))
    return _Kept(value, spans)


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments, with the results that earlier tasks left in place of their stand-ins."""
    return tuple(argument.value if isinstance(argument, _Kept) else argument for argument in args)


def _settle(finished: "asyncio.Future[Any]", outcome: Any, error: Exception | None) -> None:
    """Set the outcome unless the waiting coroutine was cancelled."""
    if finished.done():
        return
    if error is None:
        finished.set_result(outcome)
    else:
        finished.set_exception(error)


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Add the name of the task to an error that passes through."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key}")
        raise


@contextmanager
def open_executor(client: Any = None, timeline: Timeline | None = None) -> Iterator[Executor]:
    """Give the executor of a client: the given one, the ambient one, or an embedded cluster.

    Parameters
    ----------
    client
        A ``distributed.Client``, the address of a scheduler, an ``Executor``, or None. With None
        the process's current client is used; without one a cluster of this machine's cores starts
        inside this process, listens on no port, and ends with the block.
    timeline
        Where the tasks are recorded; a given executor has its own.

    Raises
    ------
    ConfigError
        If no scheduler answers at the address, or the client is something else.
    """
    if isinstance(client, str):
        with _connect(client) as connected:
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
        with embedded_client() as own:
            yield DaskExecutor(own, timeline)


def _connect(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    from distributed import Client

    try:
        return Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a Dask scheduler must answer at {address}, none does: {error}"
        ) from error


def ambient_client() -> Any:
    """Return the process's current Dask client, or None; never imports distributed."""
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
        Threads of its one worker; None means one per core, and two that wait for the disk
        meanwhile. Kernels release the GIL.
    """
    import dask
    from dask.system import CPU_COUNT
    from distributed import Client, Scheduler, SpecCluster, Worker

    settings = {
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.admin.tick.limit": "1h",
    }
    worker = {
        "cls": _without_pages(Worker),
        "options": {
            "protocol": "inproc://",
            "nthreads": num_threads or CPU_COUNT + _WAITING_THREADS,
            "memory_limit": 0,
        },
    }
    scheduler = {"cls": _without_pages(Scheduler), "options": {"protocol": "inproc://"}}
    with (
        dask.config.set(settings),
        SpecCluster({0: worker}, scheduler, silence_logs=logging.WARNING) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _without_pages(node: Any) -> Any:
    """Return a class of Dask's nodes that serves no web pages.

    Without a dashboard Dask still serves metrics and a proxy, to every machine that can reach it.
    """
    return type(node.__name__, (node,), {"start_http_server": lambda *args, **kwargs: None})


def run_builds(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, also where this thread already has an event loop.

    Of several errors the first is raised; the tasks that it cancelled say nothing new.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(main)
    with ThreadPoolExecutor(1, thread_name_prefix="zindex-build") as pool:
        return pool.submit(_run, main).result()


def _run(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in a new event loop of this thread."""
    try:
        return asyncio.run(main)
    except ExceptionGroup as group:
        error = _find_first(group)
        raise error from error.__cause__


async def run_together(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run coroutines side by side; the first error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as errors:
        error = _find_first(errors)
        raise error from error.__cause__
    return [task.result() for task in tasks]


def _find_first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group, or of the groups in it."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
