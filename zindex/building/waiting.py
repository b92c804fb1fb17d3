"""Waiting for stores that another process builds, until it is done, or seems to be gone."""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.store.commit import StorePlan, read_status
from zindex.store.life import read_life
from zindex.store.objects import Place
from zindex.store.open import Store

logger = logging.getLogger(__name__)

#: Seconds that a process waits at most for a store that another builds.
TIMEOUT = 3600.0
#: Seconds without any sign of a builder after which rank 1 builds; later ranks wait longer.
TAKEOVER = 60.0
#: Seconds at most between two signs of a builder's life.
LONGEST_SILENCE = 10.0
#: Unfinished stores, of however many, at which signs of life are given and looked for.
NUM_WATCHED = 8

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
# A builder that lives but finishes no shard is given up after so many times the usual patience.
_MAX_IDLE = 10


@dataclass(frozen=True, slots=True)
class Rank:
    """One process among those that need the same stores: this one."""

    #: The process of rank 0 builds; the others wait.
    number: int = 0
    #: Seconds to wait at most.
    timeout: float = TIMEOUT
    #: Seconds without any sign of a builder after which rank 1 builds.
    takeover: float = TAKEOVER
    #: Called now and then while waiting or building; raises where another process failed.
    listen: Callable[[], None] = lambda: None

    @property
    def patience(self) -> float:
        """Seconds without any sign of a builder after which this process builds.

        It grows with the rank, so that one process after the other takes over, not all at once.
        """
        return self.takeover * (1 + math.log2(max(1, self.number)))


class Awaited(Protocol):
    """A store that is waited for."""

    @property
    def plan(self) -> StorePlan:
        """What is to be built."""
        ...

    @property
    def root(self) -> Place:
        """Where."""
        ...

    def find(self) -> Store | None:
        """Return the store if it is committed."""
        ...


def wait_for_others(
    rank: Rank, needed: Sequence[Awaited], receive: Callable[[Place, Store], None]
) -> None:
    """Hand over the stores that others commit: all of them, or those until nobody builds.

    Raises
    ------
    NotReadyError
        If the wait is over and a store is not committed.
    """
    pending = list(reversed(needed))
    watch = _Watch(rank)
    deadline = time.monotonic() + rank.timeout
    pause, longest = _FIRST_WAIT, min(_LONGEST_WAIT, rank.takeover / 4)
    while pending:
        # All are needed, so it is enough to look for the first of those that are missing.
        store = pending[-1].find()
        if store is not None:
            receive(pending.pop().root, store)
            continue
        rank.listen()
        if time.monotonic() >= deadline:
            raise _not_ready(pending, rank.timeout)
        if watch.is_over(pending):
            logger.warning(
                "rank %d builds %d stores that it waited for: nobody has worked on %s for %.0f s",
                rank.number,
                len(pending),
                pending[-1].root,
                rank.patience,
            )
            return
        # Jitter keeps thousands of ranks from asking the file system in the same instant.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, longest)


class _Watch:
    """What a waiting process sees of a builder: finished shards, and signs of life."""

    def __init__(self, rank: Rank) -> None:
        self.patience = rank.patience
        self.step = min(rank.takeover / 8, LONGEST_SILENCE)
        self.next_look = -math.inf
        self.worked = self.lived = 0.0
        self.work: list[int] = []
        self.life: list[str | None] = []

    def is_over(self, pending: Sequence[Awaited]) -> bool:
        """Return whether nothing moved for so long that the builder must be gone, or stuck."""
        now = time.monotonic()
        if now < self.next_look:
            return False
        self.next_look = now + self.step
        work: list[int] = [len(pending)]
        life: list[str | None] = []
        for needed in pending[-NUM_WATCHED:]:
            life.append(read_life(needed.root))
            with suppress(FileNotFoundError):  # not begun
                work.append(read_status(needed.root).num_done)
        if work != self.work:
            self.work, self.worked, self.lived = work, now, now
        if life != self.life:
            self.life, self.lived = life, now
        idle, silent = now - self.worked, now - self.lived
        return silent >= self.patience or idle >= _MAX_IDLE * self.patience


def _not_ready(pending: Sequence[Awaited], timeout: float) -> NotReadyError:
    """Return the error of a wait that is over."""
    plan = pending[-1].plan
    try:
        num_done = read_status(plan.root).num_done
    except StoreNotFoundError:
        num_done = 0
    others = f" ({len(pending) - 1} more are missing)" if len(pending) > 1 else ""
    return NotReadyError(
        f"{plan.root} must be committed within {timeout:.0f} s, {num_done} of "
        f"{plan.num_shards} shards are finished{others}; check the building rank, or build ahead "
        "with `zindex build`",
        num_done=num_done,
        num_shards=plan.num_shards,
    )
