"""Batches and items that are made at their first use, as a loader worker hands them over.

A worker sends the tokens of a batch in the dtype of the corpus. The process that receives them
makes the tensors, ten times as many bytes, in memory that it reuses: shared memory costs a page
fault for every 4 KiB of a batch in both processes.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

# Attributes of a dict that do not look at its items.
_OTHERS = {"__new__", "__init__", "__getattribute__", "__class_getitem__", "__doc__", "fromkeys"}


def defer(kind: Any) -> Any:
    """Return a subclass of a dict class whose instances fill themselves at their first use.

    An instance is made of a function that returns its items, and is of the given class once it has
    them.

    Examples
    --------
    >>> class Items(dict): pass
    >>> items = defer(Items)(lambda: {"a": 1})
    >>> len(items), type(items).__name__, items
    (1, 'Items', {'a': 1})
    """

    def fill_before(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **settings: Any) -> Any:
            fill(self)
            return getattr(self, name)(*args, **settings)

        return method

    def fill(self: Any) -> None:
        items = self.__dict__.pop("make")()
        self.__class__ = kind
        self.update(items)

    def remember(self: Any, make: Callable[[], Mapping[str, Any]]) -> None:
        self.make = make

    bases = kind.__mro__[:-1]
    names = {name for base in bases for name in vars(base) if callable(getattr(base, name))}
    methods = {name: fill_before(name) for name in (names | {"__reduce_ex__"}) - _OTHERS}
    return type(kind.__name__, (kind,), methods | {"__init__": remember})


def send_deferred(kind: Any, deferred: Any) -> None:
    """Let instances of a deferred class travel to other processes without their items."""

    def reduce(items: Any) -> tuple[Any, ...]:
        _leave_with_parent(os.getpid(), os.getppid())
        return _make, (kind, items.make)

    ForkingPickler.register(deferred, reduce)


@cache
def _leave_with_parent(process: int, parent: int) -> None:
    """Let this process exit at once if its parent is dead, without sending what is left.

    A queue waits at exit until its pipe is read, and a pipe takes less than a batch.
    """

    def leave() -> None:
        if os.getpid() == process and os.getppid() != parent:
            os._exit(1)

    # Before those of queues, which have negative priorities.
    Finalize(None, leave, exitpriority=0)


def _make(kind: Any, make: Callable[[], Mapping[str, Any]]) -> Any:
    """Return the items that another process left to this one."""
    return kind(make())
