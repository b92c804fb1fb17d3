"""The word stream of a state of `zindex.kernels.mersenne`, for tests."""

from typing import Any

import numpy as np

from zindex.kernels.mersenne import KEY_LENGTH, temper_words, twist


def next_words(state: Any, out: Any) -> None:
    """Fill ``out`` with the next words of the generator, and advance its state."""
    filled = 0
    while filled < out.size:
        drawn = int(state[KEY_LENGTH])
        if drawn >= KEY_LENGTH:
            twist(state)
            drawn = 0
        count = min(KEY_LENGTH - drawn, out.size - filled)
        temper_words(state, drawn, out[filled : filled + count])
        filled += count
        state[KEY_LENGTH] = drawn + count


def numpy_state(generator):
    """Return the state of a generator of numpy as ``seed_state`` gives it."""
    _, key, position = generator.get_state()[:3]
    return np.append(key, np.uint32(position)).astype(np.uint32)
