"""The MT19937 word stream of ``numpy.random.RandomState``, with an array as its state.

It generates 32-bit words; `legacy_shuffle` and `random_draws` use them.
"""

import operator

import numpy as np

from zindex.arrays import UInt32Array
from zindex.errors import ConfigError
from zindex.kernels._jit import inline, jit

#: Words of one generation.
KEY_LENGTH = 624

#: Words of a state: the key, then the number of its words that have been drawn.
STATE_LENGTH = KEY_LENGTH + 1

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
    Law: equal to the key and position of ``RandomState(seed).get_state()``, from
    ``init_genrand`` of Matsumoto and Nishimura, mt19937ar.c (2002).

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
    _, key, num_drawn, *_ = np.random.RandomState(value).get_state()
    return np.append(key, np.uint32(num_drawn))


@inline
def _mix(upper: np.uint32, lower: np.uint32) -> np.uint32:
    """Return the part of a new word that depends on its two old neighbours."""
    joined = np.uint32((upper & _UPPER) | (lower & _LOWER))
    # The product selects the matrix row without a branch, so that loops vectorise.
    return np.uint32(np.uint32(joined >> _ONE) ^ np.uint32(np.uint32(lower & _ONE) * _MATRIX))


@inline
def _temper(word: np.uint32) -> np.uint32:
    """Return the output word of a key word."""
    word = np.uint32(word ^ np.uint32(word >> np.uint32(11)))
    word = np.uint32(word ^ np.uint32(np.uint32(word << np.uint32(7)) & np.uint32(0x9D2C5680)))
    word = np.uint32(word ^ np.uint32(np.uint32(word << np.uint32(15)) & np.uint32(0xEFC60000)))
    return np.uint32(word ^ np.uint32(word >> np.uint32(18)))


@jit
def twist(state: UInt32Array) -> None:
    """Replace the key of a state by the next generation, with no word drawn.

    Parameters
    ----------
    state
        Shape (625,), uint32; changed in place.

    Notes
    -----
    Law: each generation has 624 words. Cost: 624 steps, vectorised.
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
def temper_words(state: UInt32Array, start: int | np.int64, out: UInt32Array) -> None:
    """Write the output words of a generation from ``start`` on, without drawing them.

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
    Law: word k depends only on key word ``start + k``. Cost: O(words), vectorised.
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
