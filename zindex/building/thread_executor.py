"""Tasks in threads of this process, by priority: there at once, where a cluster takes its time."""

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from zindex.building.executor import SerialExecutor

R = TypeVar("R")

# A task that writes its shard waits for about as long as it computes.
_WAITING_THREADS = 2


class ThreadExecutor(SerialExecutor):
    """Runs tasks in threads, those of the highest priority first; kernels release the GIL.

    Parameters
    ----------
    num_threads
        Tasks that run at a time; None means one for each core, and two that wait for the disk
        meanwhile.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        super().__init__()
        self.num_threads = num_threads or len(os.sched_getaffinity(0)) + _WAITING_THREADS
        self._tasks: queue.PriorityQueue[tuple[float, int, Future[Any], Callable[[], Any]]]
        self._tasks = queue.PriorityQueue()
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []

    def _start_thread(self) -> None:
        """Start one thread more."""
        name = f"zindex-task-{len(self._threads)}"
        # A daemon: a build that goes on behind a training run must not outlive it.
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """Run one task after the other, until there are no more."""
        while True:
            _, _, future, call = self._tasks.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except SystemExit:
                future.set_result(None)
                return
            except BaseException as error:
                future.set_exception(error)
            # Otherwise a waiting thread would keep the last result alive.
            del future, call

    def _submit(self, call: Callable[[], R], priority: float) -> "Future[R]":
        future: Future[R] = Future()
        self._tasks.put((-priority, next(self._order), future, call))
        return future

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        if len(self._threads) < self.num_threads:  # small builds have fewer tasks
            self._start_thread()
        try:
            return await asyncio.wrap_future(self._submit(lambda: function(*args), priority))
        except Exception as error:
            error.add_note(f"in task {key}")
            raise

    def close(self) -> None:
        """End the threads once their tasks are finished; what has not begun never does."""

        def end() -> None:
            raise SystemExit

        for _ in self._threads:
            self._submit(end, float("inf"))
        for thread in self._threads:
            thread.join()
