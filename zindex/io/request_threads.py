"""Daemon threads for calls that may block for long, such as requests to object stores.

A request cannot be interrupted, and one to an unreachable store lasts until its deadline. In a
daemon thread it does not prevent the process from exiting; callers that wait for it get an error at
exit.
"""

import heapq
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from zindex.errors import StoreUnavailableError

R = TypeVar("R")
V = TypeVar("V")

#: Threads of a process that wait for responses, each to several requests to a shard.
NUM_THREADS = 64


class DaemonPool:
    """A thread pool of daemons, started on demand; jobs of higher priority run first.

    Parameters
    ----------
    size
        Maximum number of threads.
    name
        Name of each thread.
    """

    def __init__(self, size: int = NUM_THREADS, name: str = "zindex-request") -> None:
        self.size = size
        self.name = name
        # Priority, order, future, function and arguments; a thread that gets no future exits.
        self._jobs: list[tuple[Any, ...]] = []
        self._order = itertools.count()
        # One item per job: a SimpleQueue wakes a thread faster than any other primitive.
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., R], *args: Any, priority: float = 0) -> "Future[R]":
        """Schedule a call in a thread of the pool and return its future."""
        future: Future[R] = Future()
        self._put(priority, future, function, args)
        with self._lock:
            if not self._idle.acquire(blocking=False) and len(self._threads) < self.size:
                thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def close(self) -> None:
        """End the threads after the submitted jobs, without waiting for them."""
        self._end(-float("inf"))

    def stop(self) -> None:
        """Wait for the running jobs and end the threads; pending jobs never start."""
        self._end(float("inf"))
        for thread in self._threads:
            thread.join()

    def _end(self, priority: float) -> None:
        for _ in self._threads:
            self._put(priority, None, None, ())

    def _put(self, priority: float, *job: Any) -> None:
        # Atomic, because comparing order numbers, which are unique, runs no Python code.
        heapq.heappush(self._jobs, (-priority, next(self._order), *job))
        self._ready.put(None)

    def _work(self) -> None:
        """Run jobs until the pool ends."""
        while True:
            self._ready.get()
            _, _, future, function, args = heapq.heappop(self._jobs)
            if future is None:
                return
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:
                    settle(future.set_exception, error)
                else:
                    settle(future.set_result, result)
                    del result
            del future, function, args  # release their objects before the next job
            self._idle.release()


class ForkSafePool:
    """A `DaemonPool` of each process that uses it: threads do not survive a fork.

    Parameters
    ----------
    size, name
        As of `DaemonPool`.
    """

    def __init__(self, size: int, name: str) -> None:
        self._settings = size, name
        self._process = 0
        self._pool: DaemonPool | None = None

    @property
    def is_own(self) -> bool:
        """Whether this process has used it, not only one that it was forked from."""
        return self._process == os.getpid()

    def get(self) -> DaemonPool:
        """Return the pool of this process."""
        if self._pool is None or not self.is_own:
            self._process, self._pool = os.getpid(), DaemonPool(*self._settings)
        return self._pool

    def __del__(self) -> None:
        if self._pool is not None and self.is_own:
            self._pool.close()


def map_in_threads(num_threads: int, function: Callable[..., R], *values: Iterable[Any]) -> list[R]:
    """Return the results of a function in order, called in several threads or in this one.

    Values are taken from the iterable as they become available. The first error is raised.
    """
    if num_threads <= 1:
        return list(map(function, *values))
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(function, *values))


def map_ahead(
    function: Callable[[V], R],
    values: Iterable[V],
    *,
    num_threads: int,
    num_pending: int,
    name: str = "zindex-read-ahead",
) -> Generator[R, None, None]:
    """Yield the results of a function in order, with at most ``num_pending`` calls ahead."""
    pool = DaemonPool(num_threads, name)
    pending: deque[Future[R]] = deque()
    try:
        for value in values:
            pending.append(pool.submit(function, value))
            if len(pending) > num_pending:
                yield wait_for(pending.popleft())
        while pending:
            yield wait_for(pending.popleft())
    finally:
        for future in pending:
            future.cancel()
        pool.close()


def settle(complete: Callable[[Any], None], value: Any) -> None:
    """Call a method that completes a future, unless it was already failed at process exit."""
    with suppress(InvalidStateError):
        complete(value)


class _ExitHook:
    """Fails the futures that threads wait for when the process exits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start without waiting threads, as in a forked child."""
        self.event = threading.Event()
        self.awaited: set[Future[Any]] = set()
        self.pool = DaemonPool()

    def run(self) -> None:
        """Fail every awaited future: the interpreter is about to join the waiting threads."""
        self.event.set()
        while self.awaited:
            with suppress(KeyError):  # just completed
                settle(self.awaited.pop().set_exception, _ended())


_exit_hook = _ExitHook()
os.register_at_fork(after_in_child=_exit_hook.reset)
# The only hook that runs before threads are joined; concurrent.futures uses it too.
with suppress(RuntimeError):  # the process is exiting
    threading._register_atexit(_exit_hook.run)  # type: ignore[attr-defined]


def _ended() -> StoreUnavailableError:
    return StoreUnavailableError(
        "an object store must answer before the process ends, it has not; run again to go on"
    )


def wait_until_done(future: "Future[Any]") -> None:
    """Wait until a future is done; StoreUnavailableError if the process exits first."""
    if future.done():
        return
    _exit_hook.awaited.add(future)
    if _exit_hook.event.is_set():
        raise _ended()
    try:
        future.exception()
    finally:
        if future.done():  # otherwise other threads, which were not interrupted, would still wait
            _exit_hook.awaited.discard(future)


def wait_for(future: "Future[R]") -> R:
    """Return the result of a future; errors as of `wait_until_done`."""
    wait_until_done(future)
    return future.result()


def call(function: Callable[..., R], *args: Any) -> R:
    """Call a function in a daemon thread and return its result."""
    if threading.current_thread().daemon:
        return function(*args)
    if _exit_hook.event.is_set():
        raise _ended()
    return wait_for(_exit_hook.pool.submit(function, *args))


def pause(seconds: float) -> bool:
    """Sleep; return whether the process is exiting, so that retries are pointless."""
    return _exit_hook.event.wait(seconds)
