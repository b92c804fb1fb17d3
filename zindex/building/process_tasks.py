"""What the processes of a `ProcessExecutor` run; it imports little, so that they start soon."""

import ctypes
import os
import pickle
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

from zindex.building.remote_tasks import Done, call

# Of Linux, <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
# Values that a process keeps: a build has one or two at a time.
_MAX_KEPT = 4

_numbers = count()
# The values that this process has had, by their numbers; the newest last.
_kept: dict[int, Any] = {}


class Shared:
    """A value that many tasks take: each process makes it of its bytes once, and keeps it.

    Tokenizers, for example, take longer to load than many a task to run.

    Parameters
    ----------
    value
        What can be pickled.
    """

    def __init__(self, value: Any) -> None:
        self.number = next(_numbers)
        self.content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def take(self) -> Any:
        """Return the value, which other tasks of this process are given too."""
        if self.number not in _kept:
            value = pickle.loads(self.content)
            while len(_kept) >= _MAX_KEPT:
                del _kept[next(iter(_kept))]
            _kept[self.number] = value
        return _kept[self.number]


def begin(parent: int, tasks: tuple[Callable[..., Any], ...]) -> None:
    """Have the system kill this process as soon as another, which started it, is gone.

    Parameters
    ----------
    parent
        Number of the other process.
    tasks
        To be given these functions, a process has to import what they need.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def wake() -> None:
    """Task: nothing, so that a process is started."""


def call_here(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Done:
    """Run a task in this process; our own errors are results."""
    return call(_apply, (function, args), key)


def _apply(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function with the values of what is shared."""
    return function(*(item.take() if isinstance(item, Shared) else item for item in args))
