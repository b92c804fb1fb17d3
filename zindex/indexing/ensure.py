"""Stores that a run needs, built in the background on rank 0 and awaited on other ranks.

Every process of a run needs the same stores. Rank 0 builds the missing ones; the other ranks poll
for their commits, without a collective. When the builder's heartbeat stops, the next rank takes
over. Builds are idempotent, so two builders of one store do no harm.

Small indices are computed by every process that reads them, without any coordination. Rank 0 stores
those that open faster than they are computed, for later processes.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from weakref import ref

from zindex.execution.executor import Executor, open_executor, run_builds
from zindex.indexing.background_build import BackgroundBuild, before_exit
from zindex.indexing.blend import BlendBuild
from zindex.indexing.coordination import Rank, wait_for_others, write_heartbeats
from zindex.indexing.index import IndexBuild
from zindex.indexing.index_arrays import IndexArrays
from zindex.indexing.packing import PackingBuild
from zindex.indexing.sentence_mapping import MappingBuild
from zindex.indexing.store_build import BuildResult, StoreBuild, find_index, ignore_progress
from zindex.indexing.store_computed import is_worth_storing
from zindex.io.objects import Place, PlaceLike
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import BuildPlan, CountedPlan
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.commit import StorePlan
from zindex.store.open import FollowedStore, Store, follow_plan

logger = logging.getLogger(__name__)

#: Maximum rows of a small index, which each process computes: 50 MB.
MAX_COMPUTED_ROWS = 1 << 22
# The small indices of a run together have at most this many times the rows of the largest.
_RUN_FACTOR = 4
# Seconds between two checks of a builder for failures of other ranks.
_LISTEN = 0.5
# A run starts with the first shards of its blends and of any index, so others are less urgent.
_BLEND_PRIORITY = -10
#: Called with a store, or with None for an index that this process computes.
Receive = Callable[[Store | None], None]

_BUILDS: dict[type[BuildPlan], Any] = {
    BlendPlan: BlendBuild,
    IndexPlan: IndexBuild,
    MappingPlan: MappingBuild,
    PackingPlan: PackingBuild,
}


async def build_store(
    plan: BuildPlan,
    source: Any,
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = ignore_progress,
    **settings: Any,
) -> BuildResult:
    """Build any index or blend, or its missing shards, and commit it.

    An index that was begun on another grid keeps it.

    Parameters
    ----------
    plan, source
        What to build it from: the lengths or sentences of a dataset; None for a blend.
    folder
        Directory of the index stores.
    executor
        Where the tasks run.
    advance
        Called with the number of shards that were finished since the last call.
    settings
        Further fields of the build, such as ``priority``.

    Raises
    ------
    PlanError
        If the documents of a split give no sample.
    FingerprintMismatchError
        If the directory has other content.
    VerificationError
        If the lengths do not sum to the tokens of the source.

    Notes
    -----
    Law: the result does not depend on the grid, the executor or interruptions.
    """
    if source is not None:
        settings["source"] = source
    settings |= {"plan": plan, "folder": folder, "executor": executor, "advance": advance}
    build: StoreBuild[Any] = _BUILDS[type(plan)](**settings)
    return await build.build()


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """A required index or blend, and how to build it in a folder; see `build_store`."""

    plan: BuildPlan
    folder: PlaceLike
    source: Any = None
    #: Added to the priorities of all tasks.
    priority: int = 0
    #: Called with the arrays in memory, before they are stored, if computed by this process.
    publish: Callable[[Any], None] | None = None

    @cached_property
    def store_plan(self) -> StorePlan:
        """The store to build."""
        return self.plan.store_plan(self.folder)

    @property
    def root(self) -> Place:
        """Directory of the store."""
        return self.store_plan.root

    @property
    def is_computable(self) -> bool:
        """Whether its size is known before it is built, so that it can be followed or computed."""
        return not isinstance(self.plan, CountedPlan)

    async def build(self, executor: Executor) -> BuildResult:
        """Build the store."""
        plan, source, folder = self.plan, self.source, self.folder
        settings: dict[str, Any] = {"priority": self.priority, "publish": self.publish}
        return await build_store(plan, source, folder, executor, **settings)


class Builds:
    """Stores that a run needs, built in the background while the caller adds more.

    A context manager. Small indices are not stored: `finish` calls back with None for indices of at
    most ``max_computed_rows`` rows, to compute them, smallest first, up to four times as many rows
    in total. The choice depends only on the requests, so all ranks make the same one.

    By default `finish` waits for all stores; leaving the block cancels unfinished builds and keeps
    finished shards. If rank 0 computes large indices in its own threads, it receives them as soon
    as they are in memory; they are stored and committed in the background, and the process exits
    after that. With a patience, stores are followed: each is received immediately, to be read while
    it is built, and again when it is committed. These builds continue after the block, unless an
    error leaves it, and end with the process.

    Parameters
    ----------
    rank
        This process among those that need the same stores.
    patience
        Seconds that a read waits for a shard of a followed store; None follows no store.
    report
        Called with an error of a background build, to notify other processes; reads in this process
        raise the error too.
    max_computed_rows
        Maximum rows of an index that each process computes; 0 stores all.
    """

    def __init__(
        self,
        rank: Rank,
        patience: float | None = None,
        report: Callable[[Exception], None] = lambda error: None,
        max_computed_rows: int = 0,
    ) -> None:
        self.rank = rank
        self.patience = patience
        self.max_computed_rows = max_computed_rows
        self.error: BaseException | None = None
        self._report = report
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._requests: dict[Place, BuildRequest] = {}
        self._small: list[tuple[BuildRequest, Receive]] = []
        self._receivers: dict[Place, list[Receive]] = {}
        self._committed: dict[Place, Store] = {}
        # Followed blends, which are delivered last, and stores that cannot be followed.
        self._blends: set[Place] = set()
        self._unfollowed: set[Place] = set()
        # Large indices that rank 0 reads from memory until they are committed.
        self._published: dict[Place, FollowedStore] = {}
        self._loop: _BuildLoop | None = None
        self._background: BackgroundBuild[None] | None = None
        self._is_complete = False
        self._is_stopped = False

    def __enter__(self) -> "Builds":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None or (self.patience is None and self._background is None):
            self.stop()

    def add(self, request: BuildRequest, receive: Receive) -> None:
        """Call back with a store, immediately if it is committed, otherwise in `finish`.

        Rank 0 starts building it now, unless it is small. Thread-safe.
        """
        if request.is_computable and request.plan.num_build_rows <= self.max_computed_rows:
            self._small.append((request, receive))
        else:
            self._add(request, receive)

    def _add(self, request: BuildRequest, receive: Receive) -> None:
        """Call back with a committed store, or start building it."""
        store = find_index(request.store_plan)
        if store is not None:
            receive(store)
            return
        root = request.root
        if self.patience is not None:
            request = self._follow(request, receive, self.patience)
        elif self.rank.number == 0 and request.plan.num_build_rows > MAX_COMPUTED_ROWS:
            request = replace(request, publish=partial(self._publish, request.store_plan))
        with self._changed:
            self._receivers.setdefault(root, []).append(receive)
            if self.patience is None:
                self._unfollowed.add(root)
            if root in self._requests:
                return
            self._requests[root] = request
            if self.rank.number == 0:
                self._build(request)

    def _follow(self, request: BuildRequest, receive: Receive, patience: float) -> BuildRequest:
        """Call back with a followed store, if possible; return the request, a blend's deferred."""
        if request.is_computable:
            receive(follow_plan(request.store_plan, patience, self.listen))
        else:
            self._unfollowed.add(request.root)
        if not isinstance(request.plan, BlendPlan):
            return request
        self._blends.add(request.root)
        return replace(request, priority=_BLEND_PRIORITY)

    def _publish(self, plan: StorePlan, arrays: IndexArrays) -> None:
        """Call back with an index in memory, before it is stored."""
        store = follow_plan(plan, self.rank.timeout, self.listen)
        with self._changed:
            self._published[plan.root] = store
            self._unfollowed.discard(plan.root)
            for receive in self._receivers[plan.root]:
                receive(replace(store, computed=arrays._asdict()))
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait for all stores, in the background if they are followed, and call back with each.

        Stores that cannot be followed are always awaited here.

        Raises
        ------
        NotReadyError
            If a store is not committed at the timeout.
        ZindexError
            If a build fails here or on another rank.
        """
        computed = self._take_small()
        if self.patience is None and not any(each.publish for each in self._requests.values()):
            self._finish()
        else:
            self._finish_in_background()
        # Last, because the check of a small blend may need stores of its datasets.
        for request, receive in computed:
            receive(find_index(request.store_plan) if is_worth_storing(request.plan) else None)

    def _take_small(self) -> list[tuple[BuildRequest, Receive]]:
        """Return the requests of indices to compute, and build those that exceed the limit."""
        small, self._small = self._small, []
        excess = sum(request.plan.num_build_rows for request, _ in small)
        excess -= _RUN_FACTOR * self.max_computed_rows
        if excess > 0:
            # They were added by several threads, but all ranks must make the same choice.
            small.sort(key=lambda item: (item[0].plan.num_build_rows, item[0].root))
        while excess > 0:
            request, receive = small.pop()
            self._add(request, receive)
            excess -= request.plan.num_build_rows
        return small

    def _finish_in_background(self) -> None:
        """Wait for the stores that cannot be read yet; a thread finishes the others."""
        if self._receivers and self._background is None:
            _stop_at_exit(self)
            self._background = BackgroundBuild(self._run, "zindex-follow")
        with self._changed:
            self._is_complete = True
            self._receive_blends()
            while self.error is None and self._unfollowed & self._receivers.keys():
                self._changed.wait()
        self.listen()

    def _finish(self) -> None:
        """Wait for the builds of other ranks, if any, and for those of this rank."""
        if self.rank.number != 0:
            # In the same order on all ranks, because only the first ones have a heartbeat.
            roots = sorted(self._requests)
            plans = [self._requests[root].store_plan for root in roots]
            wait_for_others(self.rank, plans, self._deliver)
            for root in roots:
                if root not in self._committed:
                    self._build(self._requests[root])
        if self._loop is not None:
            for root, store in self._loop.finish().items():
                self._deliver(root, store)

    def _run(self) -> None:
        """Finish in the background; report an error."""
        try:
            self._finish()
        except BaseException as error:
            self.error = error
            with self._changed:
                self._committed |= self._published  # reads from these raise the error
                for root in self._published:
                    self._receive(root)
            is_read = self._published or self.patience is not None
            if is_read and not self._is_stopped and isinstance(error, Exception):
                logger.error("a background build failed: %s", error)
                self._report(error)
        finally:
            self._stop_loop()
            with self._changed:
                self._changed.notify_all()

    def _deliver(self, root: Place, store: Store) -> None:
        """Call back with a committed store; followed blends come last."""
        with self._changed:
            self._committed[root] = store
            if root not in self._blends:
                self._receive(root)
            self._receive_blends()
            self._changed.notify_all()

    def _receive_blends(self) -> None:
        if self._blends and self._is_complete and self._receivers.keys() <= self._blends:
            for root in self._blends & self._committed.keys():
                self._receive(root)

    def _receive(self, root: Place) -> None:
        for receive in self._receivers.pop(root, ()):
            receive(self._committed[root])

    def _build(self, request: BuildRequest) -> None:
        """Start a build in this process."""
        if self._loop is None:
            on_built = None if self.patience is None else self._deliver
            self._loop = _BuildLoop(self.rank, on_built)
        self._loop.add(request)

    def listen(self) -> None:
        """Raise the error of the background builds, if any."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait until all stores are committed; raise the error of a failed build."""
        if self._background is not None:
            self._background.join()
        self.listen()

    def stop(self) -> None:
        """Cancel the builds and keep finished shards. Does nothing in a forked process."""
        if os.getpid() == self._process:
            self._is_stopped = True
            self._stop_loop()

    def _stop_loop(self) -> None:
        if self._loop is not None:
            self._loop.stop()


