"""Pieces of a mixture, in which all percents are constant.

A piece is a span of the stream. Positions are samples of the whole stream, of all worker slots
together; each slot begins a piece at the same one of its picks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

from zindex.loading.lane_picks import Percent, to_fraction
from zindex.loading.percent_board import Change, PercentBoard
from zindex.plan.percent_schedules import Schedule, percent_at


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
