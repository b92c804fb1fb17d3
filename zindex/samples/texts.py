"""Read the tokens of many samples of many datasets, in as few rounds as for a single sample.

A round reads from all datasets at once; in object storage it is one round trip. Each kind of index
defines the parts of documents that form a sample.

Small local arrays, such as indices and document bounds, are cached in memory once that pays off,
since a lookup then saves a system call. Tokens are never cached here, nor are arrays in object
storage, which have a separate cache, nor arrays that are still being built.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.indexing.computed_arrays import ComputedArray
from zindex.samples.batch import BatchRequest, find_spans, group_samples, slices_at
from zindex.store.reader import LocalReader, SampleIndex
from zindex.store.rows import RowReader, Spans, read_many

#: Limit of the cache of a process, in bytes: the arrays of about 10 billion tokens.
MAX_NBYTES = 1 << 26
# An array is cached once the number of requested rows makes reading it completely no more
# expensive. The first batches of many datasets read only what they need.
_ROWS_PER_REQUEST = 64
# Positions of the first tokens of documents that are read one by one: lengths are below 2**32.
_DOCUMENT_SHIFT = 32


@dataclass(eq=False, slots=True, weakref_slot=True)
class _CacheEntry:
    """Number of requests for an array, and its rows once they are cached."""

    num_requests: int = 0
    rows: AnyArray | None = None


# Entries are dropped with their readers.
_entries: "WeakKeyDictionary[RowReader, _CacheEntry]" = WeakKeyDictionary()
# The entries with rows. A list can be copied while other threads append to it, and needs no lock
# that a fork could leave locked.
_cached: "list[ref[_CacheEntry]]" = []


def cached_rows(reader: RowReader | AnyArray, num_requests: int) -> AnyArray | None:
    """Return the rows of an array from the cache, or None if they must be read.

    Parameters
    ----------
    reader
        The array's reader, the same object each time; an array in memory is returned.
    num_requests
        Number of spans that the caller is about to read.
    """
    if not isinstance(reader, RowReader):
        return reader
    entry = _entries.get(reader)
    if entry is None:
        if not _is_cacheable(reader):
            return None
        entry = _entries[reader] = _CacheEntry()
    if entry.rows is None:
        entry.num_requests += num_requests
        if entry.num_requests * _ROWS_PER_REQUEST < len(reader):
            return None
        if _cache_nbytes() + reader.nbytes > MAX_NBYTES:
            entry.num_requests = 0  # try again after as many requests
            return None
        try:
            entry.rows = np.asarray(reader)
        except VerificationError:  # raised only by reads of the damaged rows
            entry.num_requests = -(1 << 62)
            return None
        _cached.append(ref(entry, _cached.remove))
    return entry.rows


def _cache_nbytes() -> int:
    entries = [entry() for entry in list(_cached)]
    return sum(entry.rows.nbytes for entry in entries if entry and entry.rows is not None)


def _is_cacheable(reader: RowReader) -> bool:
    """Return whether an array is complete, local, small, and verified only on first read."""
    if reader.nbytes > MAX_NBYTES:
        return False
    return type(reader) is ComputedArray or (
        type(reader) is LocalReader and reader.verify != "always"
    )


def take_spans(rows: AnyArray, starts: Int64Array, stops: Int64Array) -> AnyArray:
    """Return the concatenated spans of an array in memory.

    Raises
    ------
    IndexError
        If a span is outside the array.
    """
    if len(starts) == 1:
        start, stop = int(starts[0]), int(stops[0])
        if not 0 <= start <= stop <= len(rows):
            raise IndexError(f"rows [{start}, {stop}) are outside an array of length {len(rows)}")
        return rows[start:stop]
    if (starts | (stops - starts) | (len(rows) - stops)).min() < 0:
        i = int(np.argmax((starts < 0) | (stops < starts) | (stops > len(rows))))
        return take_spans(rows, starts[i : i + 1], stops[i : i + 1])
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    taken: AnyArray = rows[
        np.repeat(starts - before, lengths) + np.arange(before[-1] + lengths[-1])
    ]
    return taken


def read_round(requests: Iterable[Spans]) -> Int64Array:
    """Return the rows of all spans, concatenated array by array, as int64."""
    requests = list(requests)
    rows: dict[int, AnyArray] = {}
    for i, spans in enumerate(requests):
        cached = cached_rows(spans.reader, len(spans.starts))
        if cached is not None:
            rows[i] = take_spans(cached, spans.starts, spans.stops)
    missing = [i for i in range(len(requests)) if i not in rows]
    if missing:
        rows.update(zip(missing, read_many([requests[i] for i in missing]), strict=True))
    if len(requests) == 1:
        return rows[0].astype(np.int64)
    return np.concatenate([rows[i] for i in range(len(requests))], dtype=np.int64)


class DocumentTokens:
    """The tokens of a dataset that returns its documents one by one, as an array by position.

    Token t of document d has position ``(d << 32) + t``. It serves made-up documents and subclasses
    that override ``get``.

    Parameters
    ----------
    dataset
        Has ``get(document, offset=..., length=...)``, or documents as its items.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, span: slice) -> AnyArray:
        """Return the tokens of a span within one document."""
        document, offset = divmod(int(span.start), 1 << _DOCUMENT_SHIFT)
        length = int(span.stop) - int(span.start)
        if hasattr(self.dataset, "get"):
            found = self.dataset.get(document, offset=offset, length=length)
        else:
            found = self.dataset[document][offset : offset + length]
        tokens = np.asarray(found[0] if isinstance(found, tuple) else found)  # without its mode
        if len(tokens) != length:
            raise VerificationError(
                f"{type(self.dataset).__name__} must give {length} tokens from token {offset} of "
                f"document {document}, it gives {len(tokens)}; check its sequence_lengths"
            )
        return tokens


