"""Shuffles within epochs, and arrays that are computed on read instead of being stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.kernels.bijection import permute, permute_range, unpermute
from zindex.plan.build_plan import CountedPlan, SplitPlan
from zindex.plan.keys import Stage
from zindex.store.layout import ArrayShape
from zindex.store.open import Store
from zindex.store.rows import RowReader, Spans, count_from


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
    permute_epochs(plan, Stage.SAMPLE, start, out, _epoch_finder(sample_starts))


def _epoch_finder(starts: Int64Array) -> Callable[[int], tuple[int, int, int]]:
    """Return the function from a row to its epoch and that epoch's rows, half-open."""

    def find_epoch(row: int) -> tuple[int, int, int]:
        epoch = int(np.searchsorted(starts, row, side="right")) - 1
        return epoch, int(starts[epoch]), int(starts[epoch + 1])

    return find_epoch


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


def range_reader(length: int) -> ComputedArray:
    """Return an array of its own positions, int64, computed for the rows of a read."""
    layout = ArrayShape(schema.SHUFFLE_INDEX.name, length, 1, "int64", length, length)
    return ComputedArray(layout, None, _read_range)


def _read_range(plan: None, start: int, stop: int) -> Int64Array:
    return np.arange(start, stop)


class KeyedEpochs(RowReader):
    """An order that is shuffled epoch by epoch, computed for the rows of a read, and its inverse.

    Parameters
    ----------
    layout
        The array, as it would be stored.
    plan, stage
        They decide the keys.
    starts
        Shape (epochs + 1,), int64: row at which each epoch starts.
    first_value
        Least value of every epoch; None means that each epoch's values are its rows.
    """

    def __init__(
        self,
        layout: ArrayShape,
        plan: SplitPlan,
        stage: Stage,
        starts: Int64Array,
        first_value: int | None = None,
    ) -> None:
        super().__init__(layout)
        self.plan = plan
        self.stage = stage
        self.starts = starts
        self.first_value = first_value

    def take(self, rows: Int64Array) -> AnyArray:
        """Return the values of scattered rows; those of one epoch are computed together."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            self.refuse(rows, rows + 1)
        out: AnyArray = np.empty(len(rows), self.dtype)
        epochs = np.searchsorted(self.starts, rows, side="right") - 1
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            first, last = self.starts[epoch : epoch + 2].tolist()
            low = first if self.first_value is None else self.first_value
            keys = self.plan.round_keys(self.stage, epoch)
            out[here] = low + permute(rows[here] - first, last - first, keys)
        return out

    def find_rows(self, values: Int64Array) -> Int64Array:
        """Return all rows that have one of some values: shape (rows,), int64, unordered.

        A value outside the order has no row.
        """
        found = [np.empty(0, np.int64)]
        for epoch in range(len(self.starts) - 1):
            first, last = self.starts[epoch : epoch + 2].tolist()
            low = first if self.first_value is None else self.first_value
            own = values[(low <= values) & (values < low + last - first)] - low
            if own.size:
                keys = self.plan.round_keys(self.stage, epoch)
                found.append(first + unpermute(own, last - first, keys))
        return np.concatenate(found)

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return spans of several such arrays; those of one array are computed together."""
        results = []
        for spans in wanted:
            reader = spans.reader
            assert isinstance(reader, KeyedEpochs)
            starts, stops, out, places = spans.resolve()
            counts = stops - starts
            out[count_from(places, counts)] = reader.take(count_from(starts, counts))
            results.append(out)
        return results

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        find_epoch = _epoch_finder(self.starts)
        permute_epochs(self.plan, self.stage, start, out, find_epoch, self.first_value)


def keyed_shuffle(plan: SplitPlan, sample_starts: Int64Array) -> KeyedEpochs:
    """Return a shuffle within epochs, computed for the rows of a read.

    Parameters
    ----------
    plan
        Determines the keys and the grid.
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts.
    """
    layout = plan.shuffle_layout_of(int(sample_starts[-1]))
    return KeyedEpochs(layout, plan, Stage.SAMPLE, sample_starts)


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
        return self.keyed_shuffle

    @cached_property
    def keyed_shuffle(self) -> KeyedEpochs:
        """The same as `shuffle_index`, computed, and its inverse."""
        return keyed_shuffle(self.plan, self.sample_starts)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of each sample, by its number before the shuffle."""
        return np.searchsorted(self.sample_starts, samples, side="right") - 1
