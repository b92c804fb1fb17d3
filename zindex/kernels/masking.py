"""Mask the tokens of a sample with the draws of ``numpy.random.RandomState``.

The tokenizer and the settings are given as `MaskingRules`; `masked_rows` turns masked tokens into
BERT and T5 samples. Source: Megatron Core ``masked_dataset.py``.
"""

from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Float64Array, Int64Array, UInt8Array, UInt32Array, UInt64Array
from zindex.kernels._jit import inline, jit
from zindex.kernels.random_draws import (
    MEMORY_LENGTH,
    draw_double,
    draw_geometric,
    draw_shuffle,
    draw_up_to,
)

#: Kinds of token ids: not in the vocabulary, a word's first piece, another piece, a separator.
UNKNOWN, WORD, PIECE, SEPARATOR = 0, 1, 2, 3
# Chance of each further word of an n-gram: SpanBERT (arXiv:1907.10529), section 3.1.
_STOP = 0.2
# Share of masked tokens that become the mask; half of the others are kept, half replaced.
_MASKED, _KEPT = 0.8, 0.5
#: States of positions: unchanged, masked, permuted.
FREE, _CHOSEN, _PERMUTED = 0, 1, 2


class MaskingRules(NamedTuple):
    """Rules of masking."""

    #: Share of tokens to mask.
    probability: float
    #: Words of the longest n-gram.
    max_ngram: int
    #: Shape (max_ngram,): chance of an n-gram of at most 1, 2, ... words; the last is 1.
    ngram_bounds: Float64Array
    #: Whether n-grams consist of whole words, not of pieces.
    of_words: bool
    #: Whether lengths of n-grams are drawn geometrically, not by ``ngram_bounds``.
    is_geometric: bool
    #: Whether to permute as many tokens again.
    permutes: bool
    #: Shape (ids,): the kind of each token id.
    kinds: UInt8Array
    #: Id of the mask token.
    mask: int
    #: Shape (tokens,): ids that may replace a token; empty if all become the mask.
    replacements: Int64Array


class MaskingScratch(NamedTuple):
    """Scratch memory for one sample; few arrays, because each costs time in every call."""

    #: Random generator of the sample.
    memory: UInt32Array
    #: Swap targets of a shuffle.
    targets: UInt64Array
    #: Shape (7, tokens + 1): one row for each constant below.
    table: Int64Array


#: Maskable positions, and the first index into them of each word.
PLACES, _STARTS = 0, 1
#: Shuffled order of the words.
_ORDER = 2
#: By position: its state, and its original token.
MARKS, LABELS = 3, 4
#: By index into the maskable positions: size of the masked n-gram that starts there.
SPANS = 5
#: Permuted positions in shuffled order.
_PERMUTED_ORDER = 6


@jit
def make_masking_scratch(length: int) -> MaskingScratch:
    """Allocate scratch memory for samples of up to ``length`` tokens.

    Parameters
    ----------
    length
        Most tokens of a sample.
    """
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    return MaskingScratch(
        memory, np.empty(length + 1, np.uint64), np.empty((7, length + 1), np.int64)
    )


@jit
def _find_words(tokens: Int64Array, rules: MaskingRules, scratch: MaskingScratch) -> int:
    """Find maskable positions and word starts; return the words, or -1 - position if unknown."""
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
            scratch.table[_STARTS, num_words] = num_places
            num_words += 1
        scratch.table[PLACES, num_places] = position
        num_places += 1
    scratch.table[_STARTS, num_words] = num_places
    return num_words


@inline
def _draw_ngram(rules: MaskingRules, scratch: MaskingScratch) -> int:
    """Draw the number of words of an n-gram."""
    if rules.is_geometric:
        return max(1, min(draw_geometric(_STOP, scratch.memory), rules.max_ngram))
    drawn = draw_double(scratch.memory)
    ngram = 1
    while ngram < rules.max_ngram and rules.ngram_bounds[ngram - 1] <= drawn:
        ngram += 1
    return ngram


