"""Sentence mappings: documents scanned for samples partition by partition, and opened for reading.

All samples are counted before any is stored, since the position of a sample depends on the number
of earlier samples. If Megatron draws targets in sequence, the counting tasks form a chain;
otherwise they run in parallel, as do the tasks that store.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array, UInt32Array
from zindex.errors import PlanError
from zindex.indexing.computed_arrays import ComputedArray, CountedArrays, fill_shuffle
from zindex.indexing.mapping_tasks import (
    Documents,
    SentenceSource,
    count_partitions,
    map_epochs,
    scan_documents,
    seed_targets,
    shuffle_mapping,
    store_row_shard,
    store_shuffled_mapping,
)
from zindex.indexing.store_build import FIRST, CountedBuild
from zindex.ingest.length_source import digest_array
from zindex.plan.build_plan import SourceFacts
from zindex.plan.sentence_mapping import MappingPlan, SentenceFacts
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.rows import RowReader
from zindex.store.shard_files import ShardResult

_BLOCK_INDEX = replace(schema.SENTENCE_INDEX, num_columns=4)


@dataclass(kw_only=True)
class MappingBuild(CountedBuild[MappingPlan]):
    """The build of one sentence mapping."""

    source: SentenceSource
    task_length: int = 1 << 23
    #: Generator state after the counted partitions, if targets form a chain.
    memory: UInt32Array | None = None

    starts_spec = schema.SCAN_OFFSET

    async def count(self, start: int, stop: int) -> Int64Array:
        """Count partitions, one task after the other if targets form a chain."""
        if not self.plan.is_chained:
            return await super().count(start, stop)
        if self.memory is None:
            self.memory = seed_targets(self.plan.seed)
        ranges = self.split(start, stop)
        return np.concatenate([await self.count_range(*partitions) for partitions in ranges])

    async def count_range(self, start: int, stop: int) -> Int64Array:
        """Scan partitions; return samples and drawn targets of each."""
        args = (self.plan, self.source, start, stop, self.memory)
        counts, self.memory = await self.executor.run(
            count_partitions, *args, **self.task("count", start, FIRST)
        )
        return counts

    def no_samples(self) -> PlanError:
        """Return the error for a split whose documents are all too short or too long."""
        return nothing_to_map(self.plan, self.source.sentences.path)

    async def store_counted(
        self, layouts: Mapping[str, ArrayLayout], starts: Int64Array
    ) -> list[ShardResult]:
        """Store samples."""
        rows = layouts[schema.SENTENCE_INDEX.name]
        firsts = starts[:-1, 0].tolist()

        def arguments(shard: int) -> tuple[Any, ...]:
            start, stop = rows.shard_bounds(shard)
            first = max(0, bisect_right(firsts, start) - 1)
            near = (first, bisect_left(firsts, stop), *starts[first].tolist())
            return self.plan, self.source, self.root, rows, shard, near

        return await self.store_shards("sentences", store_row_shard, rows, arguments)

    async def store_shuffle(self, layout: ArrayLayout, starts: Int64Array) -> list[ShardResult]:
        """Store the shuffle; Megatron's is the longest task, and depends on no other."""
        if self.plan.order == "scalable":
            return await super().store_shuffle(layout, starts)
        args = (self.plan, self.root, layout)
        return await self.store("shuffle", store_shuffled_mapping, *args, priority=FIRST)


def nothing_to_map(plan: MappingPlan, path: str) -> PlanError:
    """Return the error for a split whose documents are all too short or too long."""
    return PlanError(
        f"{plan.split} of {path} must hold documents of at least {plan.min_num_sentences} "
        f"sentences, none too long, its {plan.num_documents:,} give no sample; split documents "
        "into sentences, or give it a larger share"
    )


@dataclass(frozen=True)
class MappingArrays(CountedArrays):
    """The arrays that map a position of the run to sentences."""

    plan_type = MappingPlan
    array_specs = (schema.SCAN_OFFSET, schema.SENTENCE_INDEX)

    plan: MappingPlan
    #: Samples of one epoch, or of all if they differ: shape (rows, 3), uint32 or uint64.
    sentence_index: RowReader

    @cached_property
    def sample_index(self) -> RowReader:
        """Megatron's mapping, in shuffled order: shape (samples, 3), or 4 columns for blocks."""
        spec = schema.SENTENCE_INDEX if self.plan.kind == "sentences" else _BLOCK_INDEX
        layout = self.plan.layout(spec, len(self.shuffle_index), self.plan.row_dtype)
        return ComputedArray(layout, self, _read_shuffled)

    def find_samples(self, positions: Int64Array) -> AnyArray:
        """Return the samples at shuffled positions, with two reads.

        Parameters
        ----------
        positions
            Shape (positions,), int64.

        Returns
        -------
        samples
            Shape (positions, 3), uint32 or uint64: first sentence, sentence after the last one, and
            target length in tokens. For blocks (positions, 4): instead of tokens the document,
            counted from the first of the split, then the number of the block in its epoch.
        """
        return self._locate(self.shuffle_index.take(positions))

    def _locate(self, samples: AnyArray) -> AnyArray:
        """Return the rows of samples, by their numbers before the shuffle."""
        rows = samples.astype(np.int64)
        if self.plan.repeats:
            rows %= len(self.sentence_index)
        found = self.sentence_index.take(rows)
        return found if self.plan.kind == "sentences" else _number(found, rows)


