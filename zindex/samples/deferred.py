"""Deferred batches and items: a loader worker sends tokens, the receiver makes the tensors.

A worker sends the tokens of a batch in the dtype of the corpus. The receiving process makes the
tensors, ten times as many bytes, in memory that it reuses: shared memory would cost a page fault
for every 4 KiB of a batch in both processes.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

# Attributes of a dict that do not access its items.
_OTHERS = {"__new__", "__init__", "__getattribute__", "__class_getitem__", "__doc__", "fromkeys"}


def defer(kind: Any) -> Any:
    """Return a subclass of a dict class whose instances fill themselves on first use.

    An instance is created with a function that returns its items; once filled, it changes to the
    given class.

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


def pickle_deferred(kind: Any, deferred: Any) -> None:
    """Let instances of a deferred class be pickled without their items."""

    def reduce(items: Any) -> tuple[Any, ...]:
        _leave_with_parent(os.getpid(), os.getppid())
        return _make, (kind, items.make)

    ForkingPickler.register(deferred, reduce)


@cache
def _leave_with_parent(process: int, parent: int) -> None:
    """Let this process exit immediately if its parent is dead, discarding unsent data.

    At exit, a queue blocks until its pipe is read, and a pipe holds less than a batch.
    """

    def leave() -> None:
        if os.getpid() == process and os.getppid() != parent:
            os._exit(1)

    # Runs before the hooks of queues, which have negative priorities.
    Finalize(None, leave, exitpriority=0)


def _make(kind: Any, make: Callable[[], Mapping[str, Any]]) -> Any:
    """Return the items of an instance that another process did not fill."""
    return kind(make())
