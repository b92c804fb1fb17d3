"""Tokens that an edit of the sequence length split again: a stream of the unconsumed samples."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.indexing.stream_parts import TokenSpans
from zindex.maintenance.edits.consumed import ConsumedTable


def find_cut_tokens(
    consumed: ConsumedTable, row: int, length: int, starts: Int64Array, stops: Int64Array
) -> TokenSpans:
    """Return the spans of a source that make up spans of its unconsumed samples, concatenated.

    Parameters
    ----------
    consumed, row
        The consumed samples of the source, in the order of its token stream.
    length
        Tokens of each of these samples.
    starts, stops
        Shape (spans,): ``[starts[i], stops[i])`` of the concatenated samples, none empty.
    """
    first, last = starts // length, -(-stops // length)
    counts = last - first
    owners = np.repeat(np.arange(len(starts)), counts)
    first_parts = np.cumsum(counts) - counts
    places = np.arange(len(owners)) - first_parts[owners] + first[owners]
    samples = consumed.find(np.full(len(places), row), places)
    begins, ends = samples * length, (samples + 1) * length
    begins[first_parts] += starts - first * length
    ends[first_parts + counts - 1] -= last * length - stops
    return TokenSpans(owners, begins, ends).merge()
