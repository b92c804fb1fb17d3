"""Best-fit decreasing packing of whole documents into samples, by counting instead of sorting.

A *part* is a span of tokens of one document; a document longer than a sample is split, truncated or
dropped. The fit works on the number of parts of each length, until parts are placed.
"""

from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int32Array, Int64Array, IntegerArray, UInt64Array
from zindex.errors import PlanError
from zindex.kernels._jit import find_bit, jit
from zindex.kernels.bitset import set_bit

#: Version of the fit and of the order of parts, increased if any packing changes.
PACKING_VERSION = 1

#: How to treat a document longer than a sample.
SPLIT, TRUNCATE, DROP = 0, 1, 2

#: Most parts of one packing: numbers of parts and samples are int32.
MAX_PARTS = 2**31 - 1


class FitRules(NamedTuple):
    """How documents become samples."""

    #: S > 0, and x, 1 or 0: a sample has at most S + x tokens.
    sequence_length: int
    extra_token: int
    #: Most parts of a sample, > 0.
    max_documents: int
    #: `SPLIT`, `TRUNCATE` or `DROP`.
    long_documents: int


class Packing(NamedTuple):
    """Samples of whole documents."""

    #: Shape (samples + 1,), int64: first part of each sample, and the number of parts.
    sample_offset: Int64Array
    #: Shape (parts, 2): document id, and token offset in that document.
    part_index: IntegerArray
    #: Tokens of all parts.
    num_tokens: int


def pack_documents(
    document_lengths: IntegerArray, documents: IntegerArray, rules: FitRules
) -> Packing:
    """Pack documents into samples by best-fit decreasing.

    Parameters
    ----------
    document_lengths
        Shape (documents,), int32 or int64, tokens, each >= 0.
    documents
        Shape (documents,), int32 or int64: their ids.
    rules
        The size of samples, and the treatment of longer documents.

    Returns
    -------
    packing
        Samples in the order of their creation. The parts of a sample are in the order of the
        documents.

    Raises
    ------
    PlanError
        If there are more parts than `MAX_PARTS`.

    Notes
    -----
    A document longer than S + x is split like a stream: its part k has the tokens
    ``[k * S, k * S + S + x)`` that exist, so that with an extra token each of its tokens but the
    first is a label once.

    Law: a sample has 1 to ``max_documents`` parts of at most S + x tokens in total; every part of
    every document is in one sample. Empty documents have no part.
    Cost: O(documents + parts + S), some tens of nanoseconds for each part.
    Source: best-fit decreasing of D. S. Johnson, "Near-optimal bin packing algorithms" (1973). Of
    samples with equal room, the last one filled is chosen.

    Examples
    --------
    >>> rules = FitRules(8, 0, 4, SPLIT)
    >>> packing = pack_documents(np.array([3, 9, 5, 2, 3]), np.arange(5), rules)
    >>> packing.sample_offset.tolist(), packing.part_index.tolist()
    ([0, 1, 3, 6], [[1, 0], [0, 0], [2, 0], [1, 8], [3, 0], [4, 0]])
    """
    counts, sample_of_part, parts_of_sample = _fit(document_lengths, rules)
    sample_offset = np.zeros(parts_of_sample.size + 1, np.int64)
    np.cumsum(parts_of_sample, out=sample_offset[1:])
    part_index = np.empty((sample_of_part.size, 2), documents.dtype)
    next_part = sample_offset[:-1].copy()
    place_parts(document_lengths, documents, rules, counts, sample_of_part, next_part, part_index)
    return Packing(sample_offset, part_index, int(np.arange(counts.size) @ counts))


def count_samples(document_lengths: IntegerArray, rules: FitRules) -> tuple[int, int, int]:
    """Count the samples, parts and tokens that `pack_documents` makes of documents.

    Notes
    -----
    Law: independent of the order of the documents.

    Examples
    --------
    >>> count_samples(np.array([3, 9, 5, 2, 3]), FitRules(8, 0, 4, SPLIT))
    (3, 6, 22)
    """
    counts, sample_of_part, parts_of_sample = _fit(document_lengths, rules)
    return parts_of_sample.size, sample_of_part.size, int(np.arange(counts.size) @ counts)


