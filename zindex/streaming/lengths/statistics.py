"""Count the samples and tokens of each source, part by part on Dask."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, pairwise, repeat
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from zindex.errors import ConfigError, SourceError
from zindex.execution.executor import Executor, Held, SerialExecutor, run_builds, run_together
from zindex.execution.process_executor import choose_executor
from zindex.io.machine import count_cpus
from zindex.loading.stream_orders import keyed_order
from zindex.processing.sample_length import LengthOf, measure
from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.sources import StreamSource, describe
from zindex.text.length_histogram import LengthHistogram

_TASKS_PER_THREAD = 4
# Parts of the first round, from which the number of samples per part is estimated.
_FIRST_PARTS = 4
_BLOCK = 1 << 16  # lengths that are buffered
_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class SourceLengths:
    """Samples and lengths of one source, counted or estimated from some of its parts."""

    name: str
    #: Unit of lengths: ``"tokens"``, ``"characters"`` or ``"bytes"``; ``"samples"`` if samples have
    #: no length, which are 0 then; ``""`` without samples.
    unit: str
    #: Lengths of the samples read.
    histogram: LengthHistogram
    #: Units of an epoch: ``"parts"``, or ``"files"`` without parts; ``"items"`` if map-style.
    kind: str
    num_parts: int
    num_parts_read: int
    #: Stored bytes; None if unknown.
    nbytes: int | None
    nbytes_read: int | None
    #: Number of damaged samples, and truncated files, that were skipped.
    num_skipped: int

    @property
    def fraction_read(self) -> float:
        """Share of the source that was read: of its bytes if known."""
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
        """Samples per epoch."""
        return round(self.histogram.num_samples / self.fraction_read)

    @property
    def num_tokens(self) -> int:
        """Tokens, or other units, per epoch."""
        return round(self.histogram.num_tokens / self.fraction_read)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a sample; 0 without samples."""
        return self.histogram.num_tokens / max(1, self.histogram.num_samples)

    def quantile(self, share: float) -> int:
        """Return a length that is not exceeded by this share of the samples, within 1/32."""
        return self.histogram.quantile(share)

    def to_json(self) -> dict[str, Any]:
        """Return the counts and derived numbers as JSON values."""
        derived = ("num_samples", "num_tokens", "is_estimate", "fraction_read")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SourceLengths":
        """Return the counts that `to_json` wrote."""
        own = {name: fields[name] for name in cls.__dataclass_fields__}
        return cls(**own | {"histogram": LengthHistogram.from_json(fields["histogram"])})


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of all sources of a dataset, in its order."""

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
        A `MergedDataset`, whose sources are counted before mixing and before a
        ``customized_yield_fn``; or one source of it.
    length_of
        Returns the tokens of a sample, for example `TextLength` of a tokenizer. By default the
        tokens of the first of the fields ``tokens``, ``input_ids``, ``token_ids``, ``txt``,
        ``text`` and ``caption`` are counted, where their mask (``txt_mask``) is set; without
        tokens, the characters or bytes of the first text. A source with none of these is counted in
        samples.
    client
        As for `zindex.build`: a ``distributed.Client``, a scheduler's address, or an executor; None
        uses the current client of the process, or starts a cluster on this machine's cores. Reading
        samples is bound by the GIL: give workers one thread each.
    num_processes
        Processes on this machine to use instead of a client; 1 uses this process. For more, the
        calling script needs an ``if __name__ == "__main__":`` guard.
    num_samples
        Minimum number of samples to read of each source, in random parts or items; None reads
        everything. Numbers of a partly read source are estimates.
    seed
        Seed of that choice.

    Returns
    -------
    lengths
        Independent of the executor and the number of tasks.

    Raises
    ------
    ConfigError
        If the dataset is no source or does not pickle, or a number is out of range.
    SourceError
        If the samples of a source are of several units, or ``length_of`` returns no length.
    """
    if num_samples is not None and num_samples < 1:
        raise ConfigError(
            f"num_samples (--read) must be at least 1, got {num_samples}; leave it out for all"
        )
    sources = list_sources(dataset)

    async def count_all(executor: Executor) -> Lengths:
        count = partial(_count_source, executor, length_of=length_of, least=num_samples, seed=seed)
        return Lengths(tuple(await run_together(map(count, sources))))

    with choose_executor(client, num_processes) as executor:
        return run_builds(count_all(executor))


def list_sources(dataset: Any) -> list[StreamSource]:
    """Return the sources of a dataset, or the dataset itself as a source.

    Raises
    ------
    ConfigError
        If it is not a source.
    """
    if isinstance(dataset, MergedDataset):
        return dataset.sources()
    name = getattr(dataset, "name", None)
    name = name if isinstance(name, str) and name else describe(dataset)
    return [StreamSource(name, dataset, 0, False, "keyed").check()]


class _Count(NamedTuple):
    """Counts of one task."""

    units: frozenset[str] = frozenset()
    histogram: LengthHistogram = LengthHistogram()
    num_skipped: int = 0

    @classmethod
    def union(cls, counts: Iterable["_Count"]) -> "_Count":
        units, histograms, numbers = zip(*counts, strict=True)
        return cls(frozenset().union(*units), LengthHistogram.union(histograms), sum(numbers))


