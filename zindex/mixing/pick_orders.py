"""Orders in which the worker slots of a mixture, its lanes, pick its sources."""

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import StateMismatchError
from zindex.kernels.lane_picks import LAG_BITS
from zindex.mixing.lane_picks import (
    BLOCK_PICKS,
    CHECKPOINT_PICKS,
    Checkpoint,
    LanePicks,
    to_units,
)
from zindex.mixing.percent_schedules import Percent
from zindex.mixing.percents import ConstantPercents, Pieces

_NUM_FACTS = 3  # of a checkpoint in the first piece
# Of a block of the only source.
_SOLE_PICKS = 1024

#: Picks of some steps, and a checkpoint before the first of them, unless it is unchanged.
Picks = tuple[list[int], Checkpoint | None]


class ExactMixing:
    """The default order: each source has its share at every pick of a worker slot, and of all.

    Parameters
    ----------
    percents
        Finite numbers >= 0, at least one of them > 0, or pieces of them. Only their ratios matter.
        A source of percent 0 is never picked.
    owed
        Of each source, the picks that earlier worker slots owe it, in 2**-30: its share of all
        their picks minus its own. None without them.
    groups
        Nested mixtures that each source is in, from the outermost one on.

    Notes
    -----
    Law: after N picks of each of L worker slots, a source of share p was picked more than
    ``N * L * p - 1`` and less than ``N * L * p + 1`` times by all of them, up to rounding of shares
    by ``N * L * sources * 2**-55``. Each of them has this count divided by L, rounded up or down,
    and is less than one sample off, too. Such a division exists for all steps, because turns of L
    picks of a source and steps of L picks are the nodes of a bipartite graph of degree L, whose
    edges can be coloured by L slots (König 1916). Shares with a common period of up to 2**17 picks
    of all sources in one slot are divided for the whole period, which is repeated, so both laws
    hold forever. Others are divided for 4,096 picks at a time, with 4,096 more in view; where this
    does not continue the picks before, a slot was up to 2 off, measured in 2 of a million counts
    of random mixtures. Cost of a pick with 16 sources: 0.1 microseconds for one slot, 4 for 16, 10
    for 1,024; with 1,000 sources, 3 and, for 8 slots, 55; none after the first period.

    A piece continues the counts of the pieces before, and planned ones are in view. A change that
    could not be foreseen can leave more than a sample owed in any order: sources that lack part of
    a sample can all become frequent at once. A slot was up to 2 off, until the slots are balanced
    again.
    """

    def __init__(
        self,
        percents: Sequence[Percent] | Pieces,
        owed: Sequence[int] = (),
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        fixed = isinstance(percents, Sequence)
        self._pieces: Pieces = ConstantPercents(percents) if fixed else percents  # type: ignore[arg-type, assignment]
        self._percents: Sequence[Percent] = self._pieces.at(0).percents
        self._owed = owed or [0] * self._pieces.num_sources
        self._groups = groups or [()] * self._pieces.num_sources

    def blocks(
        self, lane: int, num_lanes: int, start: int, checkpoint: Checkpoint | None = None
    ) -> Iterator[Picks]:
        """Yield the picks of a worker slot from its pick ``start`` on.

        Parameters
        ----------
        lane, num_lanes
            Number of the worker slot among those of all ranks, and their number.
        start
            Number of picks before.
        checkpoint
            The last checkpoint before ``start``. Without one, or with one of other shares, all
            sources have their shares at the last multiple of 4,096 picks of the piece.

        Raises
        ------
        StateMismatchError
            If the checkpoint is damaged, or of a piece that is not known.
        """
        if self._pieces.num_sources == 1:  # whatever its percent is, and what is owed
            yield from repeat(([0] * _SOLE_PICKS, None))
        for own, report, _ in self._read(lane, num_lanes, start, checkpoint):
            yield own.tolist(), report

    def _read(
        self,
        lane: int,
        num_lanes: int,
        start: int,
        checkpoint: Checkpoint | None,
        shared: dict[int, Any] | None = None,
    ) -> Iterator[tuple[Int64Array, Checkpoint | None, LanePicks]]:
        """Yield blocks, with the picks that they end."""
        pieces = self._pieces
        picks = LanePicks(lane, num_lanes, self._owed, shared)
        begin = 0
        if checkpoint is not None and len(checkpoint) > _NUM_FACTS:
            begin = self._find_piece(checkpoint)
        self._open_piece(picks, begin)
        if checkpoint is not None and checkpoint[1] == picks.id:
            picks.restore(checkpoint, start - begin)
        elif picks.period:
            stop = pieces.reserve(begin, start)
            picks.skip(start if stop is None else min(start, stop))
        elif checkpoint is not None or start >= CHECKPOINT_PICKS:
            begin = pieces.at(start).start
            self._open_piece(picks, begin)
            picks.jump((start - begin) // CHECKPOINT_PICKS * CHECKPOINT_PICKS)
        while True:
            stop = pieces.reserve(begin, begin + picks.step + BLOCK_PICKS)
            while stop is None or begin + picks.step < stop:
                due = begin + picks.step > 0 and picks.step % CHECKPOINT_PICKS == 0
                report = picks.checkpoint() if due and not picks.period else None
                most = BLOCK_PICKS if stop is None else min(BLOCK_PICKS, stop - begin - picks.step)
                own = picks.advance(most)
                skip = max(0, start - (begin + picks.step - len(own)))
                if skip < len(own):
                    yield own[skip:], report, picks
                stop = pieces.reserve(begin, begin + picks.step + BLOCK_PICKS)
            begin = stop
            self._open_piece(picks, begin)

    def _open_piece(self, picks: LanePicks, begin: int) -> None:
        self._percents = self._pieces.at(begin).percents
        later = [(piece.start - begin, piece.percents) for piece in self._pieces.planned(begin)]
        picks.open(self._percents, begin, later)

    def _find_piece(self, checkpoint: Checkpoint) -> int:
        """Return the first pick of the piece of a checkpoint."""
        begin = int(checkpoint[_NUM_FACTS])
        if self._pieces.at(begin).start != begin:
            raise StateMismatchError(
                f"a state must have all changes of percents, that from pick {begin:,} of a worker "
                "slot on is missing; update it with what set_percents returns"
            )
        return begin

    def count_owed(self, positions: Sequence[tuple[int, Checkpoint | None]]) -> list[int]:
        """Return the picks that all worker slots together owe each source, in 2**-30.

        Parameters
        ----------
        positions
            Picks of each worker slot, and its last checkpoint.
        """
        count, stop = len(positions), max(picks for picks, _ in positions)
        owed, shared = np.zeros(self._pieces.num_sources, np.int64), dict[int, Any]()
        first = max(range(count), key=lambda index: positions[index][0])
        for index, (start, checkpoint) in enumerate(positions):
            if start == stop and index != first:
                continue
            # What a slot has not picked up to the last pick of any counts as owed.
            for own, _, picks in self._read(index, count, start, checkpoint, shared):
                missing = own[: stop - start]
                owed += np.bincount(missing, minlength=len(owed)) << LAG_BITS
                owed -= np.array(picks.shares) * len(missing)
                start += len(own)
                if start >= stop:
                    if index == first:
                        owed += picks.owed(start - stop)
                    break
        return to_units(owed)

    def may_pick(self, left: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0 at pick ``start`` or later."""
        return self.picks_now(left) or self._pieces.may_pick(left, start)

    def picks_now(self, left: Sequence[int]) -> bool:
        """Return whether any of some sources has a percent > 0 in the last block."""
        return any(self._percents[source] > 0 for source in left)

    def replace(self, step: int, pick: int, left: Sequence[int]) -> int | None:
        """Return the pick instead of an exhausted source, of those left; None to skip it.

        Sources are drawn by percent, in the current piece, from the innermost mixture that has any.
        A source that is not drawn changes nothing, so this does not depend on which sources are
        known to be exhausted.
        """
        groups, own = self._groups, self._groups[pick]
        open_ones: list[int] = []
        for depth in range(len(own), -1, -1):
            open_ones = [
                source
                for source in left
                if self._percents[source] > 0 and groups[source][:depth] == own[:depth]
            ]
            if open_ones:
                break

        def wait(source: int) -> float:
            word = blake2b(b"%d %d" % (step, source), digest_size=6).digest()
            draw = (int.from_bytes(word, "little") + 0.5) / (1 << 48)
            return -math.log(draw) / self._percents[source]

        return min(open_ones, key=wait, default=None)


class CogdataMixing:
    """Cogdata's order: the lowest accumulated ``1 / percent`` is next; the first is by rank."""

    def __init__(self, percents: Sequence[float], rank: int) -> None:
        self._steps, self._rank = [1 / percent for percent in percents], rank

    def blocks(
        self, lane: int, num_lanes: int, start: int, checkpoint: Checkpoint | None = None
    ) -> Iterator[Picks]:
        """Yield the picks of a worker slot from its pick ``start`` on."""
        picks = islice(self._from_begin(), start, None)
        while True:
            yield list(islice(picks, BLOCK_PICKS)), None

    def _from_begin(self) -> Iterator[int]:
        passed = [0.0] * len(self._steps)
        pick = self._rank % len(passed)
        while True:
            yield pick
            passed[pick] += self._steps[pick]
            if min(passed) >= 1:
                passed = [value - 1 for value in passed]
            pick = passed.index(min(passed))

    def may_pick(self, left: Sequence[int], start: int) -> bool:
        """Return whether any source is left."""
        return bool(left)

    def picks_now(self, left: Sequence[int]) -> bool:
        """Return whether any source is left."""
        return bool(left)

    def replace(self, step: int, pick: int, left: Sequence[int]) -> int | None:
        """Return None: picks of exhausted sources are skipped."""
        return None


Mixing = ExactMixing | CogdataMixing
