"""Run tasks in processes of this machine, for tasks that hold the GIL."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing
from typing import Any, TypeVar

from zindex.errors import ClusterLostError, ConfigError
from zindex.execution.executor import Executor, SerialExecutor, open_executor
from zindex.execution.worker_tasks import (
    Shared,
    call_interruptibly,
    die_with,
    masking_interrupts,
    named,
    wake,
)

R = TypeVar("R")


class ProcessExecutor(SerialExecutor):
    """Runs tasks in processes connected to this one by pipes; no ports are opened.

    Parameters
    ----------
    num_processes
        Concurrent tasks; all processes start with the first task.
    tasks
        Functions that will be run: processes import their modules at startup.

    Raises
    ------
    ConfigError
        If ``num_processes`` is below 1.
    """

    def __init__(self, num_processes: int, *tasks: Callable[..., Any]) -> None:
        if num_processes < 1:
            raise ConfigError(f"there must be at least one process, got {num_processes}")
        super().__init__()
        self.num_threads = num_processes
        # A fork would copy locks that other threads hold.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(num_processes, spawn, die_with, (os.getpid(), tasks))
        self._is_started = False

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result.

        Raises
        ------
        ClusterLostError
            If a process died running its task, or could not start.
        """
        with named(key):
            try:
                self._start()
                done = await asyncio.wrap_future(
                    self._pool.submit(call_interruptibly, function, args, key)
                )
            except BrokenProcessPool as error:
                raise ClusterLostError(
                    "a process of this machine ended during its task, perhaps out of memory, or "
                    "could not start, since the calling script runs its work when it is imported: "
                    'put that below `if __name__ == "__main__":`; finished work stays, and the '
                    "same call resumes from there"
                ) from error
            outcome: R = done.unpack(self.timeline)
        return outcome

    def _start(self) -> None:
        """Start all processes at once; the pool alone would start one per pending task."""
        if not self._is_started:
            self._is_started = True
            with masking_interrupts(signal.SIG_BLOCK):
                for _ in range(self.num_threads):
                    self._pool.submit(wake)

    async def hold(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a task here and return its result; each process caches one copy of it."""
        return Shared(function(*args))

    def close(self) -> None:
        """End the processes; pending tasks never start."""
        self._pool.shutdown(cancel_futures=True)


def choose_executor(
    client: Any, num_processes: int | None, *tasks: Callable[..., Any]
) -> AbstractContextManager[Executor]:
    """Yield the executor of a client, of this process, or of several processes.

    Raises
    ------
    ConfigError
        If a client and a number of processes are both given, or the number is below 1.
    """
    if num_processes is None:
        return open_executor(client)
    if client is not None:
        raise ConfigError(
            "client (--scheduler) and num_processes (--processes) both say where the work is done; "
            "give one of them"
        )
    if num_processes == 1:
        return open_executor(SerialExecutor())
    return closing(ProcessExecutor(num_processes, *tasks))
