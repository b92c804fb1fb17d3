"""Single shards of a sentence mapping, scanned again."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.mapping_arrays import stored_facts
from zindex.building.mapping_tasks import (
    SentenceSource,
    compute_rows,
    count_partitions,
    seed_targets,
    shuffle_mapping,
)
from zindex.building.packing_tasks import compute_packed_shuffle
from zindex.building.repairs.remade_source import open_same_lengths
from zindex.building.sentence_mapping import find_sample_starts, mapping_facts, near_partitions
from zindex.building.source import LengthSource
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_reader
from zindex.store.verify import ShardId

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class RemadeMapping:
    """A sentence mapping: where partitions start, their samples, and the shuffle."""

    def __init__(
        self, plan: StorePlan, source: str | LengthSource | None, damaged: set[ShardId]
    ) -> None:
        self.store_plan = plan
        spec = dict(plan.spec)
        made = MappingPlan.from_spec(spec, stored=spec.pop("store"))
        self.plan = replace(made, grid=plan.grid or ChunkGrid())
        self.layouts = {layout.name: layout for layout in plan.layouts}
        self._named = source
        self._damaged = damaged

    @cached_property
    def _source(self) -> SentenceSource:
        """The dataset, after checking that it is the one."""
        root = self.store_plan.root
        if self.plan.kind == "blocks":
            raise ConfigError(
                f"the blocks of {root} were made from a dataset and its titles, and a repair knows "
                "of one dataset only; remove the store and build it again"
            )
        expected = self.plan.source
        lengths = open_same_lengths(self._named, expected.lengths, root, "the mapping")
        source = SentenceSource(lengths)
        found = stored_facts(source).document_digest
        if found != expected.document_digest:
            raise FingerprintMismatchError(
                f"{lengths.path} must have the documents of digest {expected.document_digest[:16]} "
                f"that {root} was made from, it has {found[:16]}; name the right source"
            )
        return source

    @cached_property
    def _starts(self) -> Int64Array:
        """Shape (partitions + 1, 2): where partitions start, as stored or counted again."""
        layout = self.layouts[schema.SCAN_OFFSET.name]
        shards = {(layout.name, shard) for shard in range(layout.num_shards)}
        if not shards & self._damaged:
            return open_reader(self.store_plan.root, layout).read(0, layout.length)
        memory = seed_targets(self.plan.seed) if self.plan.is_chained else None
        counts, _ = count_partitions(self.plan, self._source, 0, layout.length - 1, memory)
        return np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(counts, axis=0)])

    def make(self, shards: set[ShardId]) -> Iterator[tuple[ArrayLayout, int, AnyArray]]:
        """Give layout, number and values of each shard."""
        for layout in self.store_plan.layouts:
            for shard in range(layout.num_shards):
                if (layout.name, shard) in shards:
                    yield layout, shard, self._compute(layout, shard)

    def _compute(self, layout: ArrayLayout, shard: int) -> AnyArray:
        start, stop = layout.shard_bounds(shard)
        if layout.name == schema.SCAN_OFFSET.name:
            return self._starts[start:stop]
        if layout.name == schema.SENTENCE_INDEX.name:
            near = near_partitions(self._starts, start, stop)
            return compute_rows(self.plan, self._source, layout, shard, near)
        if self.plan.order == "megatron":
            return self._shuffled[start:stop]
        values = np.empty(stop - start, layout.dtype)
        sample_starts = find_sample_starts(self.plan, self._starts)
        compute_packed_shuffle(self.plan, sample_starts, start, stop, values)
        return values

    @cached_property
    def _shuffled(self) -> AnyArray:
        """Megatron's shuffle, which cannot be computed by shards."""
        layout = self.layouts[schema.SHUFFLE_INDEX.name]
        return shuffle_mapping(self.plan, layout.length, layout.dtype)

    def facts(self) -> dict[str, Any]:
        """Return the totals; the starts are sound by now."""
        self._damaged = set()
        self.__dict__.pop("_starts", None)
        return mapping_facts(self.plan, self._starts)

    def close(self) -> None:
        """Nothing is kept but what goes with this object."""
