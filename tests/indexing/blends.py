"""Naive blends for the tests of builds."""

import numpy as np

from zindex.store.layout import ChunkGrid

#: Shards of 16 positions.
GRID = ChunkGrid(chunk_length=4, shard_length=16)


def naive_greedy(
    weights: np.ndarray, size: int, sizes: np.ndarray | None = None
) -> tuple[list[int], list[int]]:
    """Draw the dataset that is furthest below its weight, as Megatron Core does."""
    weights = weights / weights.sum() if sizes is None else sizes / float(sizes.sum())
    counts = np.zeros(len(weights), np.int64)
    datasets, samples = [], []
    for k in range(size):
        errors = weights * max(k, 1) - counts
        if sizes is not None:
            errors[counts == sizes] = -np.inf
        dataset = int(np.argmax(errors))
        datasets.append(dataset)
        samples.append(int(counts[dataset]))
        counts[dataset] += 1
    return datasets, samples
