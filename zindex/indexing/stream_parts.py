"""Spans of the token stream of a GPT index, and the parts of documents in them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.indexing.index_arrays import IndexArrays
from zindex.store.rows import Spans, read_many


class TokenSpans(NamedTuple):
    """Spans of the token stream of an index; those of one owner are in order and never touch."""

    #: Shape (spans,): what each span is part of, such as a sample.
    owners: Int64Array
    #: Shape (spans,) each: first token, and one after the last.
    starts: Int64Array
    stops: Int64Array

    def merge(self) -> "TokenSpans":
        """Return the spans with adjacent ones of an owner merged."""
        is_first = np.ones(len(self.owners), np.bool_)
        is_first[1:] = (np.diff(self.owners) != 0) | (self.starts[1:] != self.stops[:-1])
        is_last = np.append(is_first[1:], True)
        return TokenSpans(self.owners[is_first], self.starts[is_first], self.stops[is_last])


class StreamParts(NamedTuple):
    """The parts of documents in spans of a token stream, in order."""

    #: Shape (parts,): the span of each part.
    spans: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): offset of the part in its document, in tokens.
    begins: Int64Array
    #: Shape (parts,): offset of the part in its span, in tokens.
    offsets: Int64Array
    #: Shape (parts,): tokens of the part, > 0.
    lengths: Int64Array
    #: Shape (parts,): index of each part among the documents whose lengths were read.
    places: Int64Array


def find_stream_parts(
    arrays: IndexArrays,
    read_lengths: Callable[[Int64Array], Int64Array],
    starts: Int64Array,
    stops: Int64Array,
    *,
    length: int,
    extra: int,
    refuse: Callable[[int], Exception],
) -> StreamParts:
    """Return the parts of documents in spans of the token stream of an index.

    Parameters
    ----------
    arrays
        The index. Its sample j is tokens ``[j * length, (j + 1) * length + extra)`` of the stream.
    read_lengths
        Returns the lengths of documents, shape (documents,), int64, tokens.
    starts, stops
        Shape (spans,): ``[starts[i], stops[i])``, none empty, all within the samples.
    length, extra
        Tokens of a sample, and 1 if it has one more token.
    refuse
        Returns the error for a span that needs tokens that its documents do not have.

    Notes
    -----
    Rounds: sample index, document index, lengths of documents. Cost: O(parts).
    """
    sizes = stops - starts
    first = np.minimum(starts // length, len(arrays.sample_index) - 2)
    last = np.maximum(-(-(stops - extra) // length), first + 1)
    boundaries = np.concatenate([first, last])
    [rows] = read_many([Spans(arrays.sample_index, boundaries, boundaries + 1)])
    (row, offset), (last_row, last_offset) = rows.astype(np.int64).reshape(2, -1, 2).swapaxes(1, 2)
    counts = last_row - row + 1
    if (counts < 1).any():
        raise refuse(int(np.argmax(counts < 1)))
    [numbers] = read_many([Spans(arrays.document_index, row, last_row + 1)])
    documents = numbers.astype(np.int64)
    spans = np.repeat(np.arange(len(starts)), counts)
    last_parts = np.cumsum(counts) - 1
    first_parts = last_parts - counts + 1
    known = read_lengths(documents)
    begins = np.zeros_like(documents)
    begins[first_parts] = offset
    ends = known.copy()
    ends[last_parts] = last_offset + extra
    # Offset of each document's tokens from the first token of the span.
    lengths = ends - begins
    before = np.cumsum(lengths) - lengths
    places = before - before[first_parts][spans] - (starts - first * length)[spans]
    low = np.maximum(places, 0)
    high = np.minimum(places + lengths, sizes[spans])
    kept = np.flatnonzero(high > low)
    found = np.bincount(spans[kept], (high - low)[kept], len(starts)).astype(np.int64)
    found[spans[(begins < 0) | (lengths < 0) | (ends > known)]] = -1
    if (found != sizes).any():
        raise refuse(int(np.argmax(found != sizes)))
    return StreamParts(
        spans[kept],
        documents[kept],
        (begins + low - places)[kept],
        low[kept],
        (high - low)[kept],
        kept,
    )
