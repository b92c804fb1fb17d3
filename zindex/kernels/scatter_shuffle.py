"""The two steps of an exactly uniform chunked shuffle: scatter, then shuffle.

Rao and Sandelius: if every element is assigned to an independent random bucket, and each bucket is
then shuffled, the concatenated buckets are uniform over all orders. The values are a frozen format,
``SCATTER_VERSION``; tests compare them with golden digests. The caller derives keys from seeds and
stores the buckets.
"""

import numpy as np

from zindex.arrays import Int64Array, IntegerArray, UInt16Array, UInt32Array, UInt64Array
from zindex.errors import PlanError
from zindex.kernels._jit import inline, jit, prefetch
from zindex.kernels.legacy_shuffle import AHEAD, swap_targets

#: Version of both steps, increased if any value of any order changes.
SCATTER_VERSION = 1

#: Words of a key: the initial state of the generator, xoshiro256++.
KEY_LENGTH = 4

#: Dtype of keys: ``SeedSequence(...).generate_state(KEY_LENGTH, KEY_DTYPE)`` gives them.
KEY_DTYPE = np.dtype(np.uint64)

#: Most buckets: their numbers are uint16.
MAX_BUCKETS = 2**16

#: Most elements of one shuffle: a draw has 32 bits.
MAX_SHUFFLED = 2**32

#: Words drawn at a time, each for two elements; with the targets 48 KiB of cache. The low half of a
#: word is first, as in memory.
_NUM_WORDS = 2048

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)


@inline
def _rotate(word: np.uint64, count: int) -> np.uint64:
    """Return a word with its bits rotated left."""
    return np.uint64((word << np.uint64(count)) | (word >> np.uint64(64 - count)))


@jit
def fill_words(state: UInt64Array, words: UInt64Array) -> None:
    """Fill ``words`` with the next words of the generator and advance its state past them.

    Parameters
    ----------
    state
        Shape (4,), uint64, not all 0; advanced in place.
    words
        Shape (words,), uint64; filled.

    Notes
    -----
    Law: two calls give the words of one call for the sum of their lengths. Cost: one to two
    nanoseconds a word.
    Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021),
    xoshiro256++ 1.0.

    Examples
    --------
    >>> words = np.empty(2, np.uint64)
    >>> fill_words(np.array([1, 2, 3, 4], np.uint64), words)
    >>> words
    array([41943041, 58720359], dtype=uint64)
    """
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for k in range(words.size):
        words[np.uint64(k)] = np.uint64(_rotate(np.uint64(s0 + s3), 23) + s0)
        shifted = np.uint64(s1 << np.uint64(17))
        s2 ^= s0
        s3 ^= s1
        s1 ^= s2
        s0 ^= s3
        s2 ^= shifted
        s3 = _rotate(s3, 45)
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3


@jit
def draw_targets(draws: UInt32Array, bound: int, targets: UInt64Array) -> int:
    """Turn draws into targets below ``bound``, ``bound - 1``, ... 2, each exactly uniform.

    Parameters
    ----------
    draws
        Shape (draws,), uint32, uniform.
    bound
        First bound, 1 to 2**32.
    targets
        Shape (draws,), uint64; filled with the accepted draws, at most ``bound - 1``.

    Returns
    -------
    num_targets
        Number of targets written: less than the draws only if draws were rejected, or ``bound - 1``
        is smaller.

    Notes
    -----
    Law: a target is ``draw * bound >> 32`` of the next accepted draw; each target has equally many
    accepted draws. Cost: one product a draw, a division for one in
    ``2**32 / bound``.
    Source: Lemire, "Fast random integer generation in an interval" (2019), algorithm 5.

    Examples
    --------
    >>> targets = np.empty(3, np.uint64)
    >>> int(draw_targets(np.array([2**31, 0, 2**32 - 1], np.uint32), 3, targets)), targets[:2]
    (2, array([1, 0], dtype=uint64))
    """
    limit = np.uint64(bound)
    filled = 0
    for k in range(draws.size):
        if limit <= _ONE:
            break
        product = np.uint64(draws[np.uint64(k)]) * limit
        targets[np.uint64(filled)] = product >> _HALF
        rest = product & _LOW
        # If 2**32 is no multiple of the bound, the surplus draws are rejected.
        if rest < limit and rest < (_LOW - limit + _ONE) % limit:
            continue
        filled += 1
        limit -= _ONE
    return filled


@jit
def _shuffle(
    values: IntegerArray, state: UInt64Array, words: UInt64Array, targets: UInt64Array
) -> None:
    """Shuffle from the last element down; ``words`` and ``targets`` are scratch for one block."""
    draws = words.view(np.uint32)
    position = values.size - 1
    while position > 0:
        fill_words(state, words)
        block = targets[: draw_targets(draws, position + 1, targets)]
        swap_targets(values, position, block)
        position -= block.size