class Bounds(NamedTuple):
    """First token of documents among those of their dataset, and their lengths."""

    #: Shape (documents,), int64.
    starts: Int64Array
    #: Shape (documents,), int64.
    lengths: Int64Array


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a low-level dataset: their tokens by position, and their bounds."""

    #: Tokens of all documents; `DocumentTokens` where documents are read one by one.
    tokens: Any
    #: Shape (documents + 1,), int64: position of each document's first token.
    offsets: RowReader | None = None
    #: Returns the bounds of documents by number, if that is faster than reading offsets.
    find: Callable[[Int64Array], tuple[AnyArray, AnyArray]] | None = None

    @classmethod
    def of_items(cls, dataset: Any) -> "Documents":
        """Return the documents of a dataset that returns them one by one.

        Parameters
        ----------
        dataset
            As for `DocumentTokens`, with ``sequence_lengths``, or with ``offsets`` of a store.
        """
        offsets = getattr(dataset, "offsets", None)

        def find(numbers: Int64Array) -> tuple[AnyArray, AnyArray]:
            if offsets is None:
                lengths = dataset.sequence_lengths[numbers]
            else:
                lengths = np.diff(offsets.read_spans(numbers, numbers + 2).reshape(-1, 2))[:, 0]
            return numbers << _DOCUMENT_SHIFT, lengths

        return cls(DocumentTokens(dataset), find=find)


#: Documents of datasets, each with the slice of an array of document numbers that is its own.
DocumentGroups = Sequence[tuple[Documents, slice]]


def read_bounds(groups: DocumentGroups, numbers: Int64Array) -> Bounds:
    """Return the bounds of documents, in one round.

    Parameters
    ----------
    groups
        The datasets, and the slice of ``numbers`` of each.
    numbers
        Shape (documents,): numbers of documents in their datasets.
    """
    bounds = Bounds(np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64))
    requests, missing = [], []
    for documents, rows in groups:
        own = numbers[rows]
        if documents.find is not None:
            bounds.starts[rows], bounds.lengths[rows] = documents.find(own)
            continue
        assert documents.offsets is not None
        cached = cached_rows(documents.offsets, len(own))
        if cached is None or own.min() < 0 or own.max() + 1 >= len(cached):
            requests.append(Spans(documents.offsets, own, own + 2))
            missing.append(rows)
            continue
        bounds.starts[rows] = starts = cached[own]
        np.subtract(cached[own + 1], starts, out=bounds.lengths[rows])
    if requests:
        for rows, pairs in zip(missing, read_many(requests), strict=True):
            starts, stops = pairs.reshape(-1, 2).T
            bounds.starts[rows] = starts
            np.subtract(stops, starts, out=bounds.lengths[rows])
    return bounds


def read_tokens(
    groups: DocumentGroups,
    starts: Int64Array,
    lengths: Int64Array,
    out: AnyArray,
    places: Int64Array,
) -> None:
    """Read spans of tokens, in one round.

    Parameters
    ----------
    groups
        The datasets, and the slice of the spans of each.
    starts, lengths
        Shape (spans,): first token of each span, among those of its dataset, and its tokens.
    out
        One dimension, C order: receives the tokens, in its dtype.
    places
        Shape (spans,): offset of each span in ``out``.
    """
    stops = starts + lengths
    read_many(
        [
            Spans(documents.tokens, starts[rows], stops[rows], out, places[rows])
            for documents, rows in groups
        ]
    )


@dataclass(eq=False, slots=True)
class IndexedText:
    """The index of a dataset and its documents, opened for batches."""

    #: Name of the dataset in messages.
    where: str
    #: Arrays of the index.
    arrays: Any
    documents: Documents
    #: Documents of the dataset, not only of the split.
    num_documents: int
    #: Settings of its samples, `zindex.samples.tensors.TextSettings` for GPT datasets.
    settings: Any = None
    #: Returns the epoch of each sample.
    find_epochs: Callable[[Int64Array], Int64Array] | None = None
    #: Transforms the tokens of a sample, by its number; None leaves them unchanged.
    fill: Callable[[Int64Array, int], Int64Array] | None = None
    #: Whether the last sample of the index may have fewer tokens than the others.
    may_end_short: bool = False
    #: Whether any sample may be short: a subclass made the index.
    may_be_short: bool = False
    #: The cached arrays for the kernel that makes plain samples.
    sample_index: SampleIndex | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of the samples of a batch, and the documents that they come from.

    Samples are ordered by dataset. A part is a span of one document.
    """

    #: Shape (samples, sequence_length + x), in a dtype that holds all tokens, in the batch's order.
    tokens: AnyArray
    #: Shape (samples,): the row of ``tokens`` of each sample.
    rows: Int64Array
    #: Shape (samples,): tokens of each sample.
    num_tokens: Int64Array
    #: Shape (samples,): the sample's number in its dataset.
    samples: Int64Array
    #: Shape (samples,): first part of each sample.
    first_parts: Int64Array
    #: Shape (parts,): the sample of each part.
    owners: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): tokens of the part.
    lengths: Int64Array
    #: Shape (parts,): offset of the part in its sample, in tokens.
    offsets: Int64Array

    @classmethod
    def of_text(cls, tokens: AnyArray) -> "Texts":
        """Return full samples of unknown documents: tokens of shape (samples, length)."""
        size, length = tokens.shape
        rows, zeros, lengths = np.arange(size), np.zeros(size, np.int64), np.full(size, length)
        return cls(tokens, rows, lengths, zeros, rows, rows, zeros, lengths, zeros)


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """The samples of a batch, ordered by dataset."""

    #: Their datasets, and the samples of each.
    groups: list[tuple[IndexedText, slice]]
    #: Shape (samples,): place of each sample in the batch.
    rows: Int64Array
    #: Shape (samples,): the sample's number in its dataset.
    samples: Int64Array

    def read(self, name: str, starts: Int64Array, stops: Int64Array) -> Int64Array:
        """Return rows ``[starts[i], stops[i])`` of an array of sample i's index, for each i."""
        return read_round(
            Spans(getattr(member.arrays, name), starts[rows], stops[rows])
            for member, rows in self.groups
        )

    def member_of(self, sample: int) -> IndexedText:
        """Return the dataset of one of the samples."""
        return next(member for member, rows in self.groups if sample < rows.stop)


