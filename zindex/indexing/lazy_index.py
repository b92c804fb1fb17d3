"""The indices of a run as lazy arrays, whether built or not.

A chunk is a shard of documents, sample boundaries, a shuffle or a blend. Boundaries depend on the
tokens of all document shards; arrays without dependencies are computed independently.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array, IntegerArray, UInt32Array
from zindex.config import RunConfig
from zindex.execution.executor import open_executor, run_builds
from zindex.execution.task_graph import Inline, Result, TaskGraph
from zindex.indexing import blend, index_tasks
from zindex.indexing.blend_arrays import compute_scalable, locate_samples, open_blend_arrays
from zindex.indexing.computed_arrays import fill_shuffle
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.index_graph import start_partitions
from zindex.indexing.length_cache import order_lengths
from zindex.indexing.packing import (
    PackedArrays,
    PackingCount,
    find_ranges,
    pack_partitions,
    take_offsets,
    take_packed,
)
from zindex.indexing.run_plan import (
    BLEND_LABEL,
    PlannedBlend,
    PlannedStore,
    label_paths,
    plan_run,
)
from zindex.indexing.store_build import find_index, find_starts
from zindex.indexing.uniform_shuffle import UniformShuffle, permute_all
from zindex.ingest.length_source import LengthSource
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.rows import RowReader

#: Documents of an index, and the state of Megatron's generator after their shuffle.
Shuffled = tuple[IntegerArray, UInt32Array]
#: An array of an index: its layout, and its values as a numpy or Dask array.
Labelled = tuple[ArrayLayout, Any]


class Node(NamedTuple):
    """The arrays of one index or blend of a run."""

    #: ``train/blend`` or ``train/datasets/web``.
    path: str
    #: Each with its layout.
    arrays: list[Labelled]
    #: Coordinate labels by dimension.
    labels: dict[str, list[str]]
    #: Other attributes.
    facts: dict[str, Any]


def open_nodes(config: RunConfig) -> Iterator[Node]:
    """Yield the indices and blends of a run; raises as `zindex.open_index` does."""
    graph = TaskGraph()
    names = label_paths([dataset.path for dataset in config.members])
    for item in plan_run(config):
        store = find_index(item.plan.store_plan(config.index))
        facts: dict[str, Any] = {"is_built": int(store is not None)}
        labels = {"field": ["row" if isinstance(item.plan, IndexPlan) else "document", "offset"]}
        if isinstance(item, PlannedBlend):
            name, path = BLEND_LABEL, f"{item.split}/{BLEND_LABEL}"
            labels["dataset"] = [names[path] for path in item.datasets]
        else:
            name = names[item.dataset]
            path = f"{item.plan.split}/datasets/{name}"
            facts |= {"corpus": item.dataset, "sequence_length": config.sequence_length}
            facts["extra_token"] = int(config.add_extra_token_to_sequence)
        arrays = _LazyArrays(graph, item.plan, name, str(config.index))
        yield Node(
            path, arrays.compute(item) if store is None else arrays.read(store), labels, facts
        )


@dataclass(frozen=True, slots=True)
class _LazyArrays:
    """The arrays of one index or blend, as layers of a graph."""

    graph: TaskGraph
    plan: Any
    #: Name of the dataset, or of the blend.
    label: str
    #: Directory of the index stores.
    folder: str

    def read(self, store: Store) -> list[Labelled]:
        """Return the arrays of a store, including those that are computed on read."""
        layouts: Sequence[ArrayLayout]
        arrays: dict[str, tuple[ArrayLayout, Any]] = {
            layout.name: (layout, store[layout.name]) for layout in store.layouts.values()
        }
        computed: Sequence[Any]
        if isinstance(self.plan, IndexPlan):
            computed = open_index_arrays(store)
            plan = self.plan
            layouts = [plan.document_layout, plan.sample_layout, plan.shuffle_layout]
        elif isinstance(self.plan, BlendPlan):
            computed = open_blend_arrays(store)
            layouts = [self.plan.dataset_layout, self.plan.sample_layout]
        else:
            shuffle = PackedArrays.open(store).shuffle_index
            computed, layouts = (shuffle,), [self.plan.shuffle_layout_of(len(shuffle))]
        for layout, reader in zip(layouts, computed, strict=False):
            arrays.setdefault(layout.name, (layout, reader))
        return [self._read(*item) for item in arrays.values()]

    def compute(self, item: PlannedStore) -> list[Labelled]:
        """Return arrays that are not stored."""
        if isinstance(item, PlannedBlend):
            return self._compute_blend()
        if isinstance(self.plan, IndexPlan):
            return self._compute_index(item.source)
        return self._compute_packing(item.source)

    def _read(self, layout: ArrayLayout, reader: RowReader) -> Labelled:
        return self._array(layout, lambda _, start, stop: (reader.read, start, stop))

    def _compute_index(self, source: LengthSource) -> list[Labelled]:
        """Return the arrays of a GPT index."""
        plan: IndexPlan = self.plan
        shuffled = None
        if plan.order == "megatron":
            shuffled = self._add("shuffle_documents", 0, index_tasks.shuffle_documents, plan)
        documents = self._array(
            plan.document_layout, lambda _, *span: (take_documents, plan, shuffled, *span)
        )
        counts = [
            self._add("count", number, count_tokens, plan, source, Result(key))
            for number, key in enumerate(documents[1].__dask_keys__())
        ]
        tasks = index_tasks.IndexTasks(plan, Path(), source)
        starts = self._add("starts", 0, start_partitions, tasks, counts)
        samples = self._array(
            plan.sample_layout,
            lambda shard, *_: (compute_boundaries, plan, source, shuffled, starts, shard),
        )
        if plan.order == "scalable":
            shuffle = self._array(
                plan.shuffle_layout, lambda _, *span: (index_tasks.compute_shuffle, plan, *span)
            )
        else:
            whole = self._add("shuffle_samples", 0, shuffle_samples, plan, shuffled)
            shuffle = self._array(plan.shuffle_layout, lambda _, *span: (take_rows, whole, *span))
        return [documents, samples, shuffle]

    def _compute_packing(self, source: LengthSource) -> list[Labelled]:
        """Return the arrays of a packed index, whose documents are counted now."""
        plan: PackingPlan = self.plan
        starts = find_starts(plan.store_plan(self.folder).root, PackingCount.starts_spec)
        with open_executor() as executor:
            build = PackingCount(plan=plan, source=source, folder=self.folder, executor=executor)
            build.label = f"{self.label}-{plan.split}"
            if starts is None:
                starts = run_builds(build.count_epochs())
        num_partitions = len(starts) - 1
        ranges, packed = build.split(0, num_partitions), dict[tuple[int, int], Result]()
        for span in ranges:
            packed[span] = self._add("pack", span[0], pack_partitions, plan, source, *span)
        num_samples, num_parts, _ = starts[-1].tolist()
        bounds, parts, offsets, *_ = plan.layouts_of(num_partitions, num_samples, num_parts)

        def take(layout: ArrayLayout, shard: int) -> tuple[Any, ...]:
            near = find_ranges(layout, shard, starts, ranges)
            firsts = [starts[start, :2].tolist() for start, _ in near]
            runs: list[Any] = [packed[span] for span in near]
            if layout is offsets:
                runs = [Inline(take_offsets, run) for run in runs]
            return take_packed, layout, shard, firsts, *runs

        samples, shuffle = plan.sample_starts(starts), plan.shuffle_layout_of(num_samples)
        return [
            self._array(bounds, lambda _, *span: (take_rows, starts, *span)),
            self._array(parts, lambda shard, *_: take(parts, shard)),
            self._array(offsets, lambda shard, *_: take(offsets, shard)),
            self._array(
                shuffle, lambda _, *span: (shuffle_packed, plan, samples, shuffle.dtype, *span)
            ),
        ]

    def _compute_blend(self) -> list[Labelled]:
        """Return the arrays of a blend."""
        plan: BlendPlan = self.plan
        shards: list[Result] = []
        counts: Any = plan.counts if plan.order == "scalable" else np.zeros_like(plan.counts)
        numbers = None
        if plan.order == "scalable" and plan.shuffle == "uniform":
            shuffle = UniformShuffle(plan.num_samples, plan.seed, plan.split)
            numbers = self._add("permutation", 0, permute_all, shuffle)
        for shard in range(plan.dataset_layout.num_shards):
            span = plan.dataset_layout.shard_bounds(shard)
            if plan.order == "scalable":
                shards.append(self._add("draw", shard, blend_shard, plan, numbers, *span))
            else:
                # Each chunk starts from guessed counts, which the previous chunk must confirm.
                chunk = self._add("guess", shard, blend.draw_chunk, plan, shard)
                shards.append(self._add("draw", shard, prove_chunk, plan, shard, chunk, counts))
                # In the same layer, because layers cannot depend on each other in both directions.
                counts = self._add("draw", (shard, "counts"), blend.count_chunk, shards[-1])
        arrays = [
            self._array(layout, lambda shard, *_, field=field: (take_field, shards[shard], field))
            for field, layout in enumerate((plan.dataset_layout, plan.sample_layout))
        ]
        weights, count = plan.share_layouts
        arrays.append(self._array(weights, lambda _, *span: (take_rows, plan.weights, *span)))
        return [*arrays, self._array(count, lambda _, *span: (take_rows, counts, *span))]

    def _layer(self, stage: str) -> str:
        """Return the name of a layer: the stage, its owner, and a hash of its content."""
        plan = self.plan.store_plan("")
        content = hashlib.sha256(f"{plan.fingerprint} {plan.grid}".encode()).hexdigest()
        return f"{stage}-{self.label}-{self.plan.split}-{content[:8]}"

    def _add(self, stage: str, number: Any, function: Callable[..., Any], *args: Any) -> Result:
        """Add a task to the layer of a stage."""
        return self.graph.add(self._layer(stage), number, function, *args)

    def _array(self, layout: ArrayLayout, task: Callable[..., tuple[Any, ...]]) -> Labelled:
        """Return an array whose chunks are computed by the tasks ``task(shard, start, stop)``."""
        bounds = list(map(layout.shard_bounds, range(layout.num_shards)))
        tasks = [task(shard, *span) for shard, span in enumerate(bounds)]
        lengths = [stop - start for start, stop in bounds]
        name = self._layer(layout.name)
        return layout, self.graph.array(name, lengths, layout.dtype, tasks, layout.num_columns)


def take_documents(
    plan: IndexPlan, shuffled: Shuffled | None, start: int, stop: int
) -> IntegerArray:
    """Task: return rows of a document index, computed or sliced from Megatron's order."""
    if shuffled is None:
        return index_tasks.compute_documents(plan, start, stop)
    return shuffled[0][start:stop]


