"""Helper threads for kernel calls, which start within microseconds.

Submitting futures to a pool takes as long as reading a batch. A helper that starts late, because
other Python code holds the GIL, finds all work claimed, and the caller does not wait for it.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

#: Claims and executes units of work until none are left, and returns how many it executed.
Work: TypeAlias = Callable[[], int]


class _Job:
    """One helper's share of a call."""

    __slots__ = ("count", "ended", "is_started", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_started = False
        self.count = 0
        self.ended = threading.Lock()
        self.ended.acquire()


class _Helpers:
    """The helper threads of this process, all daemons."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start without threads, as in a forked child."""
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.size = 0

    def submit(self, job: _Job, size: int) -> None:
        """Submit a job; start threads until there are ``size``."""
        while self.size < size:
            self.size += 1
            threading.Thread(
                target=_help, args=(self.jobs,), name="zindex-helper", daemon=True
            ).start()
        self.jobs.put(job)


def _help(jobs: SimpleQueue[_Job]) -> None:
    """Run jobs forever."""
    while True:
        job = jobs.get()
        job.is_started = True
        try:
            job.count = job.work()
        finally:
            job.ended.release()
        del job  # release its arrays before the next job


_helpers = _Helpers()
os.register_at_fork(after_in_child=_helpers.reset)


def run_with_helpers(work: Work, num_threads: int) -> int:
    """Execute work in this thread and in helpers that start in time; return the units done.

    Parameters
    ----------
    work
        Called by each thread; releases the GIL most of the time. Once a call has returned, later
        calls must find nothing to do.
    num_threads
        Maximum number of threads, including this one.
    """
    jobs = [_Job(work) for _ in range(num_threads - 1)]
    for job in jobs:
        _helpers.submit(job, len(jobs))
    try:
        count = work()
    finally:
        # A helper that has not started by now finds nothing to do.
        started = [job for job in jobs if job.is_started]
        for job in started:
            job.ended.acquire()
    return count + sum(job.count for job in started)
