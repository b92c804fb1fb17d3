"""Search a corpus for a sequence of tokens, with one task per partition."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array, IntegerArray
from zindex.execution.executor import Executor, run_together
from zindex.ingest.corpora.corpus import Corpus

# Tokens compared per task.
_TASK_LENGTH = 1 << 24


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """One occurrence of a token sequence in a document."""

    document: int
    #: Token range in the document, half-open.
    start: int
    stop: int


async def search_corpus(
    corpus: Corpus, wanted: IntegerArray, executor: Executor, *, task_length: int = _TASK_LENGTH
) -> list[Match]:
    """Return every occurrence of a token sequence within a document of a corpus.

    Parameters
    ----------
    corpus
        The corpus to search.
    wanted
        Shape (tokens,), at least one token.
    executor
        Executor that runs the tasks.
    task_length
        Tokens compared per task.
    """
    spans = range(0, corpus.num_tokens, task_length)
    name = os.path.basename(corpus.prefix)[:28]
    found = await run_together(
        executor.run(
            search_span, corpus, wanted, start, start + task_length, key=f"search-{name}-{start}"
        )
        for start in spans
    )
    return [match for matches in found for match in matches]


def search_span(corpus: Corpus, wanted: IntegerArray, start: int, stop: int) -> list[Match]:
    """Task: return the matches that start in tokens ``[start, stop)`` of a corpus."""
    stop = min(stop, corpus.num_tokens)
    tokens = corpus.read(schema.TOKENS.name, start, min(stop + len(wanted) - 1, corpus.num_tokens))
    places = find_sequence(tokens, wanted) + start
    matches = (locate_match(corpus, place, len(wanted)) for place in places.tolist())
    return [match for match in matches if match is not None]


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


def locate_match(corpus: Corpus, place: int, length: int) -> Match | None:
    """Convert a corpus offset to a match in a document; None if it spans two documents."""
    offsets = _Offsets(corpus)
    document = bisect_right(offsets, place) - 1
    first = offsets[document]
    if place + length > offsets[document + 1]:
        return None
    return Match(document, place - first, place - first + length)


class _Offsets(Sequence[int]):
    """Token offsets of a corpus's sequences, read one at a time."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return self._corpus.num_sequences + 1

    def __getitem__(self, row: int) -> int:  # type: ignore[override]
        return int(self._corpus.read(schema.SEQUENCE_OFFSET.name, row, row + 1)[0])
