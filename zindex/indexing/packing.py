"""Packed indices: documents packed into samples partition by partition, and opened for reading.

Partitions are packed before anything is stored, since the position of a sample depends on the
number of samples before it. A packed partition stays on its worker until the shards that overlap
it are written.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.arrays import Int64Array
from zindex.errors import PlanError, VerificationError
from zindex.execution.executor import Held
from zindex.indexing.computed_arrays import CountedArrays
from zindex.indexing.length_cache import evict_lengths
from zindex.indexing.packing_tasks import (
    pack_partitions,
    store_packed_shard,
    take_counts,
    take_offsets,
)
from zindex.indexing.store_build import FIRST, CountedBuild, store_together
from zindex.ingest.length_source import LengthSource
from zindex.kernels.packing import count_samples
from zindex.plan.packing import PackingPlan
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.rows import RowReader
from zindex.store.shard_files import ShardResult, find_receipt

#: The origin of sizes. Estimated ones differ from those of a build.
Basis = Literal["built", "computed", "estimated"]

# Most documents that are packed to estimate the sizes of an index that is not built, and the
# number of spans that these are read from.
_SAMPLE_LENGTH = 1 << 21
_NUM_RUNS = 64


@dataclass(kw_only=True)
class PackingBuild(CountedBuild[PackingPlan]):
    """The build of one packed index."""

    source: LengthSource
    task_length: int = 1 << 20
    #: Partitions that are packed or being packed, by range: parts and offsets.
    packed: "dict[tuple[int, int], asyncio.Task[tuple[Held, Held]]]" = field(default_factory=dict)

    starts_spec = schema.PARTITION_OFFSET

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Pack and store every array; release packed partitions and lengths at the end."""
        try:
            return await super().store_arrays()
        finally:
            self.packed.clear()
            evict_lengths(self.source, self.root)

    async def _pack(self, partitions: tuple[int, int]) -> tuple[Held, Held]:
        """Pack a range of partitions once; parts and offsets stay on their worker."""
        task = self.packed.get(partitions)
        if task is None:
            task = self.packed[partitions] = asyncio.create_task(self._pack_now(partitions))
        return await task

    async def _pack_now(self, partitions: tuple[int, int]) -> tuple[Held, Held]:
        # Shards read neighbouring partitions, so each epoch's go from the first to the last worker.
        number, per_epoch = partitions[0], self.plan.partitions_per_epoch
        place = number % per_epoch / per_epoch
        args = (self.plan, self.source, *partitions)
        packed = await self.hold(
            "pack", pack_partitions, *args, number=number, priority=FIRST, place=place
        )
        offsets = await self.hold("offsets", take_offsets, packed, number=number, priority=FIRST)
        return packed, offsets

    async def count_range(self, start: int, stop: int) -> Int64Array:
        """Pack partitions; return samples, parts and tokens of each."""
        _, offsets = await self._pack((start, stop))
        return await self.run("count", take_counts, offsets, number=start, priority=FIRST)

    def no_samples(self) -> PlanError:
        """Return the error of a split all of whose documents were dropped."""
        return nothing_to_pack(self.plan, self.source)

    def check_starts(self, starts: Int64Array) -> None:
        """Check that no token is missing, unless long documents lose some."""
        plan = self.plan
        if plan.rules.long_documents != "split":
            return
        num_epochs = (len(starts) - 1) // plan.partitions_per_epoch
        # Cuts of long documents repeat a token where samples draw an extra one.
        least = num_epochs * plan.tokens_per_epoch
        if starts[-1, 2] < least or (not plan.extra_token and starts[-1, 2] > least):
            raise VerificationError(
                f"{self.source.path} must hold {plan.tokens_per_epoch} tokens in {plan.split}, its "
                f"lengths sum to {starts[-1, 2] // num_epochs}; convert it again"
            )

    def describe(self, starts: Int64Array) -> tuple[tuple[ArrayLayout, ...], dict[str, Any]]:
        """Return the exact layouts, and facts for the attributes."""
        sizes = (len(starts) - 1, int(starts[-1, 0]), int(starts[-1, 1]))
        return self.plan.layouts_of(*sizes), packing_facts(self.plan, starts)

    async def store_counted(
        self, layouts: Mapping[str, ArrayLayout], starts: Int64Array
    ) -> list[ShardResult]:
        """Store parts and offsets; partitions of missing shards are packed again."""
        num_partitions = len(starts) - 1
        known = sorted(self.packed) or self.split(0, num_partitions)
        ranges = [partitions for partitions in known if partitions[0] < num_partitions]
        work = []
        for name, column in ((schema.PART_INDEX.name, 1), (schema.SAMPLE_OFFSET.name, 0)):
            layout = layouts[name]
            firsts = [int(starts[start, column]) for start, _ in ranges]
            for shard in range(layout.num_shards):
                start, stop = layout.shard_bounds(shard)
                near = ranges[max(0, bisect_right(firsts, start) - 1) : bisect_left(firsts, stop)]
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


