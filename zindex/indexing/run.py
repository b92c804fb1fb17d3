"""A whole run: every index of every dataset and split of a configuration, and every blend."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from zindex.config import RunConfig, as_config
from zindex.errors import StoreError
from zindex.execution.executor import Executor, open_executor, run_builds
from zindex.execution.progress import Progress, open_progress
from zindex.execution.timeline import Timeline
from zindex.indexing.blend import Permutation
from zindex.indexing.build_futures import BuildFutures
from zindex.indexing.coordination import NUM_WATCHED, Rank, wait_for_others, write_heartbeats
from zindex.indexing.ensure import build_store
from zindex.indexing.index import MIN_SMALL, build_small, is_built_whole
from zindex.indexing.inverse import build_inverses
from zindex.indexing.open_sources import has_much_to_check, open_by_tasks
from zindex.indexing.run_plan import (
    BLEND_LABEL,
    PlannedBlend,
    PlannedIndex,
    PlannedStore,
    ResultKey,
    RunPlan,
    are_independent,
    check_members,
    known_blends,
    known_permutations,
    label_paths,
    plan_dataset,
    plan_run,
)
from zindex.indexing.store_build import BuildResult, find_index
from zindex.indexing.task_size import choose_task_seconds, estimate_build
from zindex.ingest.length_source import LengthSource, warn_of_duplicates
from zindex.io import files
from zindex.io.local import local_path
from zindex.io.objects import Place, place_of
from zindex.plan.blend_plan import PermutationPlan
from zindex.plan.build_plan import CountedPlan
from zindex.plan.index_plan import IndexPlan
from zindex.plan.inverse_plan import InversePlan
from zindex.store.commit import StorePlan, count_missing_nbytes
from zindex.store.folder_group import StoreNames, save_names, write_group

logger = logging.getLogger(__name__)


def build(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    client: Any = None,
    *,
    inverse: bool = False,
    progress: bool = False,
    timeline: str | os.PathLike[str] | Timeline | None = None,
) -> dict[ResultKey, BuildResult]:
    """Build every index and every blend of a run; finished shards are kept.

    Blends that depend on the configuration only, and permutations of blends of a configured size,
    start before any dataset is opened; indices of a run without a blend start as soon as their
    dataset is open.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    client
        A ``distributed.Client`` or the address of a scheduler. None uses the current client of the
        process or, without one, threads of this process.
    inverse
        Whether to store the inverses of Megatron's shuffles and of uniform blends, too, with which
        `zindex.find` takes milliseconds: 4 bytes per sample and per row of a document index.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.
    timeline
        File for a trace of all tasks, for Perfetto or chrome://tracing, or a `Timeline` that
        records them.

    Returns
    -------
    results
        The index of each dataset path and split, and the blend of each split under the key
        (None, split), with the number of shards that were written.

    Raises
    ------
    ZindexError
        If an input is missing, damaged or too small, or the disk is full; finished shards are kept.

    Notes
    -----
    Law: the result does not depend on chunks, workers, threads or interruptions.
    """
    config = as_config(config)
    warn_of_duplicates(dataset.path for dataset in config.members)
    path, record = None, timeline
    if not isinstance(record, Timeline):
        path, record = record and local_path(record, "a timeline"), Timeline()
    try:
        with open_progress(progress) as shown:
            run = Run(config, shown, record)
            results = run.build(lambda: client)
            if inverse:
                assert run.plan is not None
                with open_executor(client, record) as executor:
                    run_builds(build_inverses(run.plan, config.index, executor, shown))
                name_stores(config, names_of(config, run.plan))
            return results
    finally:
        if path is not None:
            record.write(path)


class Run:
    """One build of a run: its plan, once known, and its finished stores.

    Parameters
    ----------
    config
        The run.
    progress, timeline
        Displays steps and records tasks.
    futures
        Set as stores are committed; cancelling them cancels builds.
    """

    def __init__(
        self,
        config: RunConfig,
        progress: Progress,
        timeline: Timeline,
        futures: BuildFutures | None = None,
    ) -> None:
        self.config = config
        self.progress = progress
        self.timeline = timeline
        self.futures = futures or BuildFutures(config)
        self.plan: RunPlan | None = None
        #: By directory: datasets of equal lengths share an index, which is built once.
        self.finished: dict[Place, BuildResult] = {}
        self._building = set[Place]()
        self._task_seconds = 0.0
        self._labels = label_paths(self._paths)
        self._has_waited = False

    def build(self, client: Callable[[], Any]) -> dict[ResultKey, BuildResult]:
        """Build the missing stores, creating a client only if there are any; return all stores."""
        early, permutations = dict[Place, PlannedStore](), tuple[PermutationPlan, ...]()
        if self.plan is None:
            early = self._missing(known_blends(self.config))
            permutations = known_permutations(self.config)
            if not early and not permutations and not has_much_to_check(self._paths):
                with self.timeline.span("open-datasets"):
                    self._set_plan(plan_run(self.config))
        if self.plan is None or self._missing(self.plan):
            with open_executor(client(), self.timeline) as executor:
                run_builds(self._build_missing(executor, early, permutations))
        assert self.plan is not None
        self.futures.check()
        if not self._has_waited or any(done.num_written for done in self.finished.values()):
            name_stores(self.config, names_of(self.config, self.plan))
        results = {item.key: self.finished[self._store_plan(item).root] for item in self.plan}
        check_blends(self.plan.blends, results)
        return results

    def wait_for_others(self, rank: Rank) -> None:
        """Wait until another rank has committed every store, or seems dead."""
        self._has_waited = True
        self._set_plan(plan_run(self.config))
        assert self.plan is not None
        missing = self._missing(self.plan)
        wait_for_others(
            rank,
            [self._store_plan(missing[root]) for root in sorted(missing)],
            lambda root, store: self._finish(root, BuildResult(store, 0, store.num_shards)),
            num_looks=NUM_WATCHED,
            is_wanted=lambda root: not self.futures.is_cancelled(root),
        )

    @property
    def _paths(self) -> list[str]:
        return [dataset.path for dataset in self.config.members]

    def _label(self, item: PlannedStore) -> str:
        """Return the name of a store in task keys."""
        dataset, split = item.key
        return f"{BLEND_LABEL if dataset is None else self._labels[dataset]}-{split}"

    def _store_plan(self, item: PlannedStore) -> StorePlan:
        return item.plan.store_plan(self.config.index)

    async def _plan_run_by_tasks(
        self, executor: Executor, receive: Callable[[Sequence[LengthSource]], None]
    ) -> None:
        """Make the plan, opening the datasets by tasks if there is much to check."""
        paths, sources = self._paths, None
        with self.timeline.span("open-datasets"):
            if has_much_to_check(paths):
                sources = await open_by_tasks(paths, executor, receive)
            self._set_plan(await asyncio.to_thread(plan_run, self.config, sources=sources))

    def _plan_early(self, sources: Sequence[LengthSource]) -> list[PlannedStore]:
        """Return the large indices of open datasets that need no other dataset to be planned."""
        if not are_independent(self.config):
            return []
        by_path = {source.path: source for source in sources}
        return [
            item
            for dataset in self.config.members
            if dataset.path in by_path
            for item in plan_dataset(self.config, dataset, by_path[dataset.path])
            if not self._is_small(item)
        ]

    def _set_plan(self, plan: RunPlan) -> None:
        self.plan = plan
        self.futures.skip_others(item.key for item in plan)

    def _finish(self, root: Place, result: BuildResult) -> None:
        self.finished[root] = result
        self.futures.finish(root, result)

    def _missing(self, items: Iterable[PlannedStore]) -> dict[Place, PlannedStore]:
        """Return the unfinished stores, each once; record the others as finished."""
        missing: dict[Place, PlannedStore] = {}
        for item in items:
            store_plan = self._store_plan(item)
            root = store_plan.root
            self.futures.bind(item.key, root)
            if root in missing:
                continue
            result = self.finished.get(root)
            if result is None and (store := find_index(store_plan)) is not None:
                result = BuildResult(store, 0, store.num_shards)
            if result is None:
                missing[root] = item
            else:
                self._finish(root, result)
        return missing

    async def _build_missing(
        self,
        executor: Executor,
        early: dict[Place, PlannedStore],
        permutations: tuple[PermutationPlan, ...],
    ) -> None:
        """Build the known stores while datasets are opened, then the others."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            heartbeats = asyncio.create_task(write_heartbeats(lambda: self._building))
            stack.callback(heartbeats.cancel)
            self._choose_task_seconds(early.values(), executor)
            for root, blend in early.items():
                self._start(group, [root], self._build_one(blend, executor, {}))
            ahead = {}
            for plan in permutations:
                ahead[plan.split] = Permutation(plan, executor, self.config.index)
                stack.push_async_callback(ahead[plan.split].close)
                ahead[plan.split].start()

            def start_indices(sources: Sequence[LengthSource]) -> None:
                """Start the indices of datasets that are open, while others are checked."""
                found = self._missing(self._plan_early(sources))
                large = {root: item for root, item in found.items() if root not in early}
                early.update(large)
                self._choose_task_seconds(early.values(), executor)
                for root, item in large.items():
                    self._start(group, [root], self._build_one(item, executor, {}))

            if self.plan is None:
                await self._plan_run_by_tasks(executor, start_indices)
            assert self.plan is not None
            missing = self._missing(self.plan)
            await asyncio.to_thread(self._check_room, missing.values())
            await _keep_wanted(ahead, missing.values())
            self._choose_task_seconds(missing.values(), executor)
            missing = {root: item for root, item in missing.items() if root not in early}
            self.progress.expect(sum(self._store_plan(i).num_shards for i in missing.values()))
            small = {root: item for root, item in missing.items() if self._is_small(item)}
            if len(small) < MIN_SMALL:
                small = {}
            else:
                self._start(group, small, self._build_small(small, executor))
            for root, item in missing.items():
                if root not in small:
                    self._start(group, [root], self._build_one(item, executor, ahead))

    def _check_room(self, items: Iterable[PlannedStore]) -> None:
        """Check, before shards are written, that the file system has room for all stores together.

        Sizes that are known only after packing are not counted.
        """
        folder = place_of(self.config.index)
        free = files.free_nbytes(folder)
        plans = [self._store_plan(i) for i in items if not isinstance(i.plan, CountedPlan)]
        if free is not None and sum(plan.nbytes for plan in plans) > free:
            files.check_room(folder, sum(map(count_missing_nbytes, plans)))

    def _choose_task_seconds(self, items: Iterable[PlannedStore], executor: Executor) -> None:
        """Choose how much work a task does while these stores are built."""
        seconds = sum(estimate_build(item.plan) for item in items)
        self._task_seconds = choose_task_seconds(seconds, executor.num_threads, executor.overhead)

    def _is_small(self, item: PlannedStore) -> bool:
        plan = item.plan
        return isinstance(plan, IndexPlan) and is_built_whole(plan, self._task_seconds)

    def _start(
        self, group: asyncio.TaskGroup, roots: Iterable[Place], build: Coroutine[Any, Any, None]
    ) -> None:
        """Start building some stores together; cancelled when all of their futures are."""
        loop, names, task = asyncio.get_running_loop(), set(roots), group.create_task(build)

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

        self._building |= names
        task.add_done_callback(lambda _: self._building.difference_update(names))
        self.futures.on_cancel(names, cancel)

    async def _build_small(self, small: dict[Place, PlannedStore], executor: Executor) -> None:
        """Build many small indices, several per task."""
        items = small.values()
        indices = [(item.plan, item.source) for item in items if isinstance(item, PlannedIndex)]
        num_shards = sum(self._store_plan(item).num_shards for item in items)
        with self.progress.step(f"{len(small)} small indices", num_shards) as advance:
            folder, seconds = self.config.index, self._task_seconds
            await build_small(indices, folder, executor, advance, self._finish, seconds)

    async def _build_one(
        self, item: PlannedStore, executor: Executor, ahead: dict[str, Permutation]
    ) -> None:
        """Build one index or blend."""
        store_plan, source = self._store_plan(item), None
        settings: dict[str, Any] = {"label": self._label(item), "task_seconds": self._task_seconds}
        if isinstance(item, PlannedIndex):
            source = item.source
        else:
            settings["permutation"] = ahead.get(item.split)
        with self.progress.step(item.name(self._labels), store_plan.num_shards) as advance:
            result = await build_store(
                item.plan, source, self.config.index, executor, advance, **settings
            )
        self._finish(store_plan.root, result)


