"""Percents that change while a mixture is read: by schedules, and by calls of ``set_percents``.

A piece is a span of the stream in which all percents are constant. Positions are samples of the
whole stream, of all worker slots together; each slot begins a piece at the same one of its picks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

from zindex.errors import ConfigError
from zindex.mixing.mixture_tree import name_children
from zindex.mixing.percent_board import Change, PercentBoard, Place, gather_requests
from zindex.mixing.percent_schedules import (
    Percent,
    Schedule,
    is_percent,
    is_read,
    parse_percent,
    percent_at,
    to_fraction,
)
from zindex.plan.tail import Tail


@dataclass(frozen=True)
class Piece:
    """Picks of a worker slot with constant percents."""

    #: First pick of the worker slot.
    start: int
    percents: tuple[Percent, ...]


class Pieces(Protocol):
    """The pieces of a mixture in a worker slot."""

    #: Sources of the mixture.
    num_sources: int

    def at(self, pick: int) -> Piece:
        """Return the piece of a pick."""
        ...

    def planned(self, start: int) -> list[Piece]:
        """Return the pieces after that of a pick, if no percents are set after it."""
        ...

    def reserve(self, start: int, stop: int) -> int | None:
        """Return the start of the piece after that of pick ``start``, None if it is the last one.

        From now on, no piece begins before ``stop`` that is not known yet.
        """
        ...

    def may_pick(self, sources: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0 at a pick or later."""
        ...


