"""Picks of the sources of a mixture by one of several lanes, from checkpoints."""

from collections.abc import Sequence
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, StateMismatchError
from zindex.kernels import lane_picks
from zindex.kernels._jit import interpret, is_loaded
from zindex.kernels.numpy_budget import MAX_VALUES, use_numpy
from zindex.mixing.percent_schedules import Percent, to_fraction
from zindex.store.commit import fingerprint

#: Picks between checkpoints, at most which are repeated on resuming.
CHECKPOINT_PICKS = 4096
#: Picks that are taken at a time, at most.
BLOCK_PICKS = 64
# Picks that are computed at a time, at most and of all sources together. As many after them are
# considered, and at least those of each source.
_MAX_COMPUTED, _MAX_CELLS, _PICKS_OF_SOURCE = CHECKPOINT_PICKS, 1 << 16, 64
_MAX_SMALL = 16  # sources, times halvings of the lanes, of which few picks are computed at a time
# Cost of an interpreted step, for itself and for each source, in the unit of the budget, and the
# most of some steps together: loading the kernels takes longer.
_STEP_COST, _SOURCE_COST, _MAX_COST = 30, 7, MAX_VALUES >> 1
_MAX_PERIOD = 1 << 17  # picks of all sources together
_ONE = 1 << lane_picks.LAG_BITS
# Lags at the start of a piece are in 2**-30 of a sample, so that they are rounded alike whether a
# run is resumed or not.
_UNIT_BITS = 30
_SHIFT = lane_picks.LAG_BITS - _UNIT_BITS
_NEVER = 1 << 62
_DIGIT = 4  # digit of a checkpoint for a number that is rounded down

#: Step in the piece, id of the shares, and a digit for each source of the picks of all lanes, and
#: of each of the halves that the lanes are divided into: how the count of its picks was rounded. In
#: a later piece than the first, also its first pick, and for each source its lag there and its
#: earlier picks modulo the lanes.
Checkpoint = list[Any]