@jit
def _draw_buckets(
    state: UInt64Array, words: UInt64Array, buckets: UInt16Array, counts: Int64Array
) -> None:
    """Draw and count the bucket of every element; ``words`` is scratch for one block."""
    draws = words.view(np.uint32)
    limit = np.uint64(counts.size)
    threshold = (_LOW - limit + _ONE) % limit
    filled = 0
    while filled < buckets.size:
        fill_words(state, words)
        for k in range(draws.size):
            if filled == buckets.size:
                break
            product = np.uint64(draws[np.uint64(k)]) * limit
            if product & _LOW < threshold:
                continue
            bucket = product >> _HALF
            buckets[np.uint64(filled)] = np.uint16(bucket)
            counts[bucket] += 1
            filled += 1


@jit
def _place(start: int, buckets: UInt16Array, ends: Int64Array, out: IntegerArray) -> None:
    """Append every element to its bucket; ``ends`` are advanced."""
    element = np.uint64(start)
    last = buckets.size - 1
    for k in range(buckets.size):
        # The final cache line of that element, or the one before.
        prefetch(out, np.uint64(ends[np.uint64(buckets[np.uint64(min(k + AHEAD, last))])]))
        bucket = np.uint64(buckets[np.uint64(k)])
        end = ends[bucket]
        out[np.uint64(end)] = element
        ends[bucket] = end + 1
        element += _ONE


def scatter(
    start: int, size: int, num_buckets: int, key: UInt64Array, out: IntegerArray
) -> Int64Array:
    """Scatter ``size`` consecutive integers to buckets; return the count of each bucket.

    Parameters
    ----------
    start
        First integer, >= 0.
    size
        Number of integers, >= 0.
    num_buckets
        1 to 2**16; all buckets have equal probability.
    key
        Shape (4,), uint64, not all 0.
    out
        Shape (size,), uint32 or uint64, wide enough for ``start + size - 1``; filled: the
        integers of bucket 0, ascending, then those of bucket 1, ...

    Returns
    -------
    counts
        Shape (num_buckets,), int64; their sum is ``size``.

    Raises
    ------
    PlanError
        If an argument is not as above.

    Notes
    -----
    Law: the bucket of integer ``start + i`` is ``half * num_buckets >> 32`` of the i-th accepted
    half word. Cost: O(size + num_buckets), two bytes of extra memory each.
    Source: Rao, "Generation of random permutations of given number of elements using random
    sampling numbers" (1961); Sandelius, "A simple randomization procedure" (1962).

    Examples
    --------
    >>> out = np.empty(6, np.uint32)
    >>> scatter(100, 6, 2, np.arange(9, 13, dtype=np.uint64) << np.uint64(58), out)
    array([4, 2])
    >>> out
    array([100, 101, 102, 104, 103, 105], dtype=uint32)
    """
    state = _start_generator(key)
    if not 1 <= num_buckets <= MAX_BUCKETS:
        raise PlanError(
            f"elements must be scattered to 1 to {MAX_BUCKETS} buckets, got {num_buckets}; "
            "use longer parts"
        )
    if out.shape != (size,) or not 0 <= start <= start + size <= int(np.iinfo(out.dtype).max) + 1:
        raise PlanError(
            f"room for integers [{start}, {start + size}) is needed, got shape {out.shape} of "
            f"{out.dtype}; give an array of {size} wide enough elements"
        )
    if num_buckets == 1:  # the same result without draws
        out[:] = np.arange(start, start + size, dtype=out.dtype)
        return np.array([size], np.int64)
    buckets = np.empty(size, np.uint16)
    counts = np.zeros(num_buckets, np.int64)
    _draw_buckets(state, np.empty(_NUM_WORDS, np.uint64), buckets, counts)
    _place(start, buckets, np.cumsum(counts) - counts, out)
    return counts


def shuffle(values: IntegerArray, key: UInt64Array) -> None:
    """Shuffle values in place, with exactly equal probability of every order.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype, contiguous, at most 2**32; shuffled in place.
    key
        Shape (4,), uint64, not all 0.

    Raises
    ------
    PlanError
        If there are too many values or the key is not as above.

    Notes
    -----
    Law: if the words of the generator are independent and uniform, so are all orders. Cost:
    O(elements), a few nanoseconds each; 48 KiB of extra memory.
    Source: Durstenfeld, "Algorithm 235: random permutation" (1964), after Fisher and Yates.

    Examples
    --------
    >>> values = np.arange(8)
    >>> shuffle(values, np.arange(1, 5, dtype=np.uint64) << np.uint64(60))
    >>> sorted(values.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    state = _start_generator(key)
    if values.size > MAX_SHUFFLED:
        raise PlanError(
            f"at most {MAX_SHUFFLED} elements can be shuffled at once, got {values.size}; "
            "scatter them to buckets first"
        )
    words, targets = np.empty(_NUM_WORDS, np.uint64), np.empty(2 * _NUM_WORDS, np.uint64)
    _shuffle(values, state, words, targets)


def _start_generator(key: UInt64Array) -> UInt64Array:
    """Return the initial state of the generator, after checking the key."""
    if key.shape != (KEY_LENGTH,) or key.dtype != KEY_DTYPE or not key.any():
        raise PlanError(
            f"a shuffle needs a key of {KEY_LENGTH} words of {KEY_DTYPE}, not all 0, got shape "
            f"{key.shape} of {key.dtype}; make it with SeedSequence.generate_state"
        )
    return key.copy()
