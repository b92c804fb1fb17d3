"""Worker slots, which share the samples of a stream, and their unread partitions.

The parts of all epochs are numbered in one sequence: part ``p`` of epoch ``e`` is
``e * num_parts + p``.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.mixing.percent_board import PercentBoard
from zindex.sources.file_listing import first_files
from zindex.store.checked_json import parse_as

STATE_VERSION = 1

#: Checkpoint of a stream: JSON values by the name of a source, a mixing or a yield function.
Entries = dict[str, Any]
#: Items that a worker slot has finished in a source, samples delivered of the next one, damaged
#: samples skipped, and each piece of a document that was read but not delivered.
Cursor = tuple[Any, ...]
#: Position of a worker slot in a mixture: its picks or, within one, the earlier ones, samples of
#: this one, and the source.
Position = int | Sequence[int]
#: Number of a part in all epochs, of a sample in it, and of a piece of the sample.
HeldPiece = tuple[int, int, int]
#: As the number of a piece: all of the sample.
WHOLE = -1
#: Origin, rank, ranks, slot and slots of a worker slot; more of a run of samples, see `run_head`.
Head = tuple[Any, ...]
#: Entries that a sample changed: those of inner streams, and the name and value of one more.
Changes = tuple[Any, str, Any]

# The state of a sample is its worker slot, for the first one of a slot the state that it resumed
# from, and the `Changes`. Or, which is made faster, the `run_head` of a run of samples and its
# number.


def run_head(
    head: Head, key: str, cursor: Cursor, ends: Iterable[int], mix_key: str, num_picks: int
) -> Head:
    """Return what adjacent samples of one source share: their worker slot, and the entries before.

    Sample ``n`` of them, from 1 on, has advanced both entries by ``n``; see `advance` for ``ends``.
    """
    return *head, key, *cursor, mix_key, num_picks, *ends


def advance(cursor: Cursor, ends: Sequence[int], number: int) -> Cursor:
    """Return the cursor after some adjacent samples of a source.

    Parameters
    ----------
    cursor
        Of a source that is not packed, before them.
    ends
        Samples up to the end of each item but the last one, ascending.
    number
        Number of the samples.

    Examples
    --------
    >>> [advance((4, 10, 0), [2, 5], number) for number in (1, 2, 3, 6)]
    [(4, 11, 0), (4, 12, 0), (5, 1, 0), (6, 1, 0)]
    """
    finished, delivered, damaged = cursor
    if ends and (passed := bisect_left(ends, number)):
        return finished + passed, number - ends[passed - 1], damaged
    return finished, delivered + number, damaged


def read_state(state: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any] | None, Entries]:
    """Return the worker slot of a sample, what it resumed from, and the entries that it changed.

    Examples
    --------
    >>> read_state((("id", 0, 1, 0, 1), None, (None, "leaf a", (0, 1, 0)), "mix /", 1))
    (('id', 0, 1, 0, 1), None, {'mix /': 1, 'leaf a': (0, 1, 0)})
    >>> read_state((("id", 0, 1, 0, 1, "leaf a", 0, 5, 0, "mix /", 7), 2))
    (('id', 0, 1, 0, 1), None, {'leaf a': (0, 7, 0), 'mix /': 9})
    >>> read_state((("id", 0, 1, 0, 1, "leaf a", 0, 5, 0, "mix /", 7, 1), 2))
    (('id', 0, 1, 0, 1), None, {'leaf a': (1, 1, 0), 'mix /': 9})
    """
    entries: Entries = {}
    if len(state) == 2:
        run, number = state
        key, finished, delivered, damaged, mix_key, num_picks, *ends = run[5:]
        entries[key] = advance((finished, delivered, damaged), ends, number)
        entries[mix_key] = num_picks + number
        return run[:5], None, entries
    head, begin, *changes = state
    while changes is not None:
        changes, key, value = changes
        entries[key] = value
    return head, begin, entries


def write_changes(entries: Entries) -> Any:
    """Return entries as `Changes`; None without any."""
    changes: Changes | None = None
    for key, value in entries.items():
        changes = changes, key, value
    return changes


@dataclass(frozen=True)
class UnreadPartitions:
    """Unread parts, in dispatch order: partly read ones first, then all others by number.

    Item ``q`` of this order belongs to worker slot ``q % num_worker_slots``.
    """

    #: Every part below is finished or partly read.
    low: int = 0
    #: Finished ranges ``[start, stop)`` from ``low`` on, ascending and disjoint.
    ahead: tuple[tuple[int, int], ...] = ()
    #: Partly read parts, ascending, and how many of their samples were delivered.
    begun: tuple[tuple[int, int], ...] = ()
    #: Pieces of documents of finished or partly read parts that were not delivered. Piece ``q``
    #: belongs to worker slot ``q % num_worker_slots``.
    held: tuple[HeldPiece, ...] = ()

    def first_cursor(self, slot: int, num_worker_slots: int) -> Cursor:
        """Return the cursor of a worker slot, by its index, that has delivered nothing."""
        return 0, 0, 0, *self.held[slot::num_worker_slots]

    def item(self, number: int) -> tuple[int, int]:
        """Return the part at a position of the order, and its number of delivered samples."""
        if number < len(self.begun):
            return self.begun[number]
        if not self.begun and not self.ahead:
            return number + self.low, 0
        return int(self.items(np.array([number]))[0]), 0

    def items(self, numbers: Int64Array) -> Int64Array:
        """Return the parts at positions of the order.

        Parameters
        ----------
        numbers
            Shape (places,), int64, >= 0.

        Returns
        -------
        parts
            Shape (places,), int64.
        """
        before, lengths = self._gaps
        free = np.maximum(numbers - len(self.begun), 0)
        parts = free + self.low + lengths[np.searchsorted(before, free, side="right")]
        for place in np.flatnonzero(numbers < len(self.begun)):
            parts[place] = self.begun[numbers[place]][0]
        return parts

    @cached_property
    def _gaps(self) -> tuple[Int64Array, Int64Array]:
        """Free parts before each taken range, and taken parts before each free range."""
        ranges = _unite([*self.ahead, *((part, part + 1) for part, _ in self.begun)])
        taken = [(max(start, self.low), stop) for start, stop in ranges if stop > self.low]
        lengths = list(accumulate((stop - start for start, stop in taken), initial=0))
        before = [start - self.low - lengths[i] for i, (start, _) in enumerate(taken)]
        return np.array(before, np.int64), np.array(lengths, np.int64)

    def after(self, cursors: Sequence[Cursor]) -> "UnreadPartitions":
        """Return the unread parts after worker slots have taken their items.

        Parameters
        ----------
        cursors
            Of each worker slot that shared the order.
        """
        num_worker_slots = len(cursors)
        finished = [cursor[0] for cursor in cursors]
        least = min(finished)
        num_first = least * num_worker_slots
        # Positions [0, num_first) are finished, and a few after them.
        places = [
            slot + num_worker_slots * turn
            for slot, count in enumerate(finished)
            for turn in range(least, count)
        ]
        done = set(self.items(np.array(places, np.int64)).tolist())
        done.update(part for part, _ in self.begun[:num_first])
        begun = {part: delivered for part, delivered in self.begun if part not in done}
        held: list[HeldPiece] = []
        for slot, (count, delivered, _, *pieces) in enumerate(cursors):
            if delivered:
                begun[self.item(slot + num_worker_slots * count)[0]] = delivered
            held += ((part, row, piece) for part, row, piece in pieces)
        low = self.low
        if num_first > len(self.begun):
            low = self.item(num_first - 1)[0] + 1
        ranges = [*self.ahead, *((part, part + 1) for part in done)]
        return replace(UnreadPartitions._of(low, ranges, begun), held=tuple(held))

    def reread(self) -> "UnreadPartitions":
        """Return this order with partly read parts and documents from their starts."""
        begun = tuple((part, 0) for part, _ in self.begun)
        return replace(self, begun=begun, held=tuple(reread_pieces(self.held)))

    def is_finished(self, end: int) -> bool:
        """Return whether all parts before one are finished."""
        return self.low >= end and not self.begun and not self.held

    @classmethod
    def without(cls, finished: Iterable[int]) -> "UnreadPartitions":
        """Return all parts except the finished ones."""
        return cls._of(0, ((part, part + 1) for part in finished), {})

    @classmethod
    def _of(
        cls, low: int, finished: Iterable[tuple[int, int]], begun: Mapping[int, int]
    ) -> "UnreadPartitions":
        ranges = _unite(finished)
        while ranges and ranges[0][0] <= low:
            low = max(low, ranges.pop(0)[1])
        return cls(low, tuple(ranges), tuple(sorted(begun.items())))


def reread_pieces(held: Iterable[Sequence[int]]) -> list[HeldPiece]:
    """Return pieces of documents as whole documents, each once."""
    return list(dict.fromkeys((part, row, WHOLE) for part, row, _ in held))


def _unite(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of ranges, ascending and disjoint."""
    united: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], stop))
        else:
            united.append((start, stop))
    return united


