"""The tasks of a sentence mapping: scans that count, shards of samples, the shuffle.

A scan is quick and its result large, so samples are not held between the count and the shards that
they go to: they are scanned again there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.packing_tasks import copy_overlap
from zindex.building.source import LengthSource
from zindex.kernels.mersenne64 import seed_state64, shuffle_rows64
from zindex.kernels.random_draws import MEMORY_LENGTH, seed_draws
from zindex.kernels.sentence_mapping import ScanRule, scan_sentences, skip_targets
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place
from zindex.store.open import Store
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]


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


def scan_partitions(
    plan: MappingPlan, source: SentenceSource, start: int, stop: int, memory: UInt32Array | None
) -> Iterator[tuple[AnyArray, int]]:
    """Give the samples of each of some partitions, and the targets drawn for it.

    Parameters
    ----------
    plan, source
        The mapping, and what it is made of.
    start, stop
        Partitions, half-open.
    memory
        The generator at the first of them, where targets are drawn in order; advanced.
    """
    held: tuple[int, Int64Array, AnyArray, AnyArray | None] | None = None
    for partition in range(start, stop):
        epoch, first, last = plan.partition_bounds(partition)
        if held is None or held[0] != first:
            bounds = source.bounds(first, last)
            lengths = source.sentences.lengths(int(bounds[0]), int(bounds[-1]))
            titles = None if source.titles is None else source.titles.lengths(first, last)
            held = (first, bounds, lengths, titles)
        _, bounds, lengths, titles = held
        yield scan_sentences(
            bounds,
            lengths,
            plan.rule,
            memory=memory if plan.is_chained else None,
            key=None if plan.repeats or plan.is_chained else plan.target_key(epoch),
            titles=titles,
            # Megatron numbers the documents of a split; keys are of those of the corpus.
            first_document=first - (plan.start if plan.kind == "blocks" else 0),
            dtype=plan.row_dtype,
        )


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
    scans = scan_partitions(plan, source, start, stop, memory)
    counts = [(len(rows), drawn) for rows, drawn in scans]
    return np.array(counts, np.int64).reshape(-1, 2), memory


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
    for rows, _ in scan_partitions(plan, source, first, last, memory):
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
    shuffle_rows64(samples, seed_state64(plan.seed + 1))
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
