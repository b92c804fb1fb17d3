"""What everybody has: numpy's shuffles and draws, and torch's sampler for ranks.

In zindex's own environment.
"""

from typing import Any

import numpy as np

from tests.benchmarks.peers.measuring import (
    MICRO_BATCH_SIZE,
    NUM_RANKS,
    SEED,
    Figures,
    Work,
    main,
    measure,
    measure_epoch,
)


def shuffle_legacy(work: Work) -> tuple[Figures, Any]:
    """Shuffle with the generator that Megatron's order is made of."""

    def shuffle() -> np.ndarray:
        order = np.arange(work.num_samples)
        np.random.RandomState(SEED).shuffle(order)
        return order

    return measure(shuffle)


def permute(work: Work) -> tuple[Figures, Any]:
    """Permute with numpy's present generator."""
    return measure(lambda: np.random.default_rng(SEED).permutation(work.num_samples))


def permute_and_take(work: Work) -> tuple[Figures, Any]:
    """Make the whole order, then take the wanted elements: there is no other way to them."""
    positions = work.positions
    return measure(lambda: np.random.default_rng(SEED).permutation(work.num_samples)[positions])


def choose(work: Work) -> tuple[Figures, Any]:
    """Draw a dataset for each position independently, then number the samples of each."""

    def draw() -> np.ndarray:
        datasets = np.random.default_rng(SEED).choice(
            work.num_datasets, work.num_samples, p=work.weights
        )
        samples = np.empty(work.num_samples, np.int64)
        counts = np.bincount(datasets, minlength=work.num_datasets)
        by_dataset = np.argsort(datasets, kind="stable")
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        samples[by_dataset] = np.arange(work.num_samples) - starts
        assert samples.size == datasets.size
        return datasets

    return measure(draw)


def divide_ranks(work: Work) -> tuple[Figures, Any]:
    """Let torch's sampler shuffle and divide an epoch."""
    from torch.utils.data import BatchSampler, DistributedSampler

    def open_batches() -> BatchSampler:
        dataset = range(work.num_samples)
        sampler = DistributedSampler(dataset, NUM_RANKS, rank=0, shuffle=True, seed=SEED)
        return BatchSampler(sampler, MICRO_BATCH_SIZE, drop_last=True)

    return measure_epoch(
        lambda: next(iter(open_batches())),
        lambda: [position for batch in open_batches() for position in batch],
    )


CONTENDERS = {
    "shuffle": {
        "numpy, RandomState.shuffle": shuffle_legacy,
        "numpy, Generator.permutation": permute,
    },
    "access": {"numpy, Generator.permutation, then take": permute_and_take},
    "mixture": {"numpy, Generator.choice": choose},
    "prefixes": {"numpy, Generator.choice": choose},
    "epoch": {"torch, DistributedSampler": divide_ranks},
}

if __name__ == "__main__":
    main(CONTENDERS, ["numpy", "torch"])
