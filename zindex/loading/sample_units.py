"""Units in which loader workers share samples that can be read in any order."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from typing import TypeVar

import numpy as np

from zindex.arrays import Int64Array, UInt64Array
from zindex.loading.stream_orders import keyed_order, keyed_position
from zindex.plan.keys import Stage, mix_words, stream_key
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
# Multiples of these are preferred as numbers of units, so that most numbers of worker slots divide
# them and therefore have equally many, and of groups.
_SHARED_BY, _GROUPED_BY = (960, 64), (960, 64, 16, 8, 4, 2)

Number = TypeVar("Number", int, Int64Array)
#: Seed, name and epoch of an order; None for the order of the files.
Order = tuple[int, str, int] | None


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
    """
    return mix_words((numbers ^ key) * np.uint64(0x9E3779B97F4A7C15))


@lru_cache(maxsize=64)
def _find_last(num_blocks: int, order: Order) -> int:
    """Return the position of the last block, which may be a shorter one."""
    if order is None:
        return num_blocks - 1
    seed, name, epoch = order
    return int(keyed_position(num_blocks - 1, num_blocks, seed=seed, name=name, epoch=epoch))


@lru_cache(maxsize=64)
def _find_span(units: "SampleUnits", group: int, order: Order) -> tuple[int, int]:
    """Return the positions [start, stop) of the samples of a group in all epochs."""
    past = 0 if order is None else units.num_samples * order[2]
    start, stop = units.blocks_of(group, order)
    return past + units.samples_before(start, order), past + units.samples_before(stop, order)


def _deal(first: int, stop: int, number: Number, count: int) -> tuple[Number, Number]:
    """Return the span of one of `count` shares of adjacent things, or of several of these shares.

    Positions are counted from the first thing.

    The shares are as large as if things were dealt to them in turn, thing 0 to the first one.

    Examples
    --------
    >>> [_deal(4, 11, number, 3) for number in range(3)]
    [(0, 2), (2, 5), (5, 7)]
    """
    (before, rest), (after, more) = divmod(first, count), divmod(stop, count)
    # Each share before has one more if it is before `more`, one less if it is before `rest`.
    extra = (number - more) * (number < more) - (number - rest) * (number < rest) + more - rest
    start = (after - before) * number + extra
    return start, start + after - before + (number < more) - (number < rest)


