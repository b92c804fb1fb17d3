"""Deterministic orders of parts and samples, shuffle buffers, and weighted picks of sources."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.plan.blend_plan import largest_remainder
from zindex.plan.keys import Stage, stream_key

T = TypeVar("T")

# Up to this size an order is an argsort of random words; above, a keyed bijection in constant
# memory, which takes a loader worker two seconds to compile.
_MAX_SORTED = 1 << 16
# Positions of a block in cogdata's order; all blocks have the same permutation.
COGDATA_BLOCK = 2_000_000
_BLOCK = 512  # positions of a buffer that are drawn at a time


def keyed_order(
    positions: Int64Array, size: int, *, seed: int, name: str, epoch: int
) -> Int64Array:
    """Return the indices at positions of an epoch, in a keyed permutation.

    Parameters
    ----------
    positions
        Shape (positions,), int64, in ``[0, size)``.
    size
        Parts or samples of an epoch.
    seed, name, epoch
        Key of the permutation.

    Returns
    -------
    indices
        Shape (positions,), int64, in ``[0, size)``.
    """
    if size <= _MAX_SORTED:
        return _sorted_order(size, seed, name, epoch)[positions]
    from zindex.kernels.bijection import NUM_ROUNDS, permute

    keys = stream_key(seed, Stage.STREAM_ORDER, name, epoch, num_words=NUM_ROUNDS)
    return permute(positions, size, keys)


@lru_cache(maxsize=16)
def _sorted_order(size: int, seed: int, name: str, epoch: int) -> Int64Array:
    words = stream_key(seed, Stage.STREAM_ORDER, name, epoch, num_words=size)
    return np.argsort(words, kind="stable")


def block_order(
    positions: Int64Array, size: int, *, seed: int, block: int = COGDATA_BLOCK
) -> Int64Array:
    """Return the indices at positions of an epoch, in cogdata's order of map-style datasets.

    Every block has the same permutation; the last, shorter block uses that permutation without the
    indices beyond its end.

    Parameters
    ----------
    positions
        Shape (positions,), int64, in ``[0, size)``.
    size
        Samples of the dataset.
    seed
        Seed of the epoch.
    block
        Samples of a block.

    Returns
    -------
    indices
        Shape (positions,), int64, in ``[0, size)``.

    Examples
    --------
    >>> block_order(np.arange(10), 10, seed=0)
    array([4, 1, 7, 5, 3, 9, 0, 8, 6, 2])
    """
    length = min(block, size)
    order = _block_permutation(length, seed)
    starts = positions - positions % length
    indices = starts + order[positions % length]
    last = size - size % length
    in_last = positions >= last
    if in_last.any():
        indices[in_last] = last + order[order < size % length][positions[in_last] - last]
    return indices


@lru_cache(maxsize=4)
def _block_permutation(length: int, seed: int) -> Int64Array:
    generator = torch.Generator().manual_seed(seed)
    return np.asarray(torch.randperm(length, generator=generator).numpy(), np.int64)


def shuffle_samples(
    samples: Iterable[T], size: int, *, key: tuple[int, str, int, int]
) -> Iterator[T]:
    """Yield the samples of a part through a shuffle buffer.

    Parameters
    ----------
    samples
        Samples in the order of the part.
    size
        Samples of the buffer; 0 or 1 keeps the order.
    key
        Seed, name of the source, epoch and part.
    """
    if size <= 1:
        yield from samples
        return
    seed, name, epoch, part = key
    words = stream_key(seed, Stage.STREAM_BUFFER, name, epoch, part, num_words=2).tolist()
    generator = np.random.PCG64(words)
    rest = iter(samples)
    buffer = list(islice(rest, size))
    for sample, place in zip(rest, _draw_below(size, generator), strict=False):
        drawn = buffer[place]
        buffer[place] = sample
        yield drawn
    # Drain the buffer in random order.
    last = np.argsort(generator.random_raw(len(buffer)), kind="stable").tolist()
    yield from map(buffer.__getitem__, last)


def _draw_below(size: int, generator: np.random.PCG64) -> Iterator[int]:
    """Yield random integers below a size."""
    while True:
        # Multiply-shift of 32 random bits: the bias is below size / 2**32.
        words = generator.random_raw(_BLOCK) >> np.uint64(32)
        yield from ((words * np.uint64(size)) >> np.uint64(32)).tolist()


def shuffle_like_cogdata(samples: Iterable[T], size: int, *, seed: int) -> Iterator[T]:
    """Yield the samples of a file through cogdata's shuffle buffer."""
    generator = random.Random(seed)
    buffer: list[T] = []
    for sample in samples:
        if len(buffer) >= size:
            yield _draw(buffer, generator)
        buffer.append(sample)
    while buffer:
        yield _draw(buffer, generator)


