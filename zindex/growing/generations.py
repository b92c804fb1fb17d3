"""The records of several generations of a growing store as columns, wherever their values are."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import StoreNotFoundError
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import Home
from zindex.growing.homes import FieldArrays
from zindex.growing.joined_rows import JoinedRows, Parts
from zindex.store.rows import RowReader


class _View(NamedTuple):
    """Where the generations are: the runs of chosen ones that have one home."""

    homes: list[Home]
    #: Parts of the records, and of the values of each field.
    records: Parts
    values: list[Parts]


class Generations:
    """Some generations of a store, which keeps to them when compaction moves their values.

    Parameters
    ----------
    log
        The store.
    chosen
        Shape (generations,), int64, ascending: their places in the history of the store.
    is_dense
        Whether records are numbered from 0 without gaps, or have their global numbers.
    """

    def __init__(self, log: GrowingLog, chosen: Int64Array, *, is_dense: bool = True) -> None:
        self.log, self.chosen, self.is_dense = log, chosen, is_dense
        with log.lock:
            self.view = self._find()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_generations, (self.log, self.chosen, self.is_dense)

    @property
    def num_records(self) -> int:
        """Records of the generations; with global numbers, the number after the last one."""
        stops = self.view.records.stops
        return int(stops[-1]) if len(stops) else 0

    def join(self) -> dict[str, FieldArrays]:
        """Return the values of each stored field, and the offset of each record in them."""
        joined = {}
        for field, (name, dtype, _) in enumerate(self.log.schema.fields):
            values = JoinedRows(name, dtype, _FieldParts(self, field, 0))
            offsets = JoinedRows(
                f"{name} offset", "int64", _FieldParts(self, field, 1), is_offset=True
            )
            joined[name] = FieldArrays(values, offsets)
        return joined

    def refresh(self, view: "_View") -> bool:
        """Look for the generations again; return whether one has moved since a view."""
        with self.log.lock:
            self.log.advance()
            self.view = self._find()
            self.log.reader.forget(home.name for home in self.log.history.homes)
            return self.view.homes != view.homes

    def _find(self) -> _View:
        history, chosen = self.log.history, self.chosen
        starts = np.array([home.start for home in history.homes], np.int64)
        places = np.searchsorted(starts, chosen, "right") - 1
        is_first = np.append(True, (np.diff(chosen) > 1) | (np.diff(places) > 0))
        first = np.flatnonzero(is_first[: len(chosen)])
        last = np.append(first[1:], len(chosen))[: len(first)] - 1
        homes = [history.homes[place] for place in places[first].tolist()]
        runs = chosen[first], chosen[last] + 1, starts[places[first]]
        values = history.value_offset
        return _View(
            homes,
            self._cut(history.record_offset, *runs),
            [self._cut(values[:, field], *runs) for field in range(values.shape[1])],
        )

    def _cut(
        self, offset: Int64Array, first: Int64Array, stop: Int64Array, own: Int64Array
    ) -> Parts:
        """Return the parts of an array with an offset for each generation."""
        starts, stops, shifts = offset[first], offset[stop], offset[own]
        skips = starts - shifts
        if self.is_dense:
            lengths = stops - starts
            stops = np.cumsum(lengths)
            starts = stops - lengths
            shifts = starts - skips
        return Parts(starts, stops, skips, shifts)


def _open_generations(log: GrowingLog, chosen: Int64Array, is_dense: bool) -> Generations:
    return Generations(log, chosen, is_dense=is_dense)


@dataclass(frozen=True, slots=True)
class _FieldParts:
    """The parts of one stored field: of its values, or of the offsets of its records."""

    generations: Generations
    field: int
    #: Index of the array in `FieldArrays`.
    kind: int

    @property
    def view(self) -> _View:
        """Where the generations are now."""
        return self.generations.view

    def find_parts(self) -> Parts:
        """Return the parts; offsets are shifted by the values before them."""
        view = self.generations.view
        values = view.values[self.field]
        return view.records._replace(shifts=values.shifts) if self.kind else values

    def open_parts(self, numbers: list[int]) -> list[RowReader | AnyArray]:
        """Return the arrays of some parts."""
        generations = self.generations
        wanted = [generations.view.homes[number] for number in numbers]
        log = generations.log
        try:
            opened = log.reader.open(wanted, log.history.rows)
        except StoreNotFoundError as error:
            raise self._explain(error, wanted) from error
        return [opened[home.name][self.field][self.kind] for home in wanted]

    def _explain(self, error: StoreNotFoundError, homes: list[Home]) -> StoreNotFoundError:
        """Return the error for homes of which one is missing: it may have been evicted."""
        log = self.generations.log
        with log.lock:
            log.advance()
            live, numbers = log.history.find_live(), log.history.numbers
        for home in homes:
            if not live[home.start : home.stop].any():
                first, last = numbers[[home.start, home.stop - 1]].tolist()
                return StoreNotFoundError(
                    f"generations {first} to {last} of {log.root} were evicted, and removed by "
                    "`zindex gc`; resume from a later state, or evict and release later"
                )
        return error

    def refresh(self, view: object) -> bool:
        """Look for the parts again; return whether they have moved since a view."""
        assert isinstance(view, _View)
        return self.generations.refresh(view)