async def _count_source(
    executor: Executor,
    source: StreamSource,
    length_of: LengthOf | None,
    least: int | None,
    seed: int,
) -> SourceLengths:
    """Return the counts of one source."""
    if hasattr(source.dataset, "num_parts"):
        # Parts are smaller than files, and their bytes may be known.
        source = replace(source, order="keyed")
    size = source.num_items
    numbers = np.arange(size)
    if least is not None and size:
        numbers = keyed_order(numbers, size, seed=seed, name=f"lengths of {source.name}", epoch=0)
    sent = await _send(executor, source, length_of)
    count, done = _Count(), 0
    while done < size and (least is None or count.histogram.num_samples < least):
        stop = _next_stop(source, done, count.histogram.num_samples, least)
        found = await _count_items(executor, source, sent, sorted(numbers[done:stop].tolist()))
        count, done = _Count.union([count, found]), stop
    return _describe(source, count, numbers[:done].tolist())


def _next_stop(source: StreamSource, done: int, num_found: int, least: int | None) -> int:
    """Return the stop of the next round, which depends on the samples read only."""
    if least is None:
        return source.num_items
    if not source.is_partitioned:
        stop = least
    elif not done:
        stop = _FIRST_PARTS
    else:
        stop = max(done + 1, math.ceil(done * least / num_found) if num_found else 2 * done)
    return min(source.num_items, stop)


async def _send(executor: Executor, source: StreamSource, length_of: LengthOf | None) -> Held:
    """Send a source to the workers; each task unpickles a copy, like loader workers."""
    if type(executor) is SerialExecutor:
        return source, length_of
    try:
        packed = cloudpickle.dumps((source, length_of))
    except Exception as error:  # of any type
        raise ConfigError(
            f"dataset {source.name!r} ({describe(source.dataset)}) and length_of must pickle to be "
            f"counted in other threads and processes: {error}; make them pickle, or pass "
            "num_processes=1 (--processes 1)"
        ) from error
    return await executor.hold(bytes, packed, key=f"lengths/{source.name}/source")


async def _count_items(
    executor: Executor, source: StreamSource, sent: Held, numbers: list[int]
) -> _Count:
    """Count parts or items in tasks of adjacent ones."""
    num_tasks = min(len(numbers), _TASKS_PER_THREAD * executor.num_threads)
    bounds = [len(numbers) * task // num_tasks for task in range(num_tasks + 1)]
    tasks = [numbers[start:stop] for start, stop in pairwise(bounds)]
    key = f"lengths/{source.name}"
    return _Count.union(
        await run_together(
            executor.run(_count, sent, task, key=f"{key}/{task[0]}") for task in tasks
        )
    )


def _count(sent: Any, numbers: list[int]) -> _Count:
    """Task: count some parts or items."""
    # Threads must not share a dataset, which may count and cache while it is read.
    source, length_of = cloudpickle.loads(sent) if isinstance(sent, bytes) else sent
    already = source.num_skipped
    measured = (measure(sample, source.name, length_of) for sample in source.read(numbers))
    units: set[str] = set()
    histograms: list[LengthHistogram] = []
    while block := list(islice(measured, _BLOCK)):
        lengths, units_of_block = zip(*block, strict=True)
        units.update(units_of_block)
        histograms.append(LengthHistogram.of(lengths))
    histogram = LengthHistogram.union(histograms)
    return _Count(frozenset(units), histogram, source.num_skipped - already)


def _describe(source: StreamSource, count: _Count, numbers: list[int]) -> SourceLengths:
    """Return the counts of a source from the parts or items read."""
    if len(count.units) > 1:
        raise SourceError(
            f"the samples of {source.name!r} must all be counted in one unit, got "
            f"{' and '.join(sorted(count.units))}; give length_of, which returns their "
            "tokens, such as TextLength(tokenizer) (--tokenizer FILE)"
        )
    sizes = list(_part_sizes(source)) if source.is_partitioned else []
    known = [size for size in sizes if size is not None]
    is_known = bool(sizes) and len(known) == len(sizes)
    return SourceLengths(
        name=source.name,
        unit=next(iter(count.units), ""),
        histogram=count.histogram,
        kind=source.kind,
        num_parts=source.num_items,
        num_parts_read=len(numbers),
        nbytes=sum(known) if is_known else None,
        nbytes_read=sum(known[number] for number in numbers) if is_known else None,
        num_skipped=count.num_skipped,
    )


# One process reads this much about as fast as several, which take seconds to start.
_NBYTES_ALONE = 4 << 20
# Assumed bytes of a part of unknown size, and of an item.
_PART_NBYTES, _ITEM_NBYTES = 1 << 20, 4 << 10


def choose_processes(
    dataset: Any,
    num_samples: int | None = None,
    *,
    most_nbytes: int = _NBYTES_ALONE,
    num_cores: int | None = None,
) -> int:
    """Return the number of processes for counting a dataset: one if it is small.

    Parameters
    ----------
    dataset, num_samples
        As for `zindex.streaming.count_lengths`.
    most_nbytes
        Bytes that one process reads alone.
    num_cores
        Processes for more; the processors of this process if None.

    Raises
    ------
    ConfigError
        If the dataset is no source.
    """
    nbytes = 0
    for source in list_sources(dataset):
        assumed, sizes = _PART_NBYTES, _part_sizes(source)
        if not source.is_partitioned:
            assumed, sizes = _ITEM_NBYTES, islice(sizes, num_samples)
        for size in sizes:
            nbytes += assumed if size is None else size
            if nbytes > most_nbytes:
                return num_cores or count_cpus()
    return 1


def _part_sizes(source: StreamSource) -> Iterator[int | None]:
    """Yield the bytes of each part, file or item; None if unknown."""
    part_nbytes = getattr(source.dataset, "part_nbytes", None)
    if source.kind == "parts" and callable(part_nbytes):
        return map(part_nbytes, range(source.num_items))
    return repeat(None, source.num_items)
