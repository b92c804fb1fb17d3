"""A small model of how cogdata streams samples, written from its behaviour.

Tests compare zindex's cogdata modes with it: orders, keys and states. A worker slot is one loader
worker of one rank, given here instead of by torch.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import torch

BLOCK = 2_000_000
BUFFER = 1000
EPOCH_STEP, RANK_STEP = 131, 64

Sample = dict[str, Any]
States = dict[tuple[str, int, int], tuple[Any, ...]]


class MapSet:
    """A dataset with items."""

    def __init__(self, name: str, items: Sequence[Any], percent: float = 1.0) -> None:
        self.name, self.items, self.percent = name, items, percent

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class StreamSet:
    """Files of raw samples: whole files belong to ranks, then to loader workers."""

    def __init__(self, name: str, files: dict[str, list[Sample]], percent: float = 1.0) -> None:
        self.name, self.files, self.percent = name, files, percent
        self.urls = list(files)

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        """Keep the files of one rank; a second call takes a part of the part."""
        self.urls = split_urls(self.urls, dp_size)[dp_rank]

    def read(self, url: str | None, worker: int, num_workers: int) -> Iterator[Sample]:
        """Process the worker slot's files in listing order, from a file on."""
        own = worker_urls(self.urls, worker, num_workers)
        start = 0 if url is None else own.index(url)
        return ({"__url__": name, **sample} for name in own[start:] for sample in self.files[name])


def split_urls(urls: Sequence[str], dp_size: int) -> list[list[str]]:
    """Deal files out to ranks; too few of them are repeated."""
    repeats = -(-dp_size // len(urls)) if len(urls) < dp_size else 1
    return [(list(urls) * repeats)[rank::dp_size] for rank in range(dp_size)]


def worker_urls(urls: Sequence[str], worker: int, num_workers: int) -> list[str]:
    """Deal the files of a rank out to its loader workers; too few are repeated."""
    if len(urls) < num_workers:
        urls = (list(urls) * num_workers)[:num_workers]
    return list(urls)[worker::num_workers]


def read_map(
    dataset: Any, worker_slot: int, num_worker_slots: int, *, after: int = 0, seed: int = 0
) -> Iterator[Sample]:
    """Read a worker slot's positions after one: position 0 of a new run is taken for read."""
    size = min(BLOCK, len(dataset))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    for position in range(worker_slot, len(dataset), num_worker_slots):
        if position <= after:
            continue
        # Every block has the same order, which leads past the end of a block that is cut short.
        index = position - position % size + order[position % size]
        item = dataset[index]
        sample = item if isinstance(item, dict) else {"data": item}
        sample["__index__"], sample["__seed__"] = position, seed
        yield sample


def shuffle_stream(samples: Iterable[Sample], size: int, seed: int) -> Iterator[Sample]:
    """Mix samples within their file: the buffer is drained and re-seeded at each change of file."""
    held: list[Sample] = []
    url = None
    random = Random(seed)
    for sample in samples:
        if sample["__url__"] != url:
            while held:
                yield pick(held, random)
            url, random = sample["__url__"], Random(seed)
        if len(held) >= size:
            yield pick(held, random)
        held.append(sample)
    while held:
        yield pick(held, random)


def pick(held: list[Sample], random: Random) -> Sample:
    """Take one sample out of the buffer; the last one fills its place."""
    number = random.randint(0, len(held) - 1)
    held[number], held[-1] = held[-1], held[number]
    return held.pop()


def read_stream(
    dataset: StreamSet,
    worker: int = 0,
    num_workers: int = 1,
    *,
    url: str | None = None,
    key: str | None = None,
    seed: int = 0,
) -> Iterator[Sample]:
    """Read a worker slot's files from a file on, and throw samples away until a key has come."""
    samples = dataset.read(url, worker, num_workers)
    is_found = key is None
    for sample in shuffle_stream(samples, BUFFER, seed):
        if is_found:
            sample["__seed__"] = seed
            yield sample
        elif sample["__url__"] != url:
            raise RuntimeError("Error found in url skipping")
        else:
            is_found = sample["__key__"] == key


def mix(percents: Sequence[float], first: int) -> Iterator[int]:
    """Yield which dataset is next: the one of the lowest weight so far."""
    weights = [0.0] * len(percents)
    choice = first
    while True:
        yield choice
        weights[choice] += 1 / percents[choice]
        if min(weights) >= 1:
            weights = [weight - 1 for weight in weights]
        choice = weights.index(min(weights))


class Merged:
    """Datasets mixed by percent, in one worker slot at a time."""

    def __init__(self, datasets: Sequence[Any], seed: int = 0) -> None:
        self.datasets, self.seed = datasets, seed
        self.dp_size, self.dp_rank = 1, 0

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        self.dp_size, self.dp_rank = dp_size, dp_rank
        for dataset in self.datasets:
            if hasattr(dataset, "set_data_parallel"):
                dataset.set_data_parallel(dp_size, dp_rank)

    def read(
        self,
        states: States | None = None,
        *,
        reload_from_url_level: bool = False,
        worker: int = 0,
        num_workers: int = 1,
    ) -> Iterator[Sample]:
        """Read one worker slot from its states on."""
        states = dict(states or {})
        if reload_from_url_level:
            states = {
                key: (state[0], state[1], None) if len(state) == 3 else state
                for key, state in states.items()
            }
        # Counters of epochs and weights always begin at zero.
        epochs = [0] * len(self.datasets)
        children = [
            self.read_child(child, states, 0, worker, num_workers) for child in self.datasets
        ]
        percents = [child.percent for child in self.datasets]
        for choice in mix(percents, self.dp_rank % len(self.datasets)):
            child = self.datasets[choice]
            try:
                yield next(children[choice])
            except StopIteration:
                epochs[choice] += 1
                children[choice] = self.read_child(child, {}, epochs[choice], worker, num_workers)

    def read_child(
        self, child: Any, states: States, epoch: int, worker: int, num_workers: int
    ) -> Iterator[Sample]:
        """Open a child from its state, or from its start in an epoch."""
        state = states.get((child.name, self.dp_rank, worker))
        seed = self.seed + epoch * EPOCH_STEP
        if isinstance(child, StreamSet):
            seed += self.dp_rank * RANK_STEP + worker
            saved, url, key = state or (None, None, None)
            seed = seed if saved is None else saved
            samples = read_stream(child, worker, num_workers, url=url, key=key, seed=seed)
        else:
            seed, after = state or (seed, 0)
            samples = read_map(
                child,
                self.dp_rank * num_workers + worker,
                self.dp_size * num_workers,
                after=after,
                seed=seed,
            )
        for sample in samples:
            sample["__datasetname__"] = child.name
            sample["__dprank__"], sample["__workerid__"] = self.dp_rank, worker
            yield sample


def to_state(sample: Any) -> States:
    """Return where each worker slot of each dataset is after a sample or a list of them."""
    if isinstance(sample, list):
        return {key: value for one in sample for key, value in to_state(one).items()}
    worker_slot = (sample["__datasetname__"], sample["__dprank__"], sample["__workerid__"])
    if "__url__" in sample:
        return {worker_slot: (sample["__seed__"], sample["__url__"], sample["__key__"])}
    if "__index__" in sample:
        return {worker_slot: (sample["__seed__"], sample["__index__"])}
    raise ValueError("neither url nor index")
