"""Run tasks on a Dask cluster that may lose workers, or its scheduler with all state.

Dask itself retries the tasks of a lost worker. The tasks of a lost scheduler are resubmitted to its
replacement: tasks are idempotent and check the disk first, so finished work is not repeated.
Results held by lost workers are recomputed for the tasks that need them.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Required, TypedDict, TypeVar, Unpack
from weakref import ReferenceType, ref

from zindex.errors import ClusterLostError, ConfigError
from zindex.execution.task_limit import TaskLimit
from zindex.execution.timeline import Timeline
from zindex.execution.worker_tasks import call, keep, named
from zindex.io.backoff import Backoff
from zindex.io.machine import count_cpus
from zindex.io.request_threads import ForkSafePool

R = TypeVar("R")

logger = logging.getLogger(__name__)

#: Seconds that a build waits for a lost scheduler, and for one that is dispensable.
PATIENCE, SHORT_PATIENCE = 300.0, 60.0
# Submitted tasks per thread; submitted tasks do not depend on each other.
_TASKS_PER_THREAD = 16
# A task that is lost more often is not resubmitted.
_MAX_LOSSES = 10
# Seconds between counts of the cluster's threads, because workers may join late.
_COUNT_SECONDS = 2.0
# Timeout of a count; a slower scheduler is busy or gone.
_COUNT_TIMEOUT = 5.0
# Polling intervals of a disconnected client, and of a connected one with long tasks.
_POLL_SECONDS, _LONG_POLL_SECONDS = 0.1, 30.0
# Backoff before a lost task is resubmitted: the scheduler may be lost again immediately.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
# Reasons of cancellations that the build did not request.
_LOST_REASONS = {"scheduler-connection-lost", "scheduler-restart", "lost dependencies"}
_GO_ON = "finished shards stay on disk, and the same build resumes from them"


class TaskOptions(TypedDict, total=False):
    """Options of a task whose result stays on its worker."""

    #: Name of the task.
    key: Required[str]
    #: Higher priorities start first.
    priority: int
    #: Position in [0, 1) among the workers.
    place: float | None


class _LostTaskError(Exception):
    """The outcome of a task was lost with the scheduler; the task itself may have succeeded."""


@dataclass(eq=False)
class _Task:
    """A task, with everything needed to recompute its result."""

    run_remotely: Callable[..., Any]
    function: Callable[..., Any]
    #: Held results are replaced by their tasks, since references to them would never be freed.
    args: tuple[Any, ...]
    key: str
    priority: int = 0
    place: float | None = None
    held: "ReferenceType[_HeldResult] | None" = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _HeldResult:
    """A result that stays on a worker for the lifetime of this object."""

    def __init__(self, task: _Task, future: Any) -> None:
        self.task = task
        self.future = future


class DaskExecutor:
    """Runs tasks on a Dask cluster.

    Parameters
    ----------
    client
        A synchronous ``distributed.Client``.
    timeline
        Records the tasks.
    patience
        Seconds to wait for a lost scheduler; the client's own timeout also ends the wait. None for
        `PATIENCE`, or `SHORT_PATIENCE` if the client is dispensable: then, once the scheduler is
        permanently lost, tasks run in threads of this process and detect finished work on disk.
    """

    #: Seconds per task of the client, which are those of the scheduler as well.
    overhead = 3e-3

    def __init__(
        self, client: Any, timeline: Timeline | None = None, *, patience: float | None = None
    ) -> None:
        if client.asynchronous:
            raise ConfigError(
                "client must be a synchronous distributed.Client, got an asynchronous one; "
                "create it without asynchronous=True"
            )
        self.client = client
        self.timeline = timeline or Timeline()
        #: Whether tasks run here once the scheduler is permanently lost.
        self._goes_on: bool = getattr(client, "is_dispensable", False)
        if patience is None:
            patience = SHORT_PATIENCE if self._goes_on else PATIENCE
        self.patience = patience
        self._threads_here: ForkSafePool | None = None
        self._address = getattr(getattr(client, "scheduler", None), "address", "?")
        #: Since the scheduler was lost.
        self._lost: Backoff | None = None
        self._threads: list[str] = []
        self._next_count = -math.inf
        self._limit = TaskLimit(lambda: _TASKS_PER_THREAD * self.num_threads)

    @property
    def num_threads(self) -> int:
        """Threads of the connected workers, cached for a moment."""
        return max(1, len(self._list_threads()))

    def _list_threads(self) -> list[str]:
        """Return the address of each thread's worker."""
        now = time.monotonic()
        if now >= self._next_count:
            # `_wait_for_scheduler` handles a lost scheduler.
            with suppress(Exception):
                if self.client.status == "running":
                    counts = sorted(self.client.nthreads(callback_timeout=_COUNT_TIMEOUT).items())
                    self._threads = [address for address, count in counts for _ in range(count)]
            self._next_count = time.monotonic() + _COUNT_SECONDS
        return self._threads

    def _worker_at(self, place: float | None) -> str | None:
        """Return the worker for a position; workers share [0, 1) in proportion to their threads."""
        threads = self._list_threads()
        return None if place is None or not threads else threads[int(place * len(threads))]

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result.

        Raises
        ------
        ClusterLostError
            If the scheduler is permanently lost, or workers die running the task.
        """
        with named(key):
            task = _Task(call, function, _tasks_of(args), key, priority)
            _, done = await self._complete(task, fetch=True)
            outcome: R = done.unpack(self.timeline)
        return outcome

    async def hold(
        self, function: Callable[..., Any], *args: Any, **task: Unpack[TaskOptions]
    ) -> Any:
        """Run one task whose result stays on its worker, and return a reference to it."""
        with named(task["key"]):
            return await self._make(_Task(keep, function, _tasks_of(args), **task))

    async def _make(self, task: _Task) -> _HeldResult:
        """Return the held result of a task, computing it unless it exists."""
        # One of the tasks that need it computes it.
        async with task.lock:
            held = None if task.held is None else task.held()
            if held is not None and self._is_there(held.future):
                return held
            if task.held is not None:
                logger.info("recomputing %s: its result was lost with the scheduler", task.key)
            future, _ = await self._complete(task, fetch=False)
            if held is None:
                held = _HeldResult(task, future)
                task.held = ref(held)
            held.future = future
            return held

    def _is_there(self, future: Any) -> bool:
        """Return whether the result of a future can be an argument."""
        is_here = isinstance(future, Future)
        return not future.cancelled() and (is_here or self._threads_here is None)

    async def _complete(self, task: _Task, *, fetch: bool) -> tuple[Any, Any]:
        """Run a task; return its Dask future, and its result if ``fetch``."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        num_losses = 0
        while num_losses < _MAX_LOSSES:
            if self._threads_here is not None:
                return await self._complete_here(task)
            try:
                connection = await self._wait_for_scheduler()
            except ClusterLostError as error:
                if not self._goes_on or self.client.status in ("closing", "closed"):
                    raise
                if self._threads_here is None:
                    logger.warning("%s; continuing in threads of this process", error)
                    self._threads_here = ForkSafePool(count_cpus(), "zindex-task")
                continue
            # Results recomputed for this task alone must be kept until it is done.
            held = [await self._make(arg) if isinstance(arg, _Task) else arg for arg in task.args]
            args = tuple(arg.future if isinstance(arg, _HeldResult) else arg for arg in held)
            try:
                async with self._limit.slot(task.priority):
                    if self._is_lost(connection):
                        continue  # lost while waiting for a slot; the arguments may be lost too
                    future = self._submit(task, args)
                    return future, await self._finish(future, connection, fetch=fetch)
            except _LostTaskError as lost:
                logger.debug("%s is resubmitted: %s", task.key, lost)
            num_losses += 1
            await backoff.wait_async()
        raise ClusterLostError(
            f"task {task.key} must be done before the scheduler at {self._address} is lost, it was "
            f"lost {_MAX_LOSSES} times; look into the scheduler's log; {_GO_ON}"
        )

    async def _complete_here(self, task: _Task) -> tuple[Any, Any]:
        """Run a task in a thread of this process, without the cluster; as of `_complete`."""
        assert self._threads_here is not None
        held = [await self._make(arg) if isinstance(arg, _Task) else arg for arg in task.args]
        args = tuple(arg.future.result() if isinstance(arg, _HeldResult) else arg for arg in held)
        work = task.run_remotely, task.function, args, task.key
        future = self._threads_here.get().submit(*work, priority=task.priority)
        return future, await asyncio.wrap_future(future)

    async def _wait_for_scheduler(self) -> Any:
        """Return the client's connection, once it is connected."""
        while (status := self.client.status) != "running":
            if self._lost is None:
                self._lost = Backoff(_POLL_SECONDS, timeout=self.patience)
                logger.warning(
                    "the Dask scheduler at %s is lost; waiting for one at this address",
                    self._address,
                )
            lost = self._lost
            if status in ("closing", "closed") or not await lost.wait_async():
                raise ClusterLostError(
                    f"the Dask scheduler at {self._address} must be there while a build runs, it "
                    f"was lost and not found again within {lost.elapsed:.0f} s; {_GO_ON} once a "
                    "scheduler and workers are started (Client(timeout=...) waits longer for one)"
                )
        if self._lost is not None:
            seconds = self._lost.elapsed
            logger.warning("the Dask scheduler at %s is back after %.1f s", self._address, seconds)
            self._lost = None
            # Pending calls to the lost scheduler pause for long between attempts.
            self.client.loop.add_callback(self.client.rpc.remove, self._address)
        return self.client.scheduler_comm

    def _submit(self, task: _Task, args: tuple[Any, ...]) -> Any:
        """Submit a task and return its Dask future."""
        worker = self._worker_at(task.place)
        # Dask runs only the first of two tasks with the same name. But tasks with the same key may
        # differ: a second attempt must check the disk again, or the grid differs.
        name = f"{task.key}-{uuid.uuid4().hex[:12]}"
        try:
            return self.client.submit(
                task.run_remotely,
                task.function,
                args,
                task.key,
                key=name,
                priority=task.priority,
                retries=2,
                pure=False,
                workers=worker,
                # Another worker may be idle, and this one may be lost.
                allow_other_workers=worker is not None,
            )
        except Exception as error:
            if self.client.status in ("closing", "closed"):
                raise _LostTaskError(str(error)) from error
            raise

    def _is_lost(self, connection: Any) -> bool:
        """Return whether the connection over which a task was submitted is lost.

        Dask reports the loss of tasks that it knows at that moment. The loss of a task submitted
        right then is not reported until a scheduler is found, and that of tasks of a closed client
        never.
        """
        is_other = connection is None or self.client.scheduler_comm is not connection
        return is_other or self.client.status == "closed"

    async def _finish(self, future: Any, connection: Any, *, fetch: bool) -> Any:
        """Wait for a Dask future; return its result if ``fetch``."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()

        def pass_on(done: Any) -> None:
            """Pass the outcome to the waiting coroutine; runs in the client's thread."""
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            outcome = done.result() if error is None else None
            with suppress(RuntimeError):  # the build is over, and its event loop is closed
                loop.call_soon_threadsafe(settle, finished, outcome, _judge(future, error))

        # Not a task of this loop: cancelling it would also cancel fetching other results.
        waiting = _get_outcome(future, fetch)
        try:
            outcome = asyncio.run_coroutine_threadsafe(waiting, self.client.loop.asyncio_loop)
        except RuntimeError as error:
            waiting.close()
            raise _LostTaskError("the client is closed") from error
        try:
            outcome.add_done_callback(pass_on)
            while not self._is_lost(connection):
                if (await asyncio.wait([finished], timeout=_LONG_POLL_SECONDS))[0]:
                    return finished.result()
            raise _LostTaskError("the connection to the scheduler is lost")
        finally:
            if finished.cancel():  # the caller was cancelled
                with suppress(Exception):  # a closed client
                    future.cancel()


