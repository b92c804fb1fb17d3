"""Sources of a run's samples: map positions to spans of documents, and back."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import VerificationError
from zindex.indexing.computed_arrays import KeyedEpochs
from zindex.indexing.index_arrays import IndexArrays, keyed_documents, keyed_samples
from zindex.indexing.inverse import Inverse, look_up
from zindex.indexing.stream_parts import TokenSpans, find_stream_parts
from zindex.ingest.length_source import LengthSource
from zindex.kernels.bijection import unpermute
from zindex.maintenance.edits.consumed import ConsumedTable
from zindex.maintenance.edits.cut_tokens import find_cut_tokens
from zindex.maintenance.edits.draws import shuffle_cut
from zindex.maintenance.edits.index_search import open_lengths, search, search_sorted, take
from zindex.plan.index_plan import IndexPlan
from zindex.plan.journal import Source
from zindex.plan.keys import Stage, split_key
from zindex.store.commit import fingerprint
from zindex.store.rows import Spans, count_from, read_many


class SampleParts(NamedTuple):
    """Spans of documents that make up samples, in order."""

    #: Shape (parts,): position of the owning sample in the request.
    owners: Int64Array
    #: Shape (parts,): document number.
    documents: Int64Array
    #: Shape (parts,) each: token range in the document, half-open.
    starts: Int64Array
    stops: Int64Array


class SampleDocuments(NamedTuple):
    """The documents of samples, token by token; -1 where there is no token."""

    #: Shape (samples, sequence_length) each, int64: of the inputs and of the labels.
    inputs: Int64Array
    labels: Int64Array

    @classmethod
    def of_spans(
        cls, num_samples: int, length: int, extra: int, spans: TokenSpans, parts: SampleParts
    ) -> "SampleDocuments":
        """Return the documents of samples that consist of spans.

        Parameters
        ----------
        num_samples, length, extra
            Number of samples, and tokens of a sample and of the label of its last one.
        spans
            The spans of each sample, without labels.
        parts
            The documents of each span, with the label of its last token, if there is one.
        """
        found = cls(*np.full((2, num_samples, length), -1, np.int64))
        sizes = parts.stops - parts.starts
        documents = np.repeat(parts.documents, sizes)
        read = np.bincount(parts.owners, sizes, len(spans.owners)).astype(np.int64)
        first, columns = 0, np.zeros(num_samples, np.int64)
        rows = zip(spans.owners.tolist(), (spans.stops - spans.starts).tolist(), read, strict=True)
        for owner, size, num_read in rows:
            own, column = documents[first : first + num_read], columns[owner]
            inputs, labels = own[:size], own[1 : size + extra]
            found.inputs[owner, column : column + len(inputs)] = inputs
            found.labels[owner, column : column + len(labels)] = labels
            first, columns[owner] = first + num_read, column + size
        return found


class OrderSource(Protocol):
    """Samples of one dataset, in the order in which a run draws them."""

    #: Path of the dataset.
    path: str
    #: Tokens per sample, excluding the extra label token.
    sequence_length: int
    #: Lengths of the dataset; equal values mean equal documents.
    source: Any
    #: Returns the lengths of documents, in tokens.
    read_lengths: Callable[[Int64Array], Int64Array]
    #: Fingerprint that determines the samples; None if the plan alone does not determine them.
    identity: str | None
    #: Whether `find` reads few rows: otherwise it reads the whole order.
    is_searchable: bool

    def samples_at(self, positions: Int64Array) -> Int64Array:
        """Return the sample number, before shuffling, at each position of the source."""

    def parts_of(self, samples: Int64Array) -> SampleParts:
        """Return the document spans of samples, including tokens that are only labels."""

    def documents_of(self, samples: Int64Array) -> SampleDocuments:
        """Return the documents of the tokens of samples."""

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""

    def find(self, documents: Int64Array, start: int = 0, stop: int | None = None) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of documents.

        The documents are ascending, the range is half-open, by default all tokens. The result is a
        superset of the matching positions.
        """


