"""Sets of used numbers as bits, with a search for the k-th unused number.

Bit i of a set is in word ``i // 64``, lowest bit first. The number of unused bits before each block
of ``BLOCK_BITS`` is the index for the search.
"""

from typing import Any

import numpy as np

from zindex.arrays import Int64Array, IntegerArray, UInt64Array
from zindex.kernels._jit import count_bits, inline, jit

WORD_BITS = 64
#: Words of a block: 512 bytes are read to find one number.
BLOCK_WORDS = 64
BLOCK_BITS = WORD_BITS * BLOCK_WORDS


@inline
def _get(words: UInt64Array, bit: Any) -> Any:
    """Return one bit."""
    return (words[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1)


@inline
def set_bit(words: UInt64Array, bit: Any) -> None:
    """Set one bit."""
    words[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@inline
def _count_ones(word: Any) -> Any:
    """Count the set bits of a word."""
    return count_bits(np.int64(word))


@inline
def mix(value: Any) -> Any:
    """Return 64 well mixed bits of a number: the finaliser of splitmix64."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@jit
def mark(sets: IntegerArray, numbers: IntegerArray, starts: Int64Array, words: UInt64Array) -> int:
    """Set the bits of numbers in many sets; return how many were newly set.

    Parameters
    ----------
    sets, numbers
        Shape (numbers,), integers: the set of each number, and the number.
    starts
        Shape (sets,), int64: first word of each set.
    words
        Shape (words,), uint64; changed in place.

    Returns
    -------
    num_fresh
        Less than the number of bits if and only if one was repeated or set before.

    Examples
    --------
    >>> words = np.zeros(2, np.uint64)
    >>> starts = np.array([0, 1])
    >>> int(mark(np.array([0, 1, 1]), np.array([3, 0, 0]), starts, words)), words.tolist()
    (2, [8, 1])
    """
    num_fresh: Any = np.int64(0)
    for i in range(numbers.size):
        number = np.int64(numbers[i])
        word = starts[sets[i]] + (number >> 6)
        bit = np.uint64(1) << np.uint64(number & 63)
        num_fresh += np.int64((words[word] & bit) == 0)
        words[word] |= bit
    return int(num_fresh)


@jit
def mark_images(
    images: IntegerArray,
    start: int,
    first: int,
    words: UInt64Array,
    num_bits: int,
    out: UInt64Array,
) -> int:
    """Set the bits of the images of a set's numbers; return how many were newly set.

    Parameters
    ----------
    images
        Shape (numbers,), integers: images of ``start``, ``start + 1``, ...
    start
        Number of the first image.
    first, words, num_bits
        The set: all numbers below ``first``, and ``first + i`` for every set bit i.
    out
        Shape (words,), uint64: the set of images, starting at 0; changed in place.
    """
    num_fresh: Any = np.int64(0)
    for i in range(images.size):
        bit = start + i - first
        if bit >= num_bits or (bit >= 0 and _get(words, bit) == 0):
            continue
        image = np.int64(images[i])
        num_fresh += np.int64(_get(out, image) == 0)
        set_bit(out, image)
    return int(num_fresh)


@jit
def deposit(
    draws: UInt64Array,
    start: int,
    num_draws: int,
    words: UInt64Array,
    num_bits: int,
    out: UInt64Array,
    num_out: int,
) -> int:
    """Write the union of a set and its k-th unused number for every drawn k.

    Parameters
    ----------
    draws, start, num_draws
        Bits ``[start, start + num_draws)`` of these words are the drawn k.
    words, num_bits
        The old set; all numbers from ``num_bits`` on are unused.
    out, num_out
        Shape (words,), uint64, zeros: the new set and its number of bits; filled.

    Returns
    -------
    num_used
        Set bits of ``out``.

    Notes
    -----
    Law: a merge by position, so no bit is lost. Cost: O(num_out), one or two nanoseconds each. This
    is the "parallel bits deposit" instruction for sets of any length.

    Examples
    --------
    >>> out = np.zeros(1, np.uint64)
    >>> before, draws = np.array([0b101], np.uint64), np.array([0b110], np.uint64)
    >>> int(deposit(draws, 0, 3, before, 3, out, 5)), bin(out[0])
    (4, '0b11101')
    """
    k: Any = np.int64(0)
    num_used: Any = np.int64(0)
    for i in range(num_out):
        used = i < num_bits and _get(words, i) != 0
        if not used:
            used = k < num_draws and _get(draws, start + k) != 0
            k += 1
        if used:
            set_bit(out, i)
            num_used += 1
    return int(num_used)


@jit
def find_ends(words: UInt64Array, start: int, num_bits: int) -> tuple[int, int]:
    """Return the number of leading set bits, and the end of the last set bit.

    Both are relative to ``start``, for bits ``[start, start + num_bits)``.
    """
    lead: Any = np.int64(0)
    while lead < num_bits:
        whole = ((start + lead) & 63) == 0 and num_bits - lead >= 64
        if whole and words[(start + lead) >> 6] == ~np.uint64(0):
            lead += 64
            continue
        if _get(words, start + lead) == 0:
            break
        lead += 1
    stop: Any = np.int64(num_bits)
    while stop > lead:
        whole = ((start + stop) & 63) == 0 and stop - lead >= 64
        if whole and words[((start + stop) >> 6) - 1] == 0:
            stop -= 64
            continue
        if _get(words, start + stop - 1) != 0:
            break
        stop -= 1
    return int(lead), int(stop)


@jit
def copy_bits(words: UInt64Array, start: int, num_bits: int, out: UInt64Array) -> None:
    """Copy bits ``[start, start + num_bits)`` to the start of ``out``, followed by zeros."""
    shift = np.uint64(start & 63)
    origin = start >> 6
    for k in range(out.size):
        if 64 * k >= num_bits:
            out[k] = np.uint64(0)
            continue
        word = words[origin + k] >> shift
        if shift and origin + k + 1 < words.size:
            word |= words[origin + k + 1] << (np.uint64(64) - shift)
        left = num_bits - 64 * k
        if left < 64:
            word &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        out[k] = word


@jit
def count_unused(words: UInt64Array, num_bits: int, counts: Int64Array) -> int:
    """Count the unused bits among the first ``num_bits``, and those before each block.

    Parameters
    ----------
    words, num_bits
        The set.
    counts
        Shape (blocks,), int64: unused bits before each block; filled.
    """
    total: Any = np.int64(0)
    for word in range(words.size):
        if word % BLOCK_WORDS == 0 and word // BLOCK_WORDS < counts.size:
            counts[word // BLOCK_WORDS] = total
        bits = min(max(num_bits - 64 * word, 0), 64)
        total += bits - _count_ones(words[word])
    return int(total)


@jit
def find_blocks(
    sets: IntegerArray,
    numbers: Int64Array,
    first: Int64Array,
    stop: Int64Array,
    num_unused: Int64Array,
    starts: Int64Array,
    counts: Int64Array,
    values: Int64Array,
    blocks: Int64Array,
) -> None:
    """Find the block of the k-th unused number of sets, without reading their bits.

    Parameters
    ----------
    sets, numbers
        Shape (numbers,): the set of each number k, and k, which is replaced by its remainder at the
        start of its block.
    first, stop, num_unused
        Shape (sets,), int64: bit 0 of each set, one after its last bit, unused bits between.
    starts
        Shape (sets + 1,), int64: first block of each set.
    counts
        Shape (blocks,), int64: unused bits of its set before each block.
    values
        Shape (numbers,), int64: the number found, or the one at the start of its block; filled.
    blocks
        Shape (numbers,), int64: the block to search, -1 if the number is found; filled.
    """
    for i in range(numbers.size):
        k, s = numbers[i], sets[i]
        if k >= num_unused[s]:
            values[i] = stop[s] + k - num_unused[s]
            blocks[i] = -1
            continue
        low, high = starts[s], starts[s + 1]
        while high - low > 1:
            middle = (low + high) // 2
            if counts[middle] <= k:
                low = middle
            else:
                high = middle
        values[i] = first[s] + (low - starts[s]) * BLOCK_BITS
        blocks[i] = low
        numbers[i] = k - counts[low]


@jit
def select_unused(
    words: UInt64Array, rows: IntegerArray, numbers: Int64Array, values: Int64Array
) -> None:
    """Add to each value the index of the k-th unused bit of a block.

    Parameters
    ----------
    words
        Shape (blocks, BLOCK_WORDS), uint64.
    rows
        Shape (numbers,): the block of each number.
    numbers
        Shape (numbers,), int64: k, below the unused bits of the block.
    values
        Shape (numbers,), int64; changed in place.
    """
    for i in range(numbers.size):
        k, row = numbers[i], rows[i]
        word = 0
        unused = 64 - _count_ones(words[row, 0])
        while k >= unused:
            k -= unused
            word += 1
            unused = 64 - _count_ones(words[row, word])
        bits = ~words[row, word]
        for _ in range(k):
            bits &= bits - np.uint64(1)
        lowest = (bits & (~bits + np.uint64(1))) - np.uint64(1)
        values[i] += 64 * word + _count_ones(lowest)


@jit
def digest_numbers(numbers: IntegerArray, salt: int) -> int:
    """Return the sum of the mixed bits of numbers modulo 2**64, independent of their order.

    Parameters
    ----------
    numbers
        Shape (numbers,), integers >= 0.
    salt
        Distinguishes equal numbers of different sets, >= 0.
    """
    total: Any = np.uint64(0)
    base = mix(np.uint64(salt))
    for i in range(numbers.size):
        total += mix(base ^ np.uint64(numbers[i]))
    return int(total)


@jit
def digest_set(first: int, words: UInt64Array, num_bits: int, salt: int) -> tuple[int, int]:
    """Return the digests of the used and of the unused numbers below the end of a set.

    Parameters
    ----------
    first, words, num_bits
        The set: all numbers below ``first``, and ``first + i`` for every set bit i.
    salt
        As of `digest_numbers`.
    """
    used: Any = np.uint64(0)
    unused: Any = np.uint64(0)
    base = mix(np.uint64(salt))
    for number in range(first):
        used += mix(base ^ np.uint64(number))
    for bit in range(num_bits):
        value = mix(base ^ np.uint64(first + bit))
        if _get(words, bit) != 0:
            used += value
        else:
            unused += value
    return int(used), int(unused)
