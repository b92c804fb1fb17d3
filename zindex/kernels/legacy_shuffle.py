"""``numpy.random.RandomState.shuffle``, bit for bit, many times faster on large arrays.

The draws of a shuffle do not depend on its swaps. So the targets of a few thousand swaps are drawn
first, without a branch per word, and their cache lines are prefetched. `bijection` has the keyed
shuffle of the ``scalable`` order.
"""

from typing import Any

import numpy as np

from zindex.arrays import IntegerArray, UInt32Array, UInt64Array
from zindex.kernels._jit import jit, prefetch
from zindex.kernels.mersenne import KEY_LENGTH, temper_words, twist

#: Targets drawn at a time: 32 KiB, which fit the first-level cache.
BLOCK = 4096

#: Swaps between the prefetch of a target and its use; 96 to 256 measure the same.
AHEAD = 128


@jit
def draw_targets(state: UInt32Array, words: UInt32Array, first: int, targets: UInt64Array) -> None:
    """Draw the swap targets of positions ``first``, ``first - 1``, ... as numpy does.

    Parameters
    ----------
    state
        Shape (625,), uint32; advanced in place.
    words
        Shape (624,), uint32: output words of the state's generation; updated with it.
    first
        Position of the first target; at least ``len(targets)``, so that the last is >= 1.
    targets
        Shape (positions,), uint64; filled: target k lies in ``[0, first - k]``.

    Notes
    -----
    Law: target k is the next masked word that is <= first - k. Cost: 1 to 2 words per target,
    without a branch per word. Positions above 2**32 - 1 take two words, the first one high.
    Source: numpy ``legacy-distributions.c`` and ``distributions.c``, ``random_interval``.

    Examples
    --------
    >>> from zindex.kernels.mersenne import seed_state
    >>> state, words = seed_state(1234), np.empty(624, np.uint32)
    >>> targets = np.empty(3, np.uint64)
    >>> draw_targets(state, words, 9, targets)
    >>> targets
    array([3, 6, 5], dtype=uint64)
    """
    position = np.uint64(first)
    filled: Any = 0
    drawn: Any = np.int64(state[KEY_LENGTH])
    while filled < targets.size:
        mask = np.uint64(1)
        while mask < position:
            mask = (mask << np.uint64(1)) | np.uint64(1)
        if position > np.uint64(0xFFFFFFFF):
            wide = np.uint64(0)
            for _ in range(2):
                if drawn >= KEY_LENGTH:
                    twist(state)
                    temper_words(state, np.int64(0), words)
                    drawn = 0
                wide = (wide << np.uint64(32)) | np.uint64(words[drawn])
                drawn += 1
            targets[filled] = wide & mask
            accepted = np.uint64((wide & mask) <= position)
            filled += np.int64(accepted)
            position -= accepted
            continue
        if drawn >= KEY_LENGTH:
            twist(state)
            temper_words(state, np.int64(0), words)
            drawn = 0
        # Each word is accepted at most once, so this many cannot overrun words, targets or mask.
        same_mask = np.int64(position - (mask >> np.uint64(1)))
        count = min(KEY_LENGTH - drawn, targets.size - filled, same_mask)
        for k in range(drawn, drawn + count):
            target = np.uint64(words[k]) & mask
            targets[filled] = target
            accepted = np.uint64(target <= position)
            filled += np.int64(accepted)
            position -= accepted
        drawn += count
    state[KEY_LENGTH] = drawn


@jit
def swap_targets(values: IntegerArray, position: int, targets: UInt64Array) -> None:
    """Swap the values at a position and below with their targets, in this order.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype.
    position
        Position of the first target; the next ones are ``position - 1``, ...
    targets
        Shape (swaps,), uint64.
    """
    for target in targets[:AHEAD]:
        prefetch(values, target)
    for k in range(targets.size):
        prefetch(values, targets[min(k + AHEAD, targets.size - 1)])
        target = targets[k]
        value = values[np.uint64(position)]
        values[np.uint64(position)] = values[target]
        values[target] = value
        position -= 1


@jit
def _shuffle(
    values: IntegerArray, first: int, state: UInt32Array, words: UInt32Array, targets: UInt64Array
) -> None:
    """Shuffle in numpy's order of swaps; ``targets`` is scratch memory for one block."""
    position = values.size - 1
    while position >= first:
        block = targets[: min(position - first + 1, targets.size)]
        draw_targets(state, words, position, block)
        swap_targets(values, position, block)
        position -= block.size


def legacy_shuffle(values: IntegerArray, state: UInt32Array, first: int = 0) -> None:
    """Shuffle values in place exactly as ``RandomState.shuffle`` does, and advance the state.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype, contiguous; shuffled in place.
    state
        Shape (625,), uint32, from `mersenne.seed_state`; advanced exactly as numpy advances it.
    first
        Stop once the values from here on are final; another call with ``values[:first]`` continues.

    Notes
    -----
    Law: values and state equal numpy's, also over several shuffles with one state. Cost:
    O(elements) time, about a tenth of numpy's at 10**8 elements; 35 KiB of extra memory.
    Source: numpy ``RandomState.shuffle`` (``numpy/random/mtrand.pyx``).

    Examples
    --------
    >>> from zindex.kernels.mersenne import seed_state
    >>> values = np.arange(10)
    >>> legacy_shuffle(values, seed_state(1234))
    >>> values
    array([7, 2, 9, 1, 0, 8, 4, 5, 6, 3])
    """
    words = np.empty(KEY_LENGTH, np.uint32)
    temper_words(state, 0, words)
    # Swaps need no sign: half as many versions are compiled.
    signed = values.view(f"i{values.itemsize}")
    _shuffle(signed, max(first, 1), state, words, np.empty(BLOCK, np.uint64))