def _tasks_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with held results replaced by their tasks."""
    return tuple(arg.task if isinstance(arg, _HeldResult) else arg for arg in args)


async def _get_outcome(future: Any, fetch: bool) -> Any:
    """Wait for a future in the client's event loop; fetch its result only if ``fetch``."""
    while not fetch:
        await future.exception(asynchronous=True)
        if future.status == "finished":
            return None
        fetch = future.status in ("cancelled", "error")
    return await future.client.gather(future, asynchronous=True)


def _judge(future: Any, error: BaseException | None) -> BaseException | None:
    """Return the error of a task, or a `_LostTaskError` if the scheduler lost it."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    if isinstance(error, KilledWorker):
        return _make_killed_error(error)
    if error is None or future.status == "error":
        return error
    is_lost = future.client.status in ("closing", "closed")
    if isinstance(error, FutureCancelledError):
        is_lost = is_lost or error.reason in _LOST_REASONS
    else:
        # The connection broke during the transfer of the result.
        is_lost = is_lost or isinstance(error, OSError | asyncio.CancelledError)
    return _LostTaskError(str(error)) if is_lost else error


def _make_killed_error(error: Any) -> ClusterLostError:
    """Return the error of a task whose workers died repeatedly."""
    name, worker = str(error.task).rpartition("-")[0], error.last_worker
    memory = f" with {worker.memory_limit / 2**30:.1f} GiB" if worker.memory_limit else ""
    return ClusterLostError(
        f"task {name} must leave its worker alive, {error.allowed_failures + 1} workers died over "
        f"it, the last at {worker.address}{memory}; read the end of that worker's log: as a rule "
        "memory ran out, then give workers more memory or fewer threads, or make the grid's "
        f"shards shorter; {_GO_ON}"
    )


def settle(finished: "asyncio.Future[Any]", outcome: Any, error: BaseException | None) -> None:
    """Set the outcome unless the waiting coroutine was cancelled."""
    if finished.done():
        return
    if error is None:
        finished.set_result(outcome)
    else:
        finished.set_exception(error)
