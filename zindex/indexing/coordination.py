"""Wait for stores that another process builds, and take over when its heartbeat stops."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zindex.errors import StoreUnavailableError
from zindex.indexing.store_build import find_index
from zindex.io import files
from zindex.io.backoff import Backoff
from zindex.io.objects import Place
from zindex.store.commit import ROOT_KEY, StorePlan, read_status
from zindex.store.heartbeat import read_heartbeat, write_heartbeat
from zindex.store.open import Store
from zindex.wording import count_noun

logger = logging.getLogger(__name__)

#: Seconds that a process waits for a store of another one.
TIMEOUT = 3600.0
#: Seconds without a heartbeat after which rank 1 takes over the builds; later ranks wait longer.
TAKEOVER = 60.0
#: Maximum seconds between two heartbeats; on a file system, where they cost little, fewer.
HEARTBEAT_INTERVAL, LOCAL_INTERVAL = 10.0, 0.5
#: Number of unfinished stores, the first ones, that have a heartbeat and are polled.
NUM_WATCHED = 8

_FIRST_WAIT = 0.05
# A builder with a heartbeat that finishes no shard is given up after this many times the patience.
_MAX_IDLE = 10
# Seconds that replace `TAKEOVER` once the process that serves the ranks' store has died.
_LOST_TAKEOVER = 1.5


class Peers(Protocol):
    """The other processes that need the same stores, as far as they can be asked."""

    @property
    def is_lost(self) -> bool:
        """Whether they cannot be asked any more, and the builder has probably died."""

    @property
    def longest_wait(self) -> float:
        """Seconds between two looks at a store that is being built, at most."""

    def take_over(self) -> bool:
        """Return whether this process must build, because the builder has died."""

    def building(self) -> AbstractContextManager[None]:
        """Be the builder during the block."""


class _Unknown:
    """Processes that cannot be asked: only heartbeats in the stores are known of them."""

    is_lost = False
    longest_wait = 2.0

    def take_over(self) -> bool:
        return False

    def building(self) -> AbstractContextManager[None]:
        return nullcontext()


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
    #: The other processes; by default only their heartbeats in the stores are known.
    peers: Peers = field(default_factory=_Unknown)
    #: Injected by tests.
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    @property
    def patience(self) -> float:
        """Seconds without a heartbeat after which this process takes over.

        It grows with the rank, so that ranks take over one at a time.
        """
        takeover = min(self.takeover, _LOST_TAKEOVER) if self.peers.is_lost else self.takeover
        return takeover * (1 + math.log2(max(1, self.number)))


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
    clock = asyncio.get_running_loop().time
    last = clock()
    while True:
        await asyncio.sleep(min(takeover / 6, LOCAL_INTERVAL))
        roots, now = sorted(building())[:NUM_WATCHED], clock()
        is_local = all(isinstance(root, Path) for root in roots)
        if not is_local and now - last < min(takeover / 6, HEARTBEAT_INTERVAL):
            continue
        last = now
        for root in roots:
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
    longest = min(rank.peers.longest_wait, rank.takeover / 4)
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
        if rank.peers.take_over() or watch.is_over(pending):
            logger.warning(
                f"rank {rank.number} builds {count_noun(len(pending), 'store')} that it waited "
                f"for: no process works on {pending[-1].root} any more"
            )
            return
        backoff.wait()


class BuilderWatch:
    """Liveness of a builder, from its finished shards and its heartbeat."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.next_look = -math.inf
        self.last_progress = self.last_heartbeat = 0.0
        self.progress: list[int] = []
        self.heartbeat: list[str | None] = []

    def is_over(self, pending: Sequence[StorePlan]) -> bool:
        """Return whether the builder seems dead or stuck: nothing changed for too long."""
        now, patience = self.rank.clock(), self.rank.patience
        if now < self.next_look and not self.rank.peers.is_lost:
            return False
        self.next_look = now + min(self.rank.takeover / 8, HEARTBEAT_INTERVAL)
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
        return silent >= patience or idle >= _MAX_IDLE * patience
