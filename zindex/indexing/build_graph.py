"""The build of a run as a single Dask graph, from the plans of its stores to their commits.

Tasks write the shards that ``zindex build`` writes, and detect existing ones. The layers of a store
are named by stage, dataset and split, such as ``shuffle-web-train``.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.config import RunConfig, as_config
from zindex.errors import PlanError, StoreNotFoundError
from zindex.execution.dask_executor import DaskExecutor
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.execution.task_graph import Inline, Result, TaskGraph
from zindex.indexing import blend, uniform_shuffle
from zindex.indexing.ensure import build_store
from zindex.indexing.index import (
    MAX_ROWS_IN_MEMORY,
    MIN_SMALL,
    BuiltBatch,
    batch_small,
    build_batch,
    is_built_whole,
)
from zindex.indexing.index_graph import add_index, shard_results
from zindex.indexing.index_tasks import IndexTasks
from zindex.indexing.length_cache import evict_lengths
from zindex.indexing.run import check_blends, name_stores, names_of
from zindex.indexing.run_plan import (
    BLEND_LABEL,
    PlannedBlend,
    PlannedIndex,
    PlannedStore,
    ResultKey,
    label_paths,
    plan_run,
)
from zindex.indexing.store_build import BuildResult, find_index, find_shards, open_index
from zindex.indexing.task_size import batch_shards, choose_task_seconds, estimate_build
from zindex.ingest.length_source import LengthSource
from zindex.io.machine import count_cpus
from zindex.io.objects import Place, place_of
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import StorePlan, begin_store, commit_store, read_plan
from zindex.store.folder_group import StoreNames
from zindex.store.shard_files import ShardResult


def plan_graph(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    num_threads: int | None = None,
) -> Any:
    """Return the build of a run as a ``dask.delayed.Delayed`` object, for any Dask scheduler.

    ``.compute()`` and ``client.compute(...)`` commit the same bytes as `zindex.build`, and
    ``.visualize()`` draws the graph. Finished stores are not part of the graph, and tasks detect
    existing shards, so the graph of an interrupted build resumes it.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    num_threads
        Threads of the cluster, which determine how small indices are grouped into tasks; None uses
        the number of threads of this machine.

    Returns
    -------
    build
        Its value equals the result of `zindex.build`: the result of each dataset path and split,
        and that of a blend under (None, split).

    Raises
    ------
    PlanError
        If a packed index is too large for one task: its shards are known only once all documents
        are counted, so it is a single task of the graph.
    ZindexError
        If a dataset is missing, damaged or too small.

    Notes
    -----
    A scheduler holds the whole graph in memory and loses it when it dies. `zindex.build` submits
    the same tasks in windows and survives the loss of the scheduler.
    """
    config = as_config(config)
    items = list(plan_run(config))
    planned = _RunGraph(config, num_threads or count_cpus())
    return planned.graph.delayed(planned.add_run(items))


@dataclass(frozen=True, slots=True)
class Begun:
    """A blend whose plan is written, as passed to tasks."""

    plan: BlendPlan
    store_plan: StorePlan


@dataclass
class _RunGraph:
    """The graph of a run under construction."""

    config: RunConfig
    num_threads: int

    def __post_init__(self) -> None:
        self.graph = TaskGraph()
        self.labels = label_paths([dataset.path for dataset in self.config.members])
        # Dask runs only the first of two tasks with equal keys, but these must check the disk
        # again.
        self.token = uuid4().hex[:8]
        self.task_seconds = 0.0

    def add_run(self, items: Sequence[PlannedStore]) -> Result:
        """Add all stores, and the task that returns their results."""
        by_root: dict[Place, PlannedStore] = {}
        for item in items:
            by_root.setdefault(self._store_plan(item).root, item)
        results: dict[Place, Any] = {}
        for root, item in by_root.items():
            if (store := find_index(self._store_plan(item))) is not None:
                results[root] = BuildResult(store, 0, store.num_shards)
        missing = [(root, item) for root, item in by_root.items() if root not in results]
        self.task_seconds = choose_task_seconds(
            sum(estimate_build(item.plan) for _, item in missing),
            self.num_threads,
            DaskExecutor.overhead,
        )
        results |= self._add_small(missing)
        for root, item in missing:
            if root not in results:
                results[root] = self._add_store(item)
        keys = [item.key for item in items]
        values = [results[self._store_plan(item).root] for item in items]
        blends = [item for item in items if isinstance(item, PlannedBlend)]
        names = names_of(self.config, items)
        name = f"finish-{self.token}"
        return self.graph.add(name, (), finish_run, self.config, names, blends, keys, values)

    def _store_plan(self, item: PlannedStore) -> StorePlan:
        return item.plan.store_plan(self.config.index)

    def _layer(self, item: PlannedStore) -> Callable[[str], str]:
        """Return the function that names the layers of a store."""
        dataset, split = item.key
        label = BLEND_LABEL if dataset is None else self.labels[dataset]
        return lambda stage: f"{stage}-{label}-{split}-{self.token}"

    def _add_small(self, missing: Iterable[tuple[Place, PlannedStore]]) -> dict[Place, Inline]:
        """Add tasks that each build several small indices, if there are many."""
        small = [
            (root, item)
            for root, item in missing
            if isinstance(item, PlannedIndex) and isinstance(item.plan, IndexPlan)
            if is_built_whole(item.plan, self.task_seconds)
        ]
        if len(small) < MIN_SMALL:
            return {}
        results: dict[Place, Inline] = {}
        folder = place_of(self.config.index)
        plans = [item.plan for _, item in small]
        for numbers in batch_small(plans, self.num_threads, self.task_seconds):
            batch = [small[number] for number in numbers]
            given = [(item.plan, item.source) for _, item in batch]
            name = f"bundle-{self.token}"
            built = self.graph.add(name, numbers.start, build_batch, given, folder)
            for place, (root, _) in enumerate(batch):
                results[root] = Inline(take_result, built, place)
        return results

    def _add_store(self, item: PlannedStore) -> Result:
        """Add the tasks of one store; return the task that commits it."""
        store_plan, layer = adopt_grid(self._store_plan(item)), self._layer(item)
        plan = replace(item.plan, grid=store_plan.grid or item.plan.grid)
        if isinstance(item, PlannedBlend):
            return self._add_blend(Begun(plan, store_plan), layer)
        if isinstance(plan, IndexPlan):
            return self._add_index(plan, item.source, store_plan, layer)
        if plan.num_build_rows > MAX_ROWS_IN_MEMORY:
            raise PlanError(
                f"a packed index must have at most {MAX_ROWS_IN_MEMORY:,} documents to be one task "
                f"of a graph, {plan.split} of {item.dataset} has {plan.num_build_rows:,}; use "
                "zindex build"
            )
        folder = place_of(self.config.index)
        return self.graph.add(layer("pack"), (), build_whole, plan, item.source, folder)

    def _add_index(
        self,
        plan: IndexPlan,
        source: LengthSource,
        store_plan: StorePlan,
        layer: Callable[[str], str],
    ) -> Result:
        add, root = self.graph.add, store_plan.root
        begun = add(layer("begin"), (), begin_index, IndexTasks(plan, root, source), store_plan)
        samples = find_shards(root, plan.sample_layout)
        stored: list[Any] = add_index(
            self.graph, layer, plan, begun, self.task_seconds, has_samples=samples is not None
        )
        if samples is not None:
            stored.append(samples)
        return add(layer("commit"), (), commit_index, begun, store_plan, stored)

    def _add_blend(self, begun: Begun, layer: Callable[[str], str]) -> Result:
        add, plan = self.graph.add, begun.plan
        started = add(layer("begin"), (), begin_blend, begun)
        stored: list[Result] = []
        counts: Any
        scratch = None
        if plan.order == "scalable":
            counts = plan.counts
            if plan.shuffle == "uniform":
                scratch = blend.scratch_folder(plan.permutation, self.config.index)
            numbers = self._add_permutation(plan, scratch, layer)
            seconds = self.task_seconds if scratch is None else 0.0
            batches = batch_shards(plan.dataset_layout, seconds)
            for shards in batches if plan.stored == "all" else ():
                args = (started, shards, next(numbers, None))
                stored.append(add(layer("blend"), shards[0], store_scalable, *args))
        else:
            counts = np.zeros(plan.num_datasets, np.int64)
            for shard in range(plan.dataset_layout.num_shards):
                # Each chunk starts from guessed counts, which the previous chunk must confirm.
                guess = add(layer("guess"), shard, guess_chunk, started, shard)
                # In the same layer, because layers cannot depend on each other in both directions.
                chunk = add(layer("blend"), shard, prove_stored, started, shard, guess, counts)
                counts = add(layer("blend"), (shard, "counts"), blend.count_chunk, chunk)
                stored.append(add(layer("store"), shard, store_proven, started, shard, chunk))
        return add(layer("commit"), (), commit_blend, started, counts, stored, scratch)

    def _add_permutation(
        self, plan: BlendPlan, scratch: Any, layer: Callable[[str], str]
    ) -> Iterator[Result]:
        """Yield the shards of a uniform permutation; a keyed one has none, as it is computed."""
        if scratch is None:
            return
        add, given = self.graph.add, plan.permutation
        shuffle = uniform_shuffle.UniformShuffle(given.num_samples, given.seed, given.split)
        parts = range(shuffle.num_parts)
        scattered: list[Result] = [
            add(layer("scatter"), part, uniform_shuffle.scatter_part, shuffle, scratch, part)
            for part in parts
        ]
        counts = add(layer("counts"), (), np.stack, scattered)
        buckets: list[Result] = [
            add(layer("bucket"), part, shuffle_bucket, shuffle, scratch, part, counts)
            for part in parts
        ]
        num_buckets = add(layer("buckets"), (), len, buckets)
        for shard in range(plan.dataset_layout.num_shards):
            span = plan.dataset_layout.shard_bounds(shard)
            args = (shuffle, scratch, counts, num_buckets, *span)
            yield add(layer("permutation"), shard, read_shuffled, *args)


def adopt_grid(store_plan: StorePlan) -> StorePlan:
    """Return the plan of a store, on its existing grid if it was begun."""
    try:
        stored = read_plan(store_plan.root)
    except StoreNotFoundError:
        return store_plan
    is_same = stored["fingerprint"] == store_plan.fingerprint
    return store_plan.cut_like(stored) if is_same else store_plan


def begin(store_plan: StorePlan) -> None:
    """Begin a store on the grid of its graph."""
    if begin_store(store_plan).layouts != store_plan.layouts:
        raise PlanError(
            f"{store_plan.root} must be begun on the chunk grid of this graph, another build has "
            "begun it on another one; plan the graph again"
        )


def begin_index(tasks: IndexTasks, store_plan: StorePlan) -> IndexTasks:
    """Task: begin the store of an index, and return its tasks."""
    begin(store_plan)
    return tasks


def begin_blend(begun: Begun) -> Begun:
    """Task: begin the store of a blend."""
    begin(begun.store_plan)
    return begun


def commit(
    store_plan: StorePlan, results: Sequence[ShardResult], facts: Mapping[str, Any]
) -> BuildResult:
    """Commit a store whose shards are all written."""
    commit_store(store_plan, [result.receipt for result in results], dict(facts))
    num_written = sum(result.written for result in results)
    return BuildResult(open_index(store_plan), num_written, store_plan.num_shards)


def commit_index(tasks: IndexTasks, store_plan: StorePlan, stored: list[Any]) -> BuildResult:
    """Task: commit an index."""
    evict_lengths(tasks.source, tasks.root)
    results = [result for value in stored for result in shard_results(value)]
    return commit(store_plan, results, tasks.plan.described_sizes)


def commit_blend(begun: Begun, counts: Int64Array, stored: list[Any], scratch: Any) -> BuildResult:
    """Task: store weights and counts of a blend, and commit it."""
    plan, store_plan = begun.plan, begun.store_plan
    facts = plan.described_sizes
    if plan.order == "megatron":
        zero = blend.digest_counts(np.zeros(plan.num_datasets, np.int64))
        borders = [border for _, border in stored]
        facts["certificate"] = {"borders": [zero, *borders] if borders else []}
    results = [result for value in stored for result in shard_results(value)]
    results += blend.store_shares(plan, store_plan.root, counts)
    if scratch is not None:
        uniform_shuffle.remove_scratch(scratch)
    return commit(store_plan, results, facts)


def build_whole(plan: Any, source: LengthSource, folder: Place) -> BuildResult:
    """Task: build and commit one store."""
    return run_builds(build_store(plan, source, folder, SerialExecutor()))


def take_result(batch: BuiltBatch, place: int) -> BuildResult:
    """Return one of the stores that a task has built."""
    return batch[0][place]


def store_scalable(begun: Begun, shards: range, numbers: AnyArray | None) -> list[ShardResult]:
    """Task: store shards of a scalable blend, unless they exist."""
    return blend.store_scalable_shards(begun.plan, begun.store_plan.root, shards, numbers)


def guess_chunk(begun: Begun, shard: int) -> blend.GreedyChunk:
    """Task: return one shard of a greedy blend, stored or computed after a warm-up."""
    return blend.compute_chunk(begun.plan, begun.store_plan.root, shard)


def prove_stored(
    begun: Begun, shard: int, chunk: blend.GreedyChunk, counts: Int64Array
) -> blend.GreedyChunk:
    """Task: return a chunk of a greedy blend, recomputed unless it started from the true counts."""
    if chunk.start == blend.digest_counts(counts):
        return chunk
    return blend.compute_chunk(begun.plan, begun.store_plan.root, shard, counts)


def store_proven(
    begun: Begun, shard: int, chunk: blend.GreedyChunk
) -> tuple[list[ShardResult], str]:
    """Task: write one proven chunk; also return the digest of the counts at its end."""
    results = blend.store_chunk(begun.plan, begun.store_plan.root, shard, chunk)
    return results, blend.digest_counts(chunk.stop_counts)


def shuffle_bucket(
    shuffle: uniform_shuffle.UniformShuffle, scratch: Any, bucket: int, counts: Int64Array
) -> int:
    """Task: shuffle one bucket of a uniform permutation."""
    pieces = uniform_shuffle.locate_pieces(counts, bucket)
    uniform_shuffle.shuffle_pieces(shuffle, scratch, bucket, pieces)
    return bucket


def read_shuffled(
    shuffle: uniform_shuffle.UniformShuffle,
    scratch: Any,
    counts: Int64Array,
    num_buckets: int,
    start: int,
    stop: int,
) -> AnyArray:
    """Task: return positions of a uniform permutation whose buckets are all shuffled."""
    assert num_buckets == shuffle.num_parts
    starts = uniform_shuffle.start_buckets(counts)
    return uniform_shuffle.read_positions(shuffle, scratch, starts, start, stop)


def finish_run(
    config: RunConfig,
    names: Mapping[str, StoreNames],
    blends: Sequence[PlannedBlend],
    keys: Sequence[ResultKey],
    values: Sequence[BuildResult],
) -> dict[ResultKey, BuildResult]:
    """Task: check the blends of a built run, and write the names of its stores."""
    results = dict(zip(keys, values, strict=True))
    check_blends(blends, results)
    name_stores(config, names)
    return results
