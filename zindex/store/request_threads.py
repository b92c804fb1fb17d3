"""Threads that wait for object stores, and never keep a process from ending.

A request cannot be taken back, and one to a store that is gone lasts until its deadline. So it is
made by a daemon, which the end of the process leaves behind; whoever waits for it is told.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from zindex.errors import StoreUnavailableError

R = TypeVar("R")

#: Threads of one process that wait for answers, each to several requests to a shard.
NUM_THREADS = 64

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class DaemonPool:
    """Threads that do one job after another; they start as they are needed.

    Parameters
    ----------
    size
        Threads at most.
    name
        How their names begin.
    """

    def __init__(self, size: int = NUM_THREADS, name: str = "zindex-request") -> None:
        self.size = size
        self.name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._num_threads = 0

    def submit(self, function: Callable[..., R], *args: Any) -> "Future[R]":
        """Have a thread call a function, and return the promise of its result."""
        future: Future[R] = Future()
        self._jobs.put((future, function, args))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._num_threads < self.size:
                threading.Thread(
                    target=_work, args=(self._jobs, self._idle), name=self.name, daemon=True
                ).start()
                self._num_threads += 1
        return future

    def map(self, function: Callable[..., R], values: Iterable[Any]) -> Iterator[R]:
        """Yield the results of a function in the order of its values; all calls begin at once."""
        futures = [self.submit(function, value) for value in values]
        return (wait_for(future) for future in futures)

    def close(self) -> None:
        """Let the threads end when they have done what was submitted; nobody waits for them."""
        with self._lock:
            for _ in range(self._num_threads):
                self._jobs.put(None)


def _work(jobs: "SimpleQueue[_Job | None]", idle: threading.Semaphore) -> None:
    """Do one job after another."""
    while (job := jobs.get()) is not None:
        future, function, args = job
        try:
            result = function(*args)
        except BaseException as error:
            _settle(future, error, is_error=True)
        else:
            _settle(future, result, is_error=False)
            del result
        del job, future, function, args  # or what they hold lives until the next one
        idle.release()


def _settle(future: "Future[Any]", value: Any, *, is_error: bool) -> None:
    """Keep a promise, unless whoever waited was told something else meanwhile."""
    with suppress(InvalidStateError):
        if is_error:
            future.set_exception(value)
        else:
            future.set_result(value)


class _Ending:
    """What is told to those who wait when the process ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Know of nobody, as in a new process."""
        self.event = threading.Event()
        self.waiting: set[Future[Any]] = set()
        self.pool = DaemonPool()

    def run(self) -> None:
        """Tell all who wait that nothing comes; the interpreter is about to join their threads."""
        self.event.set()
        while self.waiting:
            with suppress(KeyError):  # it was told just now
                _settle(self.waiting.pop(), _ended(), is_error=True)


_ending = _Ending()
os.register_at_fork(after_in_child=_ending.reset)
# The only hook that comes before threads are joined; that of concurrent.futures is the same.
with suppress(RuntimeError):  # it ends already
    threading._register_atexit(_ending.run)  # type: ignore[attr-defined]


def _ended() -> StoreUnavailableError:
    return StoreUnavailableError(
        "an object store must answer before the process ends, it has not; run again to go on"
    )


def wait_until_done(future: "Future[Any]") -> None:
    """Wait until a promise is kept or broken; StoreUnavailableError if the process ends before."""
    if future.done():
        return
    _ending.waiting.add(future)
    if _ending.event.is_set():
        raise _ended()
    try:
        future.exception()
    finally:
        if future.done():  # or others, who were not interrupted, still wait
            _ending.waiting.discard(future)


def wait_for(future: "Future[R]") -> R:
    """Return what a promise brings; errors as of `wait_until_done`."""
    wait_until_done(future)
    return future.result()


def call(function: Callable[..., R], *args: Any) -> R:
    """Return what a function that may take long returns, called where it keeps nothing alive."""
    if threading.current_thread().daemon:
        return function(*args)
    if _ending.event.is_set():
        raise _ended()
    return wait_for(_ending.pool.submit(function, *args))


def pause(seconds: float) -> bool:
    """Sleep; return whether the process ends, so that nothing is worth another try."""
    return _ending.event.wait(seconds)
