"""The MT19937 word stream of ``numpy.random.RandomState``, as arrays that kernels can advance.

Only 32-bit words are here; what is made of them (a shuffle) lives in `legacy_shuffle`.
"""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError
from zindex.kernels._jit import inline, jit

UInt32Array = npt.NDArray[np.uint32]

KEY_LENGTH = 624
"""Words in one generation of the generator."""

STATE_LENGTH = KEY_LENGTH + 1
"""Words in a state: the key and, last, how many of its words have been drawn."""

_SHIFT = 397
_UPPER = np.uint32(0x80000000)
_LOWER = np.uint32(0x7FFFFFFF)
_MATRIX = np.uint32(0x9908B0DF)
_ONE = np.uint32(1)


def seed_state(seed: int) -> UInt32Array:
    """Return the state of ``RandomState(seed)`` before its first draw.

    Parameters
    ----------
    seed
        0 to 2**32 - 1.

    Returns
    -------
    state
        Shape (625,), uint32: 624 key words, then the number of words drawn from them (624: all).

    Raises
    ------
    ConfigError
        If the seed does not fit in 32 unsigned bits.

    Notes
    -----
    Law: equal to the key and position of ``RandomState(seed).get_state()``. Cost: 625 steps.
    Source: Matsumoto and Nishimura, mt19937ar.c (2002), ``init_genrand``.

    Examples
    --------
    >>> seed_state(1234)[:2], seed_state(1234)[-1]
    (array([      1234, 3159640283], dtype=uint32), np.uint32(624))
    """
    value = operator.index(seed)
    if not 0 <= value < 2**32:
        raise ConfigError(
            f"a legacy seed must lie in [0, 2**32), got {value}; choose a seed of at most 32 bits"
        )
    state = np.empty(STATE_LENGTH, np.uint32)
    for position in range(KEY_LENGTH):
        state[position] = value
        value = (1812433253 * (value ^ (value >> 30)) + position + 1) & 0xFFFFFFFF
    state[KEY_LENGTH] = KEY_LENGTH
    return state


@inline
def _mix(upper: np.uint32, lower: np.uint32) -> np.uint32:
    """Return the part of a new word that its two old neighbours decide."""
    joined = np.uint32((upper & _UPPER) | (lower & _LOWER))
    # The product selects the matrix row without a branch, so that the loops below vectorise.
    return np.uint32(np.uint32(joined >> _ONE) ^ np.uint32(np.uint32(lower & _ONE) * _MATRIX))


@inline
def _temper(word: np.uint32) -> np.uint32:
    """Return the word that the generator hands out for a key word."""
    word = np.uint32(word ^ np.uint32(word >> np.uint32(11)))
    word = np.uint32(word ^ np.uint32(np.uint32(word << np.uint32(7)) & np.uint32(0x9D2C5680)))
    word = np.uint32(word ^ np.uint32(np.uint32(word << np.uint32(15)) & np.uint32(0xEFC60000)))
    return np.uint32(word ^ np.uint32(word >> np.uint32(18)))


@jit
def twist(state: UInt32Array) -> None:
    """Replace the key of a state by the next generation, of which no word is drawn yet.

    Parameters
    ----------
    state
        Shape (625,), uint32; changed in place.

    Notes
    -----
    Law: 624 calls of `next_words` for one word each twist once. Cost: 624 steps, vectorised.
    Source: mt19937ar.c, ``genrand_int32``.

    Examples
    --------
    >>> state = seed_state(1234)
    >>> twist(state)
    >>> state[0], state[-1]
    (np.uint32(2260313690), np.uint32(0))
    """
    for k in range(KEY_LENGTH - _SHIFT):
        state[k] = state[k + _SHIFT] ^ _mix(state[k], state[k + 1])
    for k in range(KEY_LENGTH - _SHIFT, KEY_LENGTH - 1):
        state[k] = state[k + _SHIFT - KEY_LENGTH] ^ _mix(state[k], state[k + 1])
    state[KEY_LENGTH - 1] = state[_SHIFT - 1] ^ _mix(state[KEY_LENGTH - 1], state[0])
    state[KEY_LENGTH] = 0


@jit
def temper_words(state: UInt32Array, start: int, out: UInt32Array) -> None:
    """Write the words that a generation hands out from ``start`` on, without drawing them.

    Parameters
    ----------
    state
        Shape (625,), uint32; only read.
    start
        First key word, 0 to 624 - len(out).
    out
        Shape (words,), uint32; filled.

    Notes
    -----
    Law: word k depends on key word ``start + k`` alone. Cost: O(words), vectorised.
    Source: mt19937ar.c, ``genrand_int32``.

    Examples
    --------
    >>> out = np.empty(2, np.uint32)
    >>> state = seed_state(1234); twist(state); temper_words(state, 0, out)
    >>> out
    array([ 822569775, 2137449171], dtype=uint32)
    """
    for k in range(out.size):
        out[k] = _temper(state[start + k])


@jit
def next_words(state: UInt32Array, out: UInt32Array) -> None:
    """Fill ``out`` with the next words of the generator and advance its state past them.

    Parameters
    ----------
    state
        Shape (625,), uint32, from `seed_state`; advanced in place.
    out
        Shape (words,), uint32; filled.

    Notes
    -----
    Law: two calls give the words of one call for the sum of their lengths. Cost: O(words), well
    under a nanosecond each.
    Source: mt19937ar.c, ``genrand_int32``; ``numpy.random.MT19937.random_raw``.

    Examples
    --------
    >>> out = np.empty(3, np.uint32)
    >>> next_words(seed_state(1234), out)
    >>> out
    array([ 822569775, 2137449171, 2671936806], dtype=uint32)
    """
    filled = 0
    while filled < out.size:
        drawn: Any = np.int64(state[KEY_LENGTH])
        if drawn >= KEY_LENGTH:
            twist(state)
            drawn = 0
        count = min(KEY_LENGTH - drawn, out.size - filled)
        temper_words(state, drawn, out[filled : filled + count])
        filled += count
        state[KEY_LENGTH] = drawn + count
