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
from zindex.errors import StateMismatchError
from zindex.kernels import lane_picks
from zindex.kernels._jit import is_loaded
from zindex.store.commit import fingerprint
from zindex.streaming.worker_slots import WorkerSlot

#: Picks between checkpoints, at most which are repeated on resuming.
CHECKPOINT_PICKS = 4096
_BLOCK = 64  # picks of each worker slot that are computed at a time
# A group of worker slots has at most so many slots, and slots times sources.
_MAX_SLOTS, _MAX_CELLS = 16, 256
_MAX_INTERPRETED = 4096  # picks times cells that are computed without loading the kernel
_ONE = 1 << lane_picks.LAG_BITS
_GOLDEN, _SQUARE_ROOT = 0.6180339887498949, 0.41421356237309515

#: Step, id of the shares, and picks of each slot and source beyond the whole part of its share, as
#: digits from 2 on.
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


class ExactMixing:
    """The default order: each source has its share at every pick of a worker slot.

    Groups of up to 16 worker slots compute their picks together, each slot those of the whole
    group, so that a source also has its share of all their picks after equally many of each.

    Parameters
    ----------
    percents
        Finite numbers >= 0, at least one of them > 0. Only their ratios matter. A source of percent
        0 is never picked.

    Notes
    -----
    Law: with one worker slot, after N picks, a source of share p was picked more than ``N * p - 1``
    and less than ``N * p + 1`` times, up to rounding of shares by ``N * sources * 2**-55``. With
    several slots, the same was measured for random mixtures of up to 16 sources, except that one
    count in 100,000 of a slot was off by more than 1, up to 1.25, and one in 400 of a group of 16
    slots, up to 4.5 (one in 800 of 8, up to 3; one in 4,000 of 2, up to 2). Cost: about 3
    microseconds for a pick of 16 slots and 16 sources, 0.2 for one slot.
    """

    def __init__(self, percents: Sequence[float]) -> None:
        self._percents = percents
        #: The sources that are picked.
        self.sources = [source for source, percent in enumerate(percents) if percent > 0]
        self._numbers = np.array(self.sources, np.int64)
        self._shares = find_shares([percents[source] for source in self.sources])
        self._id = fingerprint({"shares": self._shares.tolist()})[:8]

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
            sources have exactly their shares at the last multiple of 4,096 picks.

        Raises
        ------
        StateMismatchError
            If the checkpoint is damaged.
        """
        num_sources = len(self.sources)
        size = min(_MAX_SLOTS, max(1, _MAX_CELLS // num_sources))
        group, lane = divmod(slot.index, size)
        lags = np.zeros((min(size, slot.count - group * size), num_sources), np.int64)
        step = start - start % CHECKPOINT_PICKS
        if checkpoint is not None and checkpoint[1] == self._id:
            step = self._restore(lags, checkpoint, start)
        group_lags = lags.sum(0) + self._offsets(group)
        gains = _tabulate_gains()
        picks = np.empty((_BLOCK, len(lags)), np.int64)
        while True:
            due = step % CHECKPOINT_PICKS == 0 and step > 0
            report = self._checkpoint(lags, step) if due else None
            interpreted = (step + _BLOCK) * lags.size <= _MAX_INTERPRETED
            if slot.count == 1:
                _choose(lane_picks.pick_alone, interpreted)(self._shares, lags[0], picks[:, 0])
            else:
                kernel = _choose(lane_picks.pick_block, interpreted)
                kernel(self._shares, lags, group_lags, gains, picks)
            step += _BLOCK
            if step > start:
                own = picks[max(start - step, -_BLOCK) :, lane]
                yield self._numbers[own].tolist(), report

    def _offsets(self, group: int) -> Int64Array:
        """Return what the sources lack at the start of a group, so that groups differ."""
        if not group:
            return np.zeros(len(self.sources), np.int64)
        numbers = np.arange(len(self.sources))
        offsets = (group * _GOLDEN + numbers * _SQUARE_ROOT) % 1.0
        return np.array((offsets - offsets.mean()) * _ONE, np.int64)

    def _checkpoint(self, lags: Int64Array, step: int) -> Checkpoint:
        whole = np.array([int(share) * step % _ONE for share in self._shares])
        digits = ((whole - lags) >> lane_picks.LAG_BITS) + 2
        return [step, self._id, "".join(map(str, digits.ravel().tolist()))]

    def _restore(self, lags: Int64Array, checkpoint: Checkpoint, start: int) -> int:
        """Set the lags to those at a checkpoint, and return its step."""
        step, _, digits = checkpoint
        if not (0 <= step <= start and digits.isdecimal() and len(digits) == lags.size):
            raise StateMismatchError(
                f"a checkpoint of a mixture must have {lags.size} digits, of at most {start} "
                f"picks, got {checkpoint}; the state is damaged, take another one"
            )
        extra = np.array([*map(int, digits)], np.int64).reshape(lags.shape) - 2
        lags[:] = np.array([int(share) * step % _ONE for share in self._shares]) - extra * _ONE
        return int(step)

    def replace(self, step: int, left: Sequence[int]) -> int | None:
        """Return the pick instead of an exhausted source, of those left; None to skip it.

        Sources are drawn by percent. A source that is not drawn changes nothing, so this does not
        depend on which sources are known to be exhausted.
        """

        def wait(source: int) -> float:
            word = blake2b(b"%d %d" % (step, source), digest_size=6).digest()
            draw = (int.from_bytes(word, "little") + 0.5) / (1 << 48)
            return -math.log(draw) / self._percents[source]

        return min(left, key=wait)


class CogdataMixing:
    """Cogdata's order: the lowest accumulated ``1 / percent`` is next; the first is by rank."""

    def __init__(self, percents: Sequence[float]) -> None:
        self.sources = [*range(len(percents))]
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

    def replace(self, step: int, left: Sequence[int]) -> int | None:
        """Return None: picks of exhausted sources are skipped."""
        return None


Mixing = ExactMixing | CogdataMixing