def choose_samples(wanted: BatchRequest) -> ChosenSamples:
    """Return the samples of a batch by their numbers."""
    rows, slices = group_samples(wanted.which, len(wanted.datasets))
    groups = [(wanted.open_text(wanted.which[rows[own.start]]), own) for own in slices]
    samples = read_round(
        Spans(member.arrays.shuffle_index, *find_spans(wanted.positions[rows[own]]))
        for member, own in groups
    )
    return ChosenSamples(groups, rows, samples)


class Parts:
    """The parts of documents that form the samples of a batch, sample by sample.

    Parameters
    ----------
    chosen
        The samples.
    documents
        Shape (parts,): numbers of the documents.
    counts
        Shape (samples,): parts of each sample, at least 1.
    """

    def __init__(self, chosen: ChosenSamples, documents: Int64Array, counts: Int64Array) -> None:
        self.chosen = chosen
        self.documents = documents
        #: Shape (samples,): first and last part of each sample.
        self.lasts = np.cumsum(counts) - 1
        self.firsts = self.lasts - counts + 1
        edges = self.firsts[[rows.start for _, rows in chosen.groups]]
        own = [member.documents for member, _ in chosen.groups]
        self.groups = list(zip(own, slices_at(edges, len(documents)), strict=True))
        self.bounds = read_bounds(self.groups, documents)

    @property
    def dtype(self) -> np.dtype[Any]:
        """A dtype that holds all tokens."""
        dtypes = {documents.tokens.dtype for documents, _ in self.groups}
        return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.int64)

    def lay_out(self, lengths: Int64Array, tokens: AnyArray) -> Texts:
        """Return the samples with their parts concatenated; their tokens are yet to be read.

        Parameters
        ----------
        lengths
            Shape (parts,): tokens of each part.
        tokens
            Shape (samples, width): will receive the tokens.
        """
        owners = np.repeat(np.arange(len(self.firsts)), self.lasts - self.firsts + 1)
        before = np.cumsum(lengths) - lengths
        return Texts(
            tokens=tokens,
            rows=self.chosen.rows,
            num_tokens=np.add.reduceat(lengths, self.firsts),
            samples=self.chosen.samples,
            first_parts=self.firsts,
            owners=owners,
            documents=self.documents,
            lengths=lengths,
            offsets=before - before[self.firsts][owners],
        )

    def find_damage(self, texts: Texts, begins: Int64Array, *, min_length: int) -> int | None:
        """Return a sample that exceeds its row or has a part that exceeds its document, if any.

        Parameters
        ----------
        texts
            The samples, laid out.
        begins
            Shape (parts,): offset of each part in its document.
        min_length
            Minimum tokens of a part.
        """
        lengths = texts.lengths
        room = (texts.tokens.shape[1] - texts.num_tokens)[texts.owners]
        # Negative if one of the terms is.
        signs = begins | (lengths - min_length) | (self.bounds.lengths - begins - lengths) | room
        return int(texts.owners[np.argmax(signs < 0)]) if signs.min() < 0 else None

    def read(self, texts: Texts, begins: Int64Array) -> None:
        """Read the tokens of intact samples; parameters as of `find_damage`."""
        places = texts.rows[texts.owners] * texts.tokens.shape[1] + texts.offsets
        starts = self.bounds.starts + begins
        read_tokens(self.groups, starts, texts.lengths, texts.tokens.reshape(-1), places)