@inline
def _fit_ngram(word: int, ngram: int, num_words: int, space: float, scratch: MaskingScratch) -> int:
    """Return the size of the longest n-gram at a word that fits and is unmasked, or 0."""
    start = scratch.table[_STARTS, word]
    size = 0
    while ngram > 0:
        size = scratch.table[_STARTS, min(word + ngram, num_words)] - start
        if space >= size:
            break
        ngram -= 1
    if ngram == 0:
        return 0
    for place in range(start, start + size):
        if scratch.table[MARKS, scratch.table[PLACES, place]] != FREE:
            return 0
    return size


@inline
def _replace(token: int, rules: MaskingRules, scratch: MaskingScratch) -> Any:
    """Return the replacement of a masked token."""
    num_replacements = rules.replacements.size
    if num_replacements == 0 or draw_double(scratch.memory) < _MASKED:
        return rules.mask
    if draw_double(scratch.memory) >= _KEPT:
        return rules.replacements[draw_up_to(num_replacements - 1, scratch.memory)]
    return token


@jit
def mask_tokens(
    tokens: Int64Array, target: int, rules: MaskingRules, scratch: MaskingScratch
) -> int:
    """Mask the tokens of a sample in place.

    Parameters
    ----------
    tokens
        Shape (tokens,), int64; changed.
    target
        Most tokens of the sample, without special ones.
    rules
        Rules of masking.
    scratch
        Scratch memory with a seeded generator. Afterwards its table holds the state and label of
        each position, and the size of each masked n-gram at its first index.

    Returns
    -------
    position
        Position of a token that is not in the vocabulary, in which case nothing is masked; else -1.

    Notes
    -----
    Law: draws and results equal those of Megatron Core's ``_create_masked_lm_predictions``, except
    that permutations draw from the same generator here.
    """
    length = tokens.size
    num_words = _find_words(tokens, rules, scratch)
    if num_words < 0:
        return -1 - num_words
    for position in range(length):
        scratch.table[MARKS, position] = FREE
        scratch.table[SPANS, position] = 0
    wanted = min(rules.probability * target, max(1.0, np.rint(length * rules.probability)))
    order = scratch.table[_ORDER, :num_words]
    for word in range(num_words):
        order[word] = word
    draw_shuffle(order, scratch.memory, scratch.targets)
    num_masked = 0
    for word in order:
        if num_masked >= wanted:
            break
        ngram = _draw_ngram(rules, scratch)
        size = _fit_ngram(word, ngram, num_words, wanted - num_masked, scratch)
        if size == 0:
            continue
        start = scratch.table[_STARTS, word]
        scratch.table[SPANS, start] = size
        for place in range(start, start + size):
            position = scratch.table[PLACES, place]
            scratch.table[MARKS, position] = _CHOSEN
            scratch.table[LABELS, position] = tokens[position]
            tokens[position] = _replace(tokens[position], rules, scratch)
        num_masked += size
    draw_shuffle(order, scratch.memory, scratch.targets)
    if rules.permutes:
        _permute_tokens(tokens, num_words, wanted, rules, scratch)
    return -1


@jit
def _permute_tokens(
    tokens: Int64Array, num_words: int, wanted: float, rules: MaskingRules, scratch: MaskingScratch
) -> None:
    """Permute tokens that are not masked."""
    num_permuted = 0
    for word in scratch.table[_ORDER, :num_words]:
        if num_permuted >= wanted:
            break
        ngram = _draw_ngram(rules, scratch)
        size = _fit_ngram(word, ngram, num_words, wanted - num_permuted, scratch)
        start = scratch.table[_STARTS, word]
        for place in range(start, start + size):
            scratch.table[MARKS, scratch.table[PLACES, place]] = _PERMUTED
        num_permuted += size
    others = scratch.table[_PERMUTED_ORDER, :num_permuted]
    count = 0
    for position in range(tokens.size):
        if scratch.table[MARKS, position] == _PERMUTED:
            scratch.table[LABELS, position] = tokens[position]
            others[count] = position
            count += 1
    draw_shuffle(others, scratch.memory, scratch.targets)
    count = 0
    for position in range(tokens.size):
        if scratch.table[MARKS, position] == _PERMUTED:
            tokens[position] = scratch.table[LABELS, others[count]]
            count += 1