class ConstantPercents:
    """A single piece."""

    def __init__(self, percents: Sequence[Percent]) -> None:
        self.num_sources = len(percents)
        self._piece = Piece(0, tuple(percents))

    def at(self, pick: int) -> Piece:
        """Return the piece."""
        return self._piece

    def planned(self, start: int) -> list[Piece]:
        """Return no pieces."""
        return []

    def reserve(self, start: int, stop: int) -> int | None:
        """Return None."""
        return None

    def may_pick(self, sources: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0."""
        return any(self._piece.percents[source] > 0 for source in sources)


class LanePieces:
    """The pieces of a mixture in one worker slot: of its schedules, and of changes.

    Parameters
    ----------
    children
        Name and schedule of each source.
    board
        Changes; None for a mixture within another one.
    iteration
        Number of the iteration.
    base
        Samples of the mixture before the first pick of all worker slots.
    step, process
        See `PercentBoard.reach`.
    """

    def __init__(
        self,
        children: Sequence[tuple[str, Schedule]],
        board: PercentBoard | None,
        *,
        iteration: int,
        base: int,
        step: int,
        process: int,
    ) -> None:
        self.num_sources = len(children)
        self._children, self._board = children, board
        self._iteration, self._base, self._step = iteration, base, step
        self._process = process
        self._changes: list[Change] = [] if board is None else board.changes

    @cached_property
    def _pieces(self) -> list[Piece]:
        return self._list()

    def _list(self, last: float = math.inf) -> list[Piece]:
        """Return the pieces, without changes after pick `last`."""
        changes: dict[int, dict[str, float]] = {}
        for iteration, sample, percents in self._changes:
            if iteration <= self._iteration:
                changes[sample if iteration == self._iteration else 0] = percents
        changes = {sample: changes[sample] for sample in changes if self._pick_of(sample) <= last}
        starts = {start for _, schedule in self._children for start, _ in schedule}
        found: dict[int, Piece] = {}
        for sample in sorted(starts | {*changes}):
            # Of the pieces that begin at one pick, the last one counts.
            pick = self._pick_of(sample)
            found[pick] = Piece(pick, self._percents_at(sample, changes))
        return [*found.values()]

    def _pick_of(self, sample: int) -> int:
        """Return the first pick of the worker slot at a sample or after it."""
        return max(0, -(-(sample - self._base) // self._step))

    def planned(self, start: int) -> list[Piece]:
        """Return the pieces after that of a pick, if no percents are set after it.

        All worker slots know these at that pick, whichever later changes they have read.
        """
        return [piece for piece in self._list(start) if piece.start > start]

    def _percents_at(self, sample: int, changes: dict[int, dict[str, float]]) -> tuple[float, ...]:
        made = [start for start in changes if start <= sample]
        changed = changes[max(made)] if made else {}
        percents = (
            changed.get(name, percent_at(schedule, sample)) for name, schedule in self._children
        )
        return tuple(percents)

    def at(self, pick: int) -> Piece:
        """Return the piece of a pick."""
        return [piece for piece in self._pieces if piece.start <= pick][-1]

    def reserve(self, start: int, stop: int) -> int | None:
        """Return the start of the piece after that of a pick, having announced picks."""
        if self._board is not None:
            place = self._iteration, self._base + stop * self._step
            changes = self._board.reach(self._process, place, self._step)
            if changes is not self._changes:
                self._changes = changes
                self.__dict__.pop("_pieces", None)
        if len(self._pieces) == 1:
            return None
        later = (piece.start for piece in self._pieces if piece.start > start)
        return next(later, None)

    def may_pick(self, sources: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0 at a pick or later."""
        rest = (piece for piece in self._pieces if piece.start > start)
        return any(
            piece.percents[source] > 0 for piece in (self.at(start), *rest) for source in sources
        )


class SpreadPieces:
    """The pieces of a mixture whose nested mixtures are taken apart into their sources.

    Parameters
    ----------
    pieces
        Those of the datasets of the mixture.
    spread
        Of each source, the number of the dataset that it is in, and its share of that.
    """

    def __init__(self, pieces: Pieces, spread: Sequence[tuple[int, Fraction]]) -> None:
        self.num_sources = len(spread)
        self._pieces, self._spread = pieces, spread

    def at(self, pick: int) -> Piece:
        """Return the piece of a pick."""
        return self._spread_out(self._pieces.at(pick))

    def _spread_out(self, piece: Piece) -> Piece:
        percents = [to_fraction(percent) for percent in piece.percents]
        return Piece(piece.start, tuple(percents[number] * share for number, share in self._spread))

    def planned(self, start: int) -> list[Piece]:
        """Return the pieces after that of a pick, if no percents are set after it."""
        return [*map(self._spread_out, self._pieces.planned(start))]

    def reserve(self, start: int, stop: int) -> int | None:
        """Return the start of the piece after that of a pick, having announced picks."""
        return self._pieces.reserve(start, stop)

    def may_pick(self, sources: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0 at a pick or later."""
        numbers = [self._spread[source][0] for source in sources if self._spread[source][1]]
        return self._pieces.may_pick(numbers, start)


def check_percents(percents: Sequence[Any], *, exact: bool) -> None:
    """Check the percents of all sources of a mixture, each of which is valid.

    Raises
    ------
    ConfigError
        If none is > 0 at some sample, or cogdata's mixing does not take them.
    """
    if not exact and any(isinstance(percent, Mapping) for percent in percents):
        raise ConfigError(
            "percents over samples must be mixed exactly, got mixing='cogdata_mix'; leave it out, "
            "or give numbers as percents"
        )
    schedules = [parse_percent(percent) or () for percent in percents]
    for sample in sorted({start for schedule in schedules for start, _ in schedule}):
        current = [percent_at(schedule, sample) for schedule in schedules]
        if not any(current) or not (exact or all(current)):
            raise ConfigError(
                "one dataset of a mixture must have a percent > 0, and with mixing='cogdata_mix' "
                f"all, got {current} from sample {sample:,} on; set the attribute percent"
            )


def check_even_changes(mixture: Any, changes: Iterable[Mapping[str, float]]) -> None:
    """Raise ConfigError if changes of percents add or leave out datasets, and a tail counts them.

    Parameters
    ----------
    mixture
        The mixture; nothing is checked if its tail is exact.
    changes
        New percents by name.
    """
    if mixture.tail is Tail.EXACT:
        return
    children = name_children(mixture)
    for percents in changes:
        for name, percent in percents.items():
            if name in children and is_read(percent) != is_read(children[name].percent):
                raise ConfigError(
                    f"with tail={mixture.tail.value!r}, changes of percents must keep which "
                    f"datasets are read, got {percent} for {name!r}, whose percent is "
                    f"{children[name].percent}; leave tail out, or give it a small percent"
                )


def change_percents(
    mixture: Any,
    board: PercentBoard,
    percents: Mapping[str, float],
    at: int | None,
    num_ranks: int,
    group: Any,
    delivered: Place | None,
) -> list[list[Any]]:
    """Add a change to a board, at the same place on all ranks; see `MergedDataset.set_percents`.

    Returns
    -------
    changes
        All changes that a state needs, as JSON values.
    """
    if mixture.mixing != "exact":
        raise ConfigError(
            "percents that change must be mixed exactly, got mixing='cogdata_mix'; leave it out"
        )
    children = [
        (name, parse_percent(dataset.percent) or ())
        for name, dataset in name_children(mixture).items()
    ]
    names = [name for name, _ in children]
    if not percents or not all(map(is_percent, percents.values())):
        raise ConfigError(
            f"percents must be a mapping from sources to numbers >= 0, got {percents!r}; give at "
            "least one"
        )
    if unknown := sorted(map(str, percents.keys() - {*names})):
        raise ConfigError(
            f"percents must be of the sources of the outermost mixture, {', '.join(names)}, got "
            f"{unknown[0]!r}; name a nested mixture to change its percent"
        )
    check_even_changes(mixture, [percents])
    if at is not None and (type(at) is not int or at < 0):
        raise ConfigError(f"at must be a number of samples >= 0, or None, got {at!r}")
    with board.hold():
        reached = board.reached
        request = [dict(percents), at, reached, delivered]
        asked = gather_requests(request, at, num_ranks, group)
        if any(other[:2] != asked[0][:2] for other in asked):
            raise ConfigError(
                f"all ranks must set the same percents at the same step, got {asked[0][:2]} and "
                f"{next(other[:2] for other in asked if other[:2] != asked[0][:2])}; give each "
                "rank the same, such as losses that are averaged over all ranks"
            )
        changes = board.held_changes()
        first = max([other[2] for other in asked] + [change[:2] for change in changes[-1:]])
        place = first if at is None else (first[0], at)
        if place < first:
            raise ConfigError(
                f"a change of percents must be at a sample that no rank has read yet, from "
                f"{first[1]:,} on, got {at:,}; leave `at` out for the earliest one"
            )
        kept = [change for change in changes if change[:2] != place]
        current = {**(changes[-1][2] if changes else {}), **percents}
        for start in {place[1], *(start for _, schedule in children for start, _ in schedule)}:
            if start >= place[1] and not any(
                current.get(name, percent_at(schedule, start)) for name, schedule in children
            ):
                raise ConfigError(
                    f"one source must have a percent > 0, got none from sample {start:,} on; set "
                    "another one, too"
                )
        own = [other[3] for other in asked]
        # Without a process group, the place of other ranks is not known.
        needed = None if None in own or len(own) < num_ranks else min(own)
        last = min(other[2] for other in asked)
        changes = board.forget([*kept, (*place, current)], last, needed)
        board.write(changes)
    return [[*change] for change in changes]
