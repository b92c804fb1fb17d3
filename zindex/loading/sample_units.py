"""Units in which loader workers share samples that can be read in any order."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from zindex.arrays import Int64Array, UInt64Array
from zindex.loading.stream_orders import keyed_order, keyed_position
from zindex.plan.keys import Stage, stream_key
from zindex.sources.sample_offsets import SampleCount

# Maximum samples of a unit, and adjacent ones that are read together: their number and bytes.
_MAX_UNIT, _MAX_BLOCK, _BLOCK_NBYTES = 8192, 64, 1 << 16
# The same in object stores, where each block is a request.
_MAX_REQUEST, _REQUEST_NBYTES = 1024, 1 << 17
# Adjacent samples that are read together even in small units, where each read costs more than they.
_MIN_BLOCK = 4
# A group has at least 128 blocks of maximum size: how well files are mixed depends on them.
_MIN_WIDTH = 128
#: Approximate maximum bytes of a unit, which is held in memory.
UNIT_NBYTES = 16 << 20


@lru_cache(maxsize=64)
def _order_key(seed: int, name: str, epoch: int) -> np.uint64:
    """Return the key of the orders of samples in the units of an epoch."""
    word: np.uint64 = stream_key(seed, Stage.STREAM_BUFFER, name, epoch, num_words=1)[0]
    return word


def scramble(numbers: UInt64Array, key: np.uint64) -> UInt64Array:
    """Return a random word for each number.

    Parameters
    ----------
    numbers
        Shape (numbers,), uint64.
    key
        Determines the words.

    Returns
    -------
    words
        Shape (numbers,), uint64; different numbers have different words.

    Notes
    -----
    Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    words = (numbers ^ key) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: UInt64Array = words ^ (words >> np.uint64(31))
    return found


@dataclass(frozen=True)
class SampleUnits:
    """All samples of an epoch in blocks of adjacent ones, these in groups, and these in units.

    In an epoch's order the blocks are permuted, so that a group has samples of all files, and its
    samples are permuted again. Worker slots share the units, parts of a group in its order.
    """

    num_samples: int
    nbytes: int
    #: Samples of a block; the last block may have fewer.
    block: int
    #: Blocks of a group; the last group may have fewer.
    width: int
    #: Units of a group.
    share: int = 1

    @property
    def num_blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.num_samples // self.block)

    @property
    def num_units(self) -> int:
        """Units of an epoch."""
        return -(-self.num_blocks // self.width) * self.share

    def range_of(self, unit: int) -> tuple[int, int]:
        """Return the samples [start, stop) of a unit in the order of the files."""
        group, length = unit // self.share, self.block * self.width
        first = group * length
        start, stop = self.part_of(unit, min(length, self.num_samples - first))
        return first + start, first + stop

    @property
    def max_unit(self) -> int:
        """Most samples of a unit."""
        return -(-self.block * self.width // self.share)

    def part_of(self, unit: int, length: int) -> tuple[int, int]:
        """Return the positions [start, stop) of a unit in its group of so many samples."""
        place = unit % self.share
        return place * length // self.share, (place + 1) * length // self.share

    def lengths(self, *, shuffle: bool, seed: int, name: str, epoch: int) -> Int64Array:
        """Return the samples of each unit: shape (units,), int64.

        Parameters
        ----------
        shuffle
            Whether groups are those of `shuffled`, not in the order of the files.
        seed, name, epoch
            Key of the order.
        """
        num_groups = self.num_units // self.share
        blocks = np.full(num_groups, self.width)
        blocks[-1:] -= num_groups * self.width - self.num_blocks
        lengths = blocks * self.block
        if missing := self.num_blocks * self.block - self.num_samples:
            last = self.num_blocks - 1
            if shuffle:
                last = keyed_position(last, self.num_blocks, seed=seed, name=name, epoch=epoch)
            lengths[last // self.width] -= missing
        ends = np.arange(self.share + 1) * lengths[:, np.newaxis] // self.share
        found: Int64Array = np.diff(ends, axis=1).ravel()
        return found

    def shuffled(
        self, group: int, *, seed: int, name: str, epoch: int
    ) -> tuple[list[tuple[int, int]], Int64Array | None]:
        """Return the samples of a group in the order of an epoch.

        Parameters
        ----------
        group
            Number of the group.
        seed, name, epoch
            Key of the order.

        Returns
        -------
        ranges
            Samples [start, stop) of each of its blocks.
        order
            Positions in these ranges, shape (samples,), int64; None if blocks have one sample.
        """
        places = np.arange(group * self.width, min((group + 1) * self.width, self.num_blocks))
        blocks = keyed_order(places, self.num_blocks, seed=seed, name=name, epoch=epoch)
        starts = (blocks * self.block).tolist()
        ranges = [(start, min(start + self.block, self.num_samples)) for start in starts]
        if self.block == 1 or self.width == 1:
            return ranges, None
        count = sum(stop - start for start, stop in ranges)
        numbers = np.arange(count, dtype=np.uint64) + np.uint64(group * self.block * self.width)
        # All words differ, so any way of sorting has the same result.
        return ranges, np.argsort(scramble(numbers, _order_key(seed, name, epoch)))


def choose_units(
    count: SampleCount, num_units: int, *, shuffle: bool, grouped: bool = True
) -> SampleUnits:
    """Return units of a size that depends on the samples alone, not on ranks or workers.

    Parameters
    ----------
    count
        Number and bytes of the samples.
    num_units
        Units of an epoch, unless these would be too large.
    shuffle
        Whether the samples of a unit are shuffled, too.
    grouped
        Whether small units share the blocks that are read for them, so that these are larger;
        never in object stores.

    Examples
    --------
    >>> choose_units(SampleCount(100_000, 100_000_000), 2048, shuffle=True)
    SampleUnits(num_samples=100000, nbytes=100000000, block=64, width=121, share=160)
    >>> choose_units(SampleCount(10**9, 10**12), 2048, shuffle=True)
    SampleUnits(num_samples=1000000000, nbytes=1000000000000, block=64, width=128, share=1)
    """
    num_samples, nbytes = count.num_samples, count.nbytes
    mean = max(1, nbytes // max(1, num_samples))
    length = max(1, min(num_samples // num_units, _MAX_UNIT, UNIT_NBYTES // mean))
    if not shuffle:
        return SampleUnits(num_samples, nbytes, length, 1)
    largest = max(1, min(_MAX_BLOCK, _BLOCK_NBYTES // mean))
    if count.is_remote or not grouped:
        least = _MIN_BLOCK if length >= 4 * _MIN_BLOCK else 1
        if count.is_remote:
            block = max(1, min(_MAX_REQUEST, _REQUEST_NBYTES // mean, max(least, length // 64)))
        else:
            block = min(largest, max(least, length // _MIN_WIDTH))
        return SampleUnits(num_samples, nbytes, block, max(1, length // block))
    block = min(largest, -(-num_samples // (2 * _MIN_WIDTH)))
    if block <= 1:
        return SampleUnits(num_samples, nbytes, 1, length)
    widest = max(_MIN_WIDTH * largest, length)
    # Groups of equal sizes.
    num_blocks, num_groups = -(-num_samples // block), -(-num_samples // widest)
    share = max(1, round(num_samples / num_groups / length))
    return SampleUnits(num_samples, nbytes, block, -(-num_blocks // num_groups), share)
