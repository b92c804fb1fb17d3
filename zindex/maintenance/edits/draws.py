"""Draws of a blend: marked as they are read, and mapped to the samples of sources."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array, IntegerArray
from zindex.errors import VerificationError
from zindex.indexing.blend_arrays import BlendArrays
from zindex.kernels.bijection import permute
from zindex.kernels.bitset import WORD_BITS, mark
from zindex.maintenance.edits.consumed import ConsumedTable
from zindex.plan.journal import RunState, Source
from zindex.plan.keys import Stage, split_key
from zindex.plan.segments import Segment

Spans = Sequence[tuple[int, int]]

#: Positions that are read at a time.
BLOCK = 1 << 20


class BlendScan:
    """A scan of a blend that marks its draws: each must be new.

    Parameters
    ----------
    arrays
        The blend.
    block_length
        Positions that are read at a time.
    """

    def __init__(self, arrays: BlendArrays, block_length: int = BLOCK) -> None:
        self.arrays = arrays
        self.counts = arrays.dataset_count
        self._block_length = block_length
        num = -(-self.counts // WORD_BITS)
        #: First word of each dataset of the blend.
        self.starts = np.cumsum(num) - num
        self.words = np.zeros(int(num.sum()), np.uint64)

    def blocks(self, spans: Spans) -> Iterator[tuple[AnyArray, AnyArray]]:
        """Yield datasets and sample numbers of positions, block by block."""
        for start, stop in blocks_of(spans, self._block_length):
            datasets = self.arrays.dataset_index[start:stop]
            yield datasets, self.arrays.dataset_sample_index[start:stop]

    def mark(self, datasets: AnyArray, numbers: AnyArray) -> Int64Array:
        """Mark draws and return their number for each dataset.

        Raises
        ------
        VerificationError
            If a sample was drawn twice.
        """
        num_fresh = mark(datasets, numbers, self.starts, self.words)
        if num_fresh != len(datasets):
            raise VerificationError(
                f"a blend must draw no sample twice, {len(datasets) - num_fresh} of "
                f"{len(datasets)} positions do; look for damage with `zindex verify`"
            )
        return np.bincount(datasets, minlength=len(self.counts)).astype(np.int64)

    def mark_all(
        self, spans: Spans, visit: Callable[..., object] = lambda *draws: None
    ) -> Int64Array:
        """Mark and visit the draws of all positions; return their number for each dataset."""
        total = np.zeros(len(self.counts), np.int64)
        for draws in self.blocks(spans):
            total += self.mark(*draws)
            visit(*draws)
        return total


class Draws(NamedTuple):
    """Samples of sources, one for each position."""

    #: Shape (positions,), int64: number of the source in the run.
    sources: Int64Array
    #: Shape (positions,), int64: position in that source.
    samples: Int64Array


class PoolTable:
    """Maps the draws of one blend to samples: draw k is the k-th unconsumed one of its dataset.

    Parameters
    ----------
    state, blend
        The run, and the number of the blend in it.
    consumed
        The samples that were consumed before the blend.
    """

    def __init__(self, state: RunState, blend: int, consumed: ConsumedTable) -> None:
        facts = state.blends[blend]
        self.consumed = consumed
        self.sources = np.array([item.source for item in facts.consumed], np.int64)
        lengths = [state.sources[item.source].num_samples for item in facts.consumed]
        #: Unconsumed samples of each row.
        self.num_left = np.array(lengths, np.int64) - consumed.num_consumed
        self._next = np.full(len(lengths), -1, np.int64)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for row, item in enumerate(facts.consumed):
            dataset = state.sources[item.source].dataset
            first.setdefault(dataset, row)
            if dataset in last:
                self._next[last[dataset]] = row
            last[dataset] = row
        self._first = np.array([first.get(dataset, -1) for dataset in facts.datasets], np.int64)
        self._is_whole = not consumed.num_consumed.any()

    def find(self, datasets: IntegerArray, numbers: IntegerArray) -> Draws:
        """Return the samples of draws of the blend.

        Parameters
        ----------
        datasets, numbers
            Shape (positions,): `dataset_index` and `dataset_sample_index` of the blend.
        """
        rows = self._first[datasets]
        left = np.array(numbers, np.int64)
        beyond = np.flatnonzero(left >= self.num_left[rows])
        while beyond.size:
            left[beyond] -= self.num_left[rows[beyond]]
            rows[beyond] = self._next[rows[beyond]]
            beyond = beyond[left[beyond] >= self.num_left[rows[beyond]]]
        samples = left if self._is_whole else self.consumed.find(rows, left)
        return Draws(self.sources[rows], samples)

    def find_draws(self, source: int, samples: Int64Array) -> tuple[int, Int64Array]:
        """Return the draws of the blend that yield samples of a source: the inverse of `find`.

        Parameters
        ----------
        source, samples
            Number of the source in the run, and shape (samples,), int64: positions in it.

        Returns
        -------
        dataset, numbers
            Number of the dataset in the blend, and its draws, int64, without the samples that were
            consumed before; -1 and none if the blend does not draw from the source.
        """
        for dataset in range(len(self._first)):
            num_before = 0
            for row in self.rows_of(dataset):
                if self.sources[row] == source:
                    ranks = self.consumed.rank(row, samples)
                    return dataset, ranks[ranks >= 0] + num_before
                num_before += int(self.num_left[row])
        return -1, np.empty(0, np.int64)

    def rows_of(self, blend_dataset: int) -> Iterator[int]:
        """Yield the rows of the sources that a dataset of the blend is drawn from."""
        row = int(self._first[blend_dataset])
        while row >= 0:
            yield row
            row = int(self._next[row])


class SegmentTable:
    """Maps positions of a run to positions of its blends, and back.

    Parameters
    ----------
    segments
        The run; no two segments share a position of a blend.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        rows = [(item.start, item.stop, item.blend, item.offset) for item in segments]
        table = np.array(rows, np.int64).reshape(-1, 4)
        self._starts, self._stops, self._blends, self._offsets = table.T

    def find(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the blends of positions of the run, and the positions in them."""
        rows = np.searchsorted(self._stops, positions, side="right")
        return self._blends[rows], positions - self._starts[rows] + self._offsets[rows]

    def invert(self, blend: int, positions: Int64Array) -> Int64Array:
        """Return the positions of the run that have some positions of a blend; others have none."""
        own = np.flatnonzero(self._blends == blend)
        own = own[np.argsort(self._offsets[own])]
        places = np.searchsorted(self._offsets[own], positions, side="right") - 1
        rows, offsets = own[places[places >= 0]], positions[places >= 0]
        found = offsets - self._offsets[rows] + self._starts[rows]
        return found[found < self._stops[rows]]


def find_draws(
    segments: SegmentTable,
    pools: Sequence[PoolTable],
    read: Callable[[int, Int64Array], Sequence[AnyArray]],
    positions: Int64Array,
) -> Draws:
    """Return the samples at positions of an edited run.

    Parameters
    ----------
    segments, pools
        The run, and the mapping of each of its blends.
    read
        Returns datasets and sample numbers of a blend, by its number, at its own positions.
    positions
        Shape (positions,), int64, each one of the run's.
    """
    sources, samples = np.empty_like(positions), np.empty_like(positions)
    blends, places = segments.find(positions)
    for blend in set(blends.tolist()):
        inside = np.flatnonzero(blends == blend)
        sources[inside], samples[inside] = pools[blend].find(*read(blend, places[inside]))
    return Draws(sources, samples)


def blocks_of(spans: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield spans split at the multiples of a length."""
    for start, stop in spans:
        while start < stop:
            upto = min(stop, (start // length + 1) * length)
            yield start, upto
            start = upto


def shuffle_cut(source: Source, number: int, split: str, positions: IntegerArray) -> Int64Array:
    """Return the samples at positions of a source whose tokens were split again.

    Parameters
    ----------
    source, number
        The source, and its number in the run.
    split
        The split of the run.
    positions
        Shape (positions,), each in ``[0, source.num_samples)``.
    """
    samples = np.array(positions, np.int64)
    start = 0
    for window, stop in enumerate(source.windows):
        inside = np.flatnonzero((samples >= start) & (positions < stop) & (positions >= start))
        if inside.size:
            keys = split_key(source.seed, Stage.CUT, split, number, window)
            offsets = np.asarray(positions)[inside].astype(np.int64) - start
            samples[inside] = start + permute(offsets, stop - start, keys)
        start = stop
    return samples
