"""How long the shards of a run's indices are, where the run does not say.

A task writes one shard. Small shards make many tasks, each of which costs the scheduler and the
client some milliseconds; large ones take memory, and leave processors idle at the end of a build.
"""

from collections.abc import Sequence
from dataclasses import replace

from zindex.store.layout import SHARD_LENGTH, ChunkGrid

#: A thread works on about 20 bytes for each element of a shard: 320 MiB.
MAX_SHARD_LENGTH = 1 << 24
#: With so many datasets there is work for all threads, though each dataset is the work of one.
MIN_DATASETS = 64


def choose_grid(grid: ChunkGrid, num_documents: Sequence[int]) -> ChunkGrid:
    """Return the grid of a run's indices, on which most datasets of a large run are one shard.

    An index of one shard is built by one task from its beginning to its commit, together with
    others. Where a run has many datasets this saves most of what is done by the client alone.

    Parameters
    ----------
    grid
        What the run asks for; another shard length than the default stays.
    num_documents
        Of each dataset.

    Examples
    --------
    >>> choose_grid(ChunkGrid(), [6_250_000] * 1000).shard_length == 2**23
    True
    >>> choose_grid(ChunkGrid(), [6_250_000] * 10).shard_length == SHARD_LENGTH
    True
    """
    if grid.shard_length != SHARD_LENGTH or len(num_documents) < MIN_DATASETS:
        return grid
    typical = sorted(num_documents)[9 * len(num_documents) // 10]
    shard_length = SHARD_LENGTH
    while shard_length < min(typical, MAX_SHARD_LENGTH):
        shard_length *= 2
    return replace(grid, shard_length=shard_length)
