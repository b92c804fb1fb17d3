"""The tokens of a sample masked, with the draws of ``numpy.random.RandomState``.

What the tokenizer and the settings say comes as `MaskingRules`. What becomes of masked tokens is in
`masked_rows`. Source: Megatron Core ``masked_dataset.py``.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zindex.kernels._jit import inline, jit
from zindex.kernels.mersenne import UInt32Array
from zindex.kernels.random_draws import (
    MEMORY_LENGTH,
    draw_double,
    draw_geometric,
    draw_shuffle,
    draw_up_to,
)

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Float64Array: TypeAlias = npt.NDArray[np.float64]
#: Kinds of token ids: not in the vocabulary, a word's first piece, another piece, a separator.
UNKNOWN, WORD, PIECE, SEPARATOR = 0, 1, 2, 3
# Chance of each further word of an n-gram: SpanBERT (arXiv:1907.10529), section 3.1.
_STOP = 0.2
# Of masked tokens so many become the mask; the others are kept, or replaced by any token.
_MASKED, _KEPT = 0.8, 0.5
#: Marks of positions: neither masked nor moved, masked, moved.
FREE, _CHOSEN, _PERMUTED = 0, 1, 2


class MaskingRules(NamedTuple):
    """How tokens are masked."""

    #: Share of the tokens that are masked.
    probability: float
    #: Words of the longest n-gram.
    max_ngram: int
    #: Shape (max_ngram,): chance of an n-gram of at most 1, 2, ... words; the last is 1.
    ngram_bounds: Float64Array
    #: Whether n-grams are of whole words, not of pieces.
    of_words: bool
    #: Whether lengths of n-grams are drawn geometrically, not by ``ngram_bounds``.
    is_geometric: bool
    #: Whether as many tokens again change places.
    permutes: bool
    #: Shape (ids,): the kind of each token id.
    kinds: UInt8Array
    #: Id of the mask token.
    mask: int
    #: Shape (tokens,): ids that may replace a token; none where all become the mask.
    replacements: Int64Array


class MaskingRoom(NamedTuple):
    """Memory for one sample at a time; few arrays, for each one costs time at every call."""

    #: Generator of the sample's draws.
    memory: UInt32Array
    #: Room for the draws of a shuffle.
    targets: npt.NDArray[np.uint64]
    #: Shape (7, tokens + 1): a row for each of the following.
    table: Int64Array


#: Positions that may be masked, and the first of these places of each word.
PLACES, _STARTS = 0, 1
#: Words in the order in which they are tried.
_ORDER = 2
#: By position: whether it is masked or permuted, and its token before.
MARKS, LABELS = 3, 4
#: By place: how many places the n-gram that begins there has.
SPANS = 5
#: Positions that change places, and in which order.
_PERMUTED_ORDER = 6


@jit
def make_masking_room(length: int) -> MaskingRoom:
    """Return memory for samples of so many tokens.

    Parameters
    ----------
    length
        Tokens of a sample at most.
    """
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    return MaskingRoom(memory, np.empty(length + 1, np.uint64), np.empty((7, length + 1), np.int64))


@jit
def _find_words(tokens: Int64Array, rules: MaskingRules, room: MaskingRoom) -> int:
    """Fill in places and starts; return the number of words, -1 - position at an unknown token."""
    num_places = 0
    num_words = 0
    for position in range(tokens.size):
        token = tokens[position]
        kind = rules.kinds[token] if 0 <= token < rules.kinds.size else UNKNOWN
        if kind == UNKNOWN:
            return -1 - position
        if kind == SEPARATOR:
            continue
        if kind == WORD or not rules.of_words or num_words == 0:
            room.table[_STARTS, num_words] = num_places
            num_words += 1
        room.table[PLACES, num_places] = position
        num_places += 1
    room.table[_STARTS, num_words] = num_places
    return num_words


@inline
def _draw_ngram(rules: MaskingRules, room: MaskingRoom) -> int:
    """Draw the words of an n-gram."""
    if rules.is_geometric:
        return max(1, min(draw_geometric(_STOP, room.memory), rules.max_ngram))
    drawn = draw_double(room.memory)
    ngram = 1
    while ngram < rules.max_ngram and rules.ngram_bounds[ngram - 1] <= drawn:
        ngram += 1
    return ngram


@inline
def _fit_ngram(word: int, ngram: int, num_words: int, space: float, room: MaskingRoom) -> int:
    """Return the places of the longest n-gram from a word that fits, and is free; else 0."""
    start = room.table[_STARTS, word]
    size = 0
    while ngram > 0:
        size = room.table[_STARTS, min(word + ngram, num_words)] - start
        if space >= size:
            break
        ngram -= 1
    if ngram == 0:
        return 0
    for place in range(start, start + size):
        if room.table[MARKS, room.table[PLACES, place]] != FREE:
            return 0
    return size


@inline
def _replace(token: int, rules: MaskingRules, room: MaskingRoom) -> Any:
    """Return what stands for a masked token."""
    num_replacements = rules.replacements.size
    if num_replacements == 0 or draw_double(room.memory) < _MASKED:
        return rules.mask
    if draw_double(room.memory) >= _KEPT:
        return rules.replacements[draw_up_to(num_replacements - 1, room.memory)]
    return token


@jit
def mask_tokens(tokens: Int64Array, target: int, rules: MaskingRules, room: MaskingRoom) -> int:
    """Mask the tokens of a sample in place.

    Parameters
    ----------
    tokens
        Shape (tokens,), int64; changed.
    target
        Tokens that the sample may have at most, without special ones.
    rules
        How to mask.
    room
        Memory for as many tokens, its generator seeded; then its table holds marks and labels by
        position, and by the first place of each masked n-gram its number of places.

    Returns
    -------
    position
        Of a token that the vocabulary lacks, nothing being masked then; -1 without one.

    Notes
    -----
    Law: draws and results equal those of Megatron Core's ``_create_masked_lm_predictions``, but for
    permutation, which draws from the same generator here.
    """
    length = tokens.size
    num_words = _find_words(tokens, rules, room)
    if num_words < 0:
        return -1 - num_words
    for position in range(length):
        room.table[MARKS, position] = FREE
        room.table[SPANS, position] = 0
    wanted = min(rules.probability * target, max(1.0, np.rint(length * rules.probability)))
    order = room.table[_ORDER, :num_words]
    for word in range(num_words):
        order[word] = word
    draw_shuffle(order, room.memory, room.targets)
    num_masked = 0
    for word in order:
        if num_masked >= wanted:
            break
        ngram = _draw_ngram(rules, room)
        size = _fit_ngram(word, ngram, num_words, wanted - num_masked, room)
        if size == 0:
            continue
        start = room.table[_STARTS, word]
        room.table[SPANS, start] = size
        for place in range(start, start + size):
            position = room.table[PLACES, place]
            room.table[MARKS, position] = _CHOSEN
            room.table[LABELS, position] = tokens[position]
            tokens[position] = _replace(tokens[position], rules, room)
        num_masked += size
    draw_shuffle(order, room.memory, room.targets)
    if rules.permutes:
        _permute_tokens(tokens, num_words, wanted, rules, room)
    return -1


@jit
def _permute_tokens(
    tokens: Int64Array, num_words: int, wanted: float, rules: MaskingRules, room: MaskingRoom
) -> None:
    """Let tokens that are not masked change places among each other."""
    num_permuted = 0
    for word in room.table[_ORDER, :num_words]:
        if num_permuted >= wanted:
            break
        ngram = _draw_ngram(rules, room)
        size = _fit_ngram(word, ngram, num_words, wanted - num_permuted, room)
        start = room.table[_STARTS, word]
        for place in range(start, start + size):
            room.table[MARKS, room.table[PLACES, place]] = _PERMUTED
        num_permuted += size
    others = room.table[_PERMUTED_ORDER, :num_permuted]
    count = 0
    for position in range(tokens.size):
        if room.table[MARKS, position] == _PERMUTED:
            room.table[LABELS, position] = tokens[position]
            others[count] = position
            count += 1
    draw_shuffle(others, room.memory, room.targets)
    count = 0
    for position in range(tokens.size):
        if room.table[MARKS, position] == _PERMUTED:
            tokens[position] = room.table[LABELS, others[count]]
            count += 1
