"""Search a corpus for sequences of tokens, with one task per partition."""

import os
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array, IntegerArray
from zindex.execution.executor import Executor, run_together
from zindex.ingest.corpora.corpus import Corpus

# Tokens compared per task.
_TASK_LENGTH = 1 << 24


async def search_corpus(
    corpus: Corpus,
    wanted: Sequence[IntegerArray],
    executor: Executor,
    *,
    task_length: int = _TASK_LENGTH,
) -> Int64Array:
    """Return every occurrence of some token sequences within a document of a corpus.

    Parameters
    ----------
    corpus
        The corpus to search, in one pass over its tokens.
    wanted
        Shape (tokens,) each, at least one token; no two are equal.
    executor
        Executor that runs the tasks.
    task_length
        Tokens compared per task.

    Returns
    -------
    matches
        Shape (matches, 3), int64: the document, and the half-open range of tokens in it; ascending.
    """
    spans = range(0, corpus.num_tokens, task_length)
    name = os.path.basename(corpus.prefix)[:28]
    found = await run_together(
        executor.run(
            search_span, corpus, wanted, start, start + task_length, key=f"search-{name}-{start}"
        )
        for start in spans
    )
    return np.concatenate([np.empty((0, 3), np.int64), *found])


def search_span(
    corpus: Corpus, wanted: Sequence[IntegerArray], start: int, stop: int
) -> Int64Array:
    """Task: return the matches that start in tokens ``[start, stop)`` of a corpus."""
    stop = min(stop, corpus.num_tokens)
    end = min(stop + max(map(len, wanted)) - 1, corpus.num_tokens)
    tokens = corpus.read(schema.TOKENS.name, start, end)
    places, lengths = [], []
    for sequence in wanted:
        own = find_sequence(tokens[: stop - start + len(sequence) - 1], sequence)
        places.append(own + start)
        lengths.append(np.full_like(own, len(sequence)))
    columns = np.concatenate(lengths), np.concatenate(places)
    order = np.lexsort(columns)
    return locate_matches(corpus, columns[1][order], columns[0][order])


def find_sequence(tokens: IntegerArray, wanted: IntegerArray) -> Int64Array:
    """Return the offsets at which a sequence occurs in an array, ascending.

    Examples
    --------
    >>> find_sequence(np.array([1, 2, 1, 2, 1]), np.array([1, 2, 1]))
    array([0, 2])
    """
    last = len(tokens) - len(wanted)
    places = np.flatnonzero(tokens[: max(last + 1, 0)] == wanted[0])
    for offset, token in enumerate(wanted[1:].tolist(), start=1):
        places = places[tokens[places + offset] == token]
    return places


def locate_matches(corpus: Corpus, places: Int64Array, lengths: Int64Array) -> Int64Array:
    """Convert offsets in a corpus to documents and token ranges: shape (matches, 3).

    Ranges that span two documents are left out.
    """
    if not places.size:
        return np.empty((0, 3), np.int64)
    offsets = _Offsets(corpus)
    low = bisect_right(offsets, int(places.min())) - 1
    high = bisect_right(offsets, int(places.max()))
    bounds = corpus.read(schema.SEQUENCE_OFFSET.name, low, high + 1).astype(np.int64)
    rows = np.searchsorted(bounds, places, side="right") - 1
    starts = places - bounds[rows]
    found = np.stack([rows + low, starts, starts + lengths], axis=1)
    return found[places + lengths <= bounds[rows + 1]]


class _Offsets(Sequence[int]):
    """Token offsets of a corpus's sequences, read one at a time."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return self._corpus.num_sequences + 1

    def __getitem__(self, row: int) -> int:  # type: ignore[override]
        return int(self._corpus.read(schema.SEQUENCE_OFFSET.name, row, row + 1)[0])
