"""Tasks in processes of this machine, for those that hold Python's lock while they work."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from zindex.building.executor import SerialExecutor
from zindex.building.process_tasks import Shared, begin, call_here, wake
from zindex.building.remote_tasks import named
from zindex.errors import ClusterLostError, ConfigError

R = TypeVar("R")


class ProcessExecutor(SerialExecutor):
    """Runs tasks in processes, which talk to this one through pipes alone; none listens anywhere.

    Parameters
    ----------
    num_processes
        Tasks that run at a time; the processes are started together when the first task comes.
    tasks
        Functions that will be run: processes import what these need while they start.

    Raises
    ------
    ConfigError
        If there are to be no processes.
    """

    def __init__(self, num_processes: int, *tasks: Callable[..., Any]) -> None:
        if num_processes < 1:
            raise ConfigError(f"there must be at least one process, got {num_processes}")
        super().__init__()
        self.num_threads = num_processes
        # A fork would copy the threads' locks in whatever state they are.
        self._pool = ProcessPoolExecutor(
            num_processes,
            multiprocessing.get_context("spawn"),
            initializer=begin,
            initargs=(os.getpid(), tasks),
        )
        self._is_started = False

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result.

        Raises
        ------
        ClusterLostError
            If a process died over its task, or could not start.
        """
        with named(key):
            try:
                self._start()
                done = await asyncio.wrap_future(self._pool.submit(call_here, function, args, key))
            except BrokenProcessPool as error:
                raise ClusterLostError(
                    "a process of this machine died over its task, perhaps for want of memory, or "
                    "could not start, since the calling script runs its work when it is imported: "
                    'put that below `if __name__ == "__main__":`; finished work stays, and the '
                    "same call goes on from there"
                ) from error
            self.timeline.add(done.spans)
            if done.error is not None:
                raise done.error
        outcome: R = done.outcome
        return outcome

    def _start(self) -> None:
        """Start all processes: by itself the pool starts one for each task that waits."""
        if not self._is_started:
            self._is_started = True
            for _ in range(self.num_threads):
                self._pool.submit(wake)

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Any:
        """Run one task here and return its result, of which each process makes itself a copy."""
        return Shared(function(*args))

    def close(self) -> None:
        """End the processes; what has not begun never does."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def open_processes(num_processes: int, *tasks: Callable[..., Any]) -> Iterator[ProcessExecutor]:
    """Give an executor whose processes end with the block; see `ProcessExecutor`."""
    executor = ProcessExecutor(num_processes, *tasks)
    try:
        yield executor
    finally:
        executor.close()
