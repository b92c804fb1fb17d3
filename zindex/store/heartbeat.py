"""Builder heartbeat, polled by waiting processes.

A builder touches the plan of its store at regular intervals. While the plan is still being
computed, a separate file carries the heartbeat.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.io import files
from zindex.io.backoff import Backoff
from zindex.io.objects import Place
from zindex.store.commit import PLAN_KEY, StoreStatus, read_status

# An object cannot be touched, and rewriting its plan might restore a removed one.
_ALIVE_KEY = "_zindex/alive"
# Grows slowly, so that a new shard is noticed soon after it is written.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 1.0, 1.25
# Heartbeats are written more often; a shorter silence says nothing about the builder.
_SILENCE = 25.0


def write_first_heartbeat(root: Place) -> None:
    """Write the first heartbeat of a store that has no plan yet."""
    if isinstance(root, Path):
        alive = root / _ALIVE_KEY
        with suppress(OSError):  # the build itself reports a read-only location
            alive.parent.mkdir(parents=True, exist_ok=True)
            alive.touch()
    write_heartbeat(root)


def remove_first_heartbeat(root: Place) -> None:
    """Move the heartbeat to the plan, which was just written."""
    if isinstance(root, Path):
        files.remove_file(root / _ALIVE_KEY)


def write_heartbeat(root: Place) -> None:
    """Write a heartbeat; do not recreate a store that was removed meanwhile."""
    if isinstance(root, Path):
        for key in (PLAN_KEY, _ALIVE_KEY):
            with suppress(OSError):
                os.utime(root / key)
        return
    # Random bytes, because stores report times in seconds, and versions are content hashes.
    files.write_once(root / _ALIVE_KEY, [uuid4().bytes], replace=True)


def read_heartbeat(root: Place) -> str | None:
    """Return a text that changes with every heartbeat; None before the first."""
    keys = (PLAN_KEY, _ALIVE_KEY) if isinstance(root, Path) else (_ALIVE_KEY,)
    signs = [files.file_version(root / key) for key in keys]
    return " ".join(map(str, signs)) if any(signs) else None


class BuildWait:
    """Waits for a part of a store that another process builds.

    Parameters
    ----------
    root
        Location of the store.
    patience
        Timeout in seconds.
    listen
        Called before every sleep; may raise the error of a failed build.
    """

    def __init__(self, root: Place, patience: float, listen: Callable[[], None]) -> None:
        self.root, self.patience, self.listen = root, patience, listen
        self.backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, growth=_GROWTH, timeout=patience)
        self.heartbeat: str | None = None
        self.is_first = True

    def pause(self, what: str) -> None:
        """Sleep before the next poll; raise NotReadyError after the timeout."""
        self.listen()
        if self.is_first:
            self.heartbeat, self.is_first = read_heartbeat(self.root), False
        if not self.backoff.wait():
            raise self._not_ready(what)

    def _not_ready(self, what: str) -> NotReadyError:
        """Return the error of a timeout."""
        status, done = StoreStatus(0, 0, committed=False), "its build has not begun"
        with suppress(StoreNotFoundError):
            status = read_status(self.root)
            done = f"{status.num_done} of {status.num_shards} shards are"
        advice = "wait longer, with a larger follow, or build ahead with `zindex build`"
        if read_heartbeat(self.root) != self.heartbeat:
            advice = f"its build continues; {advice}"
        elif self.patience >= _SILENCE:
            advice = "no process seems to build it any more; start the builder again"
        return status.not_ready(
            f"{what} of {self.root} must be there within {self.patience:g} s, {done}; {advice}"
        )
