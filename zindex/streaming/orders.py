"""The orders in which parts and samples come, and how the samples of a part are mixed."""

import random
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from zindex.plan.keys import Stage, stream_key

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")

# Up to this size an order is sorted random words; beyond, a keyed bijection whose memory is
# constant. A loader worker would spend two seconds on compiling the bijection.
_MAX_SORTED = 1 << 16
# cogdata permutes every block of this many positions by one permutation.
COGDATA_BLOCK = 2_000_000
_BLOCK = 512  # places of a buffer that are drawn at once


def keyed_order(
    positions: Int64Array, size: int, *, seed: int, name: str, epoch: int
) -> Int64Array:
    """Return what comes at positions of an epoch, by a permutation of its own.

    Parameters
    ----------
    positions
        Shape (positions,), int64, in ``[0, size)``.
    size
        Parts or samples of an epoch.
    seed, name, epoch
        What the permutation is keyed by.

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
    """Return what comes at positions of an epoch in the order of cogdata's map-style sets.

    Every block is permuted alike; the last, shorter one by the same permutation without what lies
    beyond its end. Position 0 is part of it.

    Parameters
    ----------
    positions
        Shape (positions,), int64, in ``[0, size)``.
    size
        Samples of the set.
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


def mix_samples(samples: Iterable[T], size: int, *, key: tuple[int, str, int, int]) -> Iterator[T]:
    """Yield the samples of a part, each drawn from a buffer.

    Parameters
    ----------
    samples
        In the order of the part.
    size
        Samples of the buffer; 0 or 1 leaves the order as it is.
    key
        Seed, name of the source, epoch, part: what the draws depend on.
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
    # What is left comes in a random order, drawn at once.
    last = np.argsort(generator.random_raw(len(buffer)), kind="stable").tolist()
    yield from map(buffer.__getitem__, last)


def _draw_below(size: int, generator: np.random.PCG64) -> Iterator[int]:
    """Yield random places below a size, drawn many at a time."""
    while True:
        # 32 random bits times the size, shifted back: no place is likelier than another by more
        # than a share of size / 2**32.
        words = generator.random_raw(_BLOCK) >> np.uint64(32)
        yield from ((words * np.uint64(size)) >> np.uint64(32)).tolist()


def mix_like_cogdata(samples: Iterable[T], size: int, *, seed: int) -> Iterator[T]:
    """Yield the samples of a file in the order of cogdata's buffer, which ends with the file."""
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
