"""``numpy.random.RandomState.shuffle``, bit for bit, but in passes that stay inside the caches.

The draws of a shuffle do not depend on its swaps, so the targets of many swaps are known ahead.
`legacy_shuffle` orders the swaps by the region of memory they touch, without changing the result.
The exactly uniform shuffle of the ``scalable`` order is not here.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.kernels._jit import jit
from zindex.kernels.mersenne import (
    KEY_LENGTH,
    UInt32Array,
    temper_words,
    twist,
)

IntegerArray = npt.NDArray[np.integer[Any]]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_BLOCK = 2048
"""Targets drawn at a time: 16 KiB, which stay in the first-level cache."""


class Passes(NamedTuple):
    """How the swaps of one large shuffle are grouped; any choice gives the same result."""

    region_bits: int
    """A region, the unit that is swapped inside a cache, holds ``2**region_bits`` elements."""
    phase_regions: int
    """Regions whose own swaps are collected before the regions below are visited."""
    plain_regions: int
    """Lowest regions, which together fit a cache and are shuffled in plain order."""
    segment_bits: int
    """Letters to one region are kept in segments of ``2**segment_bits``."""


def choose_passes(size: int) -> Passes | None:
    """Return how a shuffle of ``size`` elements is grouped, or None if plain order is as fast.

    Parameters
    ----------
    size
        Number of elements.

    Returns
    -------
    passes
        The grouping; its phases keep the extra memory near a third of the array's.

    Notes
    -----
    Law: the result of a shuffle does not depend on the grouping. Cost: O(1).

    Examples
    --------
    >>> choose_passes(1000) is None
    True
    >>> choose_passes(10**8)
    Passes(region_bits=18, phase_regions=63, plain_regions=4, segment_bits=8)
    """
    if size < 2**21:
        return None
    region_bits = 18
    phase = min(max(size // 6, 2**20), 2**27)
    return Passes(region_bits, phase >> region_bits, 4, 8)


@jit
def draw_targets(state: UInt32Array, words: UInt32Array, first: int, targets: UInt64Array) -> None:
    """Draw the swap targets of positions ``first``, ``first - 1``, ... in numpy's way.

    Parameters
    ----------
    state
        Shape (625,), uint32; advanced in place.
    words
        Shape (624,), uint32: the tempered words of the state's generation; kept so.
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
                    temper_words(state, 0, words)
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
            temper_words(state, 0, words)
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
def _shuffle_plain(
    values: IntegerArray, count: int, state: UInt32Array, words: UInt32Array, targets: UInt64Array
) -> None:
    """Shuffle the first ``count`` values in numpy's order of swaps."""
    position = count - 1
    while position > 0:
        block = targets[: min(position, targets.size)]
        draw_targets(state, words, position, block)
        for target in block:
            value = values[np.uint64(position)]
            values[np.uint64(position)] = values[target]
            values[target] = value
            position -= 1


@jit
def _deliver(
    values: IntegerArray,
    region: int,
    region_bits: int,
    segment_bits: int,
    letters: IntegerArray,
    addresses: IntegerArray,
    ends: UInt64Array,
    heads: Int64Array,
    links: Int64Array,
) -> None:
    """Swap every letter sent to a region with the value at its address, in order of sending."""
    segment = heads[region]
    base = np.uint64(region) << np.uint64(region_bits)
    while segment >= 0:
        start = segment << segment_bits
        stop = start + (1 << segment_bits)
        if links[segment] < 0:
            stop = np.int64(ends[region])
        for slot in range(start, stop):
            target = base + np.uint64(addresses[slot])
            value = values[target]
            values[target] = letters[slot]
            letters[slot] = value
        segment = links[segment]


@jit
def _send(
    values: IntegerArray,
    position: int,
    targets: UInt64Array,
    region_bits: int,
    segment_bits: int,
    letters: IntegerArray,
    addresses: IntegerArray,
    ends: UInt64Array,
    links: Int64Array,
    used: int,
) -> int:
    """Post the values at one region's positions to the regions of their targets."""
    bits = np.uint64(region_bits)
    low = (np.uint64(1) << bits) - np.uint64(1)
    full = (np.uint64(1) << np.uint64(segment_bits)) - np.uint64(1)
    own = np.uint64(position) >> bits
    for target in targets:
        here = np.uint64(position)
        region = target >> bits
        carried = values[here]
        if region == own:
            # Both ends lie in this region: swap now; the letter already holds the final value.
            other = values[target]
            values[target] = carried
            carried = other
        slot = ends[region]
        letters[slot] = carried
        addresses[slot] = target & low
        values[here] = slot
        slot += np.uint64(1)
        if slot & full == np.uint64(0):
            links[np.int64(slot >> np.uint64(segment_bits)) - 1] = used
            slot = np.uint64(used) << np.uint64(segment_bits)
            links[used] = -1
            used += 1
        ends[region] = slot
        position -= 1
    return used