def samples_in(starts: Int64Array, stops: Int64Array, length: int, num_samples: int) -> Int64Array:
    """Return the samples that hold tokens of ranges of a stream, ascending."""
    firsts, lasts = starts // length, np.minimum((stops - 1) // length + 1, num_samples)
    counts = np.maximum(lasts - firsts, 0)
    return np.unique(count_from(firsts, counts))


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
    arrays, inverse
        Arrays of the index, and their stored inverse, if any.
    """

    def __init__(
        self,
        path: str,
        plan: IndexPlan,
        source: LengthSource,
        arrays: IndexArrays,
        inverse: Inverse | None = None,
    ) -> None:
        self.path, self.plan, self.source = path, plan, source
        self.read_lengths = open_lengths(source)
        self.sequence_length, self.extra = plan.sequence_length, plan.extra_token
        self.arrays, self.inverse = arrays, inverse
        self.identity: str | None = fingerprint(plan.spec)
        is_in_memory = isinstance(arrays.shuffle_index, np.ndarray)
        self.is_searchable = is_in_memory or inverse is not None or plan.order == "scalable"
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
            self.read_lengths,
            starts,
            stops,
            length=self.sequence_length,
            extra=self.extra,
            refuse=partial(_refuse, self.path, (starts, stops)),
        )
        stops = found.begins + found.lengths
        return SampleParts(found.spans, found.documents, found.begins, stops)

    def documents_of(self, samples: Int64Array) -> SampleDocuments:
        """Return the documents of the tokens of samples."""
        spans = self.spans_of(samples)
        parts = self.parts_of_tokens(spans.starts, self.add_label(spans.stops))
        return SampleDocuments.of_spans(
            len(samples), self.sequence_length, self.extra, spans, parts
        )

    def spans_of(self, samples: Int64Array) -> TokenSpans:
        """Return the span of the stream that makes up each sample, without its last label."""
        starts = samples * self.sequence_length
        # The last sample of an index may be short.
        stops = np.minimum(starts + self.sequence_length, self._num_tokens)
        return TokenSpans(np.arange(len(samples)), starts, stops)

    def add_label(self, stops: Int64Array) -> Int64Array:
        """Return the ends of spans of the stream with the labels of their last tokens."""
        return np.minimum(stops + self.extra, self._num_tokens)

    def find(self, documents: Int64Array, start: int = 0, stop: int | None = None) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of documents."""
        starts, stops = self.find_tokens(documents, start, stop)
        samples = samples_in(starts, stops, self.sequence_length, self.plan.num_samples)
        if self._keyed is not None:
            return self._keyed[1].find_rows(samples)
        if self.inverse is not None:
            order = self.arrays.shuffle_index, samples
            return look_up(self.inverse.sample_position, samples, order)
        return search(self.arrays.shuffle_index, samples)

    def find_tokens(
        self, documents: Int64Array, start: int, stop: int | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Return the stream ranges that hold the given tokens of documents, one per epoch.

        With an extra token, each range starts one token earlier: the sample of that token holds
        the first requested token as its last label.
        """
        rows = self._find_rows(documents)
        if not rows.size:
            return rows, rows
        lengths: Int64Array | int = 0 if stop is None else stop
        if stop is None:
            lengths = self.read_lengths(take(self.arrays.document_index, rows))
        firsts = self._find_first_tokens(rows)
        is_held = lengths > np.zeros(len(rows), np.int64) + start
        starts, stops = np.maximum(firsts + start - self.extra, 0), firsts + lengths
        return starts[is_held], stops[is_held]

    def _find_rows(self, documents: Int64Array) -> Int64Array:
        """Return the rows of the document index that refer to one of the documents."""
        own = documents[(self.plan.start <= documents) & (documents < self.plan.stop)]
        if self._keyed is not None:
            return self._keyed[0].find_rows(own)
        if self.inverse is not None and self.inverse.document_row is not None:
            num_epochs = self.plan.epochs.num_epochs
            entries = np.add.outer((own - self.plan.start) * num_epochs, np.arange(num_epochs))
            order = self.arrays.document_index, np.repeat(own, num_epochs)
            return look_up(self.inverse.document_row, entries.reshape(-1), order)
        return search(self.arrays.document_index, own)

    def _find_first_tokens(self, rows: Int64Array) -> Int64Array:
        """Return the stream offset of the first token of rows of the document index."""
        boundaries = self.arrays.sample_index
        # The first boundary in this row or later, else the last one.
        low = np.minimum(search_sorted(boundaries, rows, self.plan.num_rows), len(boundaries) - 1)
        others, offsets = take(boundaries, low).T
        tokens = np.minimum(low * self.sequence_length, self._num_tokens - self.extra) - offsets
        starts, stops = np.minimum(rows, others), np.maximum(rows, others)
        [documents] = read_many([Spans(self.arrays.document_index, starts, stops)])
        lengths = self.read_lengths(documents.astype(np.int64))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        last = np.cumsum(stops - starts)
        gaps = ends[last] - ends[last - (stops - starts)]
        found: Int64Array = tokens + np.where(others < rows, gaps, -gaps)
        return found

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
        self.read_lengths: Callable[[Int64Array], Int64Array] = parent.read_lengths
        self.identity: str | None = None
        self.is_searchable: bool = parent.is_searchable
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
        spans, base = self.spans_of(samples), self.base
        found = base.parts_of_tokens(spans.starts, base.add_label(spans.stops))
        return found._replace(owners=spans.owners[found.owners])

    def documents_of(self, samples: Int64Array) -> SampleDocuments:
        """Return the documents of the tokens of samples."""
        spans, base = self.spans_of(samples), self.base
        parts = base.parts_of_tokens(spans.starts, base.add_label(spans.stops))
        return SampleDocuments.of_spans(
            len(samples), self.sequence_length, base.extra, spans, parts
        )

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""
        spans = self.spans_of(samples)
        is_first = np.append(True, np.diff(spans.owners) > 0)
        return self.base.epochs_of_tokens(spans.starts[is_first])

    def spans_of(self, samples: Int64Array) -> TokenSpans:
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

    def find(self, documents: Int64Array, start: int = 0, stop: int | None = None) -> Int64Array:
        """Return the positions whose samples may contain the given tokens of documents."""
        starts, stops = self.find_tokens(documents, start, stop)
        return self._find_positions(
            samples_in(starts, stops, self.sequence_length, self.cut.num_samples)
        )

    def find_tokens(
        self, documents: Int64Array, start: int, stop: int | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Return the ranges of this source that hold the given tokens of documents."""
        starts, stops = self.parent.find_tokens(documents, start, stop)
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