def check_blends(blends: Iterable[PlannedBlend], results: Mapping[ResultKey, BuildResult]) -> None:
    """Check that the members of committed blends have the samples that these draw."""
    for blend in blends:
        members = [results[path, blend.split].store for path in blend.datasets]
        lengths = [store.attributes["num_samples"] for store in members]
        check_members(results[None, blend.split].store, blend.datasets, lengths, blend.split)


def names_of(config: RunConfig, plan: Iterable[PlannedStore]) -> dict[str, StoreNames]:
    """Return the names of stores in the run, and of their inverses, by their directories."""
    labels = label_paths([dataset.path for dataset in config.members])
    names: dict[str, StoreNames] = {}
    for item in plan:
        is_blend = isinstance(item, PlannedBlend)
        paths = item.datasets if isinstance(item, PlannedBlend) else (item.dataset,)
        own = StoreNames(item.key[1], tuple(labels[path] for path in paths), paths, is_blend)
        for named in (item.plan, InversePlan.of(item.plan)):
            if named is not None:
                root = named.store_plan(config.index).root.name
                names[root] = names[root].join(own) if root in names else own
    return names


def name_stores(config: RunConfig, names: Mapping[str, StoreNames]) -> None:
    """Write the Zarr group of a folder, where plain readers find stores and their names.

    Only plain readers need it, so an unwritable folder is not an error.
    """
    folder = place_of(config.index)
    try:
        save_names(folder, names)
        write_group(folder)
    except (OSError, StoreError) as error:
        logger.info("cannot write the Zarr group of %s: %s", folder, error)


async def _keep_wanted(ahead: dict[str, Permutation], missing: Iterable[PlannedStore]) -> None:
    """Cancel the permutations that no missing blend uses."""
    wanted = {item.plan.permutation.name for item in missing if isinstance(item, PlannedBlend)}
    for split, permutation in list(ahead.items()):
        if permutation.plan.name not in wanted:
            await ahead.pop(split).close()
            await permutation.remove_scratch()
