"""Sources of a run's samples: map positions to spans of documents, and back."""

from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.indexing.computed_arrays import KeyedEpochs
from zindex.indexing.index_arrays import IndexArrays, keyed_documents, keyed_samples
from zindex.indexing.packing import PackedArrays
from zindex.indexing.stream_parts import TokenSpans, find_stream_parts
from zindex.ingest.length_source import LengthSource
from zindex.io.request_threads import map_in_threads
from zindex.kernels.bijection import unpermute
from zindex.maintenance.edits.consumed import ConsumedTable
from zindex.maintenance.edits.cut_tokens import find_cut_tokens
from zindex.maintenance.edits.draws import shuffle_cut
from zindex.plan.index_plan import IndexPlan
from zindex.plan.journal import Source
from zindex.plan.keys import Stage, split_key
from zindex.plan.packing import PackingPlan
from zindex.store.commit import fingerprint
from zindex.store.open import Store
from zindex.store.rows import RowReader, Spans, read_many

# Rows of a stored array that are searched per read.
_BLOCK = 1 << 20
# Maximum number of value runs for which comparing a block with each is faster than a search.
_MAX_RUNS = 8
_NUM_THREADS = 4

#: An array of an index, stored or in memory.
Rows = RowReader | AnyArray


class SampleParts(NamedTuple):
    """Spans of documents that make up samples, in order."""

    #: Shape (parts,): position of the owning sample in the request.
    owners: Int64Array
    #: Shape (parts,): document number.
    documents: Int64Array
    #: Shape (parts,) each: token range in the document, half-open.
    starts: Int64Array
    stops: Int64Array


