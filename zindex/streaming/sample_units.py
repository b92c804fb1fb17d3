"""Units in which loader workers share samples that can be read in any order."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from zindex.arrays import Int64Array, UInt64Array
from zindex.plan.keys import Stage, stream_key
from zindex.sources.sample_offsets import SampleCount
from zindex.streaming.orders import keyed_order, keyed_position

# Maximum samples of a unit, and adjacent ones that are read together: their number and bytes.
_MAX_UNIT, _MAX_BLOCK, _BLOCK_NBYTES = 8192, 64, 1 << 16
# The same in object stores, where each block is a request.
_MAX_REQUEST, _REQUEST_NBYTES = 1024, 1 << 17
# Adjacent samples that are read together even in small units, where each read costs more than they.
_MIN_BLOCK = 4
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
    """All samples of an epoch in blocks of adjacent ones, and these in units.

    In an epoch's order the blocks are permuted, so that a unit has samples of all files, and its
    samples are permuted again.
    """

    num_samples: int
    nbytes: int
    #: Samples of a block; the last block may have fewer.
    block: int
    #: Blocks of a unit.
    width: int

    @property
    def num_blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.num_samples // self.block)

    @property
    def num_units(self) -> int:
        """Units of an epoch."""
        return -(-self.num_blocks // self.width)

    def range_of(self, unit: int) -> tuple[int, int]:
        """Return the samples [start, stop) of a unit in the order of the files."""
        length = self.block * self.width
        return unit * length, min((unit + 1) * length, self.num_samples)

    def lengths(self, *, shuffle: bool, seed: int, name: str, epoch: int) -> Int64Array:
        """Return the samples of each unit: shape (units,), int64.

        Parameters
        ----------
        shuffle
            Whether units are those of `shuffled`, not in the order of the files.
        seed, name, epoch
            Key of the order.
        """
        blocks = np.full(self.num_units, self.width)
        blocks[-1:] -= self.num_units * self.width - self.num_blocks
        lengths: Int64Array = blocks * self.block
        if missing := self.num_blocks * self.block - self.num_samples:
            last = self.num_blocks - 1
            if shuffle:
                last = keyed_position(last, self.num_blocks, seed=seed, name=name, epoch=epoch)
            lengths[last // self.width] -= missing
        return lengths

    def shuffled(
        self, unit: int, *, seed: int, name: str, epoch: int
    ) -> tuple[list[tuple[int, int]], Int64Array | None]:
        """Return the samples of a unit in the order of an epoch.

        Parameters
        ----------
        unit
            Number of the unit.
        seed, name, epoch
            Key of the order.

        Returns
        -------
        ranges
            Samples [start, stop) of each of its blocks.
        order
            Positions in these ranges, shape (samples,), int64; None if blocks have one sample.
        """
        places = np.arange(unit * self.width, min((unit + 1) * self.width, self.num_blocks))
        blocks = keyed_order(places, self.num_blocks, seed=seed, name=name, epoch=epoch)
        starts = (blocks * self.block).tolist()
        ranges = [(start, min(start + self.block, self.num_samples)) for start in starts]
        if self.block == 1 or self.width == 1:
            return ranges, None
        count = sum(stop - start for start, stop in ranges)
        numbers = np.arange(count, dtype=np.uint64) + np.uint64(unit * self.block * self.width)
        words = scramble(numbers, _order_key(seed, name, epoch))
        return ranges, np.argsort(words, kind="stable")


def choose_units(count: SampleCount, num_units: int, *, shuffle: bool) -> SampleUnits:
    """Return units of a size that depends on the samples alone, not on ranks or workers.

    Parameters
    ----------
    count
        Number and bytes of the samples.
    num_units
        Units of an epoch, unless these would be too large.
    shuffle
        Whether the samples of a unit are shuffled, too.

    Examples
    --------
    >>> choose_units(SampleCount(100_000, 100_000_000), 2048, shuffle=True)
    SampleUnits(num_samples=100000, nbytes=100000000, block=4, width=12)
    >>> choose_units(SampleCount(10**9, 10**12), 2048, shuffle=True)
    SampleUnits(num_samples=1000000000, nbytes=1000000000000, block=64, width=128)
    """
    mean = max(1, count.nbytes // max(1, count.num_samples))
    length = max(1, min(count.num_samples // num_units, _MAX_UNIT, UNIT_NBYTES // mean))
    if not shuffle:
        return SampleUnits(count.num_samples, count.nbytes, length, 1)
    least = _MIN_BLOCK if length >= 4 * _MIN_BLOCK else 1
    if count.is_remote:
        block = max(1, min(_MAX_REQUEST, _REQUEST_NBYTES // mean, max(least, length // 64)))
    else:
        block = max(1, min(_MAX_BLOCK, _BLOCK_NBYTES // mean, max(least, length // 128)))
    return SampleUnits(count.num_samples, count.nbytes, block, max(1, length // block))