@dataclass(frozen=True)
class WorkerSlot:
    """One loader worker of one rank."""

    rank: int = 0
    num_ranks: int = 1
    #: Position of the loader worker in the turns of its rank's loader.
    slot: int = 0
    num_slots: int = 1
    #: Number of the loader worker in torch.
    worker: int = 0

    @classmethod
    def at(cls, index: int, num_ranks: int, num_slots: int) -> "WorkerSlot":
        """Return a worker slot by its number among those of all ranks."""
        rank, slot = divmod(index, num_slots)
        return cls(rank, num_ranks, slot, num_slots, worker=slot)

    @property
    def index(self) -> int:
        """Number of this worker slot among those of all ranks."""
        return self.rank * self.num_slots + self.slot

    @property
    def count(self) -> int:
        """Worker slots of all ranks."""
        return self.num_ranks * self.num_slots


def picks_begun(position: Position) -> int:
    """Return the picks of a worker slot that it has begun at a position in a mixture."""
    return position if isinstance(position, int) else position[0] + 1


@dataclass(frozen=True)
class StreamOrigin:
    """Start of all worker slots: the unread partitions of each source at that time.

    The entries of worker slots refer to one origin. A run that resumes with as many ranks and
    workers keeps its origin; any other number starts a new one.
    """

    id: str
    #: Source -> identity that its state is valid for.
    identities: Mapping[str, str]
    pools: Mapping[str, UnreadPartitions] = field(default_factory=dict)
    #: Source -> damaged samples skipped before.
    skipped: Mapping[str, int] = field(default_factory=dict)
    #: Yield function -> unfinished segments of worker slots of older origins.
    orphans: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: The origins of those segments.
    older: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: Ids of all earlier origins.
    ancestors: tuple[str, ...] = ()
    #: Number of the iteration over the dataset; each one has another order.
    iteration: int = 0
    #: Path of a mixture -> its mixing, its sources, each with its percent, samples of a pick, and
    #: paths of nested mixtures that are taken apart; see `mixture_tree.Mixtures`.
    mixtures: Mapping[str, list[Any]] = field(default_factory=dict)
    #: Path of a mixture -> its samples by earlier worker slots.
    delivered: Mapping[str, int] = field(default_factory=dict)
    #: Path of a mixture -> source -> picks that earlier worker slots owe it, in 2**-30.
    owed: Mapping[str, dict[str, int]] = field(default_factory=dict)
    #: View -> the list of its files; see `PartFiles.listing`. The view of a source over what it had
    #: first has its name; those after it has grown are ``NAME@1``, ``NAME@2``, ...
    files: Mapping[str, str] = field(default_factory=dict)
    #: View that has grown -> the first part that it no longer has.
    ends: Mapping[str, int] = field(default_factory=dict)

    def views(self, name: str) -> list[str]:
        """Return the views of a source, oldest first."""
        found = [view for view in self.identities if view.partition("@")[0] == name]
        return sorted(found, key=lambda view: int(view.partition("@")[2] or 0))

    def reach(self, num_picks: int, num_lanes: int) -> int:
        """Return the samples of the stream after some picks of each worker slot."""
        return self.delivered.get("/", 0) + num_picks * num_lanes * self.samples_per_pick("/")

    def samples_per_pick(self, path: str) -> int:
        """Return the samples of a pick of a mixture."""
        return int(self.mixtures[path][2]) if path in self.mixtures else 1

    def samples_of(self, path: str, position: Position) -> int:
        """Return the samples of a worker slot at a position in a mixture."""
        num_picks, num_given, *_ = [position, 0] if isinstance(position, int) else position
        return num_picks * self.samples_per_pick(path) + num_given

    def unread(self, name: str) -> UnreadPartitions:
        """Return the unread partitions of a source."""
        return self.pools.get(name) or UnreadPartitions()

    def to_json(self) -> dict[str, Any]:
        """Return the origin as JSON values."""
        fields = asdict(self)
        if not self.owed:  # as in states of earlier versions
            del fields["owed"]
        return {"version": STATE_VERSION, **json.loads(json.dumps(fields))}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StreamOrigin":
        """Return the origin that `to_json` wrote."""
        own = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        # Earlier versions had the number of files, or less.
        counts = fields.get("num_files", {}).items()
        earlier = {"files": {view: first_files(count) for view, count in counts}}
        own = {name: {} for name in ("mixtures", "delivered", "owed", "ends")} | earlier | own
        return parse_as(cls, own, "the state of a stream")


@dataclass(frozen=True)
class StreamStart:
    """Where a worker slot starts reading: its origin, and its entries since then."""

    slot: WorkerSlot
    origin: StreamOrigin
    entries: Entries
    #: Percents that are changed while it reads.
    board: PercentBoard | None = None

    @property
    def head(self) -> Head:
        """Head of its samples' states: plain values, which are cheap to send."""
        slot = self.slot
        return self.origin.id, slot.rank, slot.num_ranks, slot.slot, slot.num_slots
