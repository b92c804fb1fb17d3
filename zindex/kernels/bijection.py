"""A keyed bijection of ``[0, size)``: any element of a shuffled order in O(1).

The map is a frozen format, ``BIJECTION_VERSION``: its values are part of index fingerprints, and
tests compare them with golden digests. The caller derives keys from seeds.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int64Array, IntegerArray, UInt32Array, UInt64Array
from zindex.errors import PlanError
from zindex.kernels._jit import NUM_WORDS, add_round, jit, load_lanes, store_lanes
from zindex.kernels.numpy_budget import use_numpy

#: Version of the map, increased if any value of any permutation changes.
BIJECTION_VERSION = 1

#: Round keys of a permutation; sizes from ``2**16`` on use only the first twelve.
NUM_ROUNDS = 32

#: Dtype of round keys: ``SeedSequence(...).generate_state(NUM_ROUNDS, KEY_DTYPE)`` gives them.
KEY_DTYPE = np.dtype(np.uint64)

#: Largest size: halves, and sums of two, fit in 32 unsigned bits.
MAX_SIZE = 2**62

# Measured over 10**6 keys: all orders of 2 to 8 elements become equally likely between 16 and 24
# rounds, four elements of 9 or more between 8 and 12.
_SMALL_SIZE = 2**16
_LARGE_ROUNDS = 12

#: Positions evaluated at a time: two halves of 4 KiB, which fit the first-level cache.
_BLOCK = 1024
_WORD = 0xFFFFFFFF
# Values that numpy maps in the time of a call.
_CALL_VALUES = 1 << 11


class _Network(NamedTuple):
    """A generalised Feistel network of two halves."""

    size: np.uint64
    #: Radices of the halves; their product is at least the size.
    high_radix: np.uint32
    low_radix: np.uint32
    #: Shape (rounds,).
    keys: UInt64Array


def _choose_network(size: int, keys: UInt64Array) -> tuple[Any, ...]:
    """Return the fields of a permutation's network, after checking its size and keys."""
    if not 0 <= size <= MAX_SIZE:
        raise PlanError(
            f"a permutation must have a size in [0, 2**62], got {size}; split the dataset"
        )
    if keys.shape != (NUM_ROUNDS,) or keys.dtype != KEY_DTYPE:
        raise PlanError(
            f"a permutation needs {NUM_ROUNDS} round keys of {KEY_DTYPE}, got shape {keys.shape} "
            f"of {keys.dtype}; make them with SeedSequence.generate_state"
        )
    high = math.isqrt(max(size - 1, 0)) + 1
    # Two odd radices would generate even permutations only.
    high += high % 2
    low = max(1, -(-size // high))
    rounds = keys if size < _SMALL_SIZE else keys[:_LARGE_ROUNDS]
    return np.uint64(size), np.uint32(high), np.uint32(low), rounds


@jit
def _evaluate(high: UInt32Array, low: UInt32Array, count: int, network: _Network) -> None:
    """Replace ``count`` pairs of halves by their images, and the rest of the last vector."""
    for k in range(0, count, NUM_WORDS):
        upper, lower = load_lanes(high, k), load_lanes(low, k)
        for number in range(0, network.keys.size, 2):
            even, odd = network.keys[np.uint64(number)], network.keys[np.uint64(number + 1)]
            upper = add_round(upper, lower, even, network.high_radix)
            lower = add_round(lower, upper, odd, network.low_radix)
        store_lanes(high, k, upper)
        store_lanes(low, k, lower)


@jit
def _finish(
    high: UInt32Array, low: UInt32Array, network: _Network, offset: int, out: IntegerArray
) -> None:
    """Evaluate one block of halves and write the combined values."""
    _evaluate(high, low, out.size, network)
    radix, size = np.uint64(network.low_radix), network.size
    shift = np.uint64(offset)
    outside: Any = 0
    for k in range(out.size):
        value = np.uint64(high[k]) * radix + np.uint64(low[k])
        outside += np.int64(value >= size)
        out[k] = np.int64(value + shift)
    if not outside:
        return
    # Follow the cycles of values outside together, until none is left.
    index, count = np.arange(out.size), out.size
    while outside:
        outside = np.int64(0)
        for k in range(count):
            value = np.uint64(high[k]) * radix + np.uint64(low[k])
            if value >= size:
                high[outside], low[outside], index[outside] = high[k], low[k], index[k]
                outside += 1
            else:
                out[index[k]] = np.int64(value + shift)
        _evaluate(high, low, outside, network)
        count = outside


@jit
def _map_range(start: int, offset: int, out: IntegerArray, *fields: Any) -> None:
    """Write the images of consecutive positions, without divisions."""
    network = _Network(*fields)
    high, low = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    low_radix = network.low_radix
    upper = np.uint32(np.uint64(start) // np.uint64(low_radix))
    lower = np.uint32(np.uint64(start) % np.uint64(low_radix))
    for first in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - first)
        filled = 0
        while filled < count:
            run: Any = min(count - filled, np.int64(low_radix) - np.int64(lower))
            for k in range(run):
                at = np.uint64(filled + k)  # Negative indices would need a check.
                high[at] = upper
                low[at] = np.uint32(lower + np.uint32(k))
            filled += run
            lower = np.uint32(lower + np.uint32(run))
            if lower == low_radix:
                lower = np.uint32(0)
                upper = np.uint32(upper + np.uint32(1))
        _finish(high, low, network, offset, out[first : first + count])


@jit
def _map_each(values: IntegerArray, out: Int64Array, *fields: Any) -> None:
    """Write the images of arbitrary values."""
    network = _Network(*fields)
    high, low = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    radix = np.uint64(network.low_radix)
    for first in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - first)
        for k in range(count):
            value = np.uint64(values[first + k])
            quotient = value // radix
            high[k] = np.uint32(quotient)
            low[k] = np.uint32(value - quotient * radix)
        _finish(high, low, network, 0, out[first : first + count])


def _map_few(
    values: UInt64Array, size: np.uint64, high_radix: np.uint32, low_radix: np.uint32, keys: Any
) -> UInt64Array:
    """Return the images of values, by numpy."""
    radices = np.uint64(high_radix), np.uint64(low_radix)
    halves = list(np.divmod(values, radices[1]))
    for number, key in enumerate(keys):
        side = number % 2
        word = (halves[1 - side] ^ key) & _WORD
        word = (word ^ word >> 16) * 0x85EBCA6B & _WORD
        word = word + (key >> 32) & _WORD
        word = (word ^ word >> 13) * 0xC2B2AE35 & _WORD
        total = halves[side] + ((word ^ word >> 16) * radices[side] >> 32)
        halves[side] = np.minimum(total, total - radices[side])
    images: UInt64Array = halves[0] * radices[1] + halves[1]
    outside = images >= size
    if outside.any():
        images[outside] = _map_few(images[outside], size, high_radix, low_radix, keys)
    return images


def _unmap_few(
    values: UInt64Array, size: np.uint64, high_radix: np.uint32, low_radix: np.uint32, keys: Any
) -> UInt64Array:
    """Return the preimages of values, by numpy: the rounds of `_map_few`, undone last to first."""
    radices = np.uint64(high_radix), np.uint64(low_radix)
    halves = list(np.divmod(values, radices[1]))
    for number, key in reversed(list(enumerate(keys))):
        side = number % 2
        word = (halves[1 - side] ^ key) & _WORD
        word = (word ^ word >> 16) * 0x85EBCA6B & _WORD
        word = word + (key >> 32) & _WORD
        word = (word ^ word >> 13) * 0xC2B2AE35 & _WORD
        rest = halves[side] - ((word ^ word >> 16) * radices[side] >> 32)
        halves[side] = np.minimum(rest, rest + radices[side])
    originals: UInt64Array = halves[0] * radices[1] + halves[1]
    outside = originals >= size
    if outside.any():
        originals[outside] = _unmap_few(originals[outside], size, high_radix, low_radix, keys)
    return originals


def permute_range(start: int, size: int, keys: UInt64Array, offset: int, out: IntegerArray) -> None:
    """Write the images of ``start``, ``start + 1``, ... under the permutation, plus an offset.

    Parameters
    ----------
    start
        First position; ``start + len(out)`` is at most ``size``.
    size
        Number of elements permuted, 0 to 2**62.
    keys
        Shape (NUM_ROUNDS,), uint64, independent of one another, as ``SeedSequence`` makes them
        (keys that differ in their first round alone give orders that agree in some places).
    offset
        Added to each image, so that a range ``[offset, offset + size)`` can be shuffled.
    out
        Shape (positions,), int32, uint32 or int64, wide enough for ``offset + size - 1``; filled.

    Raises
    ------
    PlanError
        If the range leaves ``[0, size)``, or the size or the keys are not as above.

    Notes
    -----
    Law: equal to `permute` of the positions, for any division into ranges. Cost: O(positions), a
    few nanoseconds each; constant memory.
    Source: generalised Feistel network on ``Z_a x Z_b`` with cycle walking: Black and Rogaway,
    "Ciphers with arbitrary finite domains" (2002); the finaliser of MurmurHash3 (Appleby).

    Examples
    --------
    >>> keys = np.arange(NUM_ROUNDS, dtype=np.uint64)
    >>> out = np.empty(5, np.int64)
    >>> permute_range(0, 5, keys, 100, out)
    >>> sorted(out.tolist())
    [100, 101, 102, 103, 104]
    """
    network = _choose_network(size, keys)
    if not 0 <= start <= start + out.size <= size:
        raise PlanError(
            f"positions must lie in [0, {size}), got [{start}, {start + out.size}); "
            "ask for a range inside the permutation"
        )
    if use_numpy(_CALL_VALUES + out.size):
        values = np.arange(start, start + out.size, dtype=np.uint64)
        out[:] = _map_few(values, *network) + np.uint64(offset)
        return
    # Unsigned values have the same bits: fewer versions are compiled.
    _map_range(start, offset, out.view(f"i{out.itemsize}"), *network)


def permute(positions: IntegerArray, size: int, keys: UInt64Array) -> Int64Array:
    """Return the images of positions under the permutation.

    Parameters
    ----------
    positions
        Shape (positions,), any integer dtype; each in ``[0, size)``.
    size
        Number of elements permuted, 0 to 2**62.
    keys
        Shape (NUM_ROUNDS,), uint64.

    Returns
    -------
    values
        Shape (positions,), int64; each in ``[0, size)``.

    Raises
    ------
    PlanError
        If a position leaves ``[0, size)``, or the size or the keys are not as above.

    Notes
    -----
    Law: a bijection of ``[0, size)``. Cost: O(positions).
    Source: see `permute_range`.

    Examples
    --------
    >>> keys = np.arange(NUM_ROUNDS, dtype=np.uint64)
    >>> sorted(permute(np.arange(7), 7, keys).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    network = _choose_network(size, keys)
    _check_elements(positions, size)
    if use_numpy(_CALL_VALUES + positions.size):
        return _map_few(positions.astype(np.uint64), *network).astype(np.int64)
    out = np.empty(positions.size, np.int64)
    _map_each(positions, out, *network)
    return out


def unpermute(values: IntegerArray, size: int, keys: UInt64Array) -> Int64Array:
    """Return the positions that the permutation maps to given values: the inverse of `permute`.

    Parameters
    ----------
    values
        Shape (values,), any integer dtype; each in ``[0, size)``.
    size
        Number of elements permuted, 0 to 2**62.
    keys
        Shape (NUM_ROUNDS,), uint64.

    Returns
    -------
    positions
        Shape (values,), int64; each in ``[0, size)``.

    Raises
    ------
    PlanError
        If a value leaves ``[0, size)``, or the size or the keys are not as above.

    Notes
    -----
    Law: ``permute(unpermute(values)) == values``. Cost: O(values), in numpy, as it serves queries
    of single elements.

    Examples
    --------
    >>> keys = np.arange(NUM_ROUNDS, dtype=np.uint64)
    >>> unpermute(permute(np.arange(7), 7, keys), 7, keys)
    array([0, 1, 2, 3, 4, 5, 6])
    """
    network = _choose_network(size, keys)
    _check_elements(values, size)
    return _unmap_few(values.astype(np.uint64), *network).astype(np.int64)


def _check_elements(elements: IntegerArray, size: int) -> None:
    """Raise for values that are not elements of the permutation."""
    if elements.size and not 0 <= int(elements.min()) <= int(elements.max()) < size:
        raise PlanError(
            f"elements must lie in [0, {size}), got {int(elements.min())} to "
            f"{int(elements.max())}; ask for elements of the permutation"
        )
