"""Wait for stores that another process builds, and take over when its heartbeat stops."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from zindex.errors import StoreUnavailableError
from zindex.indexing.store_build import find_index
from zindex.io import files
from zindex.io.backoff import Backoff
from zindex.io.objects import Place
from zindex.store.commit import ROOT_KEY, StorePlan, read_status
from zindex.store.heartbeat import read_heartbeat, write_heartbeat
from zindex.store.open import Store

logger = logging.getLogger(__name__)

#: Seconds that a process waits for a store of another one.
TIMEOUT = 3600.0
#: Seconds without a heartbeat after which rank 1 takes over the builds; later ranks wait longer.
TAKEOVER = 60.0
#: Maximum seconds between two heartbeats.
HEARTBEAT_INTERVAL = 10.0
#: Number of unfinished stores, the first ones, that have a heartbeat and are polled.
NUM_WATCHED = 8

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
# A builder with a heartbeat that finishes no shard is given up after this many times the patience.
_MAX_IDLE = 10


@dataclass(frozen=True, slots=True)
class Rank:
    """One process among those that need the same stores."""

    #: Rank 0 builds; the others wait.
    number: int = 0
    #: Seconds to wait at most.
    timeout: float = TIMEOUT
    #: Seconds without a heartbeat after which rank 1 takes over.
    takeover: float = TAKEOVER
    #: Called regularly while waiting or building; raises if another process failed.
    listen: Callable[[], None] = lambda: None
    #: Injected by tests.
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    @property
    def patience(self) -> float:
        """Seconds without a heartbeat after which this process takes over.

        It grows with the rank, so that ranks take over one at a time.
        """
        return self.takeover * (1 + math.log2(max(1, self.number)))


async def write_heartbeats(
    building: Callable[[], Iterable[Place]], takeover: float = TAKEOVER
) -> None:
    """Write the heartbeat of unfinished stores, for waiting ranks, until cancelled.

    Parameters
    ----------
    building
        Returns the directories of the unfinished stores.
    takeover
        Seconds without a heartbeat after which another rank takes over.
    """
    while True:
        await asyncio.sleep(min(takeover / 6, HEARTBEAT_INTERVAL))
        for root in sorted(building())[:NUM_WATCHED]:
            with suppress(StoreUnavailableError):
                await asyncio.to_thread(write_heartbeat, root)


def wait_for_others(
    rank: Rank,
    plans: Sequence[StorePlan],
    receive: Callable[[Place, Store], None],
    *,
    num_looks: int = 1,
    is_wanted: Callable[[Place], bool] = lambda root: True,
) -> None:
    """Call back with each store when it is committed; return early if the builder seems dead.

    Parameters
    ----------
    rank
        This process.
    plans
        The stores, in the same order on all ranks, since only the first ones have a heartbeat.
    receive
        Called with the directory of a committed store and the store.
    num_looks
        Number of unfinished stores, the first ones, that are polled at a time.
    is_wanted
        Whether a store is still needed.

    Raises
    ------
    NotReadyError
        If a store is not committed at the timeout.
    """
    pending = list(reversed(plans))
    watch = BuilderWatch(rank)
    longest = min(_LONGEST_WAIT, rank.takeover / 4)
    backoff = Backoff(
        _FIRST_WAIT, longest, timeout=rank.timeout, clock=rank.clock, sleep=rank.sleep
    )
    while pending:
        # All are needed, so polling the first missing one with a single look-up is enough.
        num_pending = len(pending)
        for place in reversed(range(max(0, num_pending - num_looks), num_pending)):
            plan = pending[place]
            if not is_wanted(plan.root):
                del pending[place]
            elif files.exists(plan.root / ROOT_KEY) and (store := find_index(plan)) is not None:
                del pending[place]
                receive(plan.root, store)
        if len(pending) < num_pending:
            continue
        rank.listen()
        if backoff.is_over:
            status = pending[-1].read_status()
            others = f" ({len(pending) - 1} more are missing)" if len(pending) > 1 else ""
            raise status.not_ready(
                f"{pending[-1].root} must be committed within {rank.timeout:.0f} s, "
                f"{status.num_done} of {status.num_shards} shards are finished{others}; check the "
                "building rank, or build ahead with `zindex build`"
            )
        if watch.is_over(pending):
            logger.warning(
                f"rank {rank.number} builds {len(pending)} stores that it waited for: no process "
                f"worked on {pending[-1].root} for {rank.patience:.0f} s"
            )
            return
        backoff.wait()


class BuilderWatch:
    """Liveness of a builder, from its finished shards and its heartbeat."""

    def __init__(self, rank: Rank) -> None:
        self.clock = rank.clock
        self.patience = rank.patience
        self.step = min(rank.takeover / 8, HEARTBEAT_INTERVAL)
        self.next_look = -math.inf
        self.last_progress = self.last_heartbeat = 0.0
        self.progress: list[int] = []
        self.heartbeat: list[str | None] = []

    def is_over(self, pending: Sequence[StorePlan]) -> bool:
        """Return whether the builder seems dead or stuck: nothing changed for too long."""
        now = self.clock()
        if now < self.next_look:
            return False
        self.next_look = now + self.step
        progress: list[int] = [len(pending)]
        heartbeat: list[str | None] = []
        for plan in pending[-NUM_WATCHED:]:
            heartbeat.append(read_heartbeat(plan.root))
            with suppress(FileNotFoundError):  # not yet begun
                progress.append(read_status(plan.root).num_done)
        if progress != self.progress:
            self.progress, self.last_progress, self.last_heartbeat = progress, now, now
        if heartbeat != self.heartbeat:
            self.heartbeat, self.last_heartbeat = heartbeat, now
        idle, silent = now - self.last_progress, now - self.last_heartbeat
        return silent >= self.patience or idle >= _MAX_IDLE * self.patience
