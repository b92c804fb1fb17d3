"""Code run by worker processes: a task with its name, its times, and its error as a result.

Worker processes import this module first, so it imports little.
"""

import ctypes
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from zindex.errors import ZindexError
from zindex.execution.timeline import Span, Timeline, measure

_WATCH_SECONDS = 1.0
# From Linux, <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
# Shared values that a process caches: a build has one or two at a time.
_MAX_CACHED = 4

_numbers = count()
# Shared values of this process by number; the newest is last.
_cached: dict[int, Any] = {}


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a task as a worker returns it."""

    outcome: Any
    error: ZindexError | None
    spans: list[Span]

    def unpack(self, timeline: Timeline) -> Any:
        """Return the outcome or raise the error, and record the times."""
        timeline.add(self.spans)
        if self.error is not None:
            raise self.error
        return self.outcome


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a task that stays on a worker."""

    value: Any
    spans: list[Span]

    def __sizeof__(self) -> int:
        """Return the size including the value; Dask uses it to decide what to move and spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


class Shared:
    """A value shared by many tasks: each process unpickles it once and caches it.

    For example, tokenizers take longer to load than many tasks to run.

    Parameters
    ----------
    value
        Any object that can be pickled.
    """

    def __init__(self, value: Any) -> None:
        self.number = next(_numbers)
        self.content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def take(self) -> Any:
        """Return the value, which the tasks of this process share."""
        if self.number not in _cached:
            value = pickle.loads(self.content)
            while len(_cached) >= _MAX_CACHED:
                del _cached[next(iter(_cached))]
            _cached[self.number] = value
        return _cached[self.number]


def call(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Done:
    """Run a task; errors of zindex are returned as results, so that Dask does not retry them."""
    spans = [span for argument in args if isinstance(argument, Kept) for span in argument.spans]
    try:
        with measure(key, spans):
            outcome = function(*map(_value_of, args))
    except ZindexError as error:
        return Done(None, error, spans)
    return Done(outcome, None, spans)


@contextmanager
def masking_interrupts(how: int) -> Iterator[None]:
    """Block or unblock Ctrl-C in this thread, and in processes that it starts."""
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call_interruptibly(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Done:
    """Run a task that Ctrl-C ends; this process, which was started with it blocked, continues.

    A process that Ctrl-C reaches while it imports or waits would print a traceback.
    """
    with masking_interrupts(signal.SIG_UNBLOCK):
        return call(function, args, key)


def keep(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Kept:
    """Run a task whose result stays on its worker."""
    spans: list[Span] = []
    with measure(key, spans):
        value = function(*map(_value_of, args))
    return Kept(value, spans)


def _value_of(argument: Any) -> Any:
    """Return an argument, or the value that it holds."""
    if isinstance(argument, Kept):
        return argument.value
    return argument.take() if isinstance(argument, Shared) else argument


@contextmanager
def named(key: str) -> Iterator[None]:
    """Add the name of the task to an error that passes through."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key}")
        raise


def die_with(parent: int, tasks: tuple[Callable[..., Any], ...] = ()) -> None:
    """Let this process end as soon as its parent exits.

    Parameters
    ----------
    parent
        Process id of the parent.
    tasks
        Functions that will run here: unpickling them imports their modules.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    """End this process once its parent has: where the system does not do that, as on macOS."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def wake() -> None:
    """Do nothing: a task that starts a process."""
