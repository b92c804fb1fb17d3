"""A sentence mapping as a reader sees it, and how one comes to be when it is needed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.mapping_tasks import SentenceSource, map_epochs, seed_targets, shuffle_mapping
from zindex.building.on_demand import Needed
from zindex.building.packed_arrays import ComputedShuffle
from zindex.building.sentence_mapping import build_mapping, find_sample_starts, mapping_store_plan
from zindex.building.source import digest_rows, join_digests, num_blocks
from zindex.kernels.bijection import permute_range
from zindex.kernels.sentence_mapping import scan_sentences
from zindex.plan.index_plan import SourceFacts
from zindex.plan.keys import Stage
from zindex.plan.sentence_mapping import MappingPlan, SentenceFacts
from zindex.store.layout import ArrayLayout
from zindex.store.objects import PlaceLike
from zindex.store.open import Store
from zindex.store.reader import RowReader

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

_BLOCK_INDEX = replace(schema.SENTENCE_INDEX, num_columns=4)


@dataclass(frozen=True)
class MappingArrays:
    """What maps a position of the run to sentences."""

    plan: MappingPlan
    #: Samples of one epoch, or of all where they differ: shape (rows, 3), uint32 or uint64.
    sentence_index: RowReader
    #: Where partitions start: shape (partitions + 1, 2), sample and drawn target.
    scan_offset: RowReader
    #: Positions to samples: shape (samples,); None where it is computed.
    stored_shuffle: RowReader | None

    @cached_property
    def sample_starts(self) -> Int64Array:
        """Shape (epochs + 1,), int64: sample at which each epoch starts."""
        return find_sample_starts(self.plan, np.asarray(self.scan_offset))

    @cached_property
    def shuffle_index(self) -> RowReader:
        """Positions to samples: shape (samples,), stored or computed."""
        if self.stored_shuffle is not None:
            return self.stored_shuffle
        return ComputedShuffle(self.plan, self.sample_starts, self.plan.grid)

    @cached_property
    def sample_index(self) -> RowReader:
        """Megatron's mapping: shape (samples, 3), or 4 columns of blocks, in shuffled order."""
        return _ShuffledSamples(self)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of each sample, by its number before the shuffle."""
        return np.searchsorted(self.sample_starts, samples, side="right") - 1

    def find_samples(self, positions: Int64Array) -> AnyArray:
        """Return what stands at shuffled positions, by two reads for all of them.

        Parameters
        ----------
        positions
            Shape (positions,), int64.

        Returns
        -------
        samples
            Shape (positions, 3), uint32 or uint64: first sentence, sentence after the last one, and
            tokens aimed at. Of blocks (positions, 4): the document, counted from the first of the
            split, in the place of tokens, and the number of the block in its epoch.
        """
        return self._locate(self.shuffle_index.take(positions))

    def _locate(self, samples: AnyArray) -> AnyArray:
        """Return rows by the numbers of samples before the shuffle."""
        rows = samples.astype(np.int64)
        if self.plan.repeats:
            rows %= len(self.sentence_index)
        found = self.sentence_index.take(rows)
        return found if self.plan.kind == "sentences" else _number(found, rows)


class _ShuffledSamples(RowReader):
    """A mapping as Megatron stores it: samples in shuffled order."""

    def __init__(self, arrays: MappingArrays) -> None:
        spec = schema.SENTENCE_INDEX if arrays.plan.kind == "sentences" else _BLOCK_INDEX
        length = len(arrays.shuffle_index)
        super().__init__(ArrayLayout.plan(spec, length, arrays.plan.row_dtype, arrays.plan.grid))
        self.arrays = arrays

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self.arrays._locate(self.arrays.shuffle_index.read(start, stop))


def _number(rows: AnyArray, numbers: AnyArray) -> AnyArray:
    """Return blocks with their numbers in a column more."""
    return np.column_stack([rows, numbers.astype(rows.dtype)])


def open_mapping_arrays(store: Store) -> MappingArrays:
    """Return the arrays of a committed mapping; nothing is read before it is used.

    Parameters
    ----------
    store
        An index store, built with ``store="all"`` or ``"minimal"``.
    """
    spec = dict(store.spec)
    is_stored = schema.SHUFFLE_INDEX.name in store
    return MappingArrays(
        MappingPlan.from_spec(spec, stored=spec.pop("store")),
        store[schema.SENTENCE_INDEX.name],
        store[schema.SCAN_OFFSET.name],
        store[schema.SHUFFLE_INDEX.name] if is_stored else None,
    )


def needed_mapping(plan: MappingPlan, source: SentenceSource, folder: PlaceLike) -> Needed:
    """Return the need for a mapping below a folder, built from a dataset's sentences."""
    return Needed(
        mapping_store_plan(plan, folder),
        plan.num_sentences + sum(layout.length for layout in plan.estimated_layouts),
        lambda executor: build_mapping(plan, source, folder, executor),
    )


