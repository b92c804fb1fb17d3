"""Locks that are free in a forked child, even if another thread of its parent held them."""

import os
import threading
import weakref
from typing import Any

_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()


def fork_safe_lock() -> Any:
    """Return a new lock, which its owner may acquire again."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the standard library does


os.register_at_fork(after_in_child=_free_all)
