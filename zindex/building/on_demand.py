"""Stores that are needed before they were built: built here side by side, or waited for.

Every process of a run needs the same stores. The process of rank 0 builds what is missing; the
others look for the commits. None waits in a collective, and the builder may die: where nothing
moves any more the next rank builds, which is safe beside any other builder.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from zindex.building.blend import blend_store_plan, build_blend
from zindex.building.executor import (
    Executor,
    ambient_client,
    open_executor,
    run_builds,
)
from zindex.building.index import build_index, index_store_plan
from zindex.building.index_store import BuildResult, find_index
from zindex.building.source import LengthSource
from zindex.building.thread_executor import ThreadExecutor
from zindex.building.waiting import LONGEST_SILENCE, NUM_WATCHED, Rank, wait_for_others
from zindex.errors import StoreUnavailableError
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store import files
from zindex.store.commit import ROOT_KEY, StorePlan
from zindex.store.life import show_life
from zindex.store.objects import Place
from zindex.store.open import Store

# Rows below which starting a cluster costs more than the build.
_SERIAL_ROWS = 1 << 22
# Threads that build small stores, and mostly wait for the disk.
_NUM_THREADS = 16
# Seconds between two looks of a builder at the news.
_LISTEN = 0.5

Receive = Callable[[Store], None]


@dataclass(frozen=True, eq=False, slots=True)
class Needed:
    """A store that is needed, and how it is built."""

    plan: StorePlan
    #: Rows that a build computes: how much work it is.
    num_rows: int
    build: Callable[[Executor], Coroutine[Any, Any, BuildResult]]

    @property
    def root(self) -> Place:
        """Directory of the store."""
        return self.plan.root

    def find(self) -> Store | None:
        """Return the store if it is committed; as long as it is not, this costs one look."""
        return find_index(self.plan) if files.exists(self.root / ROOT_KEY) else None


def needed_index(plan: IndexPlan, source: LengthSource, folder: str) -> Needed:
    """Return the need for an index below a folder, built from a dataset's lengths."""
    return Needed(
        index_store_plan(plan, folder),
        plan.num_rows + plan.num_samples,
        lambda executor: build_index(plan, source, folder, executor),
    )


def needed_blend(plan: BlendPlan, folder: str) -> Needed:
    """Return the need for a blend below a folder."""
    return Needed(
        blend_store_plan(plan, folder),
        plan.num_samples,
        lambda executor: build_blend(plan, folder, executor),
    )


def ensure_store(needed: Needed, rank: Rank | None = None) -> Store:
    """Return a committed store, building it or waiting for it if it is not there.

    Raises
    ------
    NotReadyError
        If the wait is over and the store is not committed.
    """
    found: list[Store] = []
    with Builds(rank or Rank()) as builds:
        builds.add(needed, found.append)
        builds.finish()
    return found[0]


class Builds:
    """Stores that are needed together, built beside the caller while it still finds out which.

    A context manager: what is not finished when the block is left is stopped, and its shards stay.

    Parameters
    ----------
    rank
        This process among those that need the same stores.
    on_built
        Called with place and store as soon as one is built, in a thread of the builds; None hands
        all of them over in `finish`.
    """

    def __init__(
        self, rank: Rank, *, on_built: Callable[[Place, Store], None] | None = None
    ) -> None:
        self.rank = rank
        self._on_built = on_built
        self._lock = threading.Lock()
        self._missing: dict[Place, Needed] = {}
        self._receivers: dict[Place, list[Receive]] = {}
        self._loop: _BuildLoop | None = None

    def __enter__(self) -> "Builds":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.stop()

    def add(self, needed: Needed, receive: Receive) -> None:
        """Hand over a store: at once if it is committed, otherwise in `finish`.

        On rank 0 its build begins now. Threads may call this side by side.
        """
        store = find_index(needed.plan)
        if store is not None:
            receive(store)
            return
        with self._lock:
            self._receivers.setdefault(needed.root, []).append(receive)
            if needed.root in self._missing:
                return
            self._missing[needed.root] = needed
            if self.rank.number == 0:
                self._build(needed)

    def finish(self) -> None:
        """Wait until all stores are committed, and hand them over.

        Raises
        ------
        NotReadyError
            If the wait is over and a store is not committed.
        ZindexError
            If a build fails here, or another process says that it failed.
        """
        if self._missing and self.rank.number != 0:
            # In the same order everywhere: builders show life at the first ones.
            pending = [self._missing[root] for root in sorted(self._missing)]
            wait_for_others(self.rank, pending, self._deliver)
            for needed in pending:
                if needed.root in self._receivers:
                    self._build(needed)
        if self._loop is not None:
            for root, store in self._loop.finish().items():
                self._deliver(root, store)

    def _deliver(self, root: Place, store: Store) -> None:
        """Hand over a committed store to those who need it."""
        for receive in self._receivers.pop(root, ()):
            receive(store)

    def _build(self, needed: Needed) -> None:
        if self._loop is None:
            self._loop = _BuildLoop(self.rank, self._on_built)
        self._loop.add(needed)