def stored_facts(source: SentenceSource) -> SentenceFacts:
    """Return what decides the mappings of a dataset on disk; its documents are digested here."""
    titles = None if source.titles is None else source.titles.facts.length_digest
    reader = source.sentences.reader
    if not isinstance(reader, Store):
        num_documents = reader.num_documents
    else:
        num_documents = len(reader[schema.DOCUMENT_OFFSET.name]) - 1
        if reader.spec.get("document_digest") is not None:
            digest = str(reader.spec["document_digest"])
            return SentenceFacts(source.sentences.facts, digest, num_documents, titles)

    def read(start: int, stop: int) -> Int64Array:
        return source.bounds(start, stop - 1)

    digest = _digest_bounds(read, num_documents)
    return SentenceFacts(source.sentences.facts, digest, num_documents, titles)


def memory_facts(lengths: SourceFacts, document_indices: AnyArray) -> SentenceFacts:
    """Return what decides the mappings of a dataset in memory.

    Parameters
    ----------
    lengths
        What decides its other indices.
    document_indices
        Shape (documents + 1,): sentences at which its documents start, and at last end.
    """
    bounds = np.ascontiguousarray(document_indices, np.int64)
    num_documents = len(bounds) - 1
    digest = _digest_bounds(lambda start, stop: bounds[start:stop], num_documents)
    return SentenceFacts(lengths, digest, num_documents)


def _digest_bounds(read: Callable[[int, int], Int64Array], num_documents: int) -> str:
    """Return the digest of the sentences at which documents start."""
    blocks = range(num_blocks(num_documents + 1))
    return join_digests(digest_rows(read, num_documents + 1, block) for block in blocks)


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
        What `stored_facts` gives of the source, where it is known already.
    settings
        Of `MappingPlan`: split, max_sequence_length, seed, and others.

    Raises
    ------
    ConfigError, PlanError
        As of `MappingPlan`.
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
        The plan; its digests matter in the scalable order only.
    bounds
        Shape (documents of the split + 1,), int64: sentences at which its documents start.
    lengths
        Shape (sentences of the split,), int32, tokens: from sentence ``bounds[0]`` on.
    titles
        Shape (documents of the split,), int32, tokens of each title, for blocks.

    Returns
    -------
    sample_index
        Shape (samples, 3), or 4 columns of blocks, uint32 or uint64, in shuffled order; empty if no
        document gives a sample.

    Notes
    -----
    Law: what `MappingArrays.sample_index` holds of the same plan.
    """
    memory = seed_targets(plan.seed) if plan.is_chained else None
    is_keyed = not (plan.repeats or plan.is_chained)

    def scan(epoch: int) -> AnyArray:
        samples, _ = scan_sentences(
            np.ascontiguousarray(bounds, np.int64),
            np.ascontiguousarray(lengths, np.int32),
            plan.rule,
            memory=memory,
            key=plan.target_key(epoch) if is_keyed else None,
            titles=None if titles is None else np.ascontiguousarray(titles, np.int32),
            first_document=0 if plan.kind == "blocks" else plan.start,
            dtype=plan.row_dtype,
        )
        return samples if plan.kind == "sentences" else _number(samples, np.arange(len(samples)))

    epochs = map_epochs(
        scan,
        plan.rule,
        num_epochs=1 if plan.num_requested is None else None,
        num_wanted=plan.num_requested or 1,
    )
    if not epochs:
        return np.empty((0, 3 if plan.kind == "sentences" else 4), plan.row_dtype)
    mapping: AnyArray = np.concatenate(epochs)
    if plan.order == "megatron":
        order = shuffle_mapping(plan, len(mapping), np.int64)
    else:
        order = np.empty(len(mapping), np.int64)
        first = 0
        for epoch, samples in enumerate(epochs):
            keys = plan.round_keys(Stage.SAMPLE, epoch)
            permute_range(0, len(samples), keys, first, order[first : first + len(samples)])
            first += len(samples)
    return mapping[order]
