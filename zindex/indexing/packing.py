"""Packed indices: documents packed into samples partition by partition, and opened for reading.

All partitions are packed before anything is stored, since the position of a sample depends on the
number of earlier samples. A packed partition stays on its worker until the shards that overlap it
are written.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import PlanError, VerificationError
from zindex.execution.executor import Held
from zindex.indexing.computed_arrays import CountedArrays, copy_overlap
from zindex.indexing.length_cache import evict_lengths, order_lengths
from zindex.indexing.store_build import FIRST, CountedBuild, store_together
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import Place
from zindex.kernels.bijection import permute_range
from zindex.kernels.packing import count_samples, pack_documents
from zindex.plan.keys import Stage
from zindex.plan.packing import PackingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.rows import RowReader
from zindex.store.shard_files import ShardResult, find_receipt, store_shard

#: How sizes were obtained. Estimated sizes differ from those of a build.
Basis = Literal["built", "computed", "estimated"]

# Maximum number of documents that are packed to estimate the sizes of an index that is not built,
# and the number of spans from which they are read.
_SAMPLE_LENGTH = 1 << 21
_NUM_RUNS = 64


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
    return store_shard(root, layout, shard, lambda: take_packed(layout, shard, firsts, *runs))


def take_packed(
    layout: ArrayLayout,
    shard: int,
    firsts: Sequence[tuple[int, int]],
    *runs: PackedRun | RunOffsets,
) -> AnyArray:
    """Task: return one shard of parts or of sample offsets; see `store_packed_shard`."""
    start, stop = layout.shard_bounds(shard)
    values = np.empty((stop - start, *layout.shape[1:]), layout.dtype)
    for (first_sample, first_part), run in zip(firsts, runs, strict=True):
        if isinstance(run, PackedRun):
            copy_overlap(run.part_index, first_part, values, start)
        else:
            # The end of a partition is the start of the next, and finally the number of parts.
            copy_overlap(run.sample_offset + first_part, first_sample, values, start)
    return values


def find_ranges(
    layout: ArrayLayout, shard: int, starts: Int64Array, ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the ranges of partitions that overlap a shard of parts or of sample offsets.

    Parameters
    ----------
    layout, shard
        The array and the shard's number.
    starts
        Starts of all partitions.
    ranges
        All partitions, in consecutive ranges.
    """
    column = 1 if layout.name == schema.PART_INDEX.name else 0
    firsts = [int(starts[start, column]) for start, _ in ranges]
    start, stop = layout.shard_bounds(shard)
    return list(ranges[max(0, bisect_right(firsts, start) - 1) : bisect_left(firsts, stop)])