class _BuildLoop:
    """An event loop, in a thread of its own, that builds stores as they come.

    Small ones are built in this process; the executor opens once there is enough to do.
    """

    def __init__(self, rank: Rank, on_built: Callable[[Place, Store], None] | None = None) -> None:
        self.rank = rank
        self._on_built = on_built
        self._stores: dict[Place, Store] = {}
        self._building: set[Place] = set()
        self._num_rows = 0
        self._threads = ThreadExecutor(_NUM_THREADS)
        self._shared: Executor | None = None
        self._stack = ExitStack()
        self._ready = threading.Event()
        self._done: Future[None] = Future()
        # A daemon: a build that goes on behind a training run must not outlive it.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="zindex-builds", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            try:
                run_builds(self._serve())
            finally:
                self._threads.close()
                self._stack.close()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._inbox: asyncio.Queue[Needed | None] = asyncio.Queue()
        self._opening = asyncio.Lock()
        self._ready.set()
        async with asyncio.TaskGroup() as group:
            side = [group.create_task(self._show_life()), group.create_task(self._listen())]
            async with asyncio.TaskGroup() as builds:
                while (needed := await self._inbox.get()) is not None:
                    builds.create_task(self._build(needed))
            for task in side:
                task.cancel()

    async def _build(self, needed: Needed) -> None:
        self._building.add(needed.root)
        result = await needed.build(await self._executor(needed))
        self._building.discard(needed.root)
        self._stores[needed.root] = result.store
        if self._on_built is not None:
            self._on_built(needed.root, result.store)

    async def _executor(self, needed: Needed) -> Executor:
        """Return where a store is built: here, while a cluster's start would cost more."""
        self._num_rows += needed.num_rows
        if self._num_rows <= _SERIAL_ROWS:
            return self._threads
        async with self._opening:
            if self._shared is None and self._on_built is not None and ambient_client() is None:
                # Somebody reads what is built, and would wait for an embedded cluster to start.
                threads = ThreadExecutor()
                self._stack.callback(threads.close)
                self._shared = threads
            if self._shared is None:
                # In a thread: a cluster cannot be started from within a running event loop.
                opened = open_executor()
                self._shared = await asyncio.to_thread(self._stack.enter_context, opened)
        return self._shared

    async def _show_life(self) -> None:
        """Touch the plans of some unfinished stores, so that those who wait go on waiting."""
        while True:
            await asyncio.sleep(min(self.rank.takeover / 6, LONGEST_SILENCE))
            for root in sorted(self._building)[:NUM_WATCHED]:
                with suppress(StoreUnavailableError):
                    await asyncio.to_thread(show_life, root)

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(_LISTEN)
            await asyncio.to_thread(self.rank.listen)

    def add(self, needed: Needed | None) -> None:
        """Build one more store; None: there are no more. Raise what ended the loop, if it ended."""
        try:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, needed)
        except RuntimeError:  # it is closed
            self._done.result()

    def finish(self) -> dict[Place, Store]:
        """Return all stores by their directories once they are built; raise what went wrong."""
        self.add(None)
        self._done.result()
        return self._stores

    def stop(self) -> None:
        """End the thread, and whatever it still does."""
        if not self._done.done() and self._task is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
            wait([self._done])
        self._thread.join()
