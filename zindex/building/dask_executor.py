"""Tasks on a Dask cluster, which may lose its workers, and its scheduler with all that it knew.

Dask itself runs the tasks of a lost worker again. The tasks of a lost scheduler are submitted again
to the one that is started in its place: each looks first at what is on disk, so nothing that was
finished is made twice. Results that workers held are made again for the tasks that take them.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from zindex.building.remote_tasks import call, keep, named
from zindex.building.timeline import Timeline
from zindex.building.window import Window
from zindex.errors import ClusterLostError, ConfigError

R = TypeVar("R")

logger = logging.getLogger(__name__)

#: Seconds that a build waits for a lost scheduler.
PATIENCE = 300.0
# Tasks that the scheduler has at a time, for each thread: none of them waits for another.
_TASKS_PER_THREAD = 16
# A task that is lost more often is not submitted again.
_MAX_LOSSES = 10
# Seconds after which the threads of a cluster are counted anew: workers may join late.
_COUNT_SECONDS = 2.0
# Seconds that a count may take; a scheduler that is slower is busy, or gone.
_COUNT_TIMEOUT = 5.0
# Seconds between looks at a client that is not connected, and at one whose tasks take long.
_POLL_SECONDS, _LONG_POLL_SECONDS = 0.1, 30.0
# Seconds before a lost task is submitted again: a scheduler may be lost again at once.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
# Why Dask cancels tasks that nobody asked it to cancel.
_LOST_REASONS = {"scheduler-connection-lost", "scheduler-restart", "lost dependencies"}
_GO_ON = "finished shards stay on disk, and the same build goes on from there"


class _LostTaskError(Exception):
    """A task's outcome is lost with the scheduler; the task itself may be right."""