def find_shares(percents: Sequence[Percent]) -> Int64Array:
    """Return the shares of sources in 2**-55.

    Parameters
    ----------
    percents
        Finite numbers or fractions >= 0, at least one of them > 0. Only their ratios matter.

    Returns
    -------
    shares
        Shape (sources,), int64; the sum is 2**55.

    Examples
    --------
    >>> (find_shares([0.1, 0.3]) >> 53).tolist()
    [1, 3]
    """
    ratios = [to_fraction(percent) for percent in percents]
    whole = sum(ratios)
    shares = [ratio * _ONE // whole for ratio in ratios]
    shares[ratios.index(max(ratios))] += _ONE - sum(shares)
    return np.array(shares, np.int64)


def _apportion(amounts: Sequence[int], unit: int) -> list[int]:
    """Return amounts in a unit, rounded up or down so that the sum is kept."""
    found = [amount // unit for amount in amounts]
    left = sum(amounts) // unit - sum(found)
    for source in sorted(range(len(amounts)), key=lambda one: -(amounts[one] % unit))[:left]:
        found[source] += 1
    return found


def _pass_on(lags: Int64Array, shares: Sequence[int]) -> list[int]:
    """Return the lags at the start of a piece, in 2**-30 of a sample; the sum is 0."""
    # Sources without a share leave their lags to the others.
    units = [unit if share else 0 for unit, share in zip(to_units(lags), shares, strict=True)]
    rest = sum(units)
    units = [
        unit - (rest * share >> lane_picks.LAG_BITS)
        for unit, share in zip(units, shares, strict=True)
    ]
    units[shares.index(max(shares))] -= sum(units)
    return units


def to_units(lags: Int64Array) -> list[int]:
    """Return lags in 2**-30 of a sample."""
    units: list[int] = ((lags + (1 << (_SHIFT - 1))) >> _SHIFT).tolist()
    return units


#: Halving -> path to it, and what it makes of a block of steps.
_Shared = dict[int, tuple[list[int], dict[Any, Any]]]


class _Piece(NamedTuple):
    """A span of steps with constant shares."""

    #: Its first step, from that of the current piece on.
    start: int
    #: In 2**-55.
    shares: list[int]
    #: Picks of each source in a step of all lanes: whole ones, and the rest in 2**-55.
    picks: tuple[Int64Array, Int64Array]


class LanePicks:
    """Picks of a lane, and the state of all lanes that they depend on.

    A piece is a span of steps with constant shares. In its first step, counts continue. If all
    counts are in proportion after some steps, the first piece repeats these.

    Parameters
    ----------
    lane, num_lanes
        Number of the lane, from 0, and of all lanes.
    owed
        Of each source, the picks that all lanes together owe it before the first one, in 2**-30.
    shared
        Divisions that lanes share, if those of all lanes are computed in turn; empty at first.
    """

    def __init__(
        self, lane: int, num_lanes: int, owed: Sequence[int], shared: _Shared | None = None
    ) -> None:
        num_sources, self._shared = len(owed), shared
        self.num_lanes = num_lanes
        sizes, is_second, first, size = [], [], 0, num_lanes
        while size > 1:
            half = size // 2
            sizes.append(size)
            is_second.append(lane - first >= half)
            first, size = (first + half, size - half) if is_second[-1] else (first, half)
        self._path = np.array(sizes, np.int64), np.array(is_second, np.int64)
        counts = np.zeros((len(sizes), num_sources), np.int64)
        # Before the block of picks that are computed: lags, and counts as of the kernel.
        self._state: Any = np.array(owed, np.int64) << _SHIFT, counts, counts.copy()
        self._after = self._state
        self._block = np.empty(0, np.int64)
        self._num_done = 0  # of the block
        self.period = self.step = self._repeated = 0
        self._cycle = self._block
        width = min(num_sources, num_lanes)
        self._most = 1 << min(_MAX_CELLS // width, _MAX_COMPUTED).bit_length() - 1
        self._most = max(self._most, BLOCK_PICKS)
        # Few sources and halvings, the most of any lane, seldom need to look far ahead.
        self._is_small = num_sources * (1 + (num_lanes - 1).bit_length()) <= _MAX_SMALL

    def open(
        self,
        percents: Sequence[Percent],
        start: int,
        later: Sequence[tuple[int, Sequence[Percent]]] = (),
    ) -> None:
        """Begin a piece.

        Parameters
        ----------
        percents
            As of `find_shares`.
        start
            Number of its first pick.
        later
            First step and percents of the pieces that are planned after it.
        """
        if not any(percents):
            raise ConfigError(
                f"one source of a mixture must have a percent > 0, got {list(percents)}; set the "
                "percent of a source"
            )
        self._end_block()
        self._pieces = [self._plan(step, own) for step, own in ((0, percents), *later)]
        self.shares = shares = self._pieces[0].shares
        self._only = shares.index(_ONE) if _ONE in shares else None
        self.start, self.step = start, 0
        self._planned = later[0][0] if later else _NEVER
        # Later pieces may be short.
        self._grows = self._is_small or start > 0
        lags, seen, _ = self._state
        self._units = _pass_on(lags, shares)
        self._begun = seen[0].tolist() if len(seen) else [0] * len(shares)
        lags[:] = [unit << _SHIFT for unit in self._units]
        self.period, self._repeated = 0 if start else self._find_period(percents), 0
        if self.period:
            self._cycle, (after, *_) = self._compute(self.period, self.period, is_cycle=True)
            if np.abs(after - lags).max() >= _ONE >> 16:  # more than by rounding
                self.period = 0
            else:  # the last steps before another piece are picked in view of that
                self._repeated = self._planned - self._planned % self.period
        order = "periods" if self.period else "halves"
        self.id = fingerprint({"shares": shares, "order": order})[:8]

    def _find_period(self, percents: Sequence[Percent]) -> int:
        """Return the steps after which all lanes can have their exact shares; 0 if too many."""
        ratios = [*map(to_fraction, percents)]
        whole, period = sum(ratios), int(self.num_lanes > 1)
        width = min(len(ratios), self.num_lanes)
        for ratio in ratios:
            period = lcm(period, (ratio / whole).denominator)
            if period * width > _MAX_PERIOD:
                return 0
        return period

    def advance(self, num_steps: int) -> Int64Array:
        """Return the picks of the next steps, shape (steps,), at most so many of 64 or less."""
        if self.step < self._repeated:
            stop = min(self.step + num_steps, self._repeated)
            picked: Int64Array = self._cycle[np.arange(self.step, stop) % self.period]
            self.step = stop
            return picked
        if self._num_done == len(self._block):
            self._end_block()
            length = self._most - self.step % self._most
            if not len(self._path[0]) and not is_loaded(lane_picks.count_picks):
                length = min(length, BLOCK_PICKS)  # without halvings the length does not matter
            elif self._grows:
                length = min(max(self.step, BLOCK_PICKS), length)
            length = min(length, self._planned - self.step)
            self._block, self._after = self._compute(length, length)
        first = self._num_done
        num_steps = min(num_steps, len(self._block) - first)
        self._num_done += num_steps
        self.step += num_steps
        return self._block[first : self._num_done]

    def skip(self, num_steps: int) -> None:
        """Go on after the whole periods of some steps."""
        self.step = min(num_steps - num_steps % self.period, self._repeated)

    def _num_considered(self, length: int) -> int:
        if not len(self._path[0]):
            return 0
        if not self._grows:
            return self._most
        return min(max(length, _PICKS_OF_SOURCE * len(self.shares)), self._most)

    def _plan(self, start: int, percents: Sequence[Percent]) -> _Piece:
        shares = find_shares(percents).tolist()
        whole, parts = zip(*(divmod(share * self.num_lanes, _ONE) for share in shares), strict=True)
        return _Piece(start, shares, (np.array(whole, np.int64), np.array(parts, np.int64)))

    def _compute(
        self, length: int, num_firm: int, *, is_cycle: bool = False
    ) -> tuple[Int64Array, Any]:
        """Return picks after the state, the first ones of a block, and the state after them.

        Parameters
        ----------
        length, num_firm
            Number of the picks, and steps of the block.
        is_cycle
            Whether all counts are in proportion after the block, so that none after it matter.
        """
        count: Any = lane_picks.count_picks
        halve: Any = lane_picks.halve_picks
        lags, seen, taken = state = tuple(numbers.copy() for numbers in self._state)
        if self._only is not None:  # each lane picks it in every step, so all counts stay
            return np.full(length, self._only), state
        num_rows = num_firm + (0 if is_cycle else self._num_considered(num_firm))
        cost = num_rows * (1 + len(seen)) * (_STEP_COST + _SOURCE_COST * len(lags))
        if cost <= _MAX_COST and not is_loaded(count) and use_numpy(cost):
            count, halve = interpret(count), interpret(halve)
        shape = num_rows, min(len(lags), self.num_lanes)
        sources, numbers = np.empty(shape, np.int64), np.empty(shape, np.int64)
        lengths = np.empty(num_rows, np.int64)
        pieces = self._pieces[:1] if is_cycle else self._pieces
        whole, parts = pieces[0].picks
        rates = whole + parts / _ONE
        block = self.start, self.step - self._num_done, length, num_firm, is_cycle
        for level, size in enumerate((self.num_lanes, *self._path[0].tolist())):
            known, counts = self._find_known(level), (seen[level - 1 :], taken[level - 1 :])
            after = (counts[0][0], counts[1][0]) if level else (lags,)
            if block in known:
                num_rows, *found = known[block]
                for array, kept in zip((sources, numbers, lengths, *after), found, strict=True):
                    array[tuple(map(slice, kept.shape))] = kept
                continue
            rows = sources[:num_rows], numbers[:num_rows], lengths[:num_rows]
            if not level:
                self._count(count, pieces, lags, length, rows)
            else:
                is_second = self._path[1][level - 1]
                num_rows, _ = halve(size, is_second, rates, after, length, num_firm, *rows)
            if self._shared is not None:
                width = lengths[:num_rows].max()
                kept = sources[:num_rows, :width], numbers[:num_rows, :width], lengths[:num_rows]
                known[block] = num_rows, *(array.copy() for array in (*kept, *after))
        picked: Int64Array = sources[:length, 0]
        return picked, state

    def _find_known(self, level: int) -> dict[Any, Any]:
        """Return the picks after some halvings that this lane and the one before have, by block."""
        if self._shared is None:
            return {}
        path = self._path[1][:level].tolist()
        before, known = self._shared.get(level, ([], {}))
        if before != path:
            known = {}
        self._shared[level] = path, known
        return known

    def _count(
        self,
        count: Any,
        pieces: Sequence[_Piece],
        lags: Int64Array,
        length: int,
        rows: tuple[Int64Array, ...],
    ) -> None:
        """Count the picks of all lanes in some steps, and store the lags after the first ones."""
        step, row, now = self.step - self._num_done, 0, lags
        for piece, then in zip(pieces, [*pieces[1:], None], strict=True):
            end = then.start - step if then else _NEVER
            following = piece.picks[1]
            if then:
                following = np.where(then.picks[0] > 0, _ONE, then.picks[1])
            for stop in (length, len(rows[0])):
                if row >= min(stop, end):
                    continue
                if row >= length and now is lags:
                    now = lags.copy()
                if piece.start and row == piece.start - step:
                    now[:] = [unit << _SHIFT for unit in _pass_on(now, piece.shares)]
                own = [array[row : min(stop, end)] for array in rows]
                count(*piece.picks, self.num_lanes, now, len(own[0]), *own, end - row, following)
                row = min(stop, end)

    def _end_block(self) -> None:
        """Set the state to that after the last pick."""
        length, num_done = len(self._block), self._num_done
        if self.step < self._repeated and (num_repeated := self.step % self.period):
            _, self._state = self._compute(num_repeated, self.period, is_cycle=True)
        if 0 < num_done < length:
            _, self._after = self._compute(num_done, length)
        if num_done:
            self._state = self._after
        self._block, self._num_done = np.empty(0, np.int64), 0

    def _due(self) -> list[int]:
        """Return the picks of each source that are due in the piece, in 2**-55, of all lanes."""
        return [
            (first << _SHIFT) + share * self.num_lanes * self.step
            for first, share in zip(self._units, self.shares, strict=True)
        ]

    def owed(self, num_back: int) -> Int64Array:
        """Return the picks that each source lacks, in 2**-55, some of the last 64 steps before."""
        self._num_done = max(0, self._num_done - num_back)
        self.step -= num_back
        self._end_block()
        lags: Int64Array = self._state[0]
        return lags

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the current step."""
        self._end_block()
        lags, seen, taken = self._state
        rounded = [
            (due % _ONE - lag) // _ONE for due, lag in zip(self._due(), lags.tolist(), strict=True)
        ]
        sizes = self._path[0][:, None]
        digits = np.array([rounded, *(taken - seen * (sizes // 2) // sizes)]) + _DIGIT
        known = [self.step, self.id, "".join(map(str, digits.clip(0, 9).ravel().tolist()))]
        return [*known, self.start, self._units, self._begun] if self.start else known

    def restore(self, checkpoint: Checkpoint, num_picks: int) -> None:
        """Set the state to that at a checkpoint of this piece."""
        step, _, digits, *later = checkpoint
        num_sources = len(self.shares)
        size = num_sources * (1 + len(self._path[0]))
        is_valid = 0 <= step <= num_picks and digits.isdecimal() and len(digits) == size
        if not is_valid or any(len(numbers) != num_sources for numbers in later[1:]):
            raise StateMismatchError(
                f"a checkpoint of a mixture must have {size} digits, of at most {num_picks} picks, "
                f"got {checkpoint}; the state is damaged, take another one"
            )
        if later:
            self._units, self._begun = later[1:]
        self.step = int(step)
        rounded, *halves = np.array([*map(int, digits)]).reshape(-1, num_sources) - _DIGIT
        counts = [
            due // _ONE + extra for due, extra in zip(self._due(), rounded.tolist(), strict=True)
        ]
        self._set_counts(counts, halves)

    def jump(self, num_steps: int) -> None:
        """Set the state after some steps of the piece as if counts were rounded shares there."""
        self.step = num_steps
        self._set_counts(_apportion(self._due(), _ONE), None)

    def _set_counts(self, picked: Sequence[int], halves: Any) -> None:
        """Set the state from the picks of each source in the piece, of all lanes."""
        lags, seen, taken = self._state
        lags[:] = [due - count * _ONE for due, count in zip(self._due(), picked, strict=True)]
        counts = np.array(picked) + self._begun
        for level, (size, is_second) in enumerate(zip(*self._path, strict=True)):
            half = size // 2
            if halves is None:
                firsts = np.array(_apportion((counts * half).tolist(), int(size)))
            else:
                firsts = counts * half // size + halves[level]
            turns = counts // size
            seen[level], taken[level] = counts - turns * size, firsts - turns * half
            counts = counts - firsts if is_second else firsts
