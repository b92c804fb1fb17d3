"""What Grain does, in its own environment.

``index_shuffle`` is a bijection in C++ that is called for one index at a time, with the four
rounds that ``ShuffleMapDataset._shuffled_index`` gives it.
"""

from typing import Any

import grain
from grain._src.python.dataset.transformations.mix import SelectionWithProportionsMap
from grain._src.python.experimental.index_shuffle.python.index_shuffle_module import index_shuffle

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


def _first_positions(work: Work) -> list[int]:
    """Return the first positions of an order, as many as are wanted."""
    return list(range(min(work.num_samples, work.num_wanted)))


def _positions(work: Work) -> list[int]:
    """Return the positions that are asked for: random ones where the work is access."""
    return work.positions.tolist() if work.kind == "access" else _first_positions(work)


def call_index_shuffle(work: Work) -> tuple[Figures, Any]:
    """Call the C++ function itself."""
    positions, last = _positions(work), work.num_samples - 1
    return measure(
        lambda: [index_shuffle(each, max_index=last, seed=SEED, rounds=4) for each in positions]
    )


def read_map(work: Work) -> tuple[Figures, Any]:
    """Read a shuffled dataset, element by element."""
    dataset = grain.MapDataset.range(work.num_samples).shuffle(seed=SEED)
    positions = _positions(work)
    return measure(lambda: [dataset[each] for each in positions])


def read_sampler(work: Work) -> tuple[Figures, Any]:
    """Ask the sampler of Grain's ``DataLoader``, whose records also hold a generator."""
    sampler = grain.samplers.IndexSampler(work.num_samples, shuffle=True, seed=SEED, num_epochs=1)
    positions = _positions(work)
    return measure(lambda: [sampler[each].record_key for each in positions])


def read_mixture(work: Work) -> tuple[Figures, Any]:
    """Read a mixture, element by element."""
    parents = [grain.MapDataset.range(size) for size in work.dataset_sizes]
    build, dataset = measure(lambda: grain.MapDataset.mix(parents, work.weights.tolist()))
    positions = _first_positions(work)
    figures, result = measure(lambda: [dataset[each] for each in positions])
    return figures | {"build_seconds": build["seconds"]}, result


def select(work: Work) -> tuple[Figures, Any]:
    """Only decide which sample of which dataset each element of a mixture is."""
    parents = [grain.MapDataset.range(size) for size in work.dataset_sizes]
    selection = SelectionWithProportionsMap(parents, work.weights.tolist())
    positions = _first_positions(work)
    return measure(lambda: [selection[each][0] for each in positions])


def divide_ranks(work: Work) -> tuple[Figures, Any]:
    """Give a rank its elements of a shuffled dataset, one of every 64, in batches."""

    def open_dataset() -> Any:
        whole = grain.MapDataset.range(work.num_samples).shuffle(seed=SEED)
        return whole[0::NUM_RANKS].batch(MICRO_BATCH_SIZE, drop_remainder=True)

    def read() -> list[int]:
        dataset = open_dataset()
        return [position for k in range(len(dataset)) for position in dataset[k].tolist()]

    return measure_epoch(lambda: open_dataset()[0], read)


CONTENDERS = {
    "shuffle": {"Grain, index_shuffle": call_index_shuffle},
    "access": {
        "Grain, index_shuffle": call_index_shuffle,
        "Grain, MapDataset.shuffle": read_map,
        "Grain, IndexSampler": read_sampler,
    },
    "mixture": {"Grain, MapDataset.mix": read_mixture, "Grain, selection map": select},
    "prefixes": {"Grain, selection map": select},
    "epoch": {"Grain, MapDataset.shuffle": divide_ranks},
}

if __name__ == "__main__":
    main(CONTENDERS, ["grain", "numpy"])
