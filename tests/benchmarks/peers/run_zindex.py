"""What zindex does: its kernels, blends in memory and sampler, without stores and builds.

Whole builds, with every shard written, checked and committed, are in `bench_blend` and
`bench_build`.
"""

from typing import Any

import numpy as np

from tests.benchmarks.peers.measuring import (
    MICRO_BATCH_SIZE,
    NUM_RANKS,
    SEED,
    Contender,
    Figures,
    Work,
    main,
    measure,
    measure_epoch,
)


def shuffle_legacy(work: Work) -> tuple[Figures, Any]:
    """Shuffle exactly as ``RandomState.shuffle`` does."""
    from zindex.kernels.legacy_shuffle import legacy_shuffle
    from zindex.kernels.mersenne import seed_state

    def shuffle() -> np.ndarray:
        order = np.arange(work.num_samples)
        legacy_shuffle(order, seed_state(SEED))
        return order

    return measure(shuffle)


def permute_keyed(work: Work) -> tuple[Figures, Any]:
    """Evaluate the keyed bijection everywhere."""
    from zindex.kernels.bijection import permute_range

    keys = _make_keys()

    def permute() -> np.ndarray:
        order = np.empty(work.num_samples, np.int64)
        permute_range(0, work.num_samples, keys, 0, order)
        return order

    return measure(permute)


def permute_uniform(work: Work) -> tuple[Figures, Any]:
    """Make an order that is exactly uniform over all orders, in parts."""
    from zindex.indexing.uniform_shuffle import UniformShuffle, permute_all

    _warm_uniform()
    return measure(lambda: permute_all(UniformShuffle(work.num_samples, SEED, "train")))


def access_together(work: Work) -> tuple[Figures, Any]:
    """Evaluate the bijection at all wanted positions with one call."""
    from zindex.kernels.bijection import permute

    keys, positions = _make_keys(), work.positions
    return measure(lambda: permute(positions, work.num_samples, keys))


def access_batches(work: Work) -> tuple[Figures, Any]:
    """Evaluate the bijection with one call for each micro-batch."""
    return _access_each(work, MICRO_BATCH_SIZE)


def access_single(work: Work) -> tuple[Figures, Any]:
    """Evaluate the bijection with one call for each position."""
    return _access_each(work, 1)


def blend(order: str, shuffle: str = "keyed") -> Contender:
    """Return a contender that fills the two arrays of a blend in memory."""

    def run(work: Work) -> tuple[Figures, Any]:
        from zindex.indexing.blend_arrays import compute_blend_arrays
        from zindex.plan.blend_plan import BlendPlan

        def compute() -> Any:
            settings: Any = {"order": order, "shuffle": shuffle, "seed": SEED, "split": "train"}
            plan = BlendPlan.weighted(work.weights.tolist(), work.num_samples, **settings)
            return compute_blend_arrays(plan).dataset_index

        if shuffle == "uniform":
            _warm_uniform()
        return measure(compute)

    return run


def read_blend(length: int) -> Contender:
    """Return a contender that computes places of a keyed blend, so many neighbours in a call."""

    def run(work: Work) -> tuple[Figures, Any]:
        from zindex.indexing.blend_arrays import compute_scalable
        from zindex.plan.blend_plan import BlendPlan

        settings: Any = {"order": "scalable", "seed": SEED, "split": "train"}
        plan = BlendPlan.weighted(work.weights.tolist(), work.num_samples, **settings)
        starts = [min(each, work.num_samples - length) for each in work.positions[::length]]

        def read() -> list[int]:
            datasets: list[int] = []
            for start in starts:
                datasets += compute_scalable(plan, start, start + length)[0].tolist()
            return datasets

        return measure(read)

    return run


def divide_ranks(work: Work) -> tuple[Figures, Any]:
    """Let the sampler shuffle and divide an epoch."""
    from zindex.loading.sampler import ElasticSampler

    def open_batches() -> ElasticSampler:
        return ElasticSampler(
            work.num_samples,
            MICRO_BATCH_SIZE,
            data_parallel_rank=0,
            data_parallel_size=NUM_RANKS,
            shuffle=True,
            seed=SEED,
        )

    return measure_epoch(
        lambda: next(iter(open_batches())),
        lambda: [position for batch in open_batches() for position in batch],
    )


def _access_each(work: Work, length: int) -> tuple[Figures, Any]:
    """Evaluate the bijection with one call for so many positions."""
    from zindex.kernels.bijection import permute

    keys, positions = _make_keys(), work.positions
    parts = [positions[start : start + length] for start in range(0, len(positions), length)]

    def access() -> list[int]:
        values: list[int] = []
        for part in parts:
            values += permute(part, work.num_samples, keys).tolist()
        return values

    return measure(access)


def _warm_uniform() -> None:
    """Compile what shuffles in several parts: the small run before a large one has but one."""
    from zindex.indexing.uniform_shuffle import UniformShuffle, permute_all

    permute_all(UniformShuffle(1000, SEED, "train", min_part_length=100))


def _make_keys() -> Any:
    """Return the round keys of a bijection."""
    from zindex.kernels import numpy_budget
    from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS

    numpy_budget.exhaust()
    return np.random.SeedSequence(SEED).generate_state(NUM_ROUNDS, KEY_DTYPE)


CONTENDERS: dict[str, dict[str, Contender]] = {
    "shuffle": {
        "zindex, legacy": shuffle_legacy,
        "zindex, keyed": permute_keyed,
        "zindex, uniform": permute_uniform,
    },
    "access": {
        "zindex, keyed, one call": access_together,
        "zindex, keyed, calls of 8": access_batches,
        "zindex, keyed, calls of 1": access_single,
    },
    "mixture": {
        "zindex, greedy": blend("megatron"),
        "zindex, scalable": blend("scalable"),
        "zindex, scalable, uniform": blend("scalable", "uniform"),
        "zindex, scalable, calls of 8": read_blend(MICRO_BATCH_SIZE),
        "zindex, scalable, calls of 1": read_blend(1),
    },
    "prefixes": {"zindex, greedy": blend("megatron"), "zindex, scalable": blend("scalable")},
    "epoch": {"zindex, ElasticSampler": divide_ranks},
}

if __name__ == "__main__":
    main(CONTENDERS, ["zindex", "numpy", "numba", "torch"])
