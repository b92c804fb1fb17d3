"""Deterministic orders of parts and samples, and shuffle buffers."""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from zindex.arrays import Int64Array
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


def keyed_position(index: int, size: int, *, seed: int, name: str, epoch: int) -> int:
    """Return the position of an index in `keyed_order`.

    Examples
    --------
    >>> key = {"seed": 1, "name": "a", "epoch": 0}
    >>> keyed_order(np.array([keyed_position(3, 9, **key)]), 9, **key)
    array([3])
    """
    if size <= _MAX_SORTED:
        return int(np.flatnonzero(_sorted_order(size, seed, name, epoch) == index)[0])
    from zindex.kernels.bijection import NUM_ROUNDS, unpermute

    keys = stream_key(seed, Stage.STREAM_ORDER, name, epoch, num_words=NUM_ROUNDS)
    return int(unpermute(np.array([index]), size, keys)[0])


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


def take_turns(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one item of each stream after the other until all have ended.

    Examples
    --------
    >>> "".join(take_turns([iter("abc"), iter("1"), iter("xy")]))
    'a1xbyc'
    """
    waiting = deque(streams)
    while waiting:
        stream = waiting.popleft()
        for item in islice(stream, 1):
            yield item
            waiting.append(stream)


def _draw_below(size: int, generator: np.random.PCG64) -> Iterator[int]:
    """Yield random integers below a size."""
    while True:
        # Multiply-shift of 32 random bits: the bias is below size / 2**32.
        words = generator.random_raw(_BLOCK) >> np.uint64(32)
        yield from ((words * np.uint64(size)) >> np.uint64(32)).tolist()


def shuffle_like_cogdata(samples: Iterable[T], size: int, *, seed: int) -> Iterator[T]:
    """Yield the samples of a file through cogdata's shuffle buffer; size 0 keeps their order."""
    if not size:
        yield from samples
        return
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
