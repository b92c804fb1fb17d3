"""How many samples and tokens each source has, and how long the samples are."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import cloudpickle
import numpy as np

from zindex.building.executor import (
    Executor,
    Held,
    SerialExecutor,
    open_executor,
    run_builds,
    run_together,
)
from zindex.building.process_executor import open_processes
from zindex.errors import ConfigError, SourceError
from zindex.streaming.leaves import Leaf, describe, read_items
from zindex.streaming.lengths.length_histogram import LengthHistogram
from zindex.streaming.lengths.sample_length import LengthOf, measure
from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.orders import keyed_order

_TASKS_PER_THREAD = 4
# Parts that are read before anybody knows how many samples a part has.
_FIRST_PARTS = 4
_BLOCK = 1 << 16  # lengths that are held at a time
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SourceLengths:
    """What one source holds, counted or estimated from some of its parts."""

    name: str
    #: What lengths count: ``"tokens"``, ``"characters"`` or ``"bytes"``; ``"samples"`` if samples
    #: have no length, which all count as 0 then; ``""`` without samples.
    unit: str
    #: Lengths of the samples that were read.
    histogram: LengthHistogram
    #: What an epoch is read in: ``"parts"`` of a stream, ``"items"`` of a map-style set.
    kind: str
    num_parts: int
    num_parts_read: int
    #: Bytes as they are stored; None where the source does not know.
    nbytes: int | None
    nbytes_read: int | None
    #: Damaged samples, or rests of files, that were left out in what was read.
    num_skipped: int

    @property
    def fraction_read(self) -> float:
        """Share of the source that was read: of its bytes where these are known."""
        if self.num_parts_read == self.num_parts:
            return 1.0
        if self.nbytes and self.nbytes_read:
            return self.nbytes_read / self.nbytes
        return self.num_parts_read / self.num_parts

    @property
    def is_estimate(self) -> bool:
        """Whether the numbers of the whole source are estimates."""
        return self.num_parts_read < self.num_parts

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return round(self.histogram.num_samples / self.fraction_read)

    @property
    def num_tokens(self) -> int:
        """Tokens of an epoch, or what ``unit`` says."""
        return round(self.histogram.num_tokens / self.fraction_read)

    @property
    def mean_length(self) -> float:
        """Tokens of a sample on average; 0 without samples."""
        return self.histogram.num_tokens / max(1, self.histogram.num_samples)

    def quantile(self, share: float) -> int:
        """Return a length that this share of the samples does not exceed, within 1/32."""
        return self.histogram.quantile(share)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values, with what follows from them for readers."""
        return {
            "name": self.name,
            "unit": self.unit,
            "kind": self.kind,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
            "is_estimate": self.is_estimate,
            "fraction_read": self.fraction_read,
            "num_parts": self.num_parts,
            "num_parts_read": self.num_parts_read,
            "nbytes": self.nbytes,
            "nbytes_read": self.nbytes_read,
            "num_skipped": self.num_skipped,
            "histogram": self.histogram.to_json(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SourceLengths":
        """Return the counts that `to_json` wrote."""
        names = set(cls.__dataclass_fields__) - {"histogram"}
        own = {name: value for name, value in fields.items() if name in names}
        return cls(histogram=LengthHistogram.from_json(fields["histogram"]), **own)


@dataclass(frozen=True, slots=True)
class Lengths:
    """What all sources of a dataset hold, in its order."""

    sources: tuple[SourceLengths, ...]

    def __iter__(self) -> Iterator[SourceLengths]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, name: str) -> SourceLengths:
        """Return the counts of a source by its name."""
        return {source.name: source for source in self.sources}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        sources = [source.to_json() for source in self.sources]
        return {"version": _FORMAT_VERSION, "sources": sources}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Lengths":
        """Return the counts that `to_json` wrote.

        Raises
        ------
        ConfigError
            If they are of another version.
        """
        if fields.get("version") != _FORMAT_VERSION:
            raise ConfigError(
                f"counted lengths must be of version {_FORMAT_VERSION}, got "
                f"{fields.get('version')!r}; count them again with this zindex"
            )
        return cls(tuple(map(SourceLengths.from_json, fields["sources"])))


def count_lengths(
    dataset: Any,
    *,
    length_of: LengthOf | None = None,
    client: Any = None,
    num_processes: int | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Lengths:
    """Count the samples and tokens of every source, part by part, on Dask.

    Parameters
    ----------
    dataset
        A `MergedDataset`, whose sources are counted as they come before they are mixed and before
        a ``customized_yield_fn``; or one source of it.
    length_of
        Returns the tokens of a sample, as `TextLength` of a tokenizer does. Without it the first
        of the fields ``tokens``, ``input_ids``, ``token_ids``, ``txt``, ``text`` and ``caption``
        that holds tokens is counted, where a mask beside it (``txt_mask``) allows; if there is
        none, the characters or bytes of the first that is a text. A source whose samples have none
        of these is counted in samples alone.
    client
        As for `zindex.build`: a ``distributed.Client``, a scheduler's address, or an executor; None
        takes the process's current client, or starts a cluster of this machine's cores. Samples
        are made by Python, one at a time in each process: give workers one thread each.
    num_processes
        Processes of this machine that do the work in place of a client, 1 for this process alone;
        of more, the calling script must have its work below ``if __name__ == "__main__":``.
    num_samples
        Samples of each source to read at least, in parts or items drawn at random; None reads
        everything. The numbers of a source that was not read wholly are estimates.
    seed
        Of that draw.

    Returns
    -------
    lengths
        The same wherever and in how many tasks they were counted.

    Raises
    ------
    ConfigError
        If the dataset is no source, cannot be sent to other processes, or a number is out of range.
    SourceError
        If the samples of a source are of several units, or ``length_of`` returns no length.
    """
    if num_samples is not None and num_samples < 1:
        raise ConfigError(f"num_samples must be at least 1, or None for all, got {num_samples}")
    if client is not None and num_processes is not None:
        raise ConfigError(
            "client and num_processes both say where the work is done; give one of them"
        )
    leaves = list_leaves(dataset)

    async def count_all(executor: Executor) -> Lengths:
        counts = (_count_leaf(executor, leaf, length_of, num_samples, seed) for leaf in leaves)
        return Lengths(tuple(await run_together(counts)))

    if num_processes == 1:
        client = SerialExecutor()
    use_client = client is not None or num_processes is None
    place = open_executor(client) if use_client else open_processes(num_processes or 0)
    with place as executor:
        return run_builds(count_all(executor))


def list_leaves(dataset: Any) -> list[Leaf]:
    """Return the sources of a dataset, which may be one itself.

    Raises
    ------
    ConfigError
        If it is none.
    """
    if isinstance(dataset, MergedDataset):
        return dataset.leaves()
    name = getattr(dataset, "name", None)
    name = name if isinstance(name, str) and name else describe(dataset)
    return [Leaf(name, dataset, 0, False, "keyed").check()]


@dataclass(frozen=True, slots=True)
class _Count:
    """What one task has read."""

    units: frozenset[str] = frozenset()
    histogram: LengthHistogram = field(default_factory=LengthHistogram)
    num_skipped: int = 0

    @classmethod
    def union(cls, counts: Iterable["_Count"]) -> "_Count":
        held = list(counts)
        return cls(
            frozenset(unit for count in held for unit in count.units),
            LengthHistogram.union(count.histogram for count in held),
            sum(count.num_skipped for count in held),
        )


async def _count_leaf(
    executor: Executor, leaf: Leaf, length_of: LengthOf | None, least: int | None, seed: int
) -> SourceLengths:
    """Return the counts of one source."""
    size = _count_parts(leaf.dataset, leaf.is_parted)
    numbers = np.arange(size)
    if least is not None and size:
        numbers = keyed_order(numbers, size, seed=seed, name=f"lengths of {leaf.name}", epoch=0)
    held = await _hold(executor, leaf, length_of)
    count, done = _Count(), 0
    while done < size and (least is None or count.histogram.num_samples < least):
        stop = _next_stop(leaf, done, size, count.histogram.num_samples, least)
        found = await _count_items(executor, leaf, held, sorted(numbers[done:stop].tolist()))
        count, done = _Count.union([count, found]), stop
    return _describe(leaf, count, sorted(numbers[:done].tolist()), size)


def _count_parts(dataset: Any, is_parted: bool) -> int:
    """Return the parts or items of a source, or its files where it has no parts."""
    if not is_parted:
        return len(dataset)
    return int(dataset.num_parts) if hasattr(dataset, "num_parts") else len(dataset.urls)


def _next_stop(leaf: Leaf, done: int, size: int, num_found: int, least: int | None) -> int:
    """Return up to where parts or items are read next: what has been read decides, no executor."""
    if least is None:
        return size
    if not leaf.is_parted:
        return min(size, least)
    if not done:
        return min(size, _FIRST_PARTS)
    wanted = math.ceil(done * least / num_found) if num_found else 2 * done
    return min(size, max(done + 1, wanted))


async def _hold(executor: Executor, leaf: Leaf, length_of: LengthOf | None) -> Held:
    """Send a source to where tasks run; each of them takes a copy, as loader workers do."""
    content = leaf.dataset, leaf.is_parted, leaf.name, length_of
    if type(executor) is SerialExecutor:
        return content
    try:
        packed: bytes = cloudpickle.dumps(content)
    except Exception as error:  # datasets raise what they like
        raise ConfigError(
            f"dataset {leaf.name!r} ({describe(leaf.dataset)}) and length_of must pickle to be "
            f"counted in other threads and processes: {error}; make them pickle, or pass "
            "num_processes=1"
        ) from error
    return await executor.hold(_keep, packed, key=f"lengths/{leaf.name}/source")


def _keep(packed: bytes) -> bytes:
    return packed


async def _count_items(executor: Executor, leaf: Leaf, held: Held, numbers: list[int]) -> _Count:
    """Count parts or items in some tasks of neighbouring ones."""
    num_tasks = min(len(numbers), _TASKS_PER_THREAD * executor.num_threads)
    bounds = [len(numbers) * task // num_tasks for task in range(num_tasks + 1)]
    return _Count.union(
        await run_together(
            executor.run(
                _count, held, numbers[start:stop], key=f"lengths/{leaf.name}/{numbers[start]}"
            )
            for start, stop in pairwise(bounds)
        )
    )


def _count(held: Any, numbers: list[int]) -> _Count:
    """Count some parts or items; a task."""
    # Threads of one process must not share a dataset: it may count and cache as it is read.
    dataset, is_parted, name, length_of = (
        cloudpickle.loads(held) if isinstance(held, bytes) else held
    )
    already = int(dataset.num_skipped) if is_parted else 0
    units: set[str] = set()
    histograms: list[LengthHistogram] = []
    lengths: list[int] = []
    samples = _read_parts(dataset, numbers) if is_parted else read_items(dataset, name, numbers)
    for sample in samples:
        length, unit = measure(sample, name, length_of)
        units.add(unit)
        lengths.append(length)
        if len(lengths) >= _BLOCK:
            histograms.append(LengthHistogram.of(lengths))
            lengths = []
    histograms.append(LengthHistogram.of(lengths))
    num_skipped = int(dataset.num_skipped) - already if is_parted else 0
    return _Count(frozenset(units), LengthHistogram.union(histograms), num_skipped)


def _read_parts(dataset: Any, numbers: list[int]) -> Iterator[Any]:
    read = dataset.read_part if hasattr(dataset, "num_parts") else dataset.read_url
    for part in numbers:
        yield from read(part)


def _describe(leaf: Leaf, count: _Count, numbers: list[int], size: int) -> SourceLengths:
    """Return the counts of a source of which some parts or items were read."""
    if len(count.units) > 1:
        raise SourceError(
            f"the samples of {leaf.name!r} must all be counted in one unit, got "
            f"{' and '.join(sorted(count.units))}; give length_of, which returns their "
            "tokens, such as TextLength(tokenizer) (--tokenizer FILE)"
        )
    part_nbytes = getattr(getattr(leaf.dataset, "files", None), "part_nbytes", None)
    nbytes = nbytes_read = None
    if leaf.is_parted and callable(part_nbytes):
        every = [cast("int | None", part_nbytes(part)) for part in range(size)]
        known = [one for one in every if one is not None]
        if len(known) == size:
            nbytes, nbytes_read = sum(known), sum(known[part] for part in numbers)
    return SourceLengths(
        name=leaf.name,
        unit=next(iter(count.units), ""),
        histogram=count.histogram,
        kind="parts" if leaf.is_parted else "items",
        num_parts=size,
        num_parts_read=len(numbers),
        nbytes=nbytes,
        nbytes_read=nbytes_read,
        num_skipped=count.num_skipped,
    )