@jit
def _shuffle_phase(
    values: IntegerArray,
    start: int,
    stop: int,
    region_bits: int,
    segment_bits: int,
    letters: IntegerArray,
    addresses: IntegerArray,
    state: UInt32Array,
    words: UInt32Array,
    targets: UInt64Array,
) -> None:
    """Do the swaps of positions ``stop - 1`` down to ``start``, both multiples of a region.

    A swap moves the value at its position into its target and never touches the position again, so
    the value can travel as a letter. Letters to one region keep their order, which is all that
    the result depends on: regions are visited from the top, after all that is sent to them.
    """
    num_regions = ((stop - 1) >> region_bits) + 1
    lowest = start >> region_bits
    heads = np.arange(num_regions)
    ends = np.arange(num_regions).astype(np.uint64) << np.uint64(segment_bits)
    links = np.full(letters.size >> segment_bits, -1)
    used = num_regions
    for region in range(num_regions - 1, lowest - 1, -1):
        _deliver(values, region, region_bits, segment_bits, letters, addresses, ends, heads, links)
        position = min(stop, (region + 1) << region_bits) - 1
        last = max(region << region_bits, 1)
        while position >= last:
            block = targets[: min(position - last + 1, targets.size)]
            draw_targets(state, words, position, block)
            used = _send(
                values, position, block, region_bits, segment_bits, letters, addresses, ends,
                links, used,
            )  # fmt: skip
            position -= block.size
    for region in range(lowest - 1, -1, -1):
        _deliver(values, region, region_bits, segment_bits, letters, addresses, ends, heads, links)
    for position in range(max(start, 1), stop):
        values[position] = letters[np.uint64(values[position])]


def shuffle_in_passes(values: IntegerArray, state: UInt32Array, passes: Passes) -> None:
    """Shuffle like `legacy_shuffle`, grouped as given; for values of four bytes or more.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype of 32 or 64 bits; shuffled in place.
    state
        Shape (625,), uint32; advanced in place.
    passes
        The grouping, which decides the time and the memory but not the result.

    Notes
    -----
    Law: equal to `legacy_shuffle` for every grouping. Cost: O(elements) time; one phase of
    letters, twice the item size for each of its elements.

    Examples
    --------
    >>> from zindex.kernels.mersenne import seed_state
    >>> values = np.arange(10)
    >>> shuffle_in_passes(values, seed_state(1234), Passes(1, 2, 1, 1))
    >>> values
    array([7, 2, 9, 1, 0, 8, 4, 5, 6, 3])
    """
    words = np.empty(KEY_LENGTH, np.uint32)
    temper_words(state, 0, words)
    targets = np.empty(_BLOCK, np.uint64)
    bits = passes.region_bits
    plain = min(passes.plain_regions << bits, values.size)
    phase = passes.phase_regions << bits
    stop = values.size
    letters = addresses = np.empty(0, values.dtype)
    while stop > plain:
        start = max(plain, (((stop - 1) >> bits) + 1 << bits) - phase)
        # Each region may leave one segment unfilled.
        open_segments = (((stop - 1) >> bits) + 1) << passes.segment_bits
        if letters.size == 0:
            num_slots = (phase + open_segments) + (2 << passes.segment_bits)
            letters = np.empty(num_slots, values.dtype)
            addresses = np.empty(num_slots, np.uint32)
        _shuffle_phase(
            values, start, stop, bits, passes.segment_bits, letters, addresses, state, words,
            targets,
        )  # fmt: skip
        stop = start
    _shuffle_plain(values, plain, state, words, targets)


def legacy_shuffle(values: IntegerArray, state: UInt32Array) -> None:
    """Shuffle values in place exactly as ``RandomState.shuffle`` does, and advance the state.

    Parameters
    ----------
    values
        Shape (elements,), any integer dtype; shuffled in place.
    state
        Shape (625,), uint32, from `mersenne.seed_state`; advanced exactly as numpy advances it.

    Notes
    -----
    Law: values and state equal numpy's, also over several shuffles with one state. Cost:
    O(elements) time; from 2**21 elements on, extra memory of about a third of the array's.
    Source: numpy ``_legacy`` ``RandomState.shuffle``; the grouping is this module's own.

    Examples
    --------
    >>> from zindex.kernels.mersenne import seed_state
    >>> values = np.arange(10)
    >>> legacy_shuffle(values, seed_state(1234))
    >>> values
    array([7, 2, 9, 1, 0, 8, 4, 5, 6, 3])
    """
    passes = choose_passes(values.size) if values.itemsize >= 4 else None
    if passes is not None:
        shuffle_in_passes(values, state, passes)
        return
    words = np.empty(KEY_LENGTH, np.uint32)
    temper_words(state, 0, words)
    _shuffle_plain(values, values.size, state, words, np.empty(_BLOCK, np.uint64))


def draw_only(count: int, state: UInt32Array) -> None:
    """Advance a state exactly as shuffling ``count`` elements would, without any elements.

    Parameters
    ----------
    count
        Number of elements, >= 0.
    state
        Shape (625,), uint32; advanced in place.

    Notes
    -----
    Law: the state afterwards equals that of `legacy_shuffle` of ``count`` elements. Cost: 1 to 2
    words per element, constant memory.

    Examples
    --------
    >>> from zindex.kernels.mersenne import seed_state
    >>> skipped, shuffled = seed_state(7), seed_state(7)
    >>> draw_only(100, skipped)
    >>> legacy_shuffle(np.arange(100), shuffled)
    >>> bool((skipped == shuffled).all())
    True
    """
    words = np.empty(KEY_LENGTH, np.uint32)
    temper_words(state, 0, words)
    _draw_all(count, state, words, np.empty(_BLOCK, np.uint64))


@jit
def _draw_all(count: int, state: UInt32Array, words: UInt32Array, targets: UInt64Array) -> None:
    """Draw and forget the targets of a shuffle of ``count`` elements."""
    position = count - 1
    while position > 0:
        block = targets[: min(position, targets.size)]
        draw_targets(state, words, position, block)
        position -= block.size