def _draw(buffer: list[T], generator: random.Random) -> T:
    place = generator.randint(0, len(buffer) - 1)
    buffer[place], buffer[-1] = buffer[-1], buffer[place]
    return buffer.pop()


# Weights that are not ratios of small integers are rounded to this total.
_MAX_PERIOD = 1 << 16
_GOLDEN = (math.sqrt(5) - 1) / 2
_PICKS = 4096  # picks computed at a time


def integer_weights(percents: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the ratio of the percents.

    Parameters
    ----------
    percents
        Positive, finite numbers; only their ratios matter.

    Returns
    -------
    weights
        Each >= 1. Ratios of short decimals are exact; others are rounded so that the sum is about
        65,536.

    Examples
    --------
    >>> integer_weights([0.25, 0.25, 0.5])
    [1, 1, 2]
    """
    ratios = [Fraction(repr(float(percent))) for percent in percents]
    scale = math.lcm(*(ratio.denominator for ratio in ratios))
    weights = [int(ratio * scale) for ratio in ratios]
    if sum(weights) // math.gcd(*weights) > _MAX_PERIOD:
        whole = sum(ratios)
        rounded = largest_remainder([float(ratio / whole) for ratio in ratios], _MAX_PERIOD)
        weights = [max(1, n) for n in rounded.tolist()]
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights]


def exact_order(weights: Sequence[int]) -> Iterator[int]:
    """Yield one period of the order in which every source has its share at every pick.

    The k-th pick of a source of share p has the window of slots ``floor((k - 1) / p)`` to
    ``ceil(k / p) - 1``. The next pick is the open window with the earliest deadline, the lowest
    source among equals.

    Parameters
    ----------
    weights
        Whole numbers >= 1; the period is their sum.

    Notes
    -----
    Law: after N picks, a source of share p was picked more than ``N * p - 1`` and less than
    ``N * p + 1`` times. Source: windows of proportionate fair scheduling (Baruah, Cohen, Plaxton,
    Varvel 1996), earliest deadline first. Cost: O(log sources) for each pick.

    Examples
    --------
    >>> list(exact_order([1, 1, 2]))
    [2, 0, 1, 2]
    """
    period = sum(weights)
    picked = [0] * len(weights)
    closed: list[tuple[int, int]] = [(0, i) for i in range(len(weights))]
    opened: list[tuple[int, int]] = []
    for slot in range(period):
        while closed and closed[0][0] <= slot:
            _, source = heappop(closed)
            heappush(opened, (-(-(picked[source] + 1) * period // weights[source]), source))
        _, source = heappop(opened)
        picked[source] += 1
        heappush(closed, (picked[source] * period // weights[source], source))
        yield source


class ExactMixing:
    """The default order: `exact_order`, started at a different position by each worker slot.

    With a common start, all worker slots would pick a rare source in the same step.
    """

    def __init__(self, percents: Sequence[float]) -> None:
        weights = integer_weights(percents)
        self._period = sum(weights)
        self._order = exact_order(weights)
        if self._period < _PICKS:
            # Repeat a short period.
            self._order = iter(list(self._order) * (_PICKS // self._period))
            self._period *= _PICKS // self._period
        self._known: list[int] = []

    def picks(self, worker_slot: int, start: int) -> Iterator[int]:
        """Yield the picks of a worker slot from its pick ``start`` on."""
        slot = (int(worker_slot * _GOLDEN % 1.0 * self._period) + start) % self._period
        while True:
            if slot >= len(self._known):
                self._known += islice(self._order, slot + _PICKS - len(self._known))
            picks = self._known[slot : slot + _PICKS]
            yield from picks
            slot = (slot + len(picks)) % self._period


class CogdataMixing:
    """Cogdata's order: the lowest accumulated ``1 / percent`` is next; the first is by rank."""

    def __init__(self, percents: Sequence[float]) -> None:
        self._steps = [1 / percent for percent in percents]

    def picks(self, rank: int, start: int) -> Iterator[int]:
        """Yield the picks of a rank from its pick ``start`` on."""
        return islice(self._from_begin(rank), start, None)

    def _from_begin(self, rank: int) -> Iterator[int]:
        passed = [0.0] * len(self._steps)
        pick = rank % len(passed)
        while True:
            yield pick
            passed[pick] += self._steps[pick]
            if min(passed) >= 1:
                passed = [value - 1 for value in passed]
            pick = passed.index(min(passed))


Mixing = ExactMixing | CogdataMixing
