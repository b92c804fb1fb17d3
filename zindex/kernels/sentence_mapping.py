"""Group sentences into samples, as ``build_mapping`` and ``build_blocks_mapping`` do.

The kernel makes one pass over the sentences of consecutive documents. Callers handle epochs,
shuffling and storage.
"""

from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int64Array, IntegerArray, UInt32Array, UInt64Array
from zindex.kernels._jit import inline, jit
from zindex.kernels.bitset import mix
from zindex.kernels.mersenne import KEY_LENGTH, STATE_LENGTH, temper_words, twist
from zindex.kernels.random_draws import MEMORY_LENGTH, draw_word

#: A longer sentence, in tokens, excludes its whole document.
LONG_SENTENCE = 512

#: Version of the keyed draws, increased if any value changes.
SCAN_VERSION = 1

#: A ratio of which only word 0 is a multiple: Megatron's, if its int32 overflows.
MAX_RATIO = 2**32

_FIXED, _CHAINED, _KEYED = 0, 1, 2
_NO_KEY = np.zeros(2, np.uint64)
_NO_TITLES = np.zeros(0, np.int32)


class ScanRule(NamedTuple):
    """Rules for grouping the sentences of a document into samples."""

    #: Target tokens of a sample, which ends with the sentence that reaches them.
    target_length: int
    #: Least sentences of a sample, and of an included document.
    min_sentences: int
    #: Least sentences after a sample that does not end its document.
    min_left: int = 2
    #: Least sentences of a document that a long sentence excludes.
    long_from: int = 2
    #: One in this many samples, on average, has a shorter target; 0 for none.
    short_ratio: int = 0


def sentence_rule(
    target_length: int, min_sentences: int, short_sequence_probability: float
) -> ScanRule:
    """Return the rule of ``build_mapping``.

    Parameters
    ----------
    target_length
        Tokens of a sample, at least 2.
    min_sentences
        Least sentences of a sample.
    short_sequence_probability
        Share of samples with a target drawn from 2 to ``target_length``; 0 to 1.

    Examples
    --------
    >>> sentence_rule(128, 1, 0.4).short_ratio, sentence_rule(128, 1, 0).short_ratio
    (3, 0)
    """
    ratio = 0
    if short_sequence_probability > 0:
        # C++ rounds halves away from zero, Python's round would take the even neighbour.
        exact = 1.0 / short_sequence_probability
        ratio = int(exact) + (exact - int(exact) >= 0.5) if exact < 2**31 - 0.5 else MAX_RATIO
    return ScanRule(target_length, min_sentences, short_ratio=ratio)


def block_rule(target_length: int, *, one_sentence_blocks: bool) -> ScanRule:
    """Return the rule of ``build_blocks_mapping``, whose targets exclude the tokens of titles.

    Parameters
    ----------
    target_length
        Tokens of a block with its title.
    one_sentence_blocks
        Whether a block may be a single sentence.
    """
    least = 1 if one_sentence_blocks else 2
    return ScanRule(target_length, least, min_left=least, long_from=least)


@inline
def _draw_target(
    rule: ScanRule, way: int, memory: UInt32Array, key: UInt64Array, document: int, sample: int
) -> Any:
    """Return the target of one sample; see `ScanRule`."""
    target = np.int64(rule.target_length)
    if way == _FIXED:
        return target
    if way == _CHAINED:
        choice = np.int64(draw_word(memory))
        length = choice
    else:
        # Two words: Megatron's single word excludes most lengths if the ratio divides their number.
        word = mix((mix(key[0] ^ np.uint64(document)) ^ key[1]) + np.uint64(sample))
        choice = np.int64(word >> np.uint64(32))
        length = np.int64(word & np.uint64(0xFFFFFFFF))
    if choice % np.int64(rule.short_ratio) == 0:
        target = np.int64(2) + length % (target - np.int64(1))
    return target


@jit
def _scan(
    bounds: Int64Array,
    lengths: IntegerArray,
    titles: IntegerArray,
    first_document: int,
    rule: ScanRule,
    way: int,
    memory: UInt32Array,
    key: UInt64Array,
    out: IntegerArray,
) -> tuple[int, int]:
    """Write the samples of documents in order; return their number, and the targets drawn."""
    row: Any = np.uint64(0)
    drawn: Any = np.int64(0)
    base = bounds[0]
    least = np.int64(max(1, rule.min_sentences))
    for k in range(bounds.size - 1):
        start: Any = bounds[k] - base
        last = bounds[k + 1] - base
        if last - start < rule.min_sentences:
            continue
        rest: Any = np.int64(0)
        longest: Any = np.int32(0)
        for sentence in range(start, last):
            # Unsigned indices need no check for negative values, so the loop vectorises.
            rest += np.int64(lengths[np.uint64(sentence)])
            longest = max(longest, lengths[np.uint64(sentence)])
        if longest > LONG_SENTENCE and last - start >= rule.long_from:
            continue
        sample = 0
        while True:
            third = np.int64(first_document + k)
            target: Any = np.int64(rule.target_length)
            if titles.size:
                target -= np.int64(titles[k])
            else:
                # Megatron draws once more after the last sample of a document.
                target = _draw_target(rule, way, memory, key, first_document + k, sample)
                drawn += 1
                third = target
            if start == last:
                break
            stop: Any = last
            if rest >= target:
                place = start
                length: Any = np.int64(0)
                limit = last - np.int64(rule.min_left)
                while place < limit:
                    length += np.int64(lengths[np.uint64(place)])
                    place += 1
                    if length >= target and place - start >= least:
                        stop = place
                        break
                rest -= length
            out[row, 0] = base + start
            out[row, 1] = base + stop
            out[row, 2] = third
            row += np.uint64(1)
            start = stop
            sample += 1
    return int(row), int(drawn)


