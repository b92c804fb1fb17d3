"""A whole run: every index of every dataset and split of a configuration, and every blend."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from zindex.config import RunConfig, as_config
from zindex.execution.executor import Executor, open_executor, run_builds
from zindex.execution.progress import Progress, open_progress
from zindex.execution.timeline import Timeline
from zindex.indexing.ensure import build_store
from zindex.indexing.index import MIN_SMALL, build_small, is_small
from zindex.indexing.permutation import Permutation
from zindex.indexing.run_plan import (
    PlannedBlend,
    PlannedIndex,
    PlannedStore,
    ResultKey,
    RunPlan,
    check_members,
    has_much_to_check,
    known_blends,
    known_permutations,
    open_by_tasks,
    plan_run,
)
from zindex.indexing.store_build import BuildResult, find_index
from zindex.io.local import local_path
from zindex.io.objects import Place
from zindex.plan.blend_plan import PermutationPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import StorePlan


def build(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    client: Any = None,
    *,
    progress: bool = False,
    timeline: str | os.PathLike[str] | Timeline | None = None,
) -> dict[ResultKey, BuildResult]:
    """Build every index and every blend of a run; finished shards are kept.

    Blends that depend on the configuration only, and permutations of blends of a configured size,
    are started before any dataset is opened.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    client
        A ``distributed.Client`` or a scheduler's address. None uses the current client of the
        process; if there is none, the tasks run in threads of this process.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.
    timeline
        File for a trace of all tasks, to open in Perfetto or chrome://tracing, or a `Timeline` that
        records them.

    Returns
    -------
    results
        The index of each dataset path and split, and the blend of each split under the key
        (None, split), with the number of shards that were written.

    Raises
    ------
    ZindexError
        If an input is missing, damaged or too small, or the disk is full; finished shards stay.

    Notes
    -----
    Law: the result does not depend on chunks, workers, threads or interruptions.
    """
    config = as_config(config)
    path, record = None, timeline
    if not isinstance(record, Timeline):
        path, record = record and local_path(record, "a timeline"), Timeline()
    try:
        with open_progress(progress) as shown:
            run = _Run(config, shown, record)
            run.build(client)
    finally:
        if path is not None:
            record.write(path)
    return run.results()


class _Run:
    """One build of a run: its plan, once known, and its finished stores."""

    def __init__(self, config: RunConfig, progress: Progress, timeline: Timeline) -> None:
        self.config = config
        self.progress = progress
        self.timeline = timeline
        self.plan: RunPlan | None = None
        #: By directory: datasets of the same lengths share an index, which is built once.
        self.finished: dict[Place, BuildResult] = {}

    def build(self, client: Any) -> None:
        """Build the missing stores; a cluster is started only if there are some."""
        early = self._missing(known_blends(self.config))
        permutations = known_permutations(self.config)
        if not early and not permutations and not has_much_to_check(self._paths):
            self._plan_run()
        if self.plan is None or early or permutations or self._missing(self.plan):
            with open_executor(client, self.timeline) as executor:
                run_builds(self._build_missing(executor, early, permutations))
        assert self.plan is not None
        stores = {key: done.store for key, done in self.results().items()}
        for blend in self.plan.blends:
            check_members(
                stores[None, blend.split],
                blend.datasets,
                [stores[path, blend.split].attributes["num_samples"] for path in blend.datasets],
                blend.split,
            )

    def results(self) -> dict[ResultKey, BuildResult]:
        """Return the finished stores, in the order of the plan."""
        assert self.plan is not None
        return {item.key: self.finished[self._store_plan(item).root] for item in self.plan}

    @property
    def _paths(self) -> list[str]:
        return [dataset.path for dataset in self.config.members]

    def _store_plan(self, item: PlannedStore) -> StorePlan:
        return item.plan.store_plan(self.config.index)

    def _plan_run(self) -> None:
        with self.timeline.span("open-datasets"):
            self.plan = plan_run(self.config)

    async def _plan_run_by_tasks(self, executor: Executor) -> None:
        """Plan, after opening the datasets by tasks if there is much to check."""
        paths = self._paths
        with self.timeline.span("open-datasets"):
            sources = await open_by_tasks(paths, executor) if has_much_to_check(paths) else None
            self.plan = await asyncio.to_thread(plan_run, self.config, sources=sources)

    def _missing(self, items: Iterable[PlannedStore]) -> dict[Place, PlannedStore]:
        """Return the stores that are not finished, each once; record the others as finished."""
        missing: dict[Place, PlannedStore] = {}
        for item in items:
            store_plan = self._store_plan(item)
            if store_plan.root in self.finished or store_plan.root in missing:
                continue
            store = find_index(store_plan)
            if store is None:
                missing[store_plan.root] = item
            else:
                self.finished[store_plan.root] = BuildResult(store, 0, store.num_shards)
        return missing

    async def _build_missing(
        self,
        executor: Executor,
        early: dict[Place, PlannedStore],
        permutations: tuple[PermutationPlan, ...],
    ) -> None:
        """Build the known stores while datasets are opened, then the others."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for blend in early.values():
                group.create_task(self._build_one(blend, executor, {}))
            ahead = {}
            for plan in permutations:
                ahead[plan.split] = Permutation(plan, executor, self.config.index)
                stack.push_async_callback(ahead[plan.split].close)
                ahead[plan.split].start()
            if self.plan is None:
                await self._plan_run_by_tasks(executor)
            assert self.plan is not None
            missing = self._missing(self.plan)
            await _keep_wanted(ahead, missing.values())
            small = {root: item for root, item in missing.items() if _is_small(item)}
            if len(small) < MIN_SMALL:
                small = {}
            else:
                group.create_task(self._build_small(small, executor))
            for root, item in missing.items():
                if root not in small and root not in early:
                    group.create_task(self._build_one(item, executor, ahead))

    async def _build_small(self, small: dict[Place, PlannedStore], executor: Executor) -> None:
        """Build many small indices, several per task."""
        items = small.values()
        indices = [(item.plan, item.source) for item in items if isinstance(item, PlannedIndex)]
        num_shards = sum(self._store_plan(item).num_shards for item in items)
        with self.progress.step(f"{len(small)} small indices", num_shards) as advance:
            results = await build_small(indices, self.config.index, executor, advance)
        self.finished |= zip(small, results, strict=True)

    async def _build_one(
        self, item: PlannedStore, executor: Executor, ahead: dict[str, Permutation]
    ) -> None:
        """Build one index or blend."""
        store_plan, source, settings = self._store_plan(item), None, {}
        if isinstance(item, PlannedIndex):
            source = item.source
        else:
            settings["permutation"] = ahead.get(item.split)
        with self.progress.step(item.name, store_plan.num_shards) as advance:
            self.finished[store_plan.root] = await build_store(
                item.plan, source, self.config.index, executor, advance, **settings
            )


async def _keep_wanted(ahead: dict[str, Permutation], missing: Iterable[PlannedStore]) -> None:
    """Cancel the permutations that no missing blend uses."""
    wanted = {item.plan.permutation.name for item in missing if isinstance(item, PlannedBlend)}
    for split, permutation in list(ahead.items()):
        if permutation.plan.name not in wanted:
            await ahead.pop(split).close()
            await permutation.remove_scratch()


def _is_small(item: PlannedStore) -> bool:
    return isinstance(item.plan, IndexPlan) and is_small(item.plan)
