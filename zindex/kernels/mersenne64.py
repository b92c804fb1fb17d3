"""The words of C++'s ``std::mt19937_64``, and Megatron's shuffle with them.

The draws of a shuffle do not depend on its swaps. So the targets of a few thousand swaps are drawn
first, and their cache lines are prefetched, as in `legacy_shuffle`.
"""

from typing import Any

import numpy as np

from zindex.arrays import IntegerArray, UInt64Array
from zindex.kernels._jit import inline, jit, prefetch
from zindex.kernels.legacy_shuffle import AHEAD, BLOCK

#: Words of one generation.
KEY64_LENGTH = 312

_SHIFT = 156
_UPPER = np.uint64(0xFFFFFFFF80000000)
_LOWER = np.uint64(0x7FFFFFFF)
_MATRIX = np.uint64(0xB5026F5AA96619E9)
_ONE = np.uint64(1)


def seed_state64(seed: int) -> UInt64Array:
    """Return the state of ``std::mt19937_64(seed)`` before its first draw.

    Parameters
    ----------
    seed
        Any integer; its low 64 bits are used, as in C++'s conversion to unsigned.

    Returns
    -------
    state
        Shape (313,), uint64: 312 key words, then the number of words drawn from them (312: all).

    Notes
    -----
    Cost: 312 steps.
    Source: Nishimura and Matsumoto, mt19937-64.c (2004), ``init_genrand64``.

    Examples
    --------
    >>> seed_state64(5489)[:2], seed_state64(-1)[0] == 2**64 - 1
    (array([                5489, 13057201162865595358], dtype=uint64), np.True_)
    """
    value = seed & 0xFFFFFFFFFFFFFFFF
    state = np.empty(KEY64_LENGTH + 1, np.uint64)
    for position in range(KEY64_LENGTH):
        state[position] = value
        value = 6364136223846793005 * (value ^ (value >> 62)) + position + 1
        value &= 0xFFFFFFFFFFFFFFFF
    state[KEY64_LENGTH] = KEY64_LENGTH
    return state


@inline
def _mix_words(upper: Any, lower: Any) -> Any:
    """Return the part of a new word that depends on its two old neighbours."""
    joined = (upper & _UPPER) | (lower & _LOWER)
    return (joined >> _ONE) ^ ((lower & _ONE) * _MATRIX)


@jit
def _twist(state: UInt64Array) -> None:
    """Replace the key of a state by the next generation."""
    for k in range(KEY64_LENGTH - _SHIFT):
        state[k] = state[k + _SHIFT] ^ _mix_words(state[k], state[k + 1])
    for k in range(KEY64_LENGTH - _SHIFT, KEY64_LENGTH - 1):
        state[k] = state[k + _SHIFT - KEY64_LENGTH] ^ _mix_words(state[k], state[k + 1])
    last = KEY64_LENGTH - 1
    state[last] = state[_SHIFT - 1] ^ _mix_words(state[last], state[0])
    state[KEY64_LENGTH] = np.uint64(0)


@jit
def next_words64(state: UInt64Array, out: UInt64Array) -> None:
    """Fill ``out`` with the next words of the generator and advance its state past them.

    Parameters
    ----------
    state
        Shape (313,), uint64, from `seed_state64`; advanced in place.
    out
        Shape (words,), uint64; filled.

    Notes
    -----
    Law: two calls give the words of one call for the sum of their lengths.
    Source: mt19937-64.c, ``genrand64_int64``.

    Examples
    --------
    >>> out = np.empty(2, np.uint64)
    >>> next_words64(seed_state64(5489), out)
    >>> out
    array([14514284786278117030,  4620546740167642908], dtype=uint64)
    """
    drawn: Any = np.int64(state[KEY64_LENGTH])
    for k in range(out.size):
        if drawn >= KEY64_LENGTH:
            _twist(state)
            drawn = np.int64(0)
        word = state[drawn]
        word = word ^ ((word >> np.uint64(29)) & np.uint64(0x5555555555555555))
        word = word ^ ((word << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000))
        word = word ^ ((word << np.uint64(37)) & np.uint64(0xFFF7EEE000000000))
        out[k] = word ^ (word >> np.uint64(43))
        drawn += np.int64(1)
    state[KEY64_LENGTH] = np.uint64(drawn)


@jit
def _shuffle(values: IntegerArray, columns: int, state: UInt64Array, block: UInt64Array) -> None:
    """Shuffle rows of ``columns`` values each; ``block`` is scratch memory for one block of draws.

    Position ``k`` is swapped with a word modulo ``k + 1``, from the last position to the first.
    """
    width = np.uint64(columns)
    position = values.size // columns - 1
    while position > 0:
        targets = block[: min(position, block.size)]
        next_words64(state, targets)
        for k in range(targets.size):
            targets[k] = width * (targets[k] % np.uint64(position + 1 - k))
        for target in targets[:AHEAD]:
            prefetch(values, target)
        for k in range(targets.size):
            prefetch(values, targets[min(k + AHEAD, targets.size - 1)])
            target = targets[k]
            source = width * np.uint64(position)
            for column in range(columns):
                value = values[source + np.uint64(column)]
                values[source + np.uint64(column)] = values[target + np.uint64(column)]
                values[target + np.uint64(column)] = value
            position -= 1


def shuffle_rows64(values: IntegerArray, state: UInt64Array) -> None:
    """Shuffle rows in place as Megatron Core shuffles its sentence mappings.

    Parameters
    ----------
    values
        Shape (rows,) or (rows, columns), any integer dtype, C order; shuffled in place.
    state
        Shape (313,), uint64, from `seed_state64`; advanced.

    Notes
    -----
    Law: the order does not depend on the columns. Cost: O(rows) time, 32 KiB of memory.
    Source: Megatron Core ``datasets/helpers.cpp``, the end of ``build_mapping``.

    Examples
    --------
    >>> values = np.arange(6)
    >>> shuffle_rows64(values, seed_state64(5489))
    >>> values.tolist()
    [2, 5, 1, 0, 3, 4]
    """
    columns = values.shape[1] if values.ndim > 1 else 1
    _shuffle(values.reshape(-1), columns, state, np.empty(BLOCK, np.uint64))