def scan_sentences(
    bounds: Int64Array,
    lengths: IntegerArray,
    rule: ScanRule,
    *,
    memory: UInt32Array | None = None,
    key: UInt64Array | None = None,
    titles: IntegerArray | None = None,
    first_document: int = 0,
    dtype: type[np.integer[Any]] = np.uint32,
) -> tuple[IntegerArray, int]:
    """Return the samples of consecutive documents, in order.

    Parameters
    ----------
    bounds
        Shape (documents + 1,), int64: first sentence of each document, and the end of the last
        one; ascending, not strictly.
    lengths
        Shape (sentences,), int32, tokens: from sentence ``bounds[0]`` on.
    rule
        Rules for grouping sentences.
    memory
        Shape (MEMORY_LENGTH,), uint32, from `random_draws.seed_draws`, advanced by one word per
        target, if targets are drawn in sequence; None if they are keyed, or not drawn.
    key
        Shape (2,), uint64, if a target depends only on the document and the sample in it.
    titles
        Shape (documents,), int32, tokens of each document's title, for blocks.
    first_document
        Number of the first document.
    dtype
        Of the result: ``uint32``, or ``uint64`` from ``2**32`` sentences on.

    Returns
    -------
    samples
        Shape (samples, 3): first sentence, sentence after the last one, and the target in tokens
        or, with titles, the number of the document.
    drawn
        Targets drawn: words by which ``memory`` advances.

    Notes
    -----
    Law: with ``memory``, consecutive calls for ranges of documents give the result of one call;
    with ``key``, or without draws, so do calls in any order. Cost: O(sentences) time, a few
    nanoseconds each.
    Source: Megatron Core ``datasets/helpers.cpp``, ``build_mapping`` and ``build_blocks_mapping``.

    Examples
    --------
    >>> bounds, lengths = np.array([0, 3, 4, 8]), np.array([5, 6, 7, 9, 3, 3, 3, 3], np.int32)
    >>> scan_sentences(bounds, lengths, sentence_rule(10, 1, 0))
    (array([[ 0,  3, 10],
           [ 3,  4, 10],
           [ 4,  8, 10]], dtype=uint32), 0)
    """
    way = _FIXED
    if rule.short_ratio:
        way = _CHAINED if memory is not None else _KEYED
    num_documents = len(bounds) - 1
    num_sentences = int(bounds[-1] - bounds[0]) if num_documents > 0 else 0
    # Each sample but the last of a document has the least number of sentences or more.
    most = num_sentences // max(1, rule.min_sentences) + max(0, num_documents)
    out = np.empty((most, 3), dtype)
    num_samples, drawn = _scan(
        bounds,
        lengths,
        _NO_TITLES if titles is None else titles,
        first_document,
        rule,
        way,
        np.zeros(MEMORY_LENGTH, np.uint32) if memory is None else memory,
        _NO_KEY if key is None else key,
        out,
    )
    # A copy, because most of the allocation is unused.
    return out[:num_samples].copy(), drawn if way == _CHAINED else 0


@jit
def skip_targets(memory: UInt32Array, count: int) -> None:
    """Advance a generator past the targets that earlier documents draw.

    Parameters
    ----------
    memory
        Shape (MEMORY_LENGTH,), uint32, from `random_draws.seed_draws`; advanced.
    count
        Targets.

    Notes
    -----
    Law: equal to ``count`` calls of `draw_word`. Cost: a fraction of a nanosecond each.

    Examples
    --------
    >>> from zindex.kernels.random_draws import seed_draws
    >>> memory = np.empty(MEMORY_LENGTH, np.uint32)
    >>> seed_draws(1234, memory)
    >>> skip_targets(memory, 2)
    >>> draw_word(memory)
    2671936806
    """
    state = memory[:STATE_LENGTH]
    drawn = np.int64(state[KEY_LENGTH]) + np.int64(count)
    twisted = drawn > KEY_LENGTH
    while drawn > KEY_LENGTH:
        twist(state)
        drawn -= KEY_LENGTH
    state[KEY_LENGTH] = drawn
    if twisted:
        temper_words(state, np.int64(0), memory[STATE_LENGTH:])