def _read_shuffled(arrays: MappingArrays, start: int, stop: int) -> AnyArray:
    """Return rows of a mapping in shuffled order."""
    return arrays._locate(arrays.shuffle_index.read(start, stop))


def _number(rows: AnyArray, numbers: AnyArray) -> AnyArray:
    """Return blocks with their numbers as an additional column."""
    return np.column_stack([rows, numbers.astype(rows.dtype)])


def stored_facts(source: SentenceSource) -> SentenceFacts:
    """Return the identity of the mappings of a dataset on disk, with its documents digested."""
    titles = None if source.titles is None else source.titles.facts.length_digest
    reader = source.sentences.reader
    digest: str | None = None
    if isinstance(reader, Store):
        num_documents = len(reader[schema.DOCUMENT_OFFSET.name]) - 1
        digest = reader.spec.get("document_digest")
    else:
        num_documents = reader.num_documents
    if digest is None:
        digest = digest_array(lambda start, stop: source.bounds(start, stop - 1), num_documents + 1)
    return SentenceFacts(source.sentences.facts, digest, num_documents, titles)


def memory_facts(lengths: SourceFacts, document_indices: AnyArray) -> SentenceFacts:
    """Return the identity of the mappings of a dataset in memory.

    Parameters
    ----------
    lengths
        The identity of its other indices.
    document_indices
        Shape (documents + 1,): sentences at which its documents start, then the end.
    """
    bounds = np.ascontiguousarray(document_indices, np.int64)
    digest = digest_array(lambda start, stop: bounds[start:stop], len(bounds))
    return SentenceFacts(lengths, digest, len(bounds) - 1)


def plan_mapping(
    source: SentenceSource, span: range, *, facts: SentenceFacts | None = None, **settings: Any
) -> MappingPlan:
    """Return the plan of the mapping of a split.

    Parameters
    ----------
    source
        The dataset.
    span
        Documents of the split.
    facts
        The result of `stored_facts`, if already known.
    settings
        Of `MappingPlan`: split, max_sequence_length, seed, and others.

    Raises
    ------
    ConfigError, PlanError
        As `MappingPlan` does.
    """
    facts = facts or stored_facts(source)
    inside = [min(max(0, at), facts.num_documents) for at in (span.start, span.stop)]
    first, stop = (int(source.bounds(at, at)[0]) for at in inside)
    return MappingPlan(
        source=facts,
        start=span.start,
        stop=span.stop,
        first_sentence=first,
        stop_sentence=stop,
        **settings,
    )


def compute_mapping(
    plan: MappingPlan, bounds: AnyArray, lengths: AnyArray, titles: AnyArray | None = None
) -> AnyArray:
    """Return a whole mapping in memory, for data that are not stored.

    Parameters
    ----------
    plan
        The plan; only the scalable order uses its digests.
    bounds
        Shape (documents of the split + 1,), int64: sentences at which its documents start.
    lengths
        Shape (sentences of the split,), int32, tokens, from sentence ``bounds[0]``.
    titles
        Shape (documents of the split,), int32, tokens of each title, for blocks.

    Returns
    -------
    sample_index
        Shape (samples, 3), or (samples, 4) of blocks, uint32 or uint64, in shuffled order; empty if
        no document gives a sample.

    Notes
    -----
    Law: equal to `MappingArrays.sample_index` of the same plan.
    """
    memory = seed_targets(plan.seed) if plan.is_chained else None
    documents = Documents(
        plan.start,
        np.ascontiguousarray(bounds, np.int64),
        np.ascontiguousarray(lengths, np.int32),
        None if titles is None else np.ascontiguousarray(titles, np.int32),
    )

    def scan(epoch: int) -> AnyArray:
        samples, _ = scan_documents(plan, epoch, documents, memory)
        return samples if plan.kind == "sentences" else _number(samples, np.arange(len(samples)))

    most = 1 if plan.num_requested is None else None
    epochs = map_epochs(scan, plan.rule, num_epochs=most, num_wanted=plan.num_requested or 1)
    if not epochs:
        return np.empty((0, 3 if plan.kind == "sentences" else 4), plan.row_dtype)
    mapping: AnyArray = np.concatenate(epochs)
    if plan.order == "megatron":
        order = shuffle_mapping(plan, len(mapping), np.int64)
    else:
        order = np.empty(len(mapping), np.int64)
        starts = np.cumsum([0, *map(len, epochs)])
        fill_shuffle(plan, starts, 0, order)
    return mapping[order]
