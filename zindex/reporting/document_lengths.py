"""Lengths of the documents of a dataset, or of evenly spread spans of them."""

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

import numpy as np

from zindex.ingest.length_source import LengthSource
from zindex.text.length_histogram import LengthHistogram, bin_bounds

# Datasets with more documents are read in spans.
_MAX_DOCUMENTS, _NUM_SPANS = 1 << 19, 64
#: Edges of bins: two per doubling of the length, and powers of two end one.
EDGES = (1, *sorted({math.ceil(2 ** (step / 2)) + 1 for step in range(2 * 53)}))


@dataclass(frozen=True, slots=True)
class DocumentLengths:
    """Lengths of the documents of one dataset and split, in tokens."""

    num_documents: int
    #: Whether the figures are those of all documents.
    is_exact: bool
    shortest: int
    median: int
    #: Length that 95 of 100 documents do not exceed.
    percentile_95: int
    longest: int
    #: Bins with documents: first length, one after the last, and their share of the tokens.
    bins: tuple[tuple[int, int, float], ...]


def measure_lengths(source: LengthSource, start: int, stop: int) -> DocumentLengths:
    """Return the lengths of documents ``[start, stop)``."""
    size = stop - start
    if size <= _MAX_DOCUMENTS:
        histogram = LengthHistogram.of(source.lengths(start, stop).astype(np.int64))
    else:
        length = _MAX_DOCUMENTS // _NUM_SPANS
        starts = np.linspace(start, stop - length, _NUM_SPANS).astype(np.int64).tolist()
        spans = [source.lengths(first, first + length).astype(np.int64) for first in starts]
        histogram = LengthHistogram.union(map(LengthHistogram.of, spans))
    return DocumentLengths(
        num_documents=size,
        is_exact=size <= _MAX_DOCUMENTS,
        shortest=histogram.shortest,
        median=histogram.quantile(0.5),
        percentile_95=histogram.quantile(0.95),
        longest=histogram.longest,
        bins=_group(histogram),
    )


def _group(histogram: LengthHistogram) -> tuple[tuple[int, int, float], ...]:
    """Return wide bins with tokens, and the share of the tokens in each."""
    if not histogram.num_tokens:
        return ()
    totals: Counter[int] = Counter()
    for number, _, total in histogram.bins:
        totals[bisect_right(EDGES, max(1, bin_bounds(number)[0])) - 1] += total
    return tuple(
        (EDGES[place], EDGES[place + 1], round(total / histogram.num_tokens, 6))
        for place, total in sorted(totals.items())
        if total
    )
