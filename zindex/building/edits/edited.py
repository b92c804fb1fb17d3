"""Reading an edited run: from a blend's draws to samples of sources, and their order."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.building.edits.used import UsedTable
from zindex.kernels.bijection import permute
from zindex.plan.journal import RunState, Source
from zindex.plan.keys import cut_keys

Int64Array = npt.NDArray[np.int64]
IntegerArray = npt.NDArray[np.integer[Any]]


class Draws(NamedTuple):
    """Samples of sources, one for each position."""

    #: Shape (positions,), int64: number of the source in the run.
    sources: Int64Array
    #: Shape (positions,), int64: position in that source.
    samples: Int64Array


class PoolTable:
    """What the draws of one blend stand for: the k-th sample of a dataset that was not used.

    Parameters
    ----------
    state, blend
        The run, and the number of the blend in it.
    used
        What was used when the blend began.
    """

    def __init__(self, state: RunState, blend: int, used: UsedTable) -> None:
        facts = state.blends[blend]
        self.used = used
        self.sources = np.array([item.source for item in facts.used], np.int64)
        lengths = [state.sources[item.source].num_samples for item in facts.used]
        #: Unused samples of each row.
        self.num_left = np.array(lengths, np.int64) - used.num_used
        self._next = np.full(len(lengths), -1, np.int64)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for row, item in enumerate(facts.used):
            dataset = state.sources[item.source].dataset
            first.setdefault(dataset, row)
            if dataset in last:
                self._next[last[dataset]] = row
            last[dataset] = row
        self._first = np.array([first.get(dataset, -1) for dataset in facts.datasets], np.int64)
        self._is_whole = not used.num_used.any()

    def find(self, datasets: IntegerArray, numbers: IntegerArray) -> Draws:
        """Return the samples that draws of the blend stand for.

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
        samples = left if self._is_whole else self.used.find(rows, left)
        return Draws(self.sources[rows], samples)

    def rows_of(self, blend_dataset: int) -> Iterator[int]:
        """Yield the rows of the sources that a dataset of the blend is drawn from."""
        row = int(self._first[blend_dataset])
        while row >= 0:
            yield row
            row = int(self._next[row])


def blocks_of(ranges: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield ranges cut at the multiples of a length."""
    for start, stop in ranges:
        while start < stop:
            upto = min(stop, (start // length + 1) * length)
            yield start, upto
            start = upto


def shuffle_cut(source: Source, number: int, split: str, positions: IntegerArray) -> Int64Array:
    """Return the samples that stand at positions of a source whose tokens were cut anew.

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
            keys = cut_keys(source.seed, split, number, window)
            offsets = np.asarray(positions)[inside].astype(np.int64) - start
            samples[inside] = start + permute(offsets, stop - start, keys)
        start = stop
    return samples
