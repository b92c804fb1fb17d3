"""Work that dies: in this process before one of its calls, or in a fork that is killed."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    So do all later calls; with None it lives. The functions are of modules, classes or objects.
    """
    numbers = count()

    def count_calls(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **settings: Any) -> Any:
            if number is not None and next(numbers) >= number:
                die()
            return call(*args, **settings)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, count_calls(getattr(owner, name)))
        yield


def fork(work: Callable[[], object]) -> int:
    """Work in a fork, which ends with 0, or with 1 if that fails; return its number."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(250)  # it must not outlive its test
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def exit_code(child: int) -> int:
    """Wait for a fork; return what it ended with, -9 if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_in_child(work: Callable[[], object], kill_after: float | None = None) -> tuple[float, int]:
    """Work in a fork; return the seconds it lived and its exit code."""
    start = time.monotonic()
    child = fork(work)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    code = exit_code(child)
    return time.monotonic() - start, code
