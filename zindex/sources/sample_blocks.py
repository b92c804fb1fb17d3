"""Samples in any order, cut out of blocks of adjacent ones, each of which is read at once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, pairwise, repeat
from typing import overload

import numpy as np

from zindex.arrays import Int64Array
from zindex.sources.sample_offsets import RawSample, SampleOffsets

#: Reads bytes of a file, from an offset on, into a view.
ReadInto = Callable[[int, int, memoryview], None]


@dataclass(frozen=True, slots=True)
class RawSamples(Sequence[RawSample]):
    """Some samples that have been read: of each its file, its number in it, and its bytes."""

    files: list[int]
    rows: list[int]
    contents: list[memoryview]

    def __iter__(self) -> Iterator[RawSample]:
        return zip(self.files, self.rows, self.contents, strict=True)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, which: int) -> RawSample: ...

    @overload
    def __getitem__(self, which: slice) -> "RawSamples": ...

    def __getitem__(self, which: int | slice) -> "RawSample | RawSamples":
        if isinstance(which, slice):
            return RawSamples(self.files[which], self.rows[which], self.contents[which])
        return self.files[which], self.rows[which], self.contents[which]


@dataclass(frozen=True, slots=True)
class AdjacentSamples(Sequence[RawSample]):
    """Adjacent samples of one file that have been read."""

    file: int
    #: Number of the first one in the file.
    row: int
    #: Where each of them starts in the file, and the last one ends.
    ends: list[int]
    #: Bytes of the file, and where they start in it.
    content: memoryview
    base: int

    def __iter__(self) -> Iterator[RawSample]:
        return zip(repeat(self.file), count(self.row), self.contents, strict=False)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def text(self) -> memoryview:
        """The bytes of all of them."""
        return self.content[self.ends[0] - self.base : self.ends[-1] - self.base]

    @property
    def contents(self) -> list[memoryview]:
        """The bytes of each of them."""
        content, base = self.content, self.base
        return [content[start - base : stop - base] for start, stop in pairwise(self.ends)]

    @overload
    def __getitem__(self, which: int) -> RawSample: ...

    @overload
    def __getitem__(self, which: slice) -> "AdjacentSamples": ...

    def __getitem__(self, which: int | slice) -> "RawSample | AdjacentSamples":
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            ends = self.ends[start : stop + 1]
            return AdjacentSamples(self.file, self.row + start, ends, self.content, self.base)
        return self.file, range(self.row, self.row + len(self))[which], self.contents[which]


def join_spans(spans: Iterable[AdjacentSamples]) -> RawSamples:
    """Return the samples of several files."""
    samples = RawSamples([], [], [])
    for span in spans:
        samples.files.extend(repeat(span.file, len(span)))
        samples.rows.extend(range(span.row, span.row + len(span)))
        samples.contents.extend(span.contents)
    return samples


# Memory of the last blocks that ended. It is used again, because the system clears new pages.
_spare = deque[bytearray](maxlen=1)


def _take_memory(nbytes: int) -> bytearray:
    """Return memory of at least so many bytes."""
    with suppress(BufferError, IndexError):  # a sample still refers to it, or there is none
        memory = _spare.pop()
        memory.pop()
        if len(memory) >= nbytes:
            return memory
    return bytearray(nbytes + nbytes // 8)


class SampleBlocks(Sequence[RawSample]):
    """Samples of some ranges in an order. A block is read when a sample of it is first needed.

    Parameters
    ----------
    offsets
        Where the samples of all files start.
    ranges
        Numbers ``[start, stop)`` of samples. A range is a block, or has one in each of its files.
    order
        Positions in the ranges; None for their order.
    read_into
        Reads a block.
    """

    _memory = bytearray()

    def __init__(
        self,
        offsets: SampleOffsets,
        ranges: Iterable[tuple[int, int]],
        order: Int64Array | None,
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
        self._memory = _take_memory(int(lengths.sum()))
        self._buffer = memoryview(self._memory)
        shifts = (spans[:, 2] - spans[:, 1])[blocks]
        if order is None:
            order = np.arange(len(rows))
        self._blocks = blocks[order]
        self._places = np.stack([numbers, rows, starts + shifts, stops + shifts])[:, order]

    def __del__(self, keep: Callable[[bytearray], None] = _spare.append) -> None:
        if self._memory:
            keep(self._memory)

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, which: int) -> RawSample: ...

    @overload
    def __getitem__(self, which: slice | Int64Array) -> RawSamples: ...

    def __getitem__(self, which: int | slice | Int64Array) -> RawSample | RawSamples:
        if isinstance(which, int):
            return self[which : which + 1][0]
        needed = self._blocks[which].tolist() if self._unread else ()
        for block in sorted(self._unread.intersection(needed)):
            number, offset, start, stop = self._spans[block]
            self._read_into(number, offset, self._buffer[start:stop])
            self._unread.discard(block)
        numbers, rows, starts, stops = self._places[:, which].tolist()
        buffer = self._buffer
        views = [buffer[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return RawSamples(numbers, rows, views)


_NOTHING = np.empty(0, np.int64)