def _fit(
    document_lengths: IntegerArray, rules: FitRules
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return the parts of each length, the sample of each part, and the parts of each sample."""
    counts = np.zeros(rules.sequence_length + rules.extra_token + 1, np.int64)
    num_parts = count_parts(document_lengths, rules, counts)
    if num_parts > MAX_PARTS:
        raise PlanError(
            f"documents that are packed together must have at most {MAX_PARTS:,} parts, got "
            f"{num_parts:,} with sequence_length {rules.sequence_length}; raise it"
        )
    sample_of_part, parts_of_sample = np.empty(num_parts, np.int32), np.zeros(num_parts, np.int32)
    num_samples = fit_parts(counts, rules.max_documents, sample_of_part, parts_of_sample)
    return counts, sample_of_part, parts_of_sample[:num_samples]


@jit
def count_parts(document_lengths: IntegerArray, rules: FitRules, counts: Int64Array) -> int:
    """Add the parts of documents to the counts of each length; return their number.

    Parameters
    ----------
    document_lengths, rules
        As of `pack_documents`.
    counts
        Shape (S + x + 1,), int64: parts of each length.

    Examples
    --------
    >>> counts = np.zeros(6, np.int64)
    >>> rules = FitRules(4, 1, 9, SPLIT)
    >>> int(count_parts(np.array([3, 11, 0]), rules, counts)), counts.tolist()
    (4, [0, 0, 0, 2, 0, 2])
    """
    room = np.int64(rules.sequence_length + rules.extra_token)
    num_parts = np.int64(0)
    for k in range(document_lengths.size):
        length = np.int64(document_lengths[k])
        if length > room:
            if rules.long_documents == DROP:
                continue
            if rules.long_documents == SPLIT:
                num_full = (length - rules.extra_token - 1) // rules.sequence_length
                counts[room] += num_full
                num_parts += num_full
                length -= num_full * rules.sequence_length
            else:
                length = room
        if length > 0:
            counts[length] += 1
            num_parts += 1
    return int(num_parts)


@jit
def fit_parts(
    counts: Int64Array, max_parts: int, sample_of_part: Int32Array, parts_of_sample: Int32Array
) -> int:
    """Choose the sample of every part, longest parts first; return the number of samples.

    Parameters
    ----------
    counts
        Shape (room + 1,), int64: parts of each length.
    max_parts
        Most parts of a sample.
    sample_of_part
        Shape (parts,), int32: sample of each part, by decreasing length; filled.
    parts_of_sample
        Shape (parts,), int32, zeros: parts of each sample; filled for existing samples.

    Notes
    -----
    Open samples are in one stack per remaining room. A two-level bit set of non-empty stacks finds
    the least sufficient room in a few steps. A sample takes as many parts of equal length as fit,
    because after one of them it still has the least room.

    Examples
    --------
    >>> sample_of_part, parts_of_sample = np.empty(4, np.int32), np.zeros(4, np.int32)
    >>> int(fit_parts(np.array([0, 0, 2, 1, 0, 1]), 9, sample_of_part, parts_of_sample))
    3
    >>> sample_of_part.tolist(), parts_of_sample.tolist()
    ([0, 1, 1, 2], [1, 2, 1, 0])
    """
    room = counts.size - 1
    top_of_room = np.full(room + 1, -1, np.int32)
    below = np.empty(sample_of_part.size, np.int32)
    words = np.zeros(room // 64 + 1, np.uint64)
    words_of_words = np.zeros(words.size // 64 + 1, np.uint64)
    num_samples: Any = np.int64(0)
    part: Any = np.int64(0)
    for length in range(room, 0, -1):
        num_left = counts[length]
        while num_left > 0:
            left: Any = _find_room(words, words_of_words, length)
            if left < 0:
                sample: Any = num_samples
                num_samples += 1
                left = np.int64(room)
            else:
                sample = np.int64(top_of_room[left])
                top_of_room[left] = below[sample]
                if below[sample] < 0:
                    _clear_bit(words, words_of_words, left)
            taken = np.int64(parts_of_sample[sample])
            count = min(left // length, num_left, max_parts - taken)
            for _ in range(count):
                sample_of_part[part] = sample
                part += 1
            parts_of_sample[sample] = taken + count
            num_left -= count
            left -= count * length
            if left > 0 and taken + count < max_parts:
                below[sample] = top_of_room[left]
                if top_of_room[left] < 0:
                    set_bit(words, left)
                    set_bit(words_of_words, left >> 6)
                top_of_room[left] = sample
    return int(num_samples)


@jit
def place_parts(
    document_lengths: IntegerArray,
    documents: IntegerArray,
    rules: FitRules,
    counts: Int64Array,
    sample_of_part: Int32Array,
    next_part: Int64Array,
    part_index: IntegerArray,
) -> None:
    """Write the parts of every sample, in the order of their documents.

    Parameters
    ----------
    document_lengths, documents, rules
        As of `pack_documents`.
    counts, sample_of_part
        Results of `count_parts` and `fit_parts`.
    next_part
        Shape (samples,), int64: first part of each sample; advanced to its end.
    part_index
        Shape (parts, 2): document id, token offset; filled.
    """
    room = np.int64(rules.sequence_length + rules.extra_token)
    # Parts are ordered by decreasing length.
    next_of_length = np.empty(room + 1, np.int64)
    start = np.int64(0)
    for length in range(room, -1, -1):
        next_of_length[length] = start
        start += counts[length]
    for k in range(document_lengths.size):
        rest: Any = np.int64(document_lengths[k])
        offset: Any = np.int64(0)
        if rest > room:
            if rules.long_documents == DROP:
                continue
            if rules.long_documents == TRUNCATE:
                rest = room
        while rest > 0:
            length = min(rest, room)
            part = next_of_length[length]
            next_of_length[length] = part + 1
            sample = sample_of_part[part]
            row = next_part[sample]
            next_part[sample] = row + 1
            part_index[row, 0] = documents[k]
            part_index[row, 1] = offset
            if rest <= room:
                break
            offset += rules.sequence_length
            rest -= rules.sequence_length


@jit
def _clear_bit(words: UInt64Array, words_of_words: UInt64Array, bit: int) -> None:
    """Remove a number from the set."""
    word = bit >> 6
    words[word] &= ~(np.uint64(1) << np.uint64(bit & 63))
    if words[word] == 0:
        words_of_words[word >> 6] &= ~(np.uint64(1) << np.uint64(word & 63))


@jit
def _find_room(words: UInt64Array, words_of_words: UInt64Array, least: int) -> int:
    """Return the smallest number of the set that is at least ``least``, or -1."""
    word = least >> 6
    rest = words[word] >> np.uint64(least & 63)
    if rest != 0:
        return int(least + find_bit(rest))
    word += 1
    outer = word >> 6
    if outer >= words_of_words.size:
        return -1
    skip = word & 63
    found = words_of_words[outer] >> np.uint64(skip)
    while found == 0:
        outer += 1
        skip = 0
        if outer >= words_of_words.size:
            return -1
        found = words_of_words[outer]
    word = 64 * outer + skip + find_bit(found)
    return int(64 * word + find_bit(words[word]))