def _stop_at_exit(builds: Builds) -> None:
    """Register an exit hook that cancels followed builds and waits for others."""
    weak = ref(builds)

    def stop() -> None:
        if (running := weak()) is None:
            return
        if running.patience is None and running._background is not None:
            running._background.join()
        else:
            running.stop()

    before_exit(stop)


class _BuildLoop:
    """An event loop in a background thread that builds the stores in its queue."""

    def __init__(self, rank: Rank, on_built: Callable[[Place, Store], None] | None = None) -> None:
        self.rank = rank
        self._on_built = on_built
        self._stores: dict[Place, Store] = {}
        self._building: set[Place] = set()
        self._ready = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._thread = BackgroundBuild(self._run, "zindex-builds")
        self._ready.wait()

    def _run(self) -> None:
        try:
            with self.rank.peers.building(), open_executor() as executor:
                run_builds(self._serve(executor))
        finally:
            self._ready.set()

    async def _serve(self, executor: Executor) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._queue: asyncio.Queue[BuildRequest | None] = asyncio.Queue()
        self._ready.set()
        async with asyncio.TaskGroup() as group:
            heartbeats = write_heartbeats(lambda: self._building, self.rank.takeover)
            side = [group.create_task(heartbeats), group.create_task(self._listen())]
            async with asyncio.TaskGroup() as builds:
                while (request := await self._queue.get()) is not None:
                    builds.create_task(self._build(request, executor))
            for task in side:
                task.cancel()

    async def _build(self, request: BuildRequest, executor: Executor) -> None:
        self._building.add(request.root)
        result = await request.build(executor)
        self._building.discard(request.root)
        self._stores[request.root] = result.store
        if self._on_built is not None:
            self._on_built(request.root, result.store)

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(_LISTEN)
            await asyncio.to_thread(self.rank.listen)

    def add(self, request: BuildRequest | None) -> None:
        """Queue one more store, or None after the last; raise the error that ended the loop."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, request)
        except RuntimeError:  # the loop is closed
            self._thread.wait()

    def finish(self) -> dict[Place, Store]:
        """Return all stores by their directories once they are built; raise a build's error."""
        self.add(None)
        self._thread.wait()
        return self._stores

    def stop(self) -> None:
        """Cancel the builds and end the thread."""
        if not self._thread.is_done and self._task is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