@dataclass(eq=False)
class _Task:
    """A task, and so how its result is made again."""

    run_remotely: Callable[..., Any]
    function: Callable[..., Any]
    #: Held results appear as the tasks that make them: holding them too would never free them.
    args: tuple[Any, ...]
    key: str
    priority: int
    place: float | None = None
    held: "ReferenceType[_HeldResult] | None" = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _HeldResult:
    """A result that stays on a worker as long as this object lives."""

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
        Where the tasks are recorded.
    patience
        Seconds to wait for a lost scheduler; the client's own timeout ends the wait too.
    """

    def __init__(
        self, client: Any, timeline: Timeline | None = None, *, patience: float = PATIENCE
    ) -> None:
        if client.asynchronous:
            raise ConfigError(
                "client must be a synchronous distributed.Client, got an asynchronous one; "
                "create it without asynchronous=True"
            )
        self.client = client
        self.timeline = timeline or Timeline()
        self.patience = patience
        self._address = getattr(getattr(client, "scheduler", None), "address", "?")
        self._lost_since: float | None = None
        self._threads: list[str] = []
        self._next_count = -math.inf
        self._window = Window(lambda: _TASKS_PER_THREAD * self.num_threads)

    @property
    def num_threads(self) -> int:
        """Tasks that run at a time on the workers that are there, or were a moment ago."""
        return max(1, len(self._list_threads()))

    def _list_threads(self) -> list[str]:
        """Return the address of each thread's worker."""
        now = time.monotonic()
        if now >= self._next_count:
            # A scheduler that cannot tell is waited for elsewhere.
            with suppress(Exception):
                if self.client.status == "running":
                    counts = sorted(self.client.nthreads(callback_timeout=_COUNT_TIMEOUT).items())
                    self._threads = [address for address, count in counts for _ in range(count)]
            self._next_count = time.monotonic() + _COUNT_SECONDS
        return self._threads

    def _worker_at(self, place: float | None) -> str | None:
        """Return the worker for what is made at a place, each having places by its threads."""
        threads = self._list_threads()
        return None if place is None or not threads else threads[int(place * len(threads))]

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result.

        Raises
        ------
        ClusterLostError
            If the scheduler is lost for good, or workers die over the task.
        """
        with named(key):
            task = _Task(call, function, _tasks_of(args), key, priority)
            _, done = await self._complete(task, fetch=True)
            self.timeline.add(done.spans)
            if done.error is not None:
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
    ) -> Any:
        """Run one task whose result stays with its worker, and return what stands for it."""
        with named(key):
            return await self._make(_Task(keep, function, _tasks_of(args), key, priority, place))

    async def _make(self, task: _Task) -> _HeldResult:
        """Return the held result of a task, made now unless it is there."""
        # Of several tasks that miss it, one makes it.
        async with task.lock:
            held = None if task.held is None else task.held()
            if held is not None and not held.future.cancelled():
                return held
            if task.held is not None:
                logger.info("%s is made again: the result was lost with the scheduler", task.key)
            future, _ = await self._complete(task, fetch=False)
            if held is None:
                held = _HeldResult(task, future)
                task.held = ref(held)
            held.future = future
            return held

    async def _complete(self, task: _Task, *, fetch: bool) -> tuple[Any, Any]:
        """Return the Dask future of a task that is done, and its result if it is to be fetched."""
        num_losses = 0
        while num_losses < _MAX_LOSSES:
            connection = await self._wait_for_scheduler()
            # What is made again for this task alone must live until it is done.
            held = [await self._make(arg) if isinstance(arg, _Task) else arg for arg in task.args]
            args = tuple(arg.future if isinstance(arg, _HeldResult) else arg for arg in held)
            try:
                async with self._window.place(task.priority):
                    if self._is_lost(connection):
                        continue  # while it waited for its place, and so may be its arguments
                    future = self._submit(task, args)
                    return future, await self._finish(future, connection, fetch=fetch)
            except _LostTaskError as lost:
                logger.debug("%s is submitted again: %s", task.key, lost)
            await asyncio.sleep(min(_FIRST_PAUSE * 2**num_losses, _LONGEST_PAUSE))
            num_losses += 1
        raise ClusterLostError(
            f"task {task.key} must be done before the scheduler at {self._address} is lost, it was "
            f"lost {_MAX_LOSSES} times; look into the scheduler's log; {_GO_ON}"
        )

    async def _wait_for_scheduler(self) -> Any:
        """Wait until the client is connected, and return the connection."""
        while (status := self.client.status) != "running":
            if self._lost_since is None:
                self._lost_since = time.monotonic()
                logger.warning(
                    "the Dask scheduler at %s is lost; waiting for one at this address",
                    self._address,
                )
            waited = time.monotonic() - self._lost_since
            if status in ("closing", "closed") or waited > self.patience:
                raise ClusterLostError(
                    f"the Dask scheduler at {self._address} must be there while a build runs, it "
                    f"was lost and not found again within {waited:.0f} s; {_GO_ON} once a "
                    "scheduler and workers are started (Client(timeout=...) waits longer for one)"
                )
            await asyncio.sleep(_POLL_SECONDS)
        if self._lost_since is not None:
            waited = time.monotonic() - self._lost_since
            logger.warning("the Dask scheduler at %s is back after %.1f s", self._address, waited)
            self._lost_since = None
            # Calls that still try to reach the lost one pause between attempts for long.
            self.client.loop.add_callback(self.client.rpc.remove, self._address)
        return self.client.scheduler_comm

    def _submit(self, task: _Task, args: tuple[Any, ...]) -> Any:
        """Return the Dask future of a task that is submitted."""
        worker = self._worker_at(task.place)
        # Of two tasks of one name Dask runs the first only. Yet tasks of one key may differ: those
        # of a second attempt, which must look at the disk, or of another grid.
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
                # Another one may be idle, and this one may be gone.
                allow_other_workers=worker is not None,
            )
        except Exception as error:
            if self.client.status in ("closing", "closed"):
                raise _LostTaskError(str(error)) from error
            raise

    def _is_lost(self, connection: Any) -> bool:
        """Return whether the connection over which a task was submitted is gone.

        Dask says so of the tasks that it knows at that moment. Of one that is submitted right then
        it tells nothing before a scheduler is found, of those of a closed client nothing at all.
        """
        is_other = connection is None or self.client.scheduler_comm is not connection
        return is_other or self.client.status == "closed"

    async def _finish(self, future: Any, connection: Any, *, fetch: bool) -> Any:
        """Wait for a Dask future, and return its result if it is to be fetched."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()

        def pass_on(done: Any) -> None:
            """Hand the outcome to the waiting coroutine; runs in the client's thread."""
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            outcome = done.result() if error is None else None
            with suppress(RuntimeError):  # the build is over, and its event loop closed
                loop.call_soon_threadsafe(settle, finished, outcome, _judge(future, error))

        # Not a task of this loop: cancelling it would cancel what others fetch together with it.
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
            if finished.cancel():  # nobody waits for it any more
                with suppress(Exception):  # a client that is closed cancels nothing, and need not
                    future.cancel()


def _tasks_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with the tasks that make them in place of held results."""
    return tuple(arg.task if isinstance(arg, _HeldResult) else arg for arg in args)


async def _get_outcome(future: Any, fetch: bool) -> Any:
    """Wait for a future in the client's event loop; what is held stays where it is."""
    while not fetch:
        await future.exception(asynchronous=True)
        if future.status == "finished":
            return None
        fetch = future.status in ("cancelled", "error")
    return await future.client.gather(future, asynchronous=True)


def _judge(future: Any, error: BaseException | None) -> BaseException | None:
    """Return the error of a task as the build sees it: the task's own, or a loss."""
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
        # The connection broke while the result was on its way.
        is_lost = is_lost or isinstance(error, OSError | asyncio.CancelledError)
    return _LostTaskError(str(error)) if is_lost else error


def _make_killed_error(error: Any) -> ClusterLostError:
    """Return the error of a task whose workers died again and again."""
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
