"""A small model of how cogdata streams samples, its faults included, written from its behaviour.

Tests compare zindex with it: what both do alike (orders, keys, states) and what cogdata does
wrong. A worker slot is one loader worker of one rank, given here instead of by torch.
"""

import importlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import torch
import yaml

BLOCK = 2_000_000
BUFFER = 1000
EPOCH_STEP, RANK_STEP = 131, 64

Sample = dict[str, Any]
States = dict[tuple[str, int, int], tuple[Any, ...]]
ProcessFn = Callable[[Iterator[Sample]], Iterator[Sample]]


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

    def __init__(
        self,
        name: str,
        files: dict[str, list[Sample]],
        percent: float = 1.0,
        *,
        urls: Sequence[str] = (),
        process_fn: ProcessFn = lambda samples: samples,
    ) -> None:
        self.name, self.files, self.percent = name, files, percent
        self.urls = list(urls or files)
        self.process_fn = process_fn

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        """Keep the files of one rank; a second call takes a part of the part."""
        self.urls = split_urls(self.urls, dp_size)[dp_rank]

    def read(self, url: str | None, worker: int, num_workers: int) -> Iterator[Sample]:
        """Process the worker slot's files in listing order, from a file on."""
        own = worker_urls(self.urls, worker, num_workers)
        start = 0 if url is None else own.index(url)
        raw = ({"__url__": name, **sample} for name in own[start:] for sample in self.files[name])
        return iter(self.process_fn(raw))


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
    dataset: Any,
    worker_slot: int,
    num_worker_slots: int,
    *,
    after: int = 0,
    shuffle: bool = True,
    block: int = BLOCK,
    seed: int = 0,
) -> Iterator[Sample]:
    """Read a worker slot's positions after one: position 0 of a new run is taken for read."""
    size = min(block, len(dataset))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    for position in range(worker_slot, len(dataset), num_worker_slots):
        if position <= after:
            continue
        # Every block has the same order, which leads past the end of a block that is cut short.
        index = position - position % size + order[position % size] if shuffle else position
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
    shuffle: bool = True,
    buffer: int = BUFFER,
    seed: int = 0,
) -> Iterator[Sample]:
    """Read a worker slot's files from a file on, and throw samples away until a key has come."""
    samples = dataset.read(url, worker, num_workers)
    if not shuffle:  # neither a seed nor a look at the file while skipping
        if key is not None:
            for sample in samples:
                if sample["__key__"] == key:
                    break
        yield from samples
        return
    is_found = key is None
    for sample in shuffle_stream(samples, buffer, seed):
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

    def __init__(
        self,
        datasets: Sequence[Any],
        cyclic: bool = True,
        shuffle_unstreaming_subsets: bool = True,
        shuffle_streaming_subsets: bool = True,
        seed: int = 0,
        customized_yield_fn: ProcessFn | None = None,
        percent: float = 1.0,
    ) -> None:
        self.datasets, self.cyclic, self.seed, self.percent = datasets, cyclic, seed, percent
        self.shuffles_items, self.shuffles_streams = (
            shuffle_unstreaming_subsets,
            shuffle_streaming_subsets,
        )
        self.customized_yield_fn = customized_yield_fn
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
        samples = self.mixed(states, worker, num_workers)
        return samples if self.customized_yield_fn is None else self.customised(samples)

    def mixed(self, states: States, worker: int, num_workers: int) -> Iterator[Sample]:
        """Mix the children: counters of epochs and weights always begin at zero."""
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
                if not self.cyclic:
                    raise
                epochs[choice] += 1
                children[choice] = self.read_child(child, {}, epochs[choice], worker, num_workers)

    def read_child(
        self, child: Any, states: States, epoch: int, worker: int, num_workers: int
    ) -> Iterator[Sample]:
        """Open a child from its state, or from its start in an epoch."""
        if isinstance(child, Merged):
            yield from child.read(states, worker=worker, num_workers=num_workers)
            return
        state = states.get((child.name, self.dp_rank, worker))
        seed = self.seed + epoch * EPOCH_STEP
        if isinstance(child, StreamSet):
            seed += self.dp_rank * RANK_STEP + worker
            saved, url, key = state or (None, None, None)
            samples = read_stream(
                child,
                worker,
                num_workers,
                url=url,
                key=key,
                shuffle=self.shuffles_streams,
                seed=seed if saved is None else saved,
            )
        else:
            seed, after = state or (seed, 0)
            samples = read_map(
                child,
                self.dp_rank * num_workers + worker,
                self.dp_size * num_workers,
                after=after,
                shuffle=self.shuffles_items,
                seed=seed,
            )
        for sample in samples:
            sample["__datasetname__"] = child.name
            sample["__dprank__"], sample["__workerid__"] = self.dp_rank, worker
            yield sample

    def customised(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Put on each output the states of all that was read since the one before."""
        read: list[States] = []

        def watched() -> Iterator[Sample]:
            for sample in samples:
                read.append(to_state(sample))
                yield sample

        assert self.customized_yield_fn is not None
        for output in self.customized_yield_fn(watched()):
            output["__states__"] = list(read)
            read.clear()
            yield output


def to_state(sample: Any) -> States:
    """Return where each worker slot of each dataset is after a sample or a list of them."""
    if isinstance(sample, list):
        return {key: value for one in sample for key, value in to_state(one).items()}
    if "__states__" in sample:
        return {key: value for one in sample["__states__"] for key, value in one.items()}
    worker_slot = (sample["__datasetname__"], sample["__dprank__"], sample["__workerid__"])
    if "__url__" in sample:
        return {worker_slot: (sample["__seed__"], sample["__url__"], sample["__key__"])}
    if "__index__" in sample:
        return {worker_slot: (sample["__seed__"], sample["__index__"])}
    raise ValueError("neither url nor index")


def reshard_states(
    states: States, datasets: Sequence[Any], dp_size: int, num_workers: int
) -> States:
    """Resume every new worker slot after the furthest place of the old ones."""
    made: States = {}
    for dataset in datasets:
        old = [state for (name, _, _), state in states.items() if name == dataset.name]
        worker_slots = [(rank, worker) for rank in range(dp_size) for worker in range(num_workers)]
        if isinstance(dataset, MapSet):
            furthest = max(old, key=lambda state: state[1])
            made.update({(dataset.name, *worker_slot): furthest for worker_slot in worker_slots})
            continue
        frontier = max(dataset.urls.index(state[1]) for state in old)
        for rank, worker in worker_slots:
            own = worker_urls(split_urls(dataset.urls, dp_size)[rank], worker, num_workers)
            later = [url for url in own if dataset.urls.index(url) >= frontier]
            if later:
                made[(dataset.name, rank, worker)] = (None, later[0], None)
    return made


def rotate(workers: Sequence[Iterator[Sample]], batch_size: int) -> Iterator[list[Sample]]:
    """Yield batches as a loader does: its workers in turn, from worker 0 on."""
    while True:
        for worker in workers:
            yield [next(worker) for _ in range(batch_size)]


def pack_text(length: int) -> ProcessFn:
    """Cut the texts of all files, one after the other, in blocks of `length + 1` tokens."""

    def process(samples: Iterator[Sample]) -> Iterator[Sample]:
        carry: list[int] = []  # lives on over files, and is in no state
        for sample in samples:
            carry += sample["text"]
            number = 0
            while len(carry) > length:
                block, carry = carry[: length + 1], carry[length + 1 :]
                key = f"{sample['__key__']}@{number}"
                yield {"__url__": sample["__url__"], "__key__": key, "block": block}
                number += 1

    return process


def sidecar_of(url: str) -> str:
    """Return the metadata file of a tar: in its folder, with its name up to the first dot."""
    slash = url.rindex("/")
    return url[: slash + 1] + url[slash + 1 :].partition(".")[0] + ".meta.jsonl"


def read_tar(data: bytes) -> Iterator[Sample]:
    """Group the members of a tar to samples; a damage is printed and ends the file."""
    sample: Sample = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|*") as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                content = file.read()
                key, _, suffix = member.name.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                sample["__key__"], sample[suffix.lower()] = key, content
    except tarfile.TarError as error:
        print(error)
    if sample:
        yield sample


class Resolvers:
    """The table of resolvers that YAML files share: one for the whole process."""

    def __init__(self) -> None:
        self.table: dict[str, Callable[[str], Any]] = {}

    def register(self, name: str, resolver: Callable[[str], Any]) -> None:
        if name in self.table:
            raise AssertionError(f"resolver {name!r} is already registered")
        self.table[name] = resolver

    def clear(self) -> None:
        """Forget all resolvers, also those of the user."""
        self.table.clear()


RESOLVERS = Resolvers()


def instantiate(text: str, variables: dict[str, Any] | None = None) -> Any:
    """Make the objects of a YAML text: any importable name is called."""
    known = variables or {}
    RESOLVERS.register("variables", lambda name: known.get(name, name))
    made = build(yaml.safe_load(text))
    RESOLVERS.clear()
    return made


def build(node: Any) -> Any:
    """Make the object of one node."""
    if isinstance(node, list):
        return [build(child) for child in node]
    if isinstance(node, str) and node.startswith("${") and node.endswith("}"):
        resolver, _, argument = node[2:-1].partition(":")
        return RESOLVERS.table[resolver](argument)
    if not isinstance(node, dict):
        return node
    if "target" not in node:
        return {key: build(child) for key, child in node.items()}
    module_name, _, name = node["target"].rpartition(".")
    made = getattr(importlib.reload(importlib.import_module(module_name)), name)
    if "params" in node:
        made = made(**build(node["params"] or {}))
    for key, child in node.items():
        if key not in ("target", "params"):
            setattr(made, key, build(child))
    return made
