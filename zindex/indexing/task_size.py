"""How much work one task of a build does.

The client and the scheduler handle one task at a time, so a build on many threads is as slow as
they are unless its tasks are few. A task therefore builds several small indices, or stores several
shards of an array, one after the other; each is still written and found again by itself.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from zindex.plan.build_plan import BuildPlan
from zindex.store.layout import ArrayLayout

# Typical seconds of a thread per row, 60 ns, and per shard that it writes, 4 ms: powers of two, so
# that their sums are exact.
_ROW_SECONDS, _SHARD_SECONDS = 2.0**-24, 2.0**-8
# Share of the time for which the client may be busy.
_CLIENT_SHARE = 0.5


def estimate_seconds(num_rows: float, num_shards: int) -> float:
    """Return how long one thread takes to compute rows and to store them in shards, roughly."""
    return _ROW_SECONDS * num_rows + _SHARD_SECONDS * num_shards


def estimate_build(plan: BuildPlan) -> float:
    """Return how long one thread takes to build a store, roughly."""
    num_shards = sum(layout.num_shards for layout in plan.layouts)
    return estimate_seconds(plan.num_build_rows, num_shards)


def choose_task_seconds(work_seconds: float, num_threads: int, overhead: float) -> float:
    """Return how long the tasks of a build should compute at least.

    Parameters
    ----------
    work_seconds
        Seconds of one thread for the whole build.
    num_threads
        Concurrent tasks.
    overhead
        Seconds per task in which no other task can be submitted.

    Returns
    -------
    seconds
        With few threads, enough to keep the client idle for half of the time. With more, the last
        task starts late: the seconds at which all submissions together take as long as a task.

    Examples
    --------
    >>> choose_task_seconds(900, 16, 0.003)
    0.096
    >>> round(choose_task_seconds(900, 16_000, 0.003), 3)
    1.643
    """
    return min(math.sqrt(work_seconds * overhead), overhead * num_threads / _CLIENT_SHARE)


def batch_items(sizes: Sequence[float], most: int, room: float) -> list[range]:
    """Group consecutive items into batches, one per task.

    Parameters
    ----------
    sizes
        Size of each item.
    most, room
        Maximum number and total size of the items of a batch; a larger item is a batch by itself.
    """
    batches, start, filled = [], 0, 0.0
    for number, size in enumerate(sizes):
        if number > start and (number - start == most or filled + size > room):
            batches.append(range(start, number))
            start, filled = number, 0.0
        filled += size
    return [*batches, range(start, len(sizes))] if sizes else []


def batch_shards(layout: ArrayLayout, task_seconds: float, first: int = 0) -> list[range]:
    """Group the shards of an array, from ``first`` on, into equal batches, one per task.

    Examples
    --------
    >>> from zindex import schema
    >>> from zindex.store.layout import ChunkGrid
    >>> layout = ArrayLayout.plan(schema.SHUFFLE_INDEX, 10 << 22, "uint32", ChunkGrid())
    >>> [len(shards) for shards in batch_shards(layout, 0)]
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    >>> batch_shards(layout, 1)
    [range(0, 2), range(2, 5), range(5, 7), range(7, 10)]
    """
    num_shards = layout.num_shards - first
    num_tasks = count_tasks(num_shards, layout.shard_length, task_seconds)
    bounds = [first + num_shards * task // max(1, num_tasks) for task in range(num_tasks + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def count_tasks(num_shards: int, shard_length: int, task_seconds: float) -> int:
    """Return the number of tasks that store the shards of an array; see `batch_shards`."""
    return -(-num_shards // max(1, int(task_seconds / estimate_seconds(shard_length, 1))))
