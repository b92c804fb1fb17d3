"""Samples in any order, cut out of blocks of adjacent ones, each of which is read at once."""

from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np

from zindex.arrays import Int64Array
from zindex.sources.sample_offsets import RawSample, SampleOffsets

#: Reads bytes of a file, from an offset on, into a view.
ReadInto = Callable[[int, int, memoryview], None]


class SampleBlocks(Sequence[RawSample]):
    """Samples of some ranges in an order. A block is read when a sample of it is first needed.

    Parameters
    ----------
    offsets
        Where the samples of all files start.
    ranges
        Numbers ``[start, stop)`` of samples. A range is a block, or has one in each of its files.
    order
        Positions in the ranges.
    read_into
        Reads a block.
    """

    def __init__(
        self,
        offsets: SampleOffsets,
        ranges: Iterable[tuple[int, int]],
        order: Int64Array,
        read_into: ReadInto,
    ) -> None:
        self._read_into = read_into
        samples = [_NOTHING, *(np.arange(start, stop) for start, stop in ranges)]
        numbers, rows, starts, stops = offsets.locate(np.concatenate(samples))
        is_first = np.diff(numbers, prepend=-1) != 0
        is_first[np.cumsum([*map(len, samples)])[:-1]] = True
        firsts, blocks = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        lasts = np.append(firsts, len(rows))[1:] - 1
        lengths = stops[lasts] - starts[firsts]
        # The file of each block, its offset there, and its bytes [start, stop) in the buffer.
        ends = np.cumsum(lengths)
        spans = np.stack([numbers[firsts], starts[firsts], ends - lengths, ends], axis=1)
        self._spans = spans.tolist()
        self._unread = {*range(len(spans))}
        self._buffer = np.empty(lengths.sum(), np.uint8).data
        shifts = (spans[:, 2] - spans[:, 1])[blocks]
        self._blocks = blocks[order]
        self._places = np.stack([numbers, rows, starts + shifts, stops + shifts])[:, order]

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, which: int) -> RawSample: ...

    @overload
    def __getitem__(self, which: slice) -> list[RawSample]: ...

    def __getitem__(self, which: int | slice) -> RawSample | list[RawSample]:
        if not isinstance(which, slice):
            return self[which : which + 1][0]
        for block in sorted(self._unread.intersection(self._blocks[which].tolist())):
            number, offset, start, stop = self._spans[block]
            self._read_into(number, offset, self._buffer[start:stop])
            self._unread.discard(block)
        numbers, rows, starts, stops = self._places[:, which].tolist()
        buffer = self._buffer
        views = [buffer[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return [*zip(numbers, rows, views, strict=True)]


_NOTHING = np.empty(0, np.int64)