@dataclass(kw_only=True)
class PackingBuild(CountedBuild[PackingPlan]):
    """The build of one packed index."""

    source: LengthSource
    task_length: int = 1 << 20
    #: Packed or pending partitions, by range: parts and offsets.
    packed: "dict[tuple[int, int], asyncio.Task[tuple[Held, Held]]]" = field(default_factory=dict)

    starts_spec = schema.PARTITION_OFFSET

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Pack and store every array; finally release packed partitions and lengths."""
        try:
            return await super().store_arrays()
        finally:
            self.packed.clear()
            evict_lengths(self.source, self.root)

    async def _pack(self, partitions: tuple[int, int]) -> tuple[Held, Held]:
        """Pack a range of partitions once; parts and offsets stay on the worker."""
        task = self.packed.get(partitions)
        if task is None:
            task = self.packed[partitions] = asyncio.create_task(self._pack_now(partitions))
        return await task

    async def _pack_now(self, partitions: tuple[int, int]) -> tuple[Held, Held]:
        # Shards read neighbouring partitions, so each epoch is assigned to workers in order.
        number, per_epoch = partitions[0], self.plan.partitions_per_epoch
        place = number % per_epoch / per_epoch
        args = (self.plan, self.source, *partitions)
        packed = await self.executor.hold(
            pack_partitions, *args, **self.task("pack", number, FIRST), place=place
        )
        return packed, await self.executor.hold(
            take_offsets, packed, **self.task("offsets", number, FIRST)
        )

    async def count_range(self, start: int, stop: int) -> Int64Array:
        """Pack partitions; return samples, parts and tokens of each."""
        _, offsets = await self._pack((start, stop))
        return await self.executor.run(take_counts, offsets, **self.task("count", start, FIRST))

    def no_samples(self) -> PlanError:
        """Return the error for a split whose documents were all dropped."""
        return nothing_to_pack(self.plan, self.source)

    def check_starts(self, starts: Int64Array) -> None:
        """Check that no token is missing, unless long documents lose some."""
        plan = self.plan
        if plan.rules.long_documents != "split":
            return
        num_epochs = (len(starts) - 1) // plan.partitions_per_epoch
        # Splitting long documents repeats a token if samples draw an extra one.
        least = num_epochs * plan.tokens_per_epoch
        if starts[-1, 2] < least or (not plan.extra_token and starts[-1, 2] > least):
            raise VerificationError(
                f"{self.source.path} must hold {plan.tokens_per_epoch} tokens in {plan.split}, its "
                f"lengths sum to {starts[-1, 2] // num_epochs}; convert it again"
            )

    async def store_counted(
        self, layouts: Mapping[str, ArrayLayout], starts: Int64Array
    ) -> list[ShardResult]:
        """Store parts and offsets; repack the partitions of missing shards."""
        num_partitions = len(starts) - 1
        known = sorted(self.packed) or self.split(0, num_partitions)
        ranges = [partitions for partitions in known if partitions[0] < num_partitions]
        work = []
        for name in (schema.PART_INDEX.name, schema.SAMPLE_OFFSET.name):
            layout = layouts[name]
            for shard in range(layout.num_shards):
                near = find_ranges(layout, shard, starts, ranges)
                work.append(self._store_shard(layout, shard, starts, near))
        return await store_together(work)

    async def _store_shard(
        self, layout: ArrayLayout, shard: int, starts: Int64Array, ranges: list[tuple[int, int]]
    ) -> list[ShardResult]:
        """Store a shard of parts or of offsets, unless it exists."""
        receipt = await asyncio.to_thread(find_receipt, self.root, layout, shard)
        if receipt is not None:
            self.advance(1)
            return [ShardResult(receipt, written=False)]
        is_parts = layout.name == schema.PART_INDEX.name
        firsts = [starts[start, :2].tolist() for start, _ in ranges]
        runs = [(await self._pack(partitions))[0 if is_parts else 1] for partitions in ranges]
        args = (self.root, layout, shard, firsts, *runs)
        return await self.store(layout.name, store_packed_shard, *args, number=shard)


@dataclass(kw_only=True)
class PackingCount(PackingBuild):
    """Count a packed index that is not built, without keeping packed partitions."""

    async def count_range(self, start: int, stop: int) -> Int64Array:
        """Pack partitions; return samples, parts and tokens of each."""
        task = self.task("count", start)
        return await self.executor.run(count_packed, self.plan, self.source, start, stop, **task)


def count_packed(plan: PackingPlan, source: LengthSource, start: int, stop: int) -> Int64Array:
    """Task: return samples, parts and tokens of each of some partitions."""
    return pack_partitions(plan, source, start, stop).counts


def nothing_to_pack(plan: PackingPlan, source: LengthSource) -> PlanError:
    """Return the error for a split whose documents are all dropped."""
    return PlanError(
        f"{plan.split} of {source.path} must hold documents to pack, none of its "
        f"{plan.num_documents:,} is left with long_documents: {plan.rules.long_documents} and "
        f"room for {plan.room:,} tokens; use split"
    )


@dataclass(frozen=True, slots=True)
class PackingSizes:
    """Sizes of one packed index."""

    num_epochs: int
    num_samples: int
    num_parts: int
    #: Padding as a share of the capacity of all samples.
    padding_share: float
    basis: Basis


def read_packing_sizes(store: Store) -> PackingSizes:
    """Return the sizes of a committed index."""
    names = ("num_epochs", "num_samples", "num_parts", "padding_share")
    return PackingSizes(**{name: store.attributes[name] for name in names}, basis="built")


def measure_packing(
    plan: PackingPlan, source: LengthSource, sample_length: int = _SAMPLE_LENGTH
) -> PackingSizes:
    """Estimate the sizes of an index from some of its lengths.

    Parameters
    ----------
    plan, source
        The index, and its lengths.
    sample_length
        Maximum number of documents to pack.

    Returns
    -------
    sizes
        ``"computed"``, and exact, if an epoch is one partition of at most that many documents;
        otherwise ``"estimated"``, from spans of documents evenly spread over the split.

    Raises
    ------
    PlanError
        If all documents are too long and dropped.
    """
    is_exact = plan.partitions_per_epoch == 1 and plan.num_documents <= sample_length
    starts, length = [plan.start], plan.num_documents
    if not is_exact:
        length = max(1, min(plan.num_documents, sample_length) // _NUM_RUNS)
        starts = np.linspace(plan.start, plan.stop - length, _NUM_RUNS).astype(np.int64).tolist()
    lengths = np.concatenate([source.lengths(start, start + length) for start in starts])
    num_samples, num_parts, num_tokens = count_samples(lengths, plan.fit_rules)
    share = plan.padding_share(num_samples, num_tokens)
    if not is_exact:
        scale = plan.tokens_per_epoch / max(1, int(lengths.sum(dtype=np.int64)))
        num_samples = max(1, plan.least_samples, round(num_samples * scale))
        num_parts = round(num_parts * scale)
    elif not num_samples:
        raise nothing_to_pack(plan, source)
    num_epochs = -(-(plan.num_wanted or 1) // num_samples)
    sizes = num_epochs, num_epochs * num_samples, num_epochs * num_parts
    return PackingSizes(*sizes, share, "computed" if is_exact else "estimated")


@dataclass(frozen=True)
class PackedArrays(CountedArrays):
    """The arrays that map a position of the run to whole documents, or parts of long ones."""

    plan_type = PackingPlan
    array_specs = (schema.PARTITION_OFFSET, schema.PART_INDEX, schema.SAMPLE_OFFSET)

    #: Parts of samples: shape (parts, 2), document id and token offset in that document.
    part_index: RowReader
    #: Samples to parts: shape (samples + 1,).
    sample_offset: RowReader
