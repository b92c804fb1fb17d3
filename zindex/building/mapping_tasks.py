"""The tasks of a sentence mapping: scans that count, shards of samples, the shuffle.

A scan is quick and its result large, so samples are not held between the count and the shards that
they go to: they are scanned again there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.packing_tasks import copy_overlap
from zindex.building.source import LengthSource
from zindex.kernels.mersenne64 import seed_state64, shuffle_rows64
from zindex.kernels.random_draws import MEMORY_LENGTH, seed_draws
from zindex.kernels.sentence_mapping import ScanRule, scan_sentences, skip_targets
from zindex.plan.sentence_mapping import PARTITION_LENGTH, MappingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place
from zindex.store.open import Store
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

# Sentences, and documents, that are held at a time, or one document; more than a partition has if
# documents are alike.
_RUN_LENGTH = 2 * PARTITION_LENGTH


@dataclass(frozen=True, slots=True)
class SentenceSource:
    """The sentences of a corpus, where its documents start, and their titles if there are some."""

    sentences: LengthSource
    #: A corpus of one sequence for each document.
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
    # Megatron adds one to an int32, and the largest becomes the smallest.
    return seed_state64((seed + 1 + 2**31) % 2**32 - 2**31)


class _Documents(NamedTuple):
    """Consecutive documents with what a scan needs of them."""

    first: int
    #: Shape (documents + 1,), int64: sentences at which they start, and at last end.
    bounds: Int64Array
    #: Shape (sentences,), int32, tokens.
    lengths: AnyArray
    #: Shape (documents,), int32, tokens of each title.
    titles: AnyArray | None


def _read_documents(
    source: SentenceSource, first: int, last: int, most: int
) -> Iterator[_Documents]:
    """Give documents ``[first, last)``, so many and so many sentences at most at a time."""
    while first < last:
        bounds = source.bounds(first, min(last, first + most))
        count = max(1, int(np.searchsorted(bounds, bounds[0] + most, side="right")) - 1)
        bounds = bounds[: count + 1]
        lengths = source.sentences.lengths(int(bounds[0]), int(bounds[-1]))
        titles = None if source.titles is None else source.titles.lengths(first, first + count)
        yield _Documents(first, bounds, lengths, titles)
        first += count


def scan_partitions(
    plan: MappingPlan, source: SentenceSource, start: int, stop: int, memory: UInt32Array | None
) -> Iterator[tuple[int, AnyArray, int]]:
    """Give the samples of some partitions, in order.

    Parameters
    ----------
    plan, source
        The mapping, and what it is made of.
    start, stop
        Partitions, half-open.
    memory
        The generator at the first of them, where targets are drawn in order; advanced.

    Yields
    ------
    partition, samples, drawn
        A partition, some or all of its samples, and the targets drawn for them: partitions that
        hold more sentences than most do come in several parts, so that none needs much memory.
    """
    held: _Documents | None = None
    for partition in range(start, stop):
        epoch, first, last = plan.partition_bounds(partition)
        if held is not None and (held.first, held.first + len(held.bounds) - 1) == (first, last):
            runs: Iterable[_Documents] = (held,)  # an epoch of one partition, once more
        else:
            runs = _read_documents(source, first, last, _RUN_LENGTH)
        for held in runs:
            samples, drawn = scan_sentences(
                held.bounds,
                held.lengths,
                plan.rule,
                memory=memory if plan.is_chained else None,
                key=None if plan.repeats or plan.is_chained else plan.target_key(epoch),
                titles=held.titles,
                # Megatron numbers the documents of a split; keys are of those of the corpus.
                first_document=held.first - (plan.start if plan.kind == "blocks" else 0),
                dtype=plan.row_dtype,
            )
            yield partition, samples, drawn


def count_partitions(
    plan: MappingPlan, source: SentenceSource, start: int, stop: int, memory: UInt32Array | None
) -> tuple[Int64Array, UInt32Array | None]:
    """Task: count the samples of some partitions.

    Returns
    -------
    counts
        Shape (partitions, 2), int64: samples, and targets drawn.
    memory
        The generator after them, where there is one.
    """
    # Arguments of tasks may be shared.
    memory = None if memory is None else memory.copy()
    counts = np.zeros((stop - start, 2), np.int64)
    for partition, samples, drawn in scan_partitions(plan, source, start, stop, memory):
        counts[partition - start] += len(samples), drawn
    return counts, memory


def compute_rows(
    plan: MappingPlan,
    source: SentenceSource,
    layout: ArrayLayout,
    shard: int,
    near: tuple[int, int, int, int],
) -> AnyArray:
    """Return one shard of samples.

    Parameters
    ----------
    plan, source
        The mapping, and what it is made of.
    layout, shard
        The array and the shard's number.
    near
        Partitions that reach into it, half-open; sample, and drawn target, at which they start.
    """
    start, stop = layout.shard_bounds(shard)
    values: AnyArray = np.empty((stop - start, layout.num_columns), layout.dtype)
    first, last, sample, drawn = near
    memory = None
    if plan.is_chained:
        memory = seed_targets(plan.seed)
        skip_targets(memory, drawn)
    for _, rows, _ in scan_partitions(plan, source, first, last, memory):
        copy_overlap(rows, sample, values, start)
        sample += len(rows)
    return values


def store_row_shard(
    plan: MappingPlan,
    source: SentenceSource,
    root: Place,
    layout: ArrayLayout,
    shard: int,
    near: tuple[int, int, int, int],
) -> ShardResult:
    """Task: one shard of samples; see `compute_rows`."""
    return store_shard(root, layout, shard, lambda: compute_rows(plan, source, layout, shard, near))


def shuffle_mapping(plan: MappingPlan, num_samples: int, dtype: npt.DTypeLike) -> AnyArray:
    """Return Megatron's order of the samples of all epochs: shape (num_samples,)."""
    samples: AnyArray = np.arange(num_samples, dtype=dtype)
    shuffle_rows64(samples, seed_order(plan.seed))
    return samples


def store_shuffled_mapping(
    plan: MappingPlan, root: Place, layout: ArrayLayout
) -> list[ShardResult]:
    """Task: all shards of Megatron's shuffle, whose swaps reach everywhere."""
    shards = range(layout.num_shards)
    receipts = [find_receipt(root, layout, shard) for shard in shards]
    found = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
    if len(found) == len(shards):
        return found
    return store_all_shards(root, layout, shuffle_mapping(plan, layout.length, layout.dtype))


def map_epochs(
    scan: Callable[[int], AnyArray],
    rule: ScanRule,
    *,
    num_epochs: int | None,
    num_wanted: int,
) -> list[AnyArray]:
    """Return the samples of as many epochs as it takes, each as an array.

    Parameters
    ----------
    scan
        Gives the samples of an epoch.
    rule
        How they are made: without draws all epochs are the same, and scanned once.
    num_epochs
        Most epochs; None: no limit.
    num_wanted
        Samples after which no epoch begins.

    Notes
    -----
    Law: an epoch without samples is followed by none, for no later one has any.
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