@dataclass(frozen=True)
class SampleUnits:
    """All samples of an epoch in blocks of adjacent ones, these in groups, and these in units.

    In an epoch's order the blocks are permuted, so that a group has samples of all files, and its
    samples are permuted again. Worker slots share the units, parts of a group in its order.

    Notes
    -----
    Law: if the units of a group are shared by a number of worker slots that divides them, each slot
    has as many samples, at the end of each epoch, as if samples had been dealt in turn: then none
    is repeated before all slots together have had all.
    """

    num_samples: int
    nbytes: int
    #: Samples of a block; the last block may have fewer.
    block: int
    #: Groups of an epoch, equal in blocks or with one more.
    num_groups: int
    #: Units of a group.
    share: int = 1

    def __hash__(self) -> int:  # of all fields it takes longer than what is looked up by it
        return self.num_samples

    @property
    def num_blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.num_samples // self.block)

    @property
    def num_units(self) -> int:
        """Units of an epoch."""
        return self.num_groups * self.share

    @property
    def max_unit(self) -> int:
        """Most samples of a unit."""
        return -(-self.block * -(-self.num_blocks // max(1, self.num_groups)) // self.share)

    def blocks_of(self, group: int, order: Order) -> tuple[int, int]:
        """Return the positions [start, stop) of the blocks of a group."""
        first = 0 if order is None else self.num_blocks * order[2]
        return _deal(first, first + self.num_blocks, group, self.num_groups)

    def samples_before(self, position: int, order: Order) -> int:
        """Return the samples of the blocks before a position."""
        missing = self.num_blocks * self.block - self.num_samples
        return position * self.block - missing * (position > _find_last(self.num_blocks, order))

    def range_of(self, unit: int) -> tuple[int, int]:
        """Return the samples [start, stop) of a unit in the order of the files."""
        start, stop = self.part_of(unit, None)
        before = self.samples_before(self.blocks_of(unit // self.share, None)[0], None)
        return before + start, before + stop

    def part_of(self, unit: int, order: Order) -> tuple[int, int]:
        """Return the positions [start, stop) of a unit in its group."""
        group, place = divmod(unit, self.share)
        first, stop = _find_span(self, group, order)
        return _deal(first, stop, place, self.share)

    def spans_of(
        self, group: int, numbers: Int64Array, order: Order
    ) -> tuple[Int64Array, Int64Array]:
        """Return the positions [starts, stops) of units in their group, by their numbers in it."""
        return _deal(*_find_span(self, group, order), numbers, self.share)

    def lengths(self, order: Order) -> Int64Array:
        """Return the samples of each unit in an order: shape (units,), int64."""
        found, numbers = np.empty((self.num_groups, self.share), np.int64), np.arange(self.share)
        for group in range(self.num_groups):
            starts, stops = self.spans_of(group, numbers, order)
            found[group] = stops - starts
        return found.ravel()

    def shuffled(
        self, group: int, order: tuple[int, str, int]
    ) -> tuple[list[tuple[int, int]], Int64Array | None]:
        """Return the samples of a group in the order of an epoch.

        Parameters
        ----------
        group
            Number of the group.
        order
            The order.

        Returns
        -------
        ranges
            Samples [start, stop) of each of its blocks.
        places
            Positions in these ranges, shape (samples,), int64; None if blocks have one sample.
        """
        seed, name, epoch = order
        start, stop = self.blocks_of(group, order)
        places = np.arange(start, stop)
        blocks = keyed_order(places, self.num_blocks, seed=seed, name=name, epoch=epoch)
        starts = (blocks * self.block).tolist()
        ranges = [(start, min(start + self.block, self.num_samples)) for start in starts]
        if self.block == 1 or len(ranges) == 1:
            return ranges, None
        first, last = (self.samples_before(one, order) for one in (start, stop))
        numbers = np.arange(first, last, dtype=np.uint64)
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
    >>> choose_units(SampleCount(100_000, 100_000_000), 2880, shuffle=True)
    SampleUnits(num_samples=100000, nbytes=100000000, block=64, num_groups=14, share=192)
    >>> choose_units(SampleCount(10**9, 10**12), 2880, shuffle=True)
    SampleUnits(num_samples=1000000000, nbytes=1000000000000, block=64, num_groups=122880, share=1)
    """
    num_samples, nbytes = count.num_samples, count.nbytes
    mean = max(1, nbytes // max(1, num_samples))
    length = max(1, min(num_samples / num_units, _MAX_UNIT, UNIT_NBYTES // mean))
    largest = max(1, min(_MAX_BLOCK, _BLOCK_NBYTES // mean))
    block = 1
    if shuffle and grouped and not count.is_remote:
        block = max(1, min(largest, -(-num_samples // (2 * _MIN_WIDTH))))
    elif shuffle:
        least = _MIN_BLOCK if length >= 4 * _MIN_BLOCK else 1
        if count.is_remote:
            largest, width = min(_MAX_REQUEST, _REQUEST_NBYTES // mean), 64
        else:
            width = _MIN_WIDTH
        block = max(1, min(largest, max(least, int(length) // width)))
        grouped, length = False, max(length, block)
    widest = max(_MIN_WIDTH * largest, length) if grouped and block > 1 else length
    num_blocks = -(-num_samples // block)
    num_groups = min(num_blocks, ceil(num_samples / widest))
    for number in _GROUPED_BY:
        if 4 * number <= num_groups:
            num_groups = min(num_blocks, -(-num_groups // number) * number)
            break
    share = max(1, round(num_samples / max(1, num_groups) / length))
    for number in _SHARED_BY:
        step = number // gcd(number, num_groups)
        if step <= share:
            share -= share % step
            break
    return SampleUnits(num_samples, nbytes, block, num_groups, share)
