"""The graph of an index: the shards that a build stores, and their dependencies.

An executor runs it in windows for ``zindex build``; `zindex.plan_graph` passes it to Dask whole.
"""

from collections.abc import Callable
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

from zindex.errors import VerificationError
from zindex.execution.task_graph import Inline, Result, TaskGraph
from zindex.indexing.index_tasks import IndexTasks
from zindex.indexing.task_size import batch_shards
from zindex.ingest.length_source import LengthSource
from zindex.plan.index_plan import IndexPlan
from zindex.store.shard_files import ShardResult


def add_index(
    graph: TaskGraph,
    layer: Callable[[str], str],
    plan: IndexPlan,
    tasks: IndexTasks | Result,
    task_seconds: float,
    *,
    has_samples: bool,
) -> list[Result]:
    """Add the tasks that store the arrays of an index.

    Parameters
    ----------
    graph
        The graph to add them to.
    layer
        Returns the name of the layer of a stage: documents, count, starts, samples, shuffle.
    plan, tasks
        The index and its tasks, or a task that returns them.
    task_seconds
        Seconds that a task should compute at least; see `choose_task_seconds`.
    has_samples
        Whether the sample index exists, so that no tokens need to be counted.

    Returns
    -------
    stored
        The tasks that store shards; see `shard_results`.
    """
    batches = batch_shards(plan.document_layout, task_seconds)
    name, count = layer("documents"), layer("count")
    counts: list[Inline | Result]
    if plan.order == "scalable":
        documents = [
            graph.add(name, shards[0], store_documents, tasks, shards, not has_samples)
            for shards in batches
        ]
        counts = [Inline(itemgetter(1), each) for each in documents]
    else:
        # The legacy generator shuffles all documents in one task, then all samples.
        documents = [graph.add(name, (), IndexTasks.store_shuffled_documents, tasks)]
        counts = [
            graph.add(count, shards[0], count_documents, tasks, shards, _after(documents[0]))
            for shards in batches
            if not has_samples
        ]
    stored = [*documents, *_add_shuffle(graph, layer, plan, tasks, documents, task_seconds)]
    if has_samples:
        return stored
    starts = graph.add(layer("starts"), (), start_partitions, tasks, counts)
    layout = plan.sample_layout
    for shards in batch_shards(layout, task_seconds):
        bounds = layout.shard_bounds(shards[0])[0], layout.shard_bounds(shards[-1])[1]
        near = Inline(IndexTasks.find_partitions, tasks, starts, *bounds)
        stored.append(graph.add(layer("samples"), shards[0], store_samples, tasks, near, shards))
    return stored


def _add_shuffle(
    graph: TaskGraph,
    layer: Callable[[str], str],
    plan: IndexPlan,
    tasks: IndexTasks | Result,
    documents: list[Result],
    task_seconds: float,
) -> list[Result]:
    """Add the tasks of the shuffle; Megatron's is one task, with the generator of the documents."""
    if plan.stored == "minimal" or not plan.num_samples:
        return []
    name = layer("shuffle")
    if plan.order == "megatron":
        return [graph.add(name, (), shuffle_after, tasks, _after(documents[0]))]
    batches = batch_shards(plan.shuffle_layout, task_seconds)
    return [graph.add(name, shards[0], store_shuffle, tasks, shards) for shards in batches]


def _after(stored: Result) -> Inline:
    """Return a small argument that only adds a dependency."""
    return Inline(len, stored)


def shard_results(value: Any) -> list[ShardResult]:
    """Return the shards that a task of `add_index` has stored, from its result."""
    results: list[ShardResult] = value[0] if isinstance(value, tuple) else value
    return results


def store_documents(
    tasks: IndexTasks, shards: range, counted: bool
) -> tuple[list[ShardResult], list[int]]:
    """Task: store shards of the scalable order's document index, and count the tokens of each."""
    done = [tasks.store_document_shard(shard, counted=counted) for shard in shards]
    return [*chain.from_iterable(stored for stored, _ in done)], [count for _, count in done]


def count_documents(tasks: IndexTasks, shards: range, num_stored: int) -> list[int]:
    """Task: count the tokens of some of the stored shards of the document index."""
    assert shards.stop <= num_stored
    return [tasks.count_document_shard(shard) for shard in shards]


def shuffle_after(tasks: IndexTasks, num_stored: int) -> list[ShardResult]:
    """Task: store Megatron's shuffle, after the shards of the document index."""
    return tasks.store_shuffled_samples()


def store_shuffle(tasks: IndexTasks, shards: range) -> list[ShardResult]:
    """Task: store shards of the scalable order's shuffle."""
    return [tasks.store_shuffle_shard(shard) for shard in shards]


def store_samples(
    tasks: IndexTasks, near: tuple[int, list[int]], shards: range
) -> list[ShardResult]:
    """Task: store shards of the sample index, given the result of `find_partitions`."""
    return [tasks.store_sample_shard(*near, shard) for shard in shards]


def start_partitions(tasks: IndexTasks, counts: list[list[int]]) -> list[int]:
    """Task: return the stream position of the first token of each shard of documents."""
    starts = [0, *accumulate(chain.from_iterable(counts))]
    check_tokens(tasks.plan, tasks.source, starts.pop())
    return starts


def check_tokens(plan: IndexPlan, source: LengthSource, num_tokens: int) -> None:
    """Check the tokens of all epochs against the plan."""
    expected = plan.epochs.num_epochs * plan.epochs.tokens_per_epoch
    if num_tokens != expected:
        raise VerificationError(
            f"{source.path} must hold {expected} tokens in {plan.split}, its lengths sum to "
            f"{num_tokens}; convert it again"
        )