class OrderSource(Protocol):
    """Samples of one dataset, in the order in which a run draws them."""

    #: Path of the dataset.
    path: str
    #: Tokens per sample, excluding the extra label token.
    sequence_length: int
    #: Lengths of the dataset; equal values mean equal documents.
    source: Any
    #: Fingerprint that determines the samples; None if the plan alone does not determine them.
    identity: str | None

    def samples_at(self, positions: Int64Array) -> Int64Array:
        """Return the sample number, before shuffling, at each position of the source."""

    def parts_of(self, samples: Int64Array) -> SampleParts:
        """Return the document spans of samples, including tokens that are only labels."""

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""

    def find(self, document: int, start: int, stop: int) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of a document.

        The range is half-open. The result is a superset of the matching positions.
        """


def take(array: Rows, rows: Int64Array) -> Int64Array:
    """Return rows of an array by number, as int64."""
    [found] = read_many([Spans(array, rows, rows + 1)])
    return found.astype(np.int64)


def search(array: Rows, values: Int64Array) -> Int64Array:
    """Return the rows whose value is in ``values``, ascending; ``values`` must be ascending."""
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1) if len(values) else []
    ends = [(int(run[0]), int(run[-1])) for run in runs]

    def search_block(start: int) -> Int64Array:
        block = array[start : start + _BLOCK]
        if len(runs) > _MAX_RUNS:
            is_found = np.isin(block, values)
        else:
            is_found = np.zeros(len(block), np.bool_)
            # Plain integers, so that numpy does not convert the block.
            for low, high in ends:
                is_found |= block == low if low == high else (block >= low) & (block <= high)
        return start + np.flatnonzero(is_found)

    starts = range(0, len(array) if runs else 0, _BLOCK)
    found = map_in_threads(min(_NUM_THREADS, max(1, len(starts))), search_block, starts)
    return np.concatenate([np.empty(0, np.int64), *found])


def read_lengths(source: LengthSource, documents: Int64Array) -> Int64Array:
    """Return the lengths of documents, in tokens."""
    if isinstance(source.reader, Store):
        return take(source.reader[schema.SEQUENCE_LENGTH.name], documents)
    lengths = (source.reader.sequence_lengths(number, number + 1)[0] for number in documents)
    return np.fromiter(lengths, np.int64, len(documents))


def _refuse(path: str, spans: Any, span: int) -> VerificationError:
    """Return the error for a span that does not match the lengths of its documents."""
    return VerificationError(
        f"tokens [{spans[0][span]}, {spans[1][span]}) of the stream of {path} must be made of "
        "parts of its documents, its index gives others; restore the data if they changed, or "
        "remove the index to build it again"
    )


class StreamSource:
    """Samples cut from a stream of shuffled documents; see `OrderSource`.

    Parameters
    ----------
    path, plan, source
        The dataset, the plan of its index, and its document lengths.
    arrays
        Arrays of the index.
    """

    def __init__(
        self, path: str, plan: IndexPlan, source: LengthSource, arrays: IndexArrays
    ) -> None:
        self.path, self.plan, self.source = path, plan, source
        self.sequence_length, self.extra = plan.sequence_length, plan.extra_token
        self.arrays = arrays
        self.identity: str | None = fingerprint(plan.spec)
        self._keyed: tuple[KeyedEpochs, KeyedEpochs] | None = None
        if plan.order == "scalable":
            self._keyed = keyed_documents(plan), keyed_samples(plan)
            if plan.stored == "minimal":  # compute the rows of one request together
                documents, shuffle = self._keyed
                self.arrays = IndexArrays(documents, arrays.sample_index, shuffle)

    def samples_at(self, positions: Int64Array) -> Int64Array:
        """Return the samples at positions."""
        return take(self.arrays.shuffle_index, positions)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""
        return self.epochs_of_tokens(samples * self.sequence_length)

    def epochs_of_tokens(self, tokens: Int64Array) -> Int64Array:
        """Return the epoch of each token of the stream."""
        return tokens // self.plan.epochs.tokens_per_epoch

    def parts_of(self, samples: Int64Array) -> SampleParts:
        """Return the document spans of samples."""
        starts = samples * self.sequence_length
        # The last sample of an index may be short.
        stops = np.minimum(starts + self.sequence_length + self.extra, self._num_tokens)
        return self.parts_of_tokens(starts, stops)

    def parts_of_tokens(self, starts: Int64Array, stops: Int64Array) -> SampleParts:
        """Return the document spans of non-empty token ranges of the stream."""
        found = find_stream_parts(
            self.arrays,
            partial(read_lengths, self.source),
            starts,
            stops,
            length=self.sequence_length,
            extra=self.extra,
            refuse=partial(_refuse, self.path, (starts, stops)),
        )
        stops = found.begins + found.lengths
        return SampleParts(found.spans, found.documents, found.begins, stops)

    def find(self, document: int, start: int, stop: int) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of a document."""
        starts, stops = self.find_tokens(document, start, stop)
        firsts = starts // self.sequence_length
        lasts = np.minimum((stops - 1) // self.sequence_length + 1, self.plan.num_samples)
        spans = zip(firsts.tolist(), lasts.tolist(), strict=True)
        samples = np.unique(
            np.concatenate([np.empty(0, np.int64), *(np.arange(*s) for s in spans)])
        )
        if self._keyed is not None:
            return self._keyed[1].find_rows(samples)
        return search(self.arrays.shuffle_index, samples)

    def find_tokens(self, document: int, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """Return the stream ranges that hold the given tokens of a document, one per epoch.

        With an extra token, each range starts one token earlier: the sample of that token holds
        the first requested token as its last label.
        """
        rows = self._find_rows(document)
        firsts = np.array([self._find_first_token(row) for row in rows.tolist()], np.int64)
        return np.maximum(firsts + start - self.extra, 0), firsts + stop

    def _find_rows(self, document: int) -> Int64Array:
        """Return the rows of the document index that refer to a document."""
        if not self.plan.start <= document < self.plan.stop:
            return np.empty(0, np.int64)
        numbers = np.array([document], np.int64)
        if self._keyed is not None:
            return self._keyed[0].find_rows(numbers)
        return search(self.arrays.document_index, numbers)

    def _find_first_token(self, row: int) -> int:
        """Return the stream offset of the first token of a row of the document index."""
        boundaries = self.arrays.sample_index
        low, high = 0, len(boundaries) - 1
        while low < high:  # find the first boundary in this row or later, else the last one
            middle = (low + high) // 2
            if int(boundaries[middle][0]) < row:
                low = middle + 1
            else:
                high = middle
        other, offset = (int(value) for value in boundaries[low])
        token = min(low * self.sequence_length, self._num_tokens - self.extra) - offset
        between = range(other, row) if other < row else range(row, other)
        documents = self.arrays.document_index[between.start : between.stop]
        gap = int(read_lengths(self.source, np.asarray(documents, np.int64)).sum())
        return token + gap if other < row else token - gap

    @cached_property
    def _num_tokens(self) -> int:
        """Number of tokens in the stream."""
        return self.plan.epochs.num_epochs * self.plan.epochs.tokens_per_epoch


class CutSource:
    """Unconsumed samples of a source, re-cut to a new length; see `OrderSource`.

    Parameters
    ----------
    source, number
        The source, and its index in the run.
    parent
        The source before the edit.
    consumed
        Consumed samples of each source, sorted by their order in its token stream.
    """

    def __init__(
        self,
        source: Source,
        number: int,
        parent: "StreamSource | CutSource",
        consumed: ConsumedTable,
    ) -> None:
        assert source.parent is not None
        self.cut, self.number, self.parent, self.consumed = source, number, parent, consumed
        self.path: str = parent.path
        self.source: LengthSource = parent.source
        self.identity: str | None = None
        self.sequence_length = source.sequence_length
        self._row = consumed.rows[source.parent]

    @property
    def base(self) -> StreamSource:
        """The original source, which has an index."""
        return self.parent.base if isinstance(self.parent, CutSource) else self.parent

    def samples_at(self, positions: Int64Array) -> Int64Array:
        """Return the samples at positions."""
        return shuffle_cut(self.cut, self.number, self.base.plan.split, positions)

    def parts_of(self, samples: Int64Array) -> SampleParts:
        """Return the document spans of samples, including the label of each span's last token."""
        spans, base = self._spans_of(samples), self.base
        found = base.parts_of_tokens(spans.starts, spans.stops + base.extra)
        return found._replace(owners=spans.owners[found.owners])

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""
        spans = self._spans_of(samples)
        is_first = np.append(True, np.diff(spans.owners) > 0)
        return self.base.epochs_of_tokens(spans.starts[is_first])

    def _spans_of(self, samples: Int64Array) -> TokenSpans:
        """Return the spans of the base stream that make up each sample."""
        length = self.sequence_length
        return self._find_spans(samples * length, (samples + 1) * length)

    def _find_spans(self, starts: Int64Array, stops: Int64Array) -> TokenSpans:
        length = self.parent.sequence_length
        spans = find_cut_tokens(self.consumed, self._row, length, starts, stops)
        if isinstance(self.parent, CutSource):
            deeper = self.parent._find_spans(spans.starts, spans.stops)
            spans = deeper._replace(owners=spans.owners[deeper.owners]).merge()
        return spans

    def find(self, document: int, start: int, stop: int) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of a document."""
        starts, stops = self.find_tokens(document, start, stop)
        length = self.sequence_length
        spans = zip((starts // length).tolist(), ((stops - 1) // length + 1).tolist(), strict=True)
        samples = np.unique(
            np.concatenate([np.empty(0, np.int64), *(np.arange(*s) for s in spans)])
        )
        return self._find_positions(samples[samples < self.cut.num_samples])

    def find_tokens(self, document: int, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """Return the ranges of this source that hold the given tokens of a document."""
        starts, stops = self.parent.find_tokens(document, start, stop)
        length = self.parent.sequence_length
        found = []
        for first, last in zip(starts.tolist(), stops.tolist(), strict=True):
            samples = np.arange(first // length, (last - 1) // length + 1)
            ranks = self.consumed.rank(self._row, samples)
            low = np.maximum(first - samples * length, 0) + ranks * length
            high = np.minimum(last - samples * length, length) + ranks * length
            found.append(np.stack([low, high])[:, ranks >= 0])
        both = np.concatenate([np.empty((2, 0), np.int64), *found], axis=1)
        return both[0], both[1]

    def _find_positions(self, samples: Int64Array) -> Int64Array:
        """Return the positions of samples; inverse of `samples_at`."""
        found, start = [np.empty(0, np.int64)], 0
        source, split = self.cut, self.base.plan.split
        for window, stop in enumerate(source.windows):
            own = samples[(start <= samples) & (samples < stop)] - start
            keys = split_key(source.seed, Stage.CUT, split, self.number, window)
            found.append(start + unpermute(own, stop - start, keys))
            start = stop
        return np.concatenate([*found, samples[samples >= start]])


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
        plan: Any = arrays.plan
        self.plan: PackingPlan = plan
        self.identity: str | None = fingerprint(self.plan.spec)
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
        lengths = np.minimum(read_lengths(self.source, documents) - begins, self.plan.room)
        return SampleParts(owners, documents, begins, begins + lengths)

    def find(self, document: int, start: int, stop: int) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of a document."""
        plan, found = self.plan, [np.empty(0, np.int64)]
        if plan.start <= document < plan.stop:
            offset = np.array([document - plan.start], np.int64)
            for epoch in range(len(self.arrays.sample_starts) - 1):
                keys = plan.round_keys(Stage.DOCUMENT, epoch)
                place = int(unpermute(offset, plan.num_documents, keys)[0])
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
        parts = low + np.flatnonzero(arrays.part_index[int(low) : int(high)][:, 0] == document)
        offsets = arrays.sample_offset[int(first) : int(last) + 1]
        found: Int64Array = first + np.searchsorted(offsets, parts, side="right") - 1
        return found
