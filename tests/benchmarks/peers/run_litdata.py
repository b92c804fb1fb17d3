"""What LitData does, in its own environment.

A chunk is a shard of the other contenders. Chunks are shuffled and divided among ranks; the items
of a chunk are shuffled by whoever reads it, in blocks of 256, when it gets there.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
from litdata.streaming.combined import _CombinedDatasetIterator
from litdata.streaming.item_loader import Interval
from litdata.streaming.shuffle import FullShuffle
from litdata.utilities.env import _DistributedEnv

from tests.benchmarks.peers.measuring import (
    MICRO_BATCH_SIZE,
    NUM_NODES,
    NUM_RANKS,
    SAMPLE_NBYTES,
    SEED,
    Figures,
    Work,
    main,
    measure,
    measure_epoch,
)

_EPOCH = 1
_NUM_LOADER_WORKERS = 1


class _Cache:
    """What ``FullShuffle`` asks of a cache: where its chunks begin and end, and their bytes."""

    def __init__(self, sizes: list[int]) -> None:
        ends = np.cumsum(sizes).tolist()
        self.intervals = [
            Interval(end - size, end - size, end, end)
            for size, end in zip(sizes, ends, strict=True)
        ]
        chunks = [{"chunk_bytes": size * SAMPLE_NBYTES} for size in sizes]
        # Large enough for all chunks of a node, so that later epochs would stay in each node.
        self._reader = SimpleNamespace(
            _config=SimpleNamespace(_chunks=chunks), _max_cache_size=2**50
        )

    def get_chunk_intervals(self) -> list[Interval]:
        """Return them."""
        return self.intervals


def divide_ranks(work: Work) -> tuple[Figures, Any]:
    """Plan an epoch for all ranks, then shuffle the items of rank 0's chunks.

    ``drop_last`` is what ``StreamingDataset`` sets among several ranks.
    """
    cache = _Cache(work.shards)
    world = _DistributedEnv(NUM_RANKS, 0, NUM_NODES)

    def plan_rank() -> tuple[FullShuffle, list[tuple[int, Any]]]:
        shuffle = FullShuffle(cache, SEED, drop_last=True)
        chunks, intervals = shuffle.get_chunks_and_intervals_per_workers(
            world, _NUM_LOADER_WORKERS, MICRO_BATCH_SIZE, _EPOCH
        )
        return shuffle, list(zip(chunks[0], intervals[0], strict=True))

    def read_chunk(shuffle: FullShuffle, chunk: int, interval: Any, num_chunks: int) -> list[int]:
        items = np.arange(interval[1], interval[2])
        return shuffle(items, num_chunks, _EPOCH, int(chunk))

    def read_first() -> list[int]:
        shuffle, mine = plan_rank()
        return read_chunk(shuffle, *mine[0], len(mine))[:MICRO_BATCH_SIZE]

    def read_all() -> list[int]:
        shuffle, mine = plan_rank()
        return [item for each in mine for item in read_chunk(shuffle, *each, len(mine))]

    return measure_epoch(read_first, read_all)


def _mix(work: Work, datasets: list[Any], num_wanted: int) -> tuple[Figures, Any]:
    """Draw from datasets with LitData's iterator over several of them.

    Whoever gives weights must set ``iterate_over_all=False``; the batching method is the default.
    """
    weights = work.weights.tolist()
    iterator = _CombinedDatasetIterator(
        datasets, SEED, weights, False, None, 1, "stratified", iterate_over_all=False
    )
    return measure(lambda: [next(iterator) for _ in range(num_wanted)])


def mix(work: Work) -> tuple[Figures, Any]:
    """Draw from datasets that count their samples."""
    datasets = [itertools.count() for _ in range(work.num_datasets)]
    return _mix(work, datasets, min(work.num_samples, work.num_wanted))


def mix_names(work: Work) -> tuple[Figures, Any]:
    """Draw from datasets that give their own number, to see which were drawn."""
    return _mix(work, [itertools.repeat(k) for k in range(work.num_datasets)], work.num_samples)


CONTENDERS = {
    "mixture": {"LitData, CombinedStreamingDataset": mix},
    "prefixes": {"LitData, CombinedStreamingDataset": mix_names},
    "epoch": {"LitData, FullShuffle": divide_ranks},
}

if __name__ == "__main__":
    main(CONTENDERS, ["litdata", "numpy", "torch"])
