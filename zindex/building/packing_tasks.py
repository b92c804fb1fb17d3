"""The tasks of a packed index: partitions, shards of parts and of offsets, the shuffle."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from zindex.building.held import order_lengths
from zindex.building.source import LengthSource
from zindex.kernels.bijection import permute_range
from zindex.kernels.packing import pack_documents
from zindex.plan.keys import RoundKeys, Stage
from zindex.plan.packing import LONG_DOCUMENTS, PackingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place
from zindex.store.shard_files import ShardResult, store_shard

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class ShuffledPlan(Protocol):
    """A plan whose samples are shuffled epoch by epoch."""

    def round_keys(self, stage: Stage, epoch: int) -> RoundKeys:
        """Return the round keys of an epoch's permutation."""
        ...


class PackedRun(NamedTuple):
    """Partitions one after another, packed."""

    #: Shape (parts, 2): document id, and token offset in that document.
    part_index: AnyArray
    #: Shape (samples + 1,), int64: part at which each sample starts, from 0.
    sample_offset: Int64Array
    #: Shape (partitions, 3), int64: samples, parts and tokens of each.
    counts: Int64Array


class RunOffsets(NamedTuple):
    """What shards of ``sample_offset`` need of partitions: a small part of what they hold."""

    sample_offset: Int64Array
    counts: Int64Array


def pack_partitions(plan: PackingPlan, source: LengthSource, start: int, stop: int) -> PackedRun:
    """Task: pack partitions ``[start, stop)``, each by itself.

    Notes
    -----
    Law: each partition's samples depend on its documents alone.
    """
    runs, counts = [], np.empty((stop - start, 3), np.int64)
    for partition in range(start, stop):
        epoch, first, last = plan.partition_bounds(partition)
        documents: AnyArray = np.empty(last - first, plan.document_dtype)
        keys = plan.round_keys(Stage.DOCUMENT, epoch)
        permute_range(first, plan.num_documents, keys, plan.start, documents)
        packing = pack_documents(
            order_lengths(plan, source, documents),
            documents,
            plan.sequence_length,
            plan.extra_token,
            plan.rules.max_documents,
            LONG_DOCUMENTS[plan.rules.long_documents],
        )
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
    """Task: what the offsets of samples need of packed partitions."""
    return RunOffsets(run.sample_offset, run.counts)


def describe_run(offsets: RunOffsets) -> Int64Array:
    """Task: samples, parts and tokens of each packed partition."""
    return offsets.counts


def store_part_shard(
    root: Place, layout: ArrayLayout, shard: int, first_parts: Sequence[int], *runs: PackedRun
) -> ShardResult:
    """Task: one shard of the part index, from the partitions that reach into it.

    Parameters
    ----------
    root, layout, shard
        The store, the array and the shard's number.
    first_parts, runs
        Packed partitions in order, and the part at which each of them starts.
    """
    start, stop = layout.shard_bounds(shard)

    def compute() -> AnyArray:
        values = np.empty((stop - start, 2), layout.dtype)
        for first, run in zip(first_parts, runs, strict=True):
            copy_overlap(run.part_index, first, values, start)
        return values

    return store_shard(root, layout, shard, compute)


def store_offset_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    firsts: Sequence[tuple[int, int]],
    *runs: RunOffsets,
) -> ShardResult:
    """Task: one shard of the offsets of samples, from the partitions that reach into it.

    Parameters
    ----------
    root, layout, shard
        The store, the array and the shard's number.
    firsts, runs
        Packed partitions in order, and the sample and the part at which each of them starts.
    """
    start, stop = layout.shard_bounds(shard)

    def compute() -> AnyArray:
        values = np.empty(stop - start, layout.dtype)
        for (first_sample, first_part), run in zip(firsts, runs, strict=True):
            # The end of a run is the start of the next one, and at last the number of parts.
            copy_overlap(run.sample_offset + first_part, first_sample, values, start)
        return values

    return store_shard(root, layout, shard, compute)


def copy_overlap(source: AnyArray, first: int, out: AnyArray, start: int) -> None:
    """Copy what rows ``[first, ...)`` and rows ``[start, ...)`` have in common."""
    low, high = max(first, start), min(first + len(source), start + len(out))
    if low < high:
        out[low - start : high - start] = source[low - first : high - first]


def compute_packed_shuffle(
    plan: ShuffledPlan, sample_starts: Int64Array, start: int, stop: int, out: AnyArray
) -> None:
    """Write positions ``[start, stop)`` of a shuffle index that goes epoch by epoch.

    Parameters
    ----------
    plan
        The plan.
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts.
    start, stop
        Positions.
    out
        Shape (stop - start,): sample ids; filled.

    Notes
    -----
    Law: the samples of each epoch fill that epoch's positions, in an order of their own.
    """
    position = start
    while position < stop:
        epoch = int(np.searchsorted(sample_starts, position, side="right")) - 1
        first, last = int(sample_starts[epoch]), int(sample_starts[epoch + 1])
        upto = min(stop, last)
        keys = plan.round_keys(Stage.SAMPLE, epoch)
        rows = out[position - start : upto - start]
        permute_range(position - first, last - first, keys, first, rows)
        position = upto


def store_packed_shuffle_shard(
    plan: ShuffledPlan, sample_starts: Int64Array, root: Place, layout: ArrayLayout, shard: int
) -> ShardResult:
    """Task: one shard of a shuffle index that goes epoch by epoch."""
    start, stop = layout.shard_bounds(shard)

    def compute() -> AnyArray:
        values = np.empty(stop - start, layout.dtype)
        compute_packed_shuffle(plan, sample_starts, start, stop, values)
        return values

    return store_shard(root, layout, shard, compute)
