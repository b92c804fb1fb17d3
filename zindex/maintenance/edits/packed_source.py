"""Packed samples of a run: map positions to spans of documents, and back; open any index so."""

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.indexing.index_arrays import compute_index_arrays, open_index_arrays
from zindex.indexing.inverse import find_inverse
from zindex.indexing.packing import PackedArrays
from zindex.indexing.run_plan import PlannedIndex
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import PlaceLike
from zindex.kernels.bijection import unpermute
from zindex.maintenance.edits.index_search import open_lengths, take
from zindex.maintenance.edits.journal import RunJournal
from zindex.maintenance.edits.order_sources import (
    CutSource,
    OrderSource,
    SampleDocuments,
    SampleParts,
    StreamSource,
)
from zindex.plan.keys import Stage
from zindex.plan.packing import PackingPlan
from zindex.store.commit import fingerprint
from zindex.store.open import Store
from zindex.store.rows import Spans, read_many

# Rows of a partition that are searched at a time. Few enough for freed memory to be used again: to
# take a partition at once costs more in page faults than in reading.
_SCANNED_ROWS = 1 << 17


def open_order_source(
    item: PlannedIndex[Any], store: Store | None, folder: PlaceLike
) -> OrderSource:
    """Return the samples of an index.

    Parameters
    ----------
    item
        The index.
    store
        Its store; None to compute it in memory.
    folder
        Directory of the index stores, in which the inverse may be, too.
    """
    plan, source = item.plan, item.source
    if isinstance(plan, PackingPlan):
        assert store is not None
        return PackedSource(item.dataset, source, PackedArrays.open(store))
    if store is None:
        arrays = compute_index_arrays(plan, source.lengths(plan.start, plan.stop))
        return StreamSource(item.dataset, plan, source, arrays)
    inverse = find_inverse(plan, folder)
    return StreamSource(item.dataset, plan, source, open_index_arrays(store), inverse)


def open_sources(
    journal: RunJournal, find_store: Callable[[PlannedIndex[Any]], Store | None]
) -> list[OrderSource]:
    """Return the samples of all sources of an edited run: its indices, and what edits cut again.

    Parameters
    ----------
    journal
        The run.
    find_store
        Returns the store of an index; None to compute it in memory.
    """
    opened: list[OrderSource] = []
    for number, source in enumerate(journal.state.sources):
        if source.parent is None:
            item = journal.index_of(number)
            opened.append(open_order_source(item, find_store(item), journal.config.index))
        else:
            parent: Any = opened[source.parent]
            opened.append(CutSource(source, number, parent, journal.cut_table(source.blend)))
    return opened


class PackedSource:
    """Samples packed with whole documents; see `OrderSource`.

    Parameters
    ----------
    path, source
        The dataset, and its document lengths.
    arrays
        Arrays of the index.
    """

    def __init__(self, path: str, source: LengthSource, arrays: PackedArrays) -> None:
        self.path, self.source, self.arrays = path, source, arrays
        self.read_lengths = open_lengths(source)
        plan: Any = arrays.plan
        self.plan: PackingPlan = plan
        self.identity: str | None = fingerprint(self.plan.spec)
        self.is_searchable = True
        self.sequence_length = self.plan.sequence_length
        shuffle, keyed = arrays.shuffle_index, arrays.keyed_shuffle
        self._take = partial(take, shuffle) if arrays.stored_shuffle is not None else keyed.take

    def samples_at(self, positions: Int64Array) -> Int64Array:
        """Return the samples at positions."""
        return self._take(positions).astype(np.int64)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of each sample."""
        return self.arrays.epochs_of(samples)

    def parts_of(self, samples: Int64Array) -> SampleParts:
        """Return the document spans of samples."""
        bounds = take(self.arrays.sample_offset, np.stack([samples, samples + 1], 1).reshape(-1))
        starts, stops = bounds[::2], bounds[1::2]
        [rows] = read_many([Spans(self.arrays.part_index, starts, stops)])
        documents, begins = rows.astype(np.int64).T
        owners = np.repeat(np.arange(len(samples)), stops - starts)
        lengths = np.minimum(self.read_lengths(documents) - begins, self.plan.room)
        return SampleParts(owners, documents, begins, begins + lengths)

    def documents_of(self, samples: Int64Array) -> SampleDocuments:
        """Return the documents of the tokens of samples; a label is in the document of its input.

        The last token of a document has no label, or one that is masked.
        """
        length = self.sequence_length
        found = SampleDocuments(*np.full((2, len(samples), length), -1, np.int64))
        parts = self.parts_of(samples)
        sizes = parts.stops - parts.starts
        before = np.cumsum(sizes) - sizes
        first = np.searchsorted(parts.owners, np.arange(len(samples)))
        columns = np.arange(int(sizes.sum())) - np.repeat(before[first[parts.owners]], sizes)
        owners, documents = np.repeat(parts.owners, sizes), np.repeat(parts.documents, sizes)
        is_input, is_label = columns < length, columns > 0
        found.inputs[owners[is_input], columns[is_input]] = documents[is_input]
        found.labels[owners[is_label], columns[is_label] - 1] = documents[is_label]
        return found

    def find(self, documents: Int64Array, start: int = 0, stop: int | None = None) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of documents."""
        plan, found = self.plan, [np.empty(0, np.int64)]
        own = documents[(plan.start <= documents) & (documents < plan.stop)]
        for epoch in range(len(self.arrays.sample_starts) - 1):
            keys = plan.round_keys(Stage.DOCUMENT, epoch)
            places = unpermute(own - plan.start, plan.num_documents, keys)
            for document, place in zip(own.tolist(), places.tolist(), strict=True):
                found.append(self._find_in_partition(document, epoch, place))
        return self.arrays.keyed_shuffle.find_rows(np.unique(np.concatenate(found)))

    def _find_in_partition(self, document: int, epoch: int, place: int) -> Int64Array:
        """Return the samples that contain the document at a given place in an epoch's order."""
        plan, arrays = self.plan, self.arrays
        number = place * plan.partitions_per_epoch // plan.num_documents
        partition = epoch * plan.partitions_per_epoch + number
        while plan.partition_bounds(partition)[2] <= place:
            partition += 1
        (first, low, _), (last, high, _) = arrays.partition_starts[partition : partition + 2]
        found: list[int] = []
        for start in range(int(low), int(high), _SCANNED_ROWS):
            rows = arrays.part_index[start : min(start + _SCANNED_ROWS, int(high))]
            found += (start + np.flatnonzero(rows[:, 0] == document)).tolist()
        bounds = int(first), int(last) + 1
        samples = [bisect_right(arrays.sample_offset, part, *bounds) for part in found]
        return np.array(samples, np.int64) - 1
