"""Threads that help with one kernel call: they begin within microseconds, and are never waited for.

A pool of futures takes as long to hand out work as a batch takes to read. A helper that comes
late, because other Python code runs, finds everything claimed, and whoever asked has gone on.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

#: Claims parts of some work until none are left, and returns how many it has done.
Work: TypeAlias = Callable[[], int]


class _Job:
    """One helper's part in some work."""

    __slots__ = ("begun", "count", "ended", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.begun = False
        self.count = 0
        self.ended = threading.Lock()
        self.ended.acquire()


class _Crew:
    """The helpers of this process; they end with it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without threads, as a child of a fork does."""
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.size = 0

    def ask(self, job: _Job, size: int) -> None:
        """Give a job to one of ``size`` threads, or more if there are more."""
        while self.size < size:
            self.size += 1
            threading.Thread(
                target=_help, args=(self.jobs,), name="zindex-helper", daemon=True
            ).start()
        self.jobs.put(job)


def _help(jobs: SimpleQueue[_Job]) -> None:
    """Do one job after another."""
    while True:
        job = jobs.get()
        job.begun = True
        try:
            job.count = job.work()
        finally:
            job.ended.release()
        del job  # or its arrays live until the next one


_crew = _Crew()
os.register_at_fork(after_in_child=_crew.reset)


def run_with_helpers(work: Work, num_threads: int) -> int:
    """Do work in this thread, and in others as far as they come in time; return the parts done.

    Parameters
    ----------
    work
        Is called by each thread, outside the interpreter lock for almost all of its time. Once a
        call has returned, no call that begins later may find a part to do.
    num_threads
        Threads at most, this one among them.
    """
    jobs = [_Job(work) for _ in range(num_threads - 1)]
    for job in jobs:
        _crew.ask(job, len(jobs))
    try:
        count = work()
    finally:
        # One that has not begun while this thread held the interpreter lock finds nothing to do.
        begun = [job for job in jobs if job.begun]
        for job in begun:
            job.ended.acquire()
    return count + sum(job.count for job in begun)
