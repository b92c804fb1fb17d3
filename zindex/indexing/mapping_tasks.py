"""The tasks of a sentence mapping: counting scans, shards of samples, and the shuffle.

Scans are fast and their results large, so samples are scanned again for their shards instead of
being kept after the count.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, DTypeLike, Int64Array, UInt32Array, UInt64Array
from zindex.indexing.computed_arrays import copy_overlap
from zindex.indexing.store_build import store_whole_array
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import Place
from zindex.kernels.mersenne64 import seed_state64, shuffle_rows64
from zindex.kernels.random_draws import MEMORY_LENGTH, seed_draws
from zindex.kernels.sentence_mapping import ScanRule, scan_sentences, skip_targets
from zindex.plan.sentence_mapping import PARTITION_LENGTH, MappingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.shard_files import ShardResult, store_shard

# Maximum sentences and documents in memory at a time, apart from a single long document: more than
# a usual partition has.
_RUN_LENGTH = 2 * PARTITION_LENGTH


@dataclass(frozen=True, slots=True)
class SentenceSource:
    """The sentences of a corpus, the starts of its documents, and their titles, if any."""

    sentences: LengthSource
    #: A corpus with one sequence per document.
    titles: LengthSource | None = None

    def bounds(self, start: int, stop: int) -> Int64Array:
        """Return the sentences at which documents ``[start, stop]`` start, int64."""
        reader = self.sentences.reader
        if isinstance(reader, Store):
            return reader[schema.DOCUMENT_OFFSET.name].read(start, stop + 1)
        return reader.document_indices(start, stop + 1)


def seed_targets(seed: int) -> UInt32Array:
    """Return the generator of Megatron's targets before its first draw."""
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    seed_draws(seed & 0xFFFFFFFF, memory)
    return memory


def seed_order(seed: int) -> UInt64Array:
    """Return the generator of Megatron's shuffle before its first draw."""
    # Megatron adds one to an int32, which may overflow.
    return seed_state64((seed + 1 + 2**31) % 2**32 - 2**31)


class Documents(NamedTuple):
    """Consecutive documents, as a scan needs them."""

    first: int
    #: Shape (documents + 1,), int64: sentences at which they start, then the end.
    bounds: Int64Array
    #: Shape (sentences,), int32, tokens.
    lengths: AnyArray
    #: Shape (documents,), int32, tokens of each title.
    titles: AnyArray | None

    @property
    def last(self) -> int:
        """One after the last document."""
        return self.first + len(self.bounds) - 1


def _read_documents(
    source: SentenceSource, first: int, last: int, most: int
) -> Iterator[Documents]:
    """Yield documents ``[first, last)`` in batches of at most ``most`` documents and sentences."""
    while first < last:
        bounds = source.bounds(first, min(last, first + most))
        count = max(1, int(np.searchsorted(bounds, bounds[0] + most, side="right")) - 1)
        bounds = bounds[: count + 1]
        lengths = source.sentences.lengths(int(bounds[0]), int(bounds[-1]))
        titles = None if source.titles is None else source.titles.lengths(first, first + count)
        yield Documents(first, bounds, lengths, titles)
        first += count


def scan_documents(
    plan: MappingPlan, epoch: int, documents: Documents, memory: UInt32Array | None
) -> tuple[AnyArray, int]:
    """Return the samples of some documents in an epoch, and the number of targets drawn for them.

    The parameters are as of `scan_partitions`.
    """
    return scan_sentences(
        documents.bounds,
        documents.lengths,
        plan.rule,
        memory=memory if plan.is_chained else None,
        key=None if plan.repeats or plan.is_chained else plan.target_key(epoch),
        titles=documents.titles,
        # Megatron numbers the documents of a split, keys use those of the corpus.
        first_document=documents.first - (plan.start if plan.kind == "blocks" else 0),
        dtype=plan.row_dtype,
    )


