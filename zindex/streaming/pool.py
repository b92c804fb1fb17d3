"""What is left of a source: the parts that nobody finished, in the order in which lanes take them.

The parts of all epochs have one row of numbers: part ``p`` of epoch ``e`` is ``e * num_parts + p``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """Parts that are not finished: those begun first, then all others by number.

    The item ``q`` of this row belongs to the lane ``q % num_lanes``.
    """

    low: int = 0
    #: Every part below is finished, or begun.
    ahead: tuple[tuple[int, int], ...] = ()
    #: Finished ranges ``[start, stop)`` from ``low`` on, ascending and apart.
    begun: tuple[tuple[int, int], ...] = ()
    #: Parts of which some samples were delivered, ascending, and how many.

    def item(self, number: int) -> tuple[int, int]:
        """Return the part at a place of the row, and how many of its samples were delivered."""
        if number < len(self.begun):
            return self.begun[number]
        return int(self._free(np.array([number - len(self.begun)]))[0]), 0

    def items(self, numbers: Int64Array) -> Int64Array:
        """Return the parts at places of the row.

        Parameters
        ----------
        numbers
            Shape (places,), int64, >= 0.

        Returns
        -------
        parts
            Shape (places,), int64.
        """
        parts = self._free(np.maximum(numbers - len(self.begun), 0))
        for place in np.flatnonzero(numbers < len(self.begun)):
            parts[place] = self.begun[numbers[place]][0]
        return parts

    def _free(self, numbers: Int64Array) -> Int64Array:
        """Return the parts that nobody began, by their place among these."""
        before, lengths = self._gaps
        return numbers + self.low + lengths[np.searchsorted(before, numbers, side="right")]

    @cached_property
    def _gaps(self) -> tuple[Int64Array, Int64Array]:
        """The free parts before each taken range, and the taken ones before each free range."""
        ranges = _unite([*self.ahead, *((part, part + 1) for part, _ in self.begun)])
        taken = [(max(start, self.low), stop) for start, stop in ranges if stop > self.low]
        lengths = list(accumulate((stop - start for start, stop in taken), initial=0))
        before = [start - self.low - lengths[i] for i, (start, _) in enumerate(taken)]
        return np.array(before, np.int64), np.array(lengths, np.int64)

    def after(self, cursors: Mapping[int, tuple[int, int]], num_lanes: int) -> "Pool":
        """Return what is left when lanes have taken their items.

        Parameters
        ----------
        cursors
            By lane: items finished, and samples delivered of the part of the next item.
        num_lanes
            Lanes that shared the row. Those that are not in ``cursors`` took nothing.
        """
        finished = [cursors.get(lane, (0, 0))[0] for lane in range(num_lanes)]
        least = min(finished)
        num_first = least * num_lanes
        # Places [0, num_first) are finished, and a few after them.
        places = [
            lane + num_lanes * turn
            for lane, count in enumerate(finished)
            for turn in range(least, count)
        ]
        done = set(self.items(np.array(places, np.int64)).tolist())
        done.update(part for part, _ in self.begun[:num_first])
        begun = {part: delivered for part, delivered in self.begun if part not in done}
        for lane, (count, delivered) in cursors.items():
            if delivered:
                begun[self.item(lane + num_lanes * count)[0]] = delivered
        low = self.low
        if num_first > len(self.begun):
            low = self.item(num_first - 1)[0] + 1
        return Pool._of(low, [*self.ahead, *((part, part + 1) for part in done)], begun)

    @classmethod
    def without(cls, finished: Iterable[int]) -> "Pool":
        """Return all parts but some."""
        return cls._of(0, ((part, part + 1) for part in finished), {})

    @classmethod
    def _of(cls, low: int, finished: Iterable[tuple[int, int]], begun: Mapping[int, int]) -> "Pool":
        ranges = _unite(finished)
        while ranges and ranges[0][0] <= low:
            low = max(low, ranges.pop(0)[1])
        return cls(low, tuple(ranges), tuple(sorted(begun.items())))

    def to_json(self) -> dict[str, Any]:
        """Return the pool as JSON values."""
        return {
            "low": self.low,
            "ahead": [*map(list, self.ahead)],
            "begun": [*map(list, self.begun)],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Pool":
        """Return the pool that `to_json` wrote."""
        return cls(
            int(fields["low"]),
            tuple((int(a), int(b)) for a, b in fields["ahead"]),
            tuple((int(a), int(b)) for a, b in fields["begun"]),
        )


def _unite(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of ranges: ascending, apart."""
    united: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], stop))
        else:
            united.append((start, stop))
    return united
