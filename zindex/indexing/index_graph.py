"""The graph of an index: the shards that a build stores, and their dependencies.

An executor runs it in windows for ``zindex build``; `zindex.plan_graph` passes it to Dask whole.
"""

from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter
from typing import Any

from zindex.errors import VerificationError
from zindex.execution.task_graph import Inline, Result, TaskGraph
from zindex.indexing.index_tasks import IndexTasks
from zindex.ingest.length_source import LengthSource
from zindex.plan.index_plan import IndexPlan
from zindex.store.shard_files import ShardResult


def add_index(
    graph: TaskGraph,
    layer: Callable[[str], str],
    plan: IndexPlan,
    tasks: IndexTasks | Result,
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
    has_samples
        Whether the sample index exists, so that no tokens need to be counted.

    Returns
    -------
    stored
        The tasks that store shards; see `shard_results`.
    """
    shards = range(plan.document_layout.num_shards)
    counts: list[Inline | Result]
    if plan.order == "scalable":
        documents = [
            graph.add(layer("documents"), shard, store_documents, tasks, shard, not has_samples)
            for shard in shards
        ]
        counts = [Inline(itemgetter(1), each) for each in documents]
    else:
        # The legacy generator shuffles all documents in one task, then all samples.
        documents = [graph.add(layer("documents"), (), IndexTasks.store_shuffled_documents, tasks)]
        counts = [
            graph.add(layer("count"), shard, count_documents, tasks, shard, _after(documents[0]))
            for shard in shards
            if not has_samples
        ]
    stored = [*documents, *_add_shuffle(graph, layer, plan, tasks, documents)]
    if has_samples:
        return stored
    starts = graph.add(layer("starts"), (), start_partitions, tasks, counts)
    for shard in range(plan.sample_layout.num_shards):
        near = Inline(IndexTasks.find_partitions, tasks, starts, shard)
        stored.append(graph.add(layer("samples"), shard, store_samples, tasks, near, shard))
    return stored


def _add_shuffle(
    graph: TaskGraph,
    layer: Callable[[str], str],
    plan: IndexPlan,
    tasks: IndexTasks | Result,
    documents: list[Result],
) -> list[Result]:
    """Add the tasks of the shuffle; Megatron's is one task, with the generator of the documents."""
    if plan.stored == "minimal" or not plan.num_samples:
        return []
    name = layer("shuffle")
    if plan.order == "megatron":
        return [graph.add(name, (), shuffle_after, tasks, _after(documents[0]))]
    store = IndexTasks.store_shuffle_shard
    shards = range(plan.shuffle_layout.num_shards)
    return [graph.add(name, shard, store, tasks, shard) for shard in shards]


def _after(stored: Result) -> Inline:
    """Return a small argument that only adds a dependency."""
    return Inline(len, stored)


def shard_results(value: Any) -> list[ShardResult]:
    """Return the shards that a task of `add_index` has stored, from its result."""
    if isinstance(value, tuple):
        value = value[0]
    return value if isinstance(value, list) else [value]


def store_documents(tasks: IndexTasks, shard: int, counted: bool) -> tuple[list[ShardResult], int]:
    """Task: store one shard of the scalable order's document index, and count its tokens."""
    return tasks.store_document_shard(shard, counted=counted)


def count_documents(tasks: IndexTasks, shard: int, num_stored: int) -> int:
    """Task: count the tokens of one of the stored shards of the document index."""
    assert shard < num_stored
    return tasks.count_document_shard(shard)


def shuffle_after(tasks: IndexTasks, num_stored: int) -> list[ShardResult]:
    """Task: store Megatron's shuffle, after the shards of the document index."""
    return tasks.store_shuffled_samples()


def store_samples(tasks: IndexTasks, near: tuple[int, list[int]], shard: int) -> ShardResult:
    """Task: store one shard of the sample index, given the result of `find_partitions`."""
    return tasks.store_sample_shard(*near, shard)


def start_partitions(tasks: IndexTasks, counts: list[int]) -> list[int]:
    """Task: return the stream position of the first token of each shard of documents."""
    starts = [0, *accumulate(counts)]
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
