"""What the log of a growing store says: its generations, evictions, and where records are stored.

Records have global numbers, in the order of the commits; these never change. Where their values are
does: compaction moves them to larger stores.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import StoreError, VerificationError, shorten
from zindex.formats.keyed.keyed_array import sum_lengths
from zindex.plan import intervals
from zindex.store.checked_json import parse_as


@dataclass(frozen=True, slots=True)
class Append:
    """A commit of records: a generation with values."""

    kind: Literal["append"]
    #: Name of its file, or of its store.
    name: str
    num_records: int
    #: Version of the policy that made the records.
    version: int
    #: Values of each stored field.
    num_values: tuple[int, ...]
    nbytes: int
    #: SHA-256 of its file, or the fingerprint of its store.
    digest: str
    is_store: bool


@dataclass(frozen=True, slots=True)
class Compaction:
    """A commit that moves the records of consecutive generations to one store."""

    kind: Literal["compact"]
    name: str
    #: First and last generation.
    first: int
    last: int
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """A commit from which on readers leave earlier generations out."""

    kind: Literal["evict"]
    #: Generations below either bound are evicted; None is no bound.
    version_below: int | None
    number_below: int | None


Entry = Append | Compaction | Eviction
_KINDS: dict[str, Any] = {"append": Append, "compact": Compaction, "evict": Eviction}


@dataclass(frozen=True, slots=True)
class Home:
    """Where the records of some consecutive generations are stored: a file or a store."""

    name: str
    is_store: bool
    #: Range of its generations, by their place among all of them.
    start: int
    stop: int
    nbytes: int
    digest: str


_NAME = re.compile(r"[0-9a-f-]{1,80}")
_SUMMARY: Any = tuple[Home, ...]
_EVICTIONS: Any = tuple[tuple[int, Eviction], ...]
# Columns of the table before those of the stored fields.
_NUMBER, _RECORDS, _VERSION, _FIRST_FIELD = range(4)


def parse_entry(content: Mapping[str, Any], where: str) -> Entry:
    """Return a commit from its JSON values; StoreError if it is none."""
    fields = {name: value for name, value in content.items() if name != "number"}
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise StoreError(
            f"{where} must be one of {', '.join(_KINDS)}, got {shorten(kind)}; update zindex"
        )
    entry: Entry = parse_as(_KINDS[kind], fields, where)
    if not isinstance(entry, Eviction):
        _check_name(entry.name, where)
    return entry


def _check_name(name: str, where: str) -> None:
    """Raise unless a name is one that zindex gives: it becomes part of a path."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{where} must name files by digits and letters, it has {shorten(name)}; it was not "
            "written by zindex"
        )