def scan_partitions(
    plan: MappingPlan, source: SentenceSource, start: int, stop: int, memory: UInt32Array | None
) -> Iterator[tuple[int, AnyArray, int]]:
    """Yield the samples of some partitions, in order.

    Parameters
    ----------
    plan, source
        The mapping, and its sentences.
    start, stop
        Partitions, half-open.
    memory
        The generator at the start of them, if targets are drawn in sequence; advanced in place.

    Yields
    ------
    partition, samples, drawn
        A partition, some or all of its samples, and the number of targets drawn for them. Large
        partitions are yielded in several batches to bound memory.
    """
    batch: Documents | None = None
    for partition in range(start, stop):
        epoch, first, last = plan.partition_bounds(partition)
        first, last = plan.start + first, plan.start + last
        if batch is not None and (batch.first, batch.last) == (first, last):
            batches: Iterable[Documents] = (batch,)  # same partition, next epoch
        else:
            batches = _read_documents(source, first, last, _RUN_LENGTH)
        for batch in batches:
            yield partition, *scan_documents(plan, epoch, batch, memory)


def count_partitions(
    plan: MappingPlan, source: SentenceSource, start: int, stop: int, memory: UInt32Array | None
) -> tuple[Int64Array, UInt32Array | None]:
    """Task: count the samples of some partitions.

    Returns
    -------
    counts
        Shape (partitions, 2), int64: samples, and targets drawn.
    memory
        The generator after the partitions, if any.
    """
    # Arguments may be shared between tasks.
    memory = None if memory is None else memory.copy()
    counts = np.zeros((stop - start, 2), np.int64)
    for partition, samples, drawn in scan_partitions(plan, source, start, stop, memory):
        counts[partition - start] += len(samples), drawn
    return counts, memory


def store_row_shard(
    plan: MappingPlan,
    source: SentenceSource,
    root: Place,
    layout: ArrayLayout,
    shard: int,
    near: tuple[int, int, int, int],
) -> ShardResult:
    """Task: store one shard of samples.

    Parameters
    ----------
    plan, source, root
        The mapping, its sentences and its store.
    layout, shard
        The array and the shard's number.
    near
        Partitions that overlap it, half-open; sample and drawn target at which they start.
    """
    start, stop = layout.shard_bounds(shard)
    first, last, sample, drawn = near

    def compute() -> AnyArray:
        values: AnyArray = np.empty((stop - start, layout.num_columns), layout.dtype)
        memory, row = None, sample
        if plan.is_chained:
            memory = seed_targets(plan.seed)
            skip_targets(memory, drawn)
        for _, rows, _ in scan_partitions(plan, source, first, last, memory):
            copy_overlap(rows, row, values, start)
            row += len(rows)
        return values

    return store_shard(root, layout, shard, compute)


def shuffle_mapping(plan: MappingPlan, num_samples: int, dtype: DTypeLike) -> AnyArray:
    """Return Megatron's order of the samples of all epochs: shape (num_samples,)."""
    samples: AnyArray = np.arange(num_samples, dtype=dtype)
    shuffle_rows64(samples, seed_order(plan.seed))
    return samples


def store_shuffled_mapping(
    plan: MappingPlan, root: Place, layout: ArrayLayout
) -> list[ShardResult]:
    """Task: store all shards of Megatron's shuffle, whose swaps span the whole array."""
    return store_whole_array(
        root, layout, lambda: shuffle_mapping(plan, layout.length, layout.dtype)
    )


def map_epochs(
    scan: Callable[[int], AnyArray], rule: ScanRule, *, num_epochs: int | None, num_wanted: int
) -> list[AnyArray]:
    """Return the samples of as many epochs as needed, each as an array.

    Parameters
    ----------
    scan
        Returns the samples of an epoch.
    rule
        The rule of the scan: without draws all epochs are equal, so only one is scanned.
    num_epochs
        Most epochs; None for no limit.
    num_wanted
        Number of samples after which no further epoch is started.

    Notes
    -----
    Law: an epoch without samples is the last, since later ones would have none either.
    """
    epochs: list[AnyArray] = []
    num_samples = 0
    while num_samples < num_wanted and (num_epochs is None or len(epochs) < num_epochs):
        samples = epochs[0] if epochs and not rule.short_ratio else scan(len(epochs))
        if not len(samples):
            break
        epochs.append(samples)
        num_samples += len(samples)
    return epochs
