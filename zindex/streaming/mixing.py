"""Orders in which the worker slots of a mixture pick its sources."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, StateMismatchError
from zindex.kernels import lane_picks
from zindex.kernels._jit import is_loaded
from zindex.store.commit import fingerprint
from zindex.streaming.percents import ConstantPercents, Pieces
from zindex.streaming.worker_slots import WorkerSlot

#: Picks between checkpoints, at most which are repeated on resuming.
CHECKPOINT_PICKS = 4096
_BLOCK = 64  # picks of each worker slot that are computed at a time
# A group of worker slots has at most so many slots, and slots times sources.
_MAX_SLOTS, _MAX_CELLS = 16, 256
_MAX_INTERPRETED = 4096  # picks times cells that are computed without loading the kernel
_ONE = 1 << lane_picks.LAG_BITS
_GOLDEN, _SQUARE_ROOT = 0.6180339887498949, 0.41421356237309515

# Lags at the start of a piece are in 64ths of a sample.
_UNIT_BITS = 6
# Digits of a checkpoint for no picks beyond the whole part of a share.
_DIGIT, _DIGIT_OF_PIECE = 2, 4
_NUM_FACTS = 3

#: Step in the piece, id of the shares, and picks of each slot and source beyond the whole part of
#: its share, as digits from 2 on. In a later piece than the first, also its first pick, and the
#: lags there, in 64ths; digits are from 4 on.
Checkpoint = list[Any]
#: Picks of some steps, and a checkpoint before the first of them, unless it is unchanged.
Block = tuple[list[int], Checkpoint | None]


def find_shares(percents: Sequence[float]) -> Int64Array:
    """Return the shares of sources in 2**-55.

    Parameters
    ----------
    percents
        Finite numbers >= 0, at least one of them > 0. Only their ratios matter.

    Returns
    -------
    shares
        Shape (sources,), int64; the sum is 2**55.

    Examples
    --------
    >>> (find_shares([0.1, 0.3]) >> 53).tolist()
    [1, 3]
    """
    ratios = [Fraction(repr(float(percent))) for percent in percents]
    whole = sum(ratios)
    shares = [ratio * _ONE // whole for ratio in ratios]
    shares[ratios.index(max(ratios))] += _ONE - sum(shares)
    return np.array(shares, np.int64)


@lru_cache(maxsize=1)
def _tabulate_gains() -> Int64Array:
    """Return how much a pick lowers the cost, ``cosh(8 * lag)`` to rounding, for each lag."""
    # Exact, so that it is the same on all machines: exp(1 / 8) is 1.133.
    reach, unit = lane_picks.COST_REACH, 1 << lane_picks.COST_BITS
    growth = Fraction(1133, 1000)
    powers = [growth**place for place in range(reach + unit + 1)]
    costs = [int(4096 * (power + 1 / power)) for power in powers]
    gains = [costs[abs(place)] - costs[abs(place - unit)] for place in range(-reach, reach)]
    return np.array(gains, np.int64)


def _choose(kernel: Any, interpreted: bool) -> Any:
    """Return a kernel, or its Python source for few picks, which are faster than loading it."""
    return kernel.py_func if interpreted and not is_loaded(kernel) else kernel


class _GroupPicks:
    """Picks of a group of worker slots in one piece."""

    def __init__(
        self, percents: Sequence[float], num_lanes: int, group: int, before: Int64Array
    ) -> None:
        sources = [source for source, percent in enumerate(percents) if percent > 0]
        if not sources:
            raise ConfigError(
                f"one source of a mixture must have a percent > 0, got {list(percents)}; set the "
                "percent of a source"
            )
        self.sources = np.array(sources, np.int64)
        self.shares = find_shares([percents[source] for source in sources])
        facts: dict[str, Any] = {"shares": self.shares.tolist()}
        if len(sources) < len(percents) > _MAX_CELLS // _MAX_SLOTS:  # the width of groups differs
            facts["sources"] = sources
        self.id = fingerprint(facts)[:8]
        #: Lags at the start, in 64ths of a sample, which are kept in checkpoints.
        self.units = _settle(before[:, sources], self.shares)
        self._base = self.units << (lane_picks.LAG_BITS - _UNIT_BITS)
        self._digit = _DIGIT_OF_PIECE if self.units.any() else _DIGIT
        self.lags = self._base.copy()
        self._offsets = _find_offsets(group, len(sources))
        self._group_lags = self.lags.sum(0) + self._offsets
        self._picks = np.empty((_BLOCK, num_lanes), np.int64)
        self.step = 0

    def advance(self, num_steps: int, slot: WorkerSlot) -> Int64Array:
        """Return the picks of the next steps, shape (steps, slots of the group)."""
        lags = self.lags
        picks: Int64Array = self._picks[:num_steps]
        interpreted = (self.step + _BLOCK) * lags.size <= _MAX_INTERPRETED
        if slot.count == 1:
            _choose(lane_picks.pick_alone, interpreted)(self.shares, lags[0], picks[:, 0])
        else:
            kernel = _choose(lane_picks.pick_block, interpreted)
            kernel(self.shares, lags, self._group_lags, _tabulate_gains(), picks)
        self.step += num_steps
        return picks

    def _whole(self, step: int) -> Int64Array:
        """Return the lags without whole picks."""
        parts = [int(share) * step % _ONE for share in self.shares]
        whole: Int64Array = np.array(parts, np.int64) + self._base
        return whole

    def checkpoint(self, start: int) -> Checkpoint:
        """Return the checkpoint in a piece that begins at a pick."""
        digits = ((self._whole(self.step) - self.lags) >> lane_picks.LAG_BITS) + self._digit
        found = [self.step, self.id, "".join(map(str, digits.ravel().tolist()))]
        return [*found, start, self.units.ravel().tolist()] if start else found

    def restore(self, checkpoint: Checkpoint, num_picks: int) -> None:
        """Set the lags to those at a checkpoint."""
        step, _, digits, *_ = checkpoint
        if not (0 <= step <= num_picks and digits.isdecimal() and len(digits) == self.lags.size):
            raise _damaged(self.lags.size, num_picks, checkpoint)
        extra = np.array([*map(int, digits)], np.int64).reshape(self.lags.shape) - self._digit
        self.lags[:] = self._whole(step) - extra * _ONE
        self._group_lags = self.lags.sum(0) + self._offsets
        self.step = int(step)

    def leave(self, num_sources: int) -> Int64Array:
        """Return the lags of all sources at the end of the piece, in 64ths of a sample."""
        left = np.zeros((len(self.lags), num_sources), np.int64)
        half = 1 << (lane_picks.LAG_BITS - _UNIT_BITS - 1)
        left[:, self.sources] = (self.lags + half) >> (lane_picks.LAG_BITS - _UNIT_BITS)
        return left


def _damaged(size: int, num_picks: int, checkpoint: Checkpoint) -> StateMismatchError:
    return StateMismatchError(
        f"a checkpoint of a mixture must have {size} digits, of at most {num_picks} picks, got "
        f"{checkpoint}; the state is damaged, take another one"
    )


def _settle(units: Int64Array, shares: Int64Array) -> Int64Array:
    """Return lags, in 64ths, whose sum in each slot is 0, and none of which is a sample.

    Sources that a piece leaves out leave their lags to the others, in proportion to the shares.
    """
    most = (1 << _UNIT_BITS) - 1
    rest = -units.sum(1)[:, None]
    settled: Int64Array = np.clip(
        units + (rest * (shares >> 20) >> (lane_picks.LAG_BITS - 20)), -most, most
    )
    for source in np.argsort(-shares, kind="stable").tolist():
        own = settled[:, source]
        own += np.clip(-settled.sum(1), -most - own, most - own)
    return settled


def _find_offsets(group: int, num_sources: int) -> Int64Array:
    """Return what the sources lack at the start of a group, so that groups differ."""
    if not group:
        return np.zeros(num_sources, np.int64)
    numbers = np.arange(num_sources)
    offsets = (group * _GOLDEN + numbers * _SQUARE_ROOT) % 1.0
    return np.array((offsets - offsets.mean()) * _ONE, np.int64)


class ExactMixing:
    """The default order: each source has its share at every pick of a worker slot.

    Groups of up to 16 worker slots compute their picks together, each slot those of the whole
    group, so that a source also has its share of all their picks after equally many of each.

    Parameters
    ----------
    percents
        Finite numbers >= 0, at least one of them > 0, or pieces of them. Only their ratios matter.
        A source of percent 0 is never picked.

    Notes
    -----
    Law: with one worker slot, after N picks, a source of share p was picked more than ``N * p - 1``
    and less than ``N * p + 1`` times, up to rounding of shares by ``N * sources * 2**-55``. With
    several slots, the same was measured for random mixtures of up to 16 sources, except that one
    count in 100,000 of a slot was off by more than 1, up to 1.25, and one in 400 of a group of 16
    slots, up to 4.5 (one in 800 of 8, up to 3; one in 4,000 of 2, up to 2). Cost: about 3
    microseconds for a pick of 16 slots and 16 sources, 0.2 for one slot.

    A piece begins with what its sources lack at the end of the piece before, to a 64th of a sample,
    so that a rare source has its share of many short pieces, too. Hence counts within a piece are
    off by up to 2, and counts since the start by as much as without pieces, as long as no source
    has a percent of 0.
    """

    def __init__(self, percents: Sequence[float] | Pieces) -> None:
        fixed = isinstance(percents, Sequence)
        self._pieces: Pieces = ConstantPercents(percents) if fixed else percents  # type: ignore[arg-type, assignment]
        self._percents: Sequence[float] = self._pieces.at(0).percents

    def blocks(
        self, slot: WorkerSlot, start: int, checkpoint: Checkpoint | None = None
    ) -> Iterator[Block]:
        """Yield the picks of a worker slot from its pick ``start`` on.

        Parameters
        ----------
        slot
            The worker slot.
        start
            Number of picks before.
        checkpoint
            The last checkpoint before ``start``. Without one, or with one of other shares, all
            sources have exactly their shares at the last multiple of 4,096 picks of the piece.

        Raises
        ------
        StateMismatchError
            If the checkpoint is damaged, or of a piece that is not known.
        """
        pieces = self._pieces
        width = min(_MAX_SLOTS, max(1, _MAX_CELLS // pieces.num_sources))
        group, lane = divmod(slot.index, width)
        num_lanes = min(width, slot.count - group * width)
        before = np.zeros((num_lanes, pieces.num_sources), np.int64)
        begin = 0
        if checkpoint is not None and len(checkpoint) > _NUM_FACTS:
            begin = self._find_piece(checkpoint, before)
        picks = self._open_piece(begin, num_lanes, group, before)
        if checkpoint is not None and checkpoint[1] == picks.id:
            picks.restore(checkpoint, start - begin)
        elif checkpoint is not None or start >= CHECKPOINT_PICKS:
            begin = pieces.at(start).start
            picks = self._open_piece(begin, num_lanes, group, before * 0)
            picks.step = (start - begin) // CHECKPOINT_PICKS * CHECKPOINT_PICKS
        while True:
            stop = pieces.reserve(begin, begin + picks.step + _BLOCK)
            while stop is None or begin + picks.step < stop:
                due = picks.step % CHECKPOINT_PICKS == 0 and (begin or picks.step)
                report = picks.checkpoint(begin) if due else None
                length = _BLOCK if stop is None else min(_BLOCK, stop - begin - picks.step)
                own = picks.advance(length, slot)[:, lane]
                skip = max(0, start - (begin + picks.step - length))
                if skip < length:
                    yield picks.sources[own[skip:]].tolist(), report
                stop = pieces.reserve(begin, begin + picks.step + _BLOCK)
            before, begin = picks.leave(pieces.num_sources), stop
            picks = self._open_piece(begin, num_lanes, group, before)

    def _open_piece(
        self, begin: int, num_lanes: int, group: int, before: Int64Array
    ) -> _GroupPicks:
        self._percents = self._pieces.at(begin).percents
        return _GroupPicks(self._percents, num_lanes, group, before)

    def _find_piece(self, checkpoint: Checkpoint, before: Int64Array) -> int:
        """Return the first pick of the piece of a checkpoint, and set the lags there."""
        begin, units = checkpoint[_NUM_FACTS:]
        piece = self._pieces.at(begin)
        sources = [source for source, percent in enumerate(piece.percents) if percent > 0]
        if piece.start != begin:
            raise StateMismatchError(
                f"a state must have all changes of percents, that from pick {begin:,} of a worker "
                "slot on is missing; update it with what set_percents returns"
            )
        if len(units) != before[:, sources].size:
            raise _damaged(before[:, sources].size, begin, checkpoint)
        before[:, sources] = np.array(units, np.int64).reshape(len(before), -1)
        return int(begin)

    def may_pick(self, left: Sequence[int], start: int) -> bool:
        """Return whether any of some sources has a percent > 0 at pick ``start`` or later."""
        return any(self._percents[source] > 0 for source in left) or self._pieces.may_pick(
            left, start
        )

    def replace(self, step: int, left: Sequence[int]) -> int | None:
        """Return the pick instead of an exhausted source, of those left; None to skip it.

        Sources are drawn by percent, in the current piece. A source that is not drawn changes
        nothing, so this does not depend on which sources are known to be exhausted.
        """
        open_ones = [source for source in left if self._percents[source] > 0]

        def wait(source: int) -> float:
            word = blake2b(b"%d %d" % (step, source), digest_size=6).digest()
            draw = (int.from_bytes(word, "little") + 0.5) / (1 << 48)
            return -math.log(draw) / self._percents[source]

        return min(open_ones, key=wait, default=None)


class CogdataMixing:
    """Cogdata's order: the lowest accumulated ``1 / percent`` is next; the first is by rank."""

    def __init__(self, percents: Sequence[float]) -> None:
        self._steps = [1 / percent for percent in percents]

    def blocks(
        self, slot: WorkerSlot, start: int, checkpoint: Checkpoint | None = None
    ) -> Iterator[Block]:
        """Yield the picks of a worker slot from its pick ``start`` on."""
        picks = islice(self._from_begin(slot.rank), start, None)
        while True:
            yield list(islice(picks, _BLOCK)), None

    def _from_begin(self, rank: int) -> Iterator[int]:
        passed = [0.0] * len(self._steps)
        pick = rank % len(passed)
        while True:
            yield pick
            passed[pick] += self._steps[pick]
            if min(passed) >= 1:
                passed = [value - 1 for value in passed]
            pick = passed.index(min(passed))

    def may_pick(self, left: Sequence[int], start: int) -> bool:
        """Return whether any source is left."""
        return bool(left)

    def replace(self, step: int, left: Sequence[int]) -> int | None:
        """Return None: picks of exhausted sources are skipped."""
        return None


Mixing = ExactMixing | CogdataMixing
