"""Tasks in processes of this machine, for those that hold Python's lock while they work."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from zindex.building.executor import SerialExecutor
from zindex.building.remote_tasks import call, named
from zindex.errors import ClusterLostError, ConfigError

R = TypeVar("R")

# Of Linux, <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


class ProcessExecutor(SerialExecutor):
    """Runs tasks in processes, which talk to this one through pipes alone; none listens anywhere.

    Parameters
    ----------
    num_processes
        Tasks that run at a time; a process is started when there is a task for it.

    Raises
    ------
    ConfigError
        If there are to be no processes.
    """

    def __init__(self, num_processes: int) -> None:
        if num_processes < 1:
            raise ConfigError(f"there must be at least one process, got {num_processes}")
        super().__init__()
        self.num_threads = num_processes
        # A fork would copy the threads' locks in whatever state they are.
        self._pool = ProcessPoolExecutor(
            num_processes,
            multiprocessing.get_context("spawn"),
            initializer=_end_with,
            initargs=(os.getpid(),),
        )

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result.

        Raises
        ------
        ClusterLostError
            If a process died over its task, or could not start.
        """
        with named(key):
            try:
                done = await asyncio.wrap_future(self._pool.submit(call, function, args, key))
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

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Any:
        """Run one task here and return its result, which goes along with those that take it."""
        return function(*args)

    def close(self) -> None:
        """End the processes; what has not begun never does."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def open_processes(num_processes: int) -> Iterator[ProcessExecutor]:
    """Give an executor whose processes end with the block."""
    executor = ProcessExecutor(num_processes)
    try:
        yield executor
    finally:
        executor.close()


def _end_with(parent: int) -> None:
    """Have the system kill this process as soon as another, which started it, is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
