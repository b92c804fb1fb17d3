"""Work that dies: in this process before one of its calls, or in a fork that is killed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for the end of the process."""


def raise_killed() -> None:
    raise Killed


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def death_before(
    number: int | None, *calls: tuple[Any, str], die: Callable[[], None] = raise_killed
) -> Iterator[None]:
    """Have work die before one of the calls of some functions, which are counted from 0.

    So do all later calls; with None it lives.
    """
    numbers = count()

    def counted(call: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        if number is not None and next(numbers) >= number:
            die()
        return call(*args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, partial(counted, getattr(owner, name)))
        yield


def run_in_child(work: Callable[[], object], kill_after: float | None = None) -> tuple[float, int]:
    """Work in a fork; return the seconds it lived and its exit code, -9 if it was killed."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return time.monotonic() - start, os.waitstatus_to_exitcode(status)