def packing_facts(plan: PackingPlan, starts: Int64Array) -> dict[str, Any]:
    """Return the sizes of a packed index, for its attributes.

    Parameters
    ----------
    plan
        The plan.
    starts
        Shape (partitions + 1, 3), int64: sample, part and token at which each partition starts.
    """
    num_samples, num_parts, num_tokens = starts[-1].tolist()
    return {
        "num_samples": num_samples,
        "num_parts": num_parts,
        "num_tokens": num_tokens,
        "num_epochs": (len(starts) - 1) // plan.partitions_per_epoch,
        "num_documents": plan.num_documents,
        "padding_share": padding_share(plan, num_samples, num_tokens),
    }


def padding_share(plan: PackingPlan, num_samples: int, num_tokens: int) -> float:
    """Return the share of padding in the room of all samples."""
    return 1 - num_tokens / max(1, num_samples * plan.room)


def nothing_to_pack(plan: PackingPlan, source: LengthSource) -> PlanError:
    """Return the error of a split all of whose documents are dropped."""
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
    #: Share of the room of all samples that is padding.
    padding_share: float
    basis: Basis


def read_packing_sizes(store: Store) -> PackingSizes:
    """Return the sizes of a committed index."""
    facts = store.attributes
    return PackingSizes(
        facts["num_epochs"],
        facts["num_samples"],
        facts["num_parts"],
        facts["padding_share"],
        "built",
    )


def measure_packing(
    plan: PackingPlan, source: LengthSource, sample_length: int = _SAMPLE_LENGTH
) -> PackingSizes:
    """Return the sizes that an index will have, from some of its lengths.

    Parameters
    ----------
    plan, source
        The index, and its lengths.
    sample_length
        Most documents to pack.

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
    lengths = (
        source.lengths(plan.start, plan.stop)
        if is_exact
        else _read_sample(plan, source, sample_length)
    )
    num_samples, num_parts, num_tokens = count_samples(lengths, plan.fit_rules)
    share = padding_share(plan, num_samples, num_tokens)
    if is_exact:
        if not num_samples:
            raise nothing_to_pack(plan, source)
        num_epochs = -(-(plan.num_wanted or 1) // num_samples)
        parts = num_epochs * num_samples, num_epochs * num_parts
        return PackingSizes(num_epochs, *parts, share, "computed")
    scale = plan.tokens_per_epoch / max(1, int(lengths.sum(dtype=np.int64)))
    per_epoch = max(1, plan.least_samples, round(num_samples * scale))
    num_epochs = -(-(plan.num_wanted or 1) // per_epoch)
    parts = num_epochs * per_epoch, num_epochs * round(num_parts * scale)
    return PackingSizes(num_epochs, *parts, share, "estimated")


def _read_sample(
    plan: PackingPlan, source: LengthSource, sample_length: int
) -> npt.NDArray[np.int32]:
    """Return the lengths of spans of documents, evenly spread over a split."""
    length = max(1, min(plan.num_documents, sample_length) // _NUM_RUNS)
    starts = np.linspace(plan.start, plan.stop - length, _NUM_RUNS).astype(np.int64).tolist()
    return np.concatenate([source.lengths(start, start + length) for start in starts])


@dataclass(frozen=True)
class PackedArrays(CountedArrays):
    """The arrays that map a position of the run to whole documents, or parts of long ones."""

    plan_type = PackingPlan
    array_specs = (schema.PARTITION_OFFSET, schema.PART_INDEX, schema.SAMPLE_OFFSET)

    #: Parts of samples: shape (parts, 2), document id and token offset in that document.
    part_index: RowReader
    #: Samples to parts: shape (samples + 1,).
    sample_offset: RowReader
