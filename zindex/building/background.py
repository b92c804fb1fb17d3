"""Stores that are needed now and built behind whoever reads them: training need not wait.

A dataset gets each store at once, as far as it is there, and once more when it is committed.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar
from weakref import ref

from zindex.building.executor import Executor, Held
from zindex.building.index_store import find_index
from zindex.building.on_demand import Builds, Needed, Receive
from zindex.building.timeline import Timeline
from zindex.building.waiting import Rank
from zindex.store.follow import follow_plan
from zindex.store.objects import Place
from zindex.store.open import Store

logger = logging.getLogger(__name__)

R = TypeVar("R")

# A run begins with the first shards of its blends and any of its indices: all else comes later.
_BLEND_PRIORITY = -10
# Of the others not even the size is known before they are built.
_FOLLOWED_KINDS = ("gpt", "blend")


class FollowedBuilds(Builds):
    """Stores that are read while they are built, here or by another process.

    A context manager: the builds go on when the block is left, unless an error leaves it. They end
    with this process, and what they have finished stays.

    Parameters
    ----------
    rank
        This process among those that need the same stores.
    patience
        Seconds that a read waits at most for a shard.
    report
        Called with an error that ended the builds, to tell other processes; reads of this process
        raise it too.
    """

    def __init__(
        self,
        rank: Rank,
        patience: float,
        report: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        super().__init__(rank, on_built=self._deliver)
        self.patience = patience
        self.error: BaseException | None = None
        self._report = report
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._is_complete = False
        self._news = threading.Condition()
        self._committed: dict[Place, Store] = {}
        self._blends: set[Place] = set()
        self._unfollowed: set[Place] = set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.stop()

    def add(self, needed: Needed, receive: Receive) -> None:
        """Hand over a store at once, to be followed, and again when it is committed."""
        store = find_index(needed.plan)
        if store is not None:
            receive(store)
            return
        kind = needed.plan.spec.get("kind")
        if kind in _FOLLOWED_KINDS:
            receive(follow_plan(needed.plan, self.patience, self.listen))
        else:
            self._unfollowed.add(needed.root)
        if kind == "blend":
            self._blends.add(needed.root)
            needed = _put_off(needed)
        super().add(needed, receive)

    def finish(self) -> None:
        """Let the builds go on behind the caller, once what cannot be followed is committed.

        Raises
        ------
        ZindexError
            If a build fails before that.
        """
        if self._receivers and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zindex-follow", daemon=True)
            _at_end(self)
            self._thread.start()
        with self._news:
            self._is_complete = True
            self._hand_over()
            while self.error is None and self._unfollowed & self._receivers.keys():
                self._news.wait()
        self.listen()

    def _deliver(self, root: Place, store: Store) -> None:
        """Hand over a committed store as soon as it is its turn."""
        with self._news:
            self._committed[root] = store
            self._hand_over()
            self._news.notify_all()

    def _hand_over(self) -> None:
        """Hand over what is committed; blends only after all that they may draw from."""
        waiting = self._receivers.keys() - self._committed.keys()
        is_open = self._is_complete and self._blends.issuperset(waiting)
        for place in sorted(self._committed, key=self._blends.__contains__):
            if place not in self._blends or is_open:
                super()._deliver(place, self._committed[place])

    def _run(self) -> None:
        """Wait for all stores, build those that nobody builds, and keep what goes wrong."""
        try:
            super().finish()
        except BaseException as error:
            self.error = error
            if not self._is_stopped and isinstance(error, Exception):
                logger.error("what a run reads cannot be built: %s", error)
                self._report(error)
        finally:
            super().__exit__(None, None, None)
            with self._news:
                self._news.notify_all()

    def listen(self) -> None:
        """Raise what ended the builds, if they ended badly."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait until all stores are committed; raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
        self.listen()

    def stop(self) -> None:
        """End the builds; their finished shards stay. A forked process has none to end."""
        if os.getpid() == self._process:
            self._is_stopped = True
            super().__exit__(None, None, None)


def _at_end(builds: FollowedBuilds) -> None:
    """Have builds stopped when this process ends."""
    held = ref(builds)

    def stop() -> None:
        if (running := held()) is not None:
            running.stop()

    # Functions of atexit come too late: the pools on which the builds run are closed by then.
    getattr(threading, "_register_atexit", atexit.register)(stop)


def _put_off(needed: Needed) -> Needed:
    """Return a need whose tasks start after those of other stores."""
    build = needed.build
    return replace(needed, build=lambda executor: build(_LaterExecutor(executor, _BLEND_PRIORITY)))


class _LaterExecutor:
    """An executor whose tasks have other priorities than they say."""

    def __init__(self, executor: Executor, priority: int) -> None:
        self.executor = executor
        self.priority = priority

    @property
    def num_threads(self) -> int:
        """Tasks that run at a time."""
        return self.executor.num_threads

    @property
    def timeline(self) -> Timeline:
        """Where the tasks are recorded."""
        return self.executor.timeline

    async def run(self, function: Callable[..., R], *args: Any, key: str, priority: int = 0) -> R:
        """Run one task and return its result."""
        later = self.priority + priority
        return await self.executor.run(function, *args, key=key, priority=later)

    async def hold(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        priority: int = 0,
        place: float | None = None,
    ) -> Held:
        """Run one task whose result stays where it was made."""
        later = self.priority + priority
        return await self.executor.hold(function, *args, key=key, priority=later, place=place)
