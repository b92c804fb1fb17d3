"""Single draws of ``numpy.random.RandomState`` for kernels, bit for bit.

`mersenne` has the word stream, `legacy_shuffle` shuffles of large arrays.
"""

import math
from typing import Any

import numpy as np

from zindex.arrays import IntegerArray, UInt32Array, UInt64Array
from zindex.kernels._jit import jit
from zindex.kernels.legacy_shuffle import draw_targets
from zindex.kernels.mersenne import KEY_LENGTH, STATE_LENGTH, temper_words, twist

#: Words of a generator: a state of `mersenne`, then the output words of its generation.
MEMORY_LENGTH = STATE_LENGTH + KEY_LENGTH

_TWO_TO_26 = 67108864.0
_TWO_TO_MINUS_53 = 1.0 / 9007199254740992.0


@jit
def seed_draws(seed: int, memory: UInt32Array) -> None:
    """Seed a generator as ``RandomState(seed)``.

    Parameters
    ----------
    seed
        0 to 2**32 - 1.
    memory
        Shape (MEMORY_LENGTH,), uint32; filled.

    Notes
    -----
    Law: the state equals that of `mersenne.seed_state`. Cost: 624 sequential steps.
    Source: mt19937ar.c, ``init_genrand``.

    Examples
    --------
    >>> memory = np.empty(MEMORY_LENGTH, np.uint32)
    >>> seed_draws(1234, memory)
    >>> draw_word(memory)
    822569775
    """
    value = np.uint64(seed)
    for position in range(KEY_LENGTH):
        memory[position] = np.uint32(value)
        value = np.uint64(1812433253) * (value ^ (value >> np.uint64(30)))
        value = (value + np.uint64(position + 1)) & np.uint64(0xFFFFFFFF)
    memory[KEY_LENGTH] = KEY_LENGTH


@jit
def draw_word(memory: UInt32Array) -> int:
    """Return the next 32-bit word.

    Parameters
    ----------
    memory
        Shape (MEMORY_LENGTH,), uint32, from `seed_draws`; advanced.
    """
    drawn: Any = np.int64(memory[KEY_LENGTH])
    if drawn >= KEY_LENGTH:
        twist(memory[:STATE_LENGTH])
        temper_words(memory[:STATE_LENGTH], np.int64(0), memory[STATE_LENGTH:])
        drawn = np.int64(0)
    memory[KEY_LENGTH] = drawn + 1
    return int(memory[STATE_LENGTH + drawn])


@jit
def draw_double(memory: UInt32Array) -> float:
    """Draw as ``random()``: a number in [0, 1), from two words.

    Parameters
    ----------
    memory
        Shape (MEMORY_LENGTH,), uint32, from `seed_draws`; advanced.

    Notes
    -----
    Source: mt19937ar.c, ``genrand_res53``.

    Examples
    --------
    >>> memory = np.empty(MEMORY_LENGTH, np.uint32)
    >>> seed_draws(1234, memory)
    >>> draw_double(memory)
    0.1915194503788923
    """
    drawn: Any = np.int64(memory[KEY_LENGTH])
    if drawn < KEY_LENGTH - 1:  # the common case, in a third of the time
        memory[KEY_LENGTH] = drawn + 2
        words = memory[STATE_LENGTH + drawn : STATE_LENGTH + drawn + 2]
        high, low = int(words[0]) >> 5, int(words[1]) >> 6
    else:
        high, low = draw_word(memory) >> 5, draw_word(memory) >> 6
    return (high * _TWO_TO_26 + low) * _TWO_TO_MINUS_53


@jit
def draw_up_to(maximum: int, memory: UInt32Array) -> int:
    """Draw as ``randint(0, maximum + 1)`` and as the swap targets of a shuffle.

    Parameters
    ----------
    maximum
        0 to 2**32 - 1; 0 draws nothing.
    memory
        Shape (MEMORY_LENGTH,), uint32, from `seed_draws`; advanced.

    Notes
    -----
    Law: the next word that is <= maximum under the smallest mask that covers it.
    Source: numpy ``distributions.c``, ``random_interval`` and ``buffered_bounded_masked_uint32``.
    """
    if maximum == 0:
        return 0
    mask = 1
    while mask < maximum:
        mask = (mask << 1) | 1
    value = draw_word(memory) & mask
    while value > maximum:
        value = draw_word(memory) & mask
    return value


@jit
def draw_geometric(probability: float, memory: UInt32Array) -> int:
    """Draw as ``geometric(probability)`` for probabilities below 1/3.

    Parameters
    ----------
    probability
        Probability of each trial; numpy uses another algorithm from 1/3 on.
    memory
        Shape (MEMORY_LENGTH,), uint32, from `seed_draws`; advanced.

    Notes
    -----
    Source: numpy ``legacy-distributions.c``, ``legacy_geometric_inversion``.
    """
    trials = math.log1p(-draw_double(memory)) / math.log(1.0 - probability)
    return math.ceil(trials)


@jit
def draw_shuffle(values: IntegerArray, memory: UInt32Array, targets: UInt64Array) -> None:
    """Shuffle a few values as ``shuffle``; `legacy_shuffle` is for many.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype; shuffled in place.
    memory
        Shape (MEMORY_LENGTH,), uint32, from `seed_draws`; advanced.
    targets
        Shape (elements or more,), uint64: scratch memory for the swap targets.
    """
    last = values.size - 1
    if last < 1:
        return
    draw_targets(memory[:STATE_LENGTH], memory[STATE_LENGTH:], last, targets[:last])
    for k in range(last):
        other = targets[k]
        value = values[last - k]
        values[last - k] = values[other]
        values[other] = value
