"""Shuffles within epochs, and arrays that are computed on read instead of being stored."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.kernels.bijection import permute, permute_range
from zindex.plan.build_plan import CountedPlan, SplitPlan
from zindex.plan.keys import Stage
from zindex.store.layout import ArrayShape
from zindex.store.open import Store
from zindex.store.rows import RowReader


def permute_epochs(
    plan: SplitPlan,
    stage: Stage,
    start: int,
    out: AnyArray,
    find_epoch: Callable[[int], tuple[int, int, int]],
    first_value: int | None = None,
) -> None:
    """Fill positions ``[start, start + len(out))`` of an order that is shuffled epoch by epoch.

    Parameters
    ----------
    plan, stage
        Determines the keys.
    start
        First position.
    out
        Shape (positions,); filled.
    find_epoch
        Returns the epoch of a position, and its positions, half-open.
    first_value
        Least value of every epoch; None means that each epoch's values are its positions.

    Notes
    -----
    Law: the values of each epoch are a permutation of their own. Cost: O(positions), independent of
    the number of epochs.
    """
    position, stop = start, start + len(out)
    while position < stop:
        epoch, first, last = find_epoch(position)
        upto = min(stop, last)
        keys = plan.round_keys(stage, epoch)
        low = first if first_value is None else first_value
        permute_range(
            position - first, last - first, keys, low, out[position - start : upto - start]
        )
        position = upto


def fill_shuffle(plan: SplitPlan, sample_starts: Int64Array, start: int, out: AnyArray) -> None:
    """Fill positions of a shuffle index whose epochs start at given samples.

    Parameters
    ----------
    plan
        Determines the key.
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts.
    start
        First position.
    out
        Shape (positions,): sample ids; filled.

    Notes
    -----
    Law: the samples of each epoch fill that epoch's positions.
    """

    def find_epoch(position: int) -> tuple[int, int, int]:
        epoch = int(np.searchsorted(sample_starts, position, side="right")) - 1
        return epoch, int(sample_starts[epoch]), int(sample_starts[epoch + 1])

    permute_epochs(plan, Stage.SAMPLE, start, out, find_epoch)


def copy_overlap(source: AnyArray, first: int, out: AnyArray, start: int) -> None:
    """Copy the overlap of rows ``[first, ...)`` into rows ``[start, ...)``."""
    low, high = max(first, start), min(first + len(source), start + len(out))
    if low < high:
        out[low - start : high - start] = source[low - first : high - first]


class ComputedArray(RowReader):
    """An array that is not stored: a pure function of the plan, computed for the rows of a read.

    Parameters
    ----------
    layout
        The array, as it would be stored.
    plan, compute
        ``compute(plan, start, stop)`` returns rows. A module-level function, so that it can be
        pickled.
    """

    def __init__(
        self, layout: ArrayShape, plan: Any, compute: Callable[[Any, int, int], AnyArray]
    ) -> None:
        super().__init__(layout)
        self.plan = plan
        self.compute = compute

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self.compute(self.plan, start, stop)


class ComputedShuffle(RowReader):
    """A shuffle within epochs that is not stored, computed for the rows of a read.

    Parameters
    ----------
    plan
        Determines the keys and the grid.
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts.
    """

    def __init__(self, plan: CountedPlan, sample_starts: Int64Array) -> None:
        super().__init__(plan.shuffle_layout_of(int(sample_starts[-1])))
        self.plan = plan
        self.sample_starts = sample_starts

    def take(self, rows: Int64Array) -> AnyArray:
        """Return the samples at scattered positions; those of one epoch are computed together."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            self.refuse(rows, rows + 1)
        out: AnyArray = np.empty(len(rows), self.dtype)
        epochs = np.searchsorted(self.sample_starts, rows, side="right") - 1
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            first, last = self.sample_starts[epoch : epoch + 2].tolist()
            keys = self.plan.round_keys(Stage.SAMPLE, epoch)
            out[here] = first + permute(rows[here] - first, last - first, keys)
        return out

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        fill_shuffle(self.plan, self.sample_starts, start, out)


@dataclass(frozen=True)
class CountedArrays:
    """What the arrays of packings and sentence mappings share: partition starts and a shuffle."""

    #: Class of the plan.
    plan_type: ClassVar[Any]
    #: The stored arrays: partition starts, then those that a subclass adds.
    array_specs: ClassVar[tuple[schema.ArraySpec, ...]]

    plan: CountedPlan
    #: Where partitions start: shape (partitions + 1, columns), the sample in the first column.
    partition_starts: RowReader
    #: Positions to samples: shape (samples,); None if it is computed.
    stored_shuffle: RowReader | None

    @classmethod
    def open(cls, store: Store) -> Self:
        """Return the arrays of a committed index, read lazily.

        Parameters
        ----------
        store
            An index store, built with ``store="all"`` or ``"minimal"``.
        """
        plan = cls.plan_type.from_spec(store.spec)
        starts, *others = (store[spec.name] for spec in cls.array_specs)
        stored_shuffle = None if plan.stored == "minimal" else store[schema.SHUFFLE_INDEX.name]
        return cls(plan, starts, stored_shuffle, *others)

    @cached_property
    def sample_starts(self) -> Int64Array:
        """Shape (epochs + 1,), int64: sample at which each epoch starts."""
        return self.plan.sample_starts(np.asarray(self.partition_starts))

    @cached_property
    def shuffle_index(self) -> RowReader:
        """Positions to samples: shape (samples,), stored or computed."""
        if self.stored_shuffle is not None:
            return self.stored_shuffle
        return ComputedShuffle(self.plan, self.sample_starts)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of each sample, by its number before the shuffle."""
        return np.searchsorted(self.sample_starts, samples, side="right") - 1
