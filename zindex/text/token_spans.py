"""Find the tokens that have a character in a span of their text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zindex.arrays import BoolArray

#: First character and end.
Span = tuple[int, int]


def find_overlap(encoding: Any, length: int, spans: Sequence[Span]) -> list[Span]:
    """Return the tokens of an ``Encoding`` of the tokenizers library that overlap each span.

    Parameters
    ----------
    encoding
        The encoding. Its offsets are looked up at the ends of spans alone: a list of all takes a
        fifth of the time of the tokenizer.
    length
        Characters of its text.
    spans
        Spans in order.

    Returns
    -------
    tokens
        First token and end, for each span.

    Notes
    -----
    A token counts whose end is after the start of a span, and whose start is before its end.
    Source: ``apply_chat_template`` of transformers with ``return_assistant_tokens_mask``.
    """
    count, found = len(encoding), list[Span]()
    for start, stop in spans:
        first, last = _find_token(encoding, start, length), _find_token(encoding, stop, length)
        while last < count and encoding.token_to_chars(last)[0] < stop:
            last += 1
        while last > first and encoding.token_to_chars(last - 1)[0] >= stop:
            last -= 1
        found.append((first, last))
    return found


def _find_token(encoding: Any, place: int, length: int) -> int:
    """Return the first token that has a character from a place on."""
    for character in range(place, length):  # blanks may belong to no token
        token: int | None = encoding.char_to_token(character)
        if token is not None:
            return token
    return len(encoding)


def find_starts(starts: Sequence[int], length: int, spans: Sequence[Span]) -> BoolArray:
    """Return which tokens overlap spans, given the first character of each.

    Parameters
    ----------
    starts
        First characters in order; tokens of the bytes of one character start at the same one.
    length
        Characters of the text.
    spans
        Spans in order.

    Examples
    --------
    >>> find_starts([0, 1, 1, 4], 5, [(2, 4)]).tolist()
    [False, True, True, False]
    """
    known = np.array(starts, np.int64)
    places = np.unique(known)
    stops = np.append(places[1:], length)[np.searchsorted(places, known)]
    mask = np.zeros(len(known), np.bool_)
    for start, stop in spans:
        mask[np.searchsorted(stops, start, side="right") : np.searchsorted(known, stop)] = True
    return mask