def count_tokens(plan: IndexPlan, source: LengthSource, documents: IntegerArray) -> list[int]:
    """Task: return the tokens of a shard of documents, for `start_partitions`."""
    return [int(order_lengths(plan, source, documents).sum(dtype=np.int64))]


def compute_boundaries(
    plan: IndexPlan,
    source: LengthSource,
    shuffled: Shuffled | None,
    starts: list[int],
    shard: int,
) -> IntegerArray:
    """Task: return a shard of a sample index."""
    tasks = index_tasks.IndexTasks(plan, Path(), source)
    start, stop = plan.sample_layout.shard_bounds(shard)
    first, near = tasks.find_partitions(starts, start, stop)
    for number in {*range(first, first + len(near)), len(starts) - 1}:
        documents = take_documents(plan, shuffled, *plan.document_layout.shard_bounds(number))
        tasks.ordered[number] = order_lengths(plan, source, documents)
    return tasks.compute_boundaries(first, near, start, stop)


def shuffle_samples(plan: IndexPlan, shuffled: Shuffled) -> IntegerArray:
    """Task: return Megatron's shuffle, with the generator of the documents."""
    return index_tasks.shuffle_samples(plan, shuffled[1].copy())


def blend_shard(
    plan: BlendPlan, numbers: AnyArray | None, start: int, stop: int
) -> tuple[AnyArray, AnyArray]:
    """Task: return both arrays of a shard of a scalable blend, from its permutation if given."""
    if numbers is None:
        return compute_scalable(plan, start, stop)
    return locate_samples(plan, numbers[start:stop])


def prove_chunk(
    plan: BlendPlan, shard: int, chunk: blend.GreedyChunk, counts: Int64Array
) -> blend.GreedyChunk:
    """Task: return a chunk of a greedy blend, recomputed unless it started from the true counts."""
    is_true = chunk.start == blend.digest_counts(counts)
    return chunk if is_true else blend.draw_chunk(plan, shard, counts)


def shuffle_packed(
    plan: PackingPlan, sample_starts: Int64Array, dtype: str, start: int, stop: int
) -> AnyArray:
    """Task: return positions of a shuffle within epochs."""
    values: AnyArray = np.empty(stop - start, dtype)
    fill_shuffle(plan, sample_starts, start, values)
    return values


def take_field(arrays: tuple[AnyArray, ...], field: int) -> AnyArray:
    """Task: return one of several arrays."""
    return arrays[field]


def take_rows(array: AnyArray, start: int, stop: int) -> AnyArray:
    """Task: return rows of an array."""
    return array[start:stop]
