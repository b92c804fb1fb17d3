"""Tokens masked for BERT and T5, with the draws of ``numpy.random.RandomState``.

One call makes all samples of a batch, each from its own seed. What the tokenizer and the settings
say comes as `MaskingRules`; what remains to be done for padding is not here.
Source: Megatron Core ``masked_dataset.py``, ``bert_dataset.py`` and ``t5_dataset.py``.
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
    seed_draws,
)

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Float64Array: TypeAlias = npt.NDArray[np.float64]
#: Row of a sample, what is wrong with it (one of those below), and a number to tell.
Problem: TypeAlias = tuple[int, int, int]

#: Kinds of token ids: not in the vocabulary, a word's first piece, another piece, a separator.
UNKNOWN, WORD, PIECE, SEPARATOR = 0, 1, 2, 3
#: What may be wrong with a sample.
NOTHING, UNKNOWN_TOKEN, ONE_SENTENCE, TOO_LONG, NO_SENTINEL, DECODER_FULL = 0, 1, 2, 3, 4, 5

# Chance of each further word of an n-gram: SpanBERT (arXiv:1907.10529), section 3.1.
_STOP = 0.2
# Of masked tokens so many become the mask; the others are kept, or replaced by any token.
_MASKED, _KEPT = 0.8, 0.5
# Marks of positions.
_FREE, _CHOSEN, _PERMUTED = 0, 1, 2


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


class _Room(NamedTuple):
    """Memory for one sample at a time; few arrays, for each one costs time at every call."""

    #: Generator of the sample's draws.
    memory: UInt32Array
    #: Room for the draws of a shuffle.
    targets: npt.NDArray[np.uint64]
    #: Shape (7, tokens + 1): a row for each of the following.
    table: Int64Array


#: Positions that may be masked, and the first of these places of each word.
_PLACES, _STARTS = 0, 1
#: Words in the order in which they are tried.
_ORDER = 2
#: By position: whether it is masked or permuted, and its token before.
_MARKS, _LABELS = 3, 4
#: By place: how many places the n-gram that begins there has.
_SPANS = 5
#: Positions that change places, and in which order.
_PERMUTED_ORDER = 6


@jit
def _make_room(length: int) -> _Room:
    """Return memory for samples of so many tokens."""
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    return _Room(memory, np.empty(length + 1, np.uint64), np.empty((7, length + 1), np.int64))


@jit
def _find_words(tokens: Int64Array, rules: MaskingRules, room: _Room) -> int:
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
        room.table[_PLACES, num_places] = position
        num_places += 1
    room.table[_STARTS, num_words] = num_places
    return num_words


@inline
def _draw_ngram(rules: MaskingRules, room: _Room) -> int:
    """Draw the words of an n-gram."""
    if rules.is_geometric:
        return max(1, min(draw_geometric(_STOP, room.memory), rules.max_ngram))
    drawn = draw_double(room.memory)
    ngram = 1
    while ngram < rules.max_ngram and rules.ngram_bounds[ngram - 1] <= drawn:
        ngram += 1
    return ngram


@inline
def _fit_ngram(word: int, ngram: int, num_words: int, space: float, room: _Room) -> int:
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
        if room.table[_MARKS, room.table[_PLACES, place]] != _FREE:
            return 0
    return size


@inline
def _replace(token: int, rules: MaskingRules, room: _Room) -> Any:
    """Return what stands for a masked token."""
    num_replacements = rules.replacements.size
    if num_replacements == 0 or draw_double(room.memory) < _MASKED:
        return rules.mask
    if draw_double(room.memory) >= _KEPT:
        return rules.replacements[draw_up_to(num_replacements - 1, room.memory)]
    return token


@jit
def _mask_tokens(tokens: Int64Array, target: int, rules: MaskingRules, room: _Room) -> int:
    """Mask the tokens of a sample in place; return the position of one that nobody knows, or -1.

    What was masked is in the room: marks, labels and spans.
    """
    length = tokens.size
    num_words = _find_words(tokens, rules, room)
    if num_words < 0:
        return -1 - num_words
    for position in range(length):
        room.table[_MARKS, position] = _FREE
        room.table[_SPANS, position] = 0
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
        room.table[_SPANS, start] = size
        for place in range(start, start + size):
            position = room.table[_PLACES, place]
            room.table[_MARKS, position] = _CHOSEN
            room.table[_LABELS, position] = tokens[position]
            tokens[position] = _replace(tokens[position], rules, room)
        num_masked += size
    draw_shuffle(order, room.memory, room.targets)
    if rules.permutes:
        _permute_tokens(tokens, num_words, wanted, rules, room)
    return -1


@jit
def _permute_tokens(
    tokens: Int64Array, num_words: int, wanted: float, rules: MaskingRules, room: _Room
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
            room.table[_MARKS, room.table[_PLACES, place]] = _PERMUTED
        num_permuted += size
    others = room.table[_PERMUTED_ORDER, :num_permuted]
    count = 0
    for position in range(tokens.size):
        if room.table[_MARKS, position] == _PERMUTED:
            room.table[_LABELS, position] = tokens[position]
            others[count] = position
            count += 1
    draw_shuffle(others, room.memory, room.targets)
    count = 0
    for position in range(tokens.size):
        if room.table[_MARKS, position] == _PERMUTED:
            tokens[position] = room.table[_LABELS, others[count]]
            count += 1


class SampleTexts(NamedTuple):
    """What the samples of a batch are made of."""

    #: Shape (samples,): the row of each sample.
    rows: Int64Array
    #: Shape (tokens,): tokens of all samples, one after the other.
    tokens: Int64Array
    #: Shape (sentences,): tokens of each sentence of each sample.
    lengths: Int64Array
    #: Shape (samples + 1,): first sentence of each sample.
    firsts: Int64Array
    #: Shape (samples,): tokens that each sample may have at most.
    targets: Int64Array
    #: Shape (samples,): seed of each sample, 0 to 2**32 - 1.
    seeds: Int64Array


class BertRows(NamedTuple):
    """Where BERT samples go: shape (samples, sequence_length), or (samples,) for the last two.

    The first four are filled with pad ids, pad ids, -1 and 0 before.
    """

    text: Int64Array
    types: Int64Array
    labels: Int64Array
    loss_mask: Int64Array
    is_random: Int64Array
    truncated: Int64Array


@jit
def fill_bert_rows(
    texts: SampleTexts, rules: MaskingRules, cls: int, sep: int, has_head: bool, rows: BertRows
) -> Problem:
    """Make BERT samples: one or two segments between separators, with masked tokens.

    Parameters
    ----------
    texts
        The sentences of the samples.
    rules
        How to mask them.
    cls, sep
        Ids of the token in front and of the separator.
    has_head
        Whether there are two segments, of which the second may come first.
    rows
        Filled.

    Returns
    -------
    problem
        Of the first sample that cannot be made; NOTHING if all are.

    Notes
    -----
    Law: equal to the items of Megatron Core's ``BERTMaskedWordPieceDataset`` before padding. Cost:
    2 microseconds for the seed and some 10 to 20 nanoseconds per token.
    """
    width = rows.text.shape[1]
    room = _make_room(width)
    begin = 0
    for sample in range(texts.rows.size):
        row = texts.rows[sample]
        lengths = texts.lengths[texts.firsts[sample] : texts.firsts[sample + 1]]
        end = begin + _sum(lengths)
        tokens = texts.tokens[begin:end]
        begin = end
        seed_draws(texts.seeds[sample], room.memory)
        middle = tokens.size
        is_random = False
        if has_head:
            if lengths.size < 2:
                return row, ONE_SENTENCE, lengths.size
            pivot = 1 + draw_up_to(lengths.size - 2, room.memory)
            middle = _sum(lengths[:pivot])
            is_random = draw_double(room.memory) < 0.5
        first, second = tokens[:middle], tokens[middle:]
        if is_random:
            first, second = second, first
        target = texts.targets[sample]
        rows.is_random[row] = is_random
        rows.truncated[row] = first.size + second.size > target
        while first.size + second.size > target:
            from_front = draw_double(room.memory) < 0.5
            if first.size > second.size:
                first = first[1:] if from_front else first[:-1]
            else:
                second = second[1:] if from_front else second[:-1]
        length = first.size + 2 + (second.size + 1 if second.size else 0)
        if length > width:
            return row, TOO_LONG, length
        text = rows.text[row, :length]
        _join_segments(first, second, cls, sep, text, rows.types[row])
        unknown = _mask_tokens(text, target, rules, room)
        if unknown >= 0:
            return row, UNKNOWN_TOKEN, text[unknown]
        for position in range(length):
            if room.table[_MARKS, position] != _FREE:
                rows.labels[row, position] = room.table[_LABELS, position]
                rows.loss_mask[row, position] = 1
    return -1, NOTHING, 0


@jit
def _join_segments(
    first: Int64Array, second: Int64Array, cls: int, sep: int, text: Int64Array, types: Int64Array
) -> None:
    """Write one or two segments with what separates them, and to which of them tokens belong."""
    text[0] = cls
    _copy(first, text, 1)
    text[1 + first.size] = sep
    for position in range(text.size):
        types[position] = position >= first.size + 2
    if second.size:
        _copy(second, text, first.size + 2)
        text[-1] = sep


@jit
def _copy(source: Int64Array, target: Int64Array, start: int) -> None:
    """Copy values; numba compiles an assignment to a slice for seconds."""
    for k in range(source.size):
        target[start + k] = source[k]


@jit
def _sum(values: Int64Array) -> int:
    total = 0
    for value in values:
        total += value
    return total


class T5Rows(NamedTuple):
    """Where T5 samples go: shape (samples, encoder or decoder length), or (samples,) for the last.

    The first four are filled with pad ids, pad ids, -1 and 0 before.
    """

    encoder: Int64Array
    decoder: Int64Array
    labels: Int64Array
    loss_mask: Int64Array
    truncated: Int64Array


@jit
def fill_t5_rows(
    texts: SampleTexts, rules: MaskingRules, bos: int, eos: int, sentinels: Int64Array, rows: T5Rows
) -> Problem:
    """Make T5 samples: text whose masked spans are sentinels, and the spans behind theirs.

    Parameters
    ----------
    texts
        The sentences of the samples.
    rules
        How to mask them.
    bos, eos
        Ids of the token before the decoder's input and behind its labels.
    sentinels
        Shape (sentinels,): ids that stand for the first, second, ... span of a sample.
    rows
        Filled.

    Returns
    -------
    problem
        Of the first sample that cannot be made; NOTHING if all are.

    Notes
    -----
    Law: equal to the items of Megatron Core's ``T5MaskedWordPieceDataset`` before padding. Cost: as
    of `fill_bert_rows`.
    """
    width = rows.encoder.shape[1]
    room = _make_room(width)
    masked = np.empty(width, np.int64)
    begin = 0
    for sample in range(texts.rows.size):
        row = texts.rows[sample]
        size = _sum(texts.lengths[texts.firsts[sample] : texts.firsts[sample + 1]])
        target = texts.targets[sample]
        length = min(size, target)
        if length > width:
            return row, TOO_LONG, length
        tokens = masked[:length]
        _copy(texts.tokens[begin : begin + length], tokens, 0)
        begin += size
        rows.truncated[row] = size > target
        seed_draws(texts.seeds[sample], room.memory)
        unknown = _mask_tokens(tokens, target, rules, room)
        if unknown >= 0:
            return row, UNKNOWN_TOKEN, tokens[unknown]
        code, number = _write_spans(tokens, bos, eos, sentinels, rows, row, room)
        if code != NOTHING:
            return row, code, number
    return -1, NOTHING, 0


@jit
def _write_spans(
    tokens: Int64Array,
    bos: int,
    eos: int,
    sentinels: Int64Array,
    rows: T5Rows,
    row: int,
    room: _Room,
) -> tuple[int, int]:
    """Write a T5 sample of masked tokens; return what is wrong with it, and a number to tell."""
    encoder, decoder, labels = rows.encoder[row], rows.decoder[row], rows.labels[row]
    num_spans = 0
    num_labels = 0
    num_written = 0
    position = 0
    for place in range(tokens.size):
        size = room.table[_SPANS, place]
        if size == 0:
            continue
        num_labels += 1 + size
        if num_spans == sentinels.size:
            return NO_SENTINEL, num_spans
        if num_labels >= decoder.size:
            return DECODER_FULL, num_labels + 1
        sentinel = sentinels[num_spans]
        num_spans += 1
        first, last = room.table[_PLACES, place], room.table[_PLACES, place + size - 1]
        # What lies within a span and is no part of it, such as a separator, goes with it.
        for k in range(position, first):
            encoder[num_written] = tokens[k]
            num_written += 1
        encoder[num_written] = sentinel
        num_written += 1
        position = last + 1
        at = num_labels - 1 - size
        labels[at] = sentinel
        for k in range(size):
            labels[at + 1 + k] = room.table[_LABELS, room.table[_PLACES, place + k]]
    for k in range(position, tokens.size):
        encoder[num_written] = tokens[k]
        num_written += 1
    if decoder.size == 0:
        return DECODER_FULL, 1
    decoder[0] = bos
    _copy(labels[:num_labels], decoder, 1)
    labels[num_labels] = eos
    for k in range(num_labels + 1):
        rows.loss_mask[row, k] = 1
    return NOTHING, 0
