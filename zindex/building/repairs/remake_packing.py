"""Single shards of a packed index, made again from the partitions that reach into them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.held import drop_held
from zindex.building.packing import packing_facts
from zindex.building.packing_tasks import (
    PackedRun,
    compute_packed_shuffle,
    copy_overlap,
    pack_partitions,
)
from zindex.building.repairs.remade_source import open_same_lengths
from zindex.building.source import LengthSource
from zindex.plan.packing import PackingPlan
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_reader
from zindex.store.verify import ShardId

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

# Packed partitions that are kept: those that two neighbouring shards share, and some more.
_NUM_KEPT = 4


class RemadePacking:
    """A packed index: where partitions start, their parts and samples, and the shuffle."""

    def __init__(
        self, plan: StorePlan, source: str | LengthSource | None, damaged: set[ShardId]
    ) -> None:
        self.store_plan = plan
        spec = dict(plan.spec)
        made = PackingPlan.from_spec(spec, stored=spec.pop("store"))
        self.plan = replace(made, grid=plan.grid or ChunkGrid())
        self.layouts = {layout.name: layout for layout in plan.layouts}
        self._source = source
        self._damaged = damaged
        self._pack = lru_cache(_NUM_KEPT)(self._pack_now)

    @cached_property
    def _lengths(self) -> LengthSource:
        """The dataset, after checking that it is the one."""
        facts, root = self.plan.source, self.store_plan.root
        return open_same_lengths(self._source, facts, root, "the packing")

    def _pack_now(self, partition: int) -> PackedRun:
        return pack_partitions(self.plan, self._lengths, partition, partition + 1)

    @cached_property
    def _starts(self) -> Int64Array:
        """Shape (partitions + 1, 3): where partitions start, as stored or found by packing all."""
        layout = self.layouts[schema.PARTITION_OFFSET.name]
        shards = {(layout.name, shard) for shard in range(layout.num_shards)}
        if not shards & self._damaged:
            return open_reader(self.store_plan.root, layout).read(0, layout.length)
        starts = np.zeros((layout.length, 3), np.int64)
        for partition in range(layout.length - 1):
            starts[partition + 1] = starts[partition] + self._pack(partition).counts[0]
        return starts

    def make(self, shards: set[ShardId]) -> Iterator[tuple[ArrayLayout, int, AnyArray]]:
        """Give layout, number and values of each shard."""
        compute = {
            schema.PARTITION_OFFSET.name: lambda layout, start, stop: self._starts[start:stop],
            schema.PART_INDEX.name: self._make_parts,
            schema.SAMPLE_OFFSET.name: self._make_offsets,
            schema.SHUFFLE_INDEX.name: self._make_shuffle,
        }
        for layout in self.store_plan.layouts:
            for shard in range(layout.num_shards):
                if (layout.name, shard) in shards:
                    values = compute[layout.name](layout, *layout.shard_bounds(shard))
                    yield layout, shard, values

    def _near(self, column: int, start: int, stop: int) -> Iterator[tuple[PackedRun, list[int]]]:
        """Give the partitions that reach into rows of an array, and where each starts."""
        firsts = self._starts[:-1, column].tolist()
        for partition in range(max(0, bisect_right(firsts, start) - 1), bisect_left(firsts, stop)):
            yield self._pack(partition), self._starts[partition].tolist()

    def _make_parts(self, layout: ArrayLayout, start: int, stop: int) -> AnyArray:
        values = np.empty((stop - start, 2), layout.dtype)
        for run, first in self._near(1, start, stop):
            copy_overlap(run.part_index, first[1], values, start)
        return values

    def _make_offsets(self, layout: ArrayLayout, start: int, stop: int) -> AnyArray:
        values = np.empty(stop - start, layout.dtype)
        for run, first in self._near(0, start, stop):
            copy_overlap(run.sample_offset + first[1], first[0], values, start)
        return values

    def _make_shuffle(self, layout: ArrayLayout, start: int, stop: int) -> AnyArray:
        values = np.empty(stop - start, layout.dtype)
        sample_starts = self._starts[:: self.plan.partitions_per_epoch, 0]
        compute_packed_shuffle(self.plan, sample_starts, start, stop, values)
        return values

    def facts(self) -> dict[str, Any]:
        """Return the totals; the starts are sound by now."""
        self._damaged = set()
        self.__dict__.pop("_starts", None)
        return packing_facts(self.plan, self._starts)

    def close(self) -> None:
        """Let go of the lengths and the partitions."""
        self._pack.cache_clear()
        if "_lengths" in self.__dict__:
            drop_held(self._lengths, self.store_plan.root)
