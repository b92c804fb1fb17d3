"""The tasks of a packed index: partitions, shards of parts and shards of sample offsets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.indexing.length_cache import order_lengths
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import Place
from zindex.kernels.bijection import permute_range
from zindex.kernels.packing import pack_documents
from zindex.plan.keys import Stage
from zindex.plan.packing import PackingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.shard_files import ShardResult, store_shard


class PackedRun(NamedTuple):
    """Consecutive partitions, packed."""

    #: Shape (parts, 2): document id, and token offset in that document.
    part_index: AnyArray
    #: Shape (samples + 1,), int64: part at which each sample starts, from 0.
    sample_offset: Int64Array
    #: Shape (partitions, 3), int64: samples, parts and tokens of each.
    counts: Int64Array


class RunOffsets(NamedTuple):
    """The small fields of packed partitions that shards of ``sample_offset`` need."""

    sample_offset: Int64Array
    counts: Int64Array


def pack_partitions(plan: PackingPlan, source: LengthSource, start: int, stop: int) -> PackedRun:
    """Task: pack partitions ``[start, stop)``, each independently.

    Notes
    -----
    Law: each partition's samples depend only on its documents.
    """
    runs, counts = [], np.empty((stop - start, 3), np.int64)
    for partition in range(start, stop):
        epoch, first, last = plan.partition_bounds(partition)
        documents: AnyArray = np.empty(last - first, plan.document_dtype)
        keys = plan.round_keys(Stage.DOCUMENT, epoch)
        permute_range(first, plan.num_documents, keys, plan.start, documents)
        lengths = order_lengths(plan, source, documents)
        packing = pack_documents(lengths, documents, plan.fit_rules)
        runs.append(packing)
        num_samples = len(packing.sample_offset) - 1
        counts[partition - start] = num_samples, len(packing.part_index), packing.num_tokens
    if len(runs) == 1:
        return PackedRun(runs[0].part_index, runs[0].sample_offset, counts)
    first_parts = np.cumsum(counts[:, 1]) - counts[:, 1]
    offsets = [run.sample_offset[:-1] + part for run, part in zip(runs, first_parts, strict=True)]
    return PackedRun(
        np.concatenate([run.part_index for run in runs]),
        np.concatenate([*offsets, [counts[:, 1].sum()]]),
        counts,
    )


def take_offsets(run: PackedRun) -> RunOffsets:
    """Task: return the sample offsets of packed partitions, without their parts."""
    return RunOffsets(run.sample_offset, run.counts)


def take_counts(offsets: RunOffsets) -> Int64Array:
    """Task: return samples, parts and tokens of each packed partition."""
    return offsets.counts


def store_packed_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    firsts: Sequence[tuple[int, int]],
    *runs: PackedRun | RunOffsets,
) -> ShardResult:
    """Task: store one shard of parts or of sample offsets, from the partitions that overlap it.

    Parameters
    ----------
    root, layout, shard
        The store, the array and the shard's number.
    firsts, runs
        Packed partitions in order, and the sample and the part at which each starts. Shards of
        parts need all of them, others their offsets.
    """
    start, stop = layout.shard_bounds(shard)

    def compute() -> AnyArray:
        values = np.empty((stop - start, *layout.shape[1:]), layout.dtype)
        for (first_sample, first_part), run in zip(firsts, runs, strict=True):
            if isinstance(run, PackedRun):
                copy_overlap(run.part_index, first_part, values, start)
            else:
                # The end of a partition is the start of the next, and finally the number of parts.
                copy_overlap(run.sample_offset + first_part, first_sample, values, start)
        return values

    return store_shard(root, layout, shard, compute)


def copy_overlap(source: AnyArray, first: int, out: AnyArray, start: int) -> None:
    """Copy the overlap of rows ``[first, ...)`` into rows ``[start, ...)``."""
    low, high = max(first, start), min(first + len(source), start + len(out))
    if low < high:
        out[low - start : high - start] = source[low - first : high - first]