class History:
    """The commits of a store up to some number.

    Parameters
    ----------
    num_fields
        Stored fields of its records.
    """

    def __init__(self, num_fields: int) -> None:
        #: Number of the last commit; 0 before the first.
        self.number = 0
        #: By number, each eviction.
        self.evictions: dict[int, Eviction] = {}
        #: In the order of their generations.
        self.homes: list[Home] = []
        #: Numbers of the commits by the names that they added, of those that this process read.
        self.recent: dict[str, int] = {}
        self._rows: Int64Array = np.empty((0, _FIRST_FIELD + num_fields), np.int64)
        self._new: list[tuple[int, ...]] = []

    def add(self, number: int, entry: Entry) -> None:
        """Add the next commit.

        Raises
        ------
        VerificationError
            If it does not follow from the earlier ones.
        """
        place = self.num_generations
        if isinstance(entry, Append):
            row = number, entry.num_records, entry.version, *entry.num_values
            if len(row) != self._rows.shape[1] or min(row) < 0:
                raise VerificationError(
                    f"commit {number} must count the values of {self._rows.shape[1] - 3} fields, "
                    f"got {shorten(entry.num_values)}; restore it"
                )
            self._new.append(row)
            self.homes.append(
                Home(entry.name, entry.is_store, place, place + 1, entry.nbytes, entry.digest)
            )
        elif isinstance(entry, Eviction):
            self.evictions[number] = entry
        else:
            first, stop = self.find_homes(entry.first, entry.last)
            start, end = self.homes[first].start, self.homes[stop - 1].stop
            self.homes[first:stop] = [
                Home(entry.name, True, start, end, entry.nbytes, entry.digest)
            ]
        if not isinstance(entry, Eviction):
            self.recent[entry.name] = number
        self.number = number

    def find_homes(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of the homes of generations ``first`` to ``last``.

        Raises
        ------
        VerificationError
            If a home has others, too.
        """
        numbers = self.numbers
        start, stop = np.searchsorted(numbers, [first, last + 1]).tolist()
        low = bisect_right(self.homes, start, key=lambda home: home.start) - 1
        high = bisect_right(self.homes, stop - 1, key=lambda home: home.start)
        if not (
            0 <= start < stop
            and self.homes[low].start == start
            and self.homes[high - 1].stop == stop
        ):
            raise VerificationError(
                f"a compaction must replace whole files or stores, got generations {first} to "
                f"{last}; restore the log"
            )
        return low, high

    @property
    def num_generations(self) -> int:
        """Generations with records of their own, evicted or not."""
        return len(self._rows) + len(self._new)

    @property
    def rows(self) -> Int64Array:
        """A row for each generation: number, records, version, and values of each field."""
        if self._new:
            self._rows = np.concatenate([self._rows, np.array(self._new, np.int64)])
            self._new = []
        return self._rows

    @property
    def numbers(self) -> Int64Array:
        """Shape (generations,): their numbers, ascending."""
        numbers: Int64Array = self.rows[:, _NUMBER]
        return numbers

    @property
    def versions(self) -> Int64Array:
        """Shape (generations,): the policy version of each."""
        versions: Int64Array = self.rows[:, _VERSION]
        return versions

    @property
    def record_offset(self) -> Int64Array:
        """Shape (generations + 1,): number of the first record of each."""
        return sum_lengths(self.rows[:, _RECORDS])

    @property
    def value_offset(self) -> Int64Array:
        """Shape (generations + 1, fields): the first value of each field, over all generations."""
        values = self.rows[:, _FIRST_FIELD:]
        return np.concatenate([np.zeros((1, values.shape[1]), np.int64), values.cumsum(0)])

    def find_live(self, number: int | None = None) -> BoolArray:
        """Return which generations the store has at a commit: shape (generations,)."""
        head = self.number if number is None else number
        bounds = [
            (at, each.version_below or 0, min(each.number_below or 0, at))
            for at, each in self.evictions.items()
            if at <= head
        ]
        ats, versions, numbers = np.array(bounds, np.int64).reshape(-1, 3).T
        # The highest version below which one of the evictions after a generation leaves it out.
        reach = np.append(np.maximum.accumulate(versions[::-1])[::-1], 0)
        live: BoolArray = (self.numbers <= head) & (self.numbers >= numbers.max(initial=0))
        return live & (self.versions >= reach[np.searchsorted(ats, self.numbers, "right")])

    def find_records(self, chosen: BoolArray) -> Int64Array:
        """Return the records of some generations, as intervals."""
        offset = self.record_offset
        places = np.flatnonzero(chosen)
        return intervals.merge(np.stack([offset[places], offset[places + 1]], axis=1))

    def find_generations(self, ranges: Int64Array) -> Int64Array:
        """Return the places of the generations that have some records; ranges as of intervals."""
        offset = self.record_offset
        first = np.searchsorted(offset, ranges[:, 0], "right") - 1
        stop = np.searchsorted(offset, ranges[:, 1], "left")
        return intervals.expand(intervals.merge(np.stack([first, stop], axis=1)))

    def find_newest_version(self, number: int) -> int:
        """Return the highest policy version of the store at a commit; 0 without records."""
        return int(self.versions[self.numbers <= number].max(initial=0))

    def to_json(self) -> dict[str, Any]:
        """Return the history as JSON values."""
        return {
            "number": self.number,
            "rows": self.rows.T.tolist(),
            "homes": [asdict(home) for home in self.homes],
            "evictions": [[at, asdict(each)] for at, each in self.evictions.items()],
        }

    def load(self, content: Mapping[str, Any], where: str) -> None:
        """Begin with what ``to_json`` returned; StoreError if it is something else."""
        columns = parse_as(tuple[tuple[int, ...], ...], content.get("rows"), where)
        sizes = {len(column) for column in columns}
        least = min((min(column, default=0) for column in columns), default=0)
        if len(columns) != self._rows.shape[1] or len(sizes) > 1 or least < 0:
            raise StoreError(f"{where} must have a column for each field; remove it")
        homes = parse_as(_SUMMARY, content.get("homes"), where)
        for home in homes:
            _check_name(home.name, where)
        evictions = parse_as(_EVICTIONS, content.get("evictions"), where)
        self.number = parse_as(int, content.get("number"), where)
        self.homes, self.evictions = list(homes), dict(evictions)
        self._rows = np.array(columns, np.int64).T.reshape(-1, len(columns))
