"""BERT and T5 samples of a batch, with the draws of ``numpy.random.RandomState``.

One call makes all samples of a batch, each from its own seed, without padding. `masking` masks
their tokens.
Source: Megatron Core ``bert_dataset.py`` and ``t5_dataset.py``.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit
from zindex.kernels.masking import (
    FREE,
    LABELS,
    MARKS,
    PLACES,
    SPANS,
    MaskingRules,
    MaskingScratch,
    make_masking_scratch,
    mask_tokens,
)
from zindex.kernels.random_draws import draw_double, draw_up_to, seed_draws

#: Row of a sample, its error code (see below), and a number for the error message.
Problem: TypeAlias = tuple[int, int, int]

#: Error codes of a sample.
NOTHING, UNKNOWN_TOKEN, ONE_SENTENCE, TOO_LONG, NO_SENTINEL, DECODER_FULL = 0, 1, 2, 3, 4, 5


class SampleTexts(NamedTuple):
    """Sentences of the samples of a batch."""

    #: Shape (samples,): the row of each sample.
    rows: Int64Array
    #: Shape (tokens,): concatenated tokens of all samples.
    tokens: Int64Array
    #: Shape (sentences,): tokens of each sentence of each sample.
    lengths: Int64Array
    #: Shape (samples + 1,): first sentence of each sample.
    firsts: Int64Array
    #: Shape (samples,): most tokens of each sample.
    targets: Int64Array
    #: Shape (samples,): seed of each sample, 0 to 2**32 - 1.
    seeds: Int64Array


class BertRows(NamedTuple):
    """BERT outputs: shape (samples, sequence_length), or (samples,) for the last two.

    The caller fills the first four with pad ids, pad ids, -1 and 0.
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
        Rules of masking.
    cls, sep
        Ids of the first token and of the separator.
    has_head
        Whether there are two segments, in original or swapped order.
    rows
        Filled.

    Returns
    -------
    problem
        Error of the first sample that cannot be made; NOTHING if there is none.

    Notes
    -----
    Law: equal to the items of Megatron Core's ``BERTMaskedWordPieceDataset`` before padding. Cost:
    2 microseconds for the seed and some 10 to 20 nanoseconds per token.
    """
    width = rows.text.shape[1]
    scratch = make_masking_scratch(width)
    begin = 0
    for sample in range(texts.rows.size):
        row = texts.rows[sample]
        lengths = texts.lengths[texts.firsts[sample] : texts.firsts[sample + 1]]
        end = begin + _sum(lengths)
        tokens = texts.tokens[begin:end]
        begin = end
        seed_draws(texts.seeds[sample], scratch.memory)
        middle = tokens.size
        is_random = False
        if has_head:
            if lengths.size < 2:
                return row, ONE_SENTENCE, lengths.size
            pivot = 1 + draw_up_to(lengths.size - 2, scratch.memory)
            middle = _sum(lengths[:pivot])
            is_random = draw_double(scratch.memory) < 0.5
        first, second = tokens[:middle], tokens[middle:]
        if is_random:
            first, second = second, first
        target = texts.targets[sample]
        rows.is_random[row] = is_random
        rows.truncated[row] = first.size + second.size > target
        while first.size + second.size > target:
            from_front = draw_double(scratch.memory) < 0.5
            if first.size > second.size:
                first = first[1:] if from_front else first[:-1]
            else:
                second = second[1:] if from_front else second[:-1]
        length = first.size + 2 + (second.size + 1 if second.size else 0)
        if length > width:
            return row, TOO_LONG, length
        text = rows.text[row, :length]
        _join_segments(first, second, cls, sep, text, rows.types[row])
        unknown = mask_tokens(text, target, rules, scratch)
        if unknown >= 0:
            return row, UNKNOWN_TOKEN, text[unknown]
        for position in range(length):
            if scratch.table[MARKS, position] != FREE:
                rows.labels[row, position] = scratch.table[LABELS, position]
                rows.loss_mask[row, position] = 1
    return -1, NOTHING, 0


@jit
def _join_segments(
    first: Int64Array, second: Int64Array, cls: int, sep: int, text: Int64Array, types: Int64Array
) -> None:
    """Write one or two segments with separators, and the segment of each token."""
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
    """Copy values; numba takes seconds to compile a slice assignment."""
    for k in range(source.size):
        target[start + k] = source[k]


@jit
def _sum(values: Int64Array) -> int:
    total = 0
    for value in values:
        total += value
    return total


class T5Rows(NamedTuple):
    """T5 outputs: shape (samples, encoder or decoder length), or (samples,) for the last.

    The caller fills the first four with pad ids, pad ids, -1 and 0.
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
    """Make T5 samples: text with sentinels for masked spans, and the spans after their sentinels.

    Parameters
    ----------
    texts
        The sentences of the samples.
    rules
        Rules of masking.
    bos, eos
        Ids of the token before the decoder's input and after its labels.
    sentinels
        Shape (sentinels,): ids that replace the first, second, ... span of a sample.
    rows
        Filled.

    Returns
    -------
    problem
        Error of the first sample that cannot be made; NOTHING if there is none.

    Notes
    -----
    Law: equal to the items of Megatron Core's ``T5MaskedWordPieceDataset`` before padding. Cost: as
    of `fill_bert_rows`.
    """
    width = rows.encoder.shape[1]
    scratch = make_masking_scratch(width)
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
        seed_draws(texts.seeds[sample], scratch.memory)
        unknown = mask_tokens(tokens, target, rules, scratch)
        if unknown >= 0:
            return row, UNKNOWN_TOKEN, tokens[unknown]
        code, number = _write_spans(tokens, bos, eos, sentinels, rows, row, scratch)
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
    scratch: MaskingScratch,
) -> tuple[int, int]:
    """Write a T5 sample of masked tokens; return its error code and a number for the message."""
    encoder, decoder, labels = rows.encoder[row], rows.decoder[row], rows.labels[row]
    num_spans = 0
    num_labels = 0
    num_written = 0
    position = 0
    for place in range(tokens.size):
        size = scratch.table[SPANS, place]
        if size == 0:
            continue
        num_labels += 1 + size
        if num_spans == sentinels.size:
            return NO_SENTINEL, num_spans
        if num_labels >= decoder.size:
            return DECODER_FULL, num_labels + 1
        sentinel = sentinels[num_spans]
        num_spans += 1
        first, last = scratch.table[PLACES, place], scratch.table[PLACES, place + size - 1]
        # Other tokens inside a span, such as separators, are removed with it.
        for k in range(position, first):
            encoder[num_written] = tokens[k]
            num_written += 1
        encoder[num_written] = sentinel
        num_written += 1
        position = last + 1
        at = num_labels - 1 - size
        labels[at] = sentinel
        for k in range(size):
            labels[at + 1 + k] = scratch.table[LABELS, scratch.table[PLACES, place + k]]
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
