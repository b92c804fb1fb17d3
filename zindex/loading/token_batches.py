"""Batches of a token budget for each rank: a stream of batches that ranks take in turn.

Each pass over the dataset is its order of samples, divided into windows, and each window into
batches of nearly equal tokens, in shuffled order. The batches do not depend on ranks, so after each
step the ranks have consumed a prefix of the stream, and its number of samples is the whole state,
as with batches of a fixed number of samples.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, PlanError, StateMismatchError
from zindex.loading.data_parallel import find_place
from zindex.loading.order import SampleOrder
from zindex.loading.sample_units import scramble
from zindex.loading.sampler import (
    BATCH_TAILS,
    BatchPlan,
    PlanSampler,
    Step,
    check_ranks,
    count_samples,
)
from zindex.plan.keys import Stage, stream_key
from zindex.plan.tail import Tail, TailName, divide_evenly, parse_tail
from zindex.plan.token_batches import SampleSizes, TokenBudget, check_sizes, divide_window
from zindex.store.commit import fingerprint as fingerprint_of

# Version of the division into batches; increased if any batch changes.
_VERSION = 1
# A loader reads ahead of its position by less than a window, or by a few small ones.
_NUM_KEPT = 4


class _Window(NamedTuple):
    """The batches of a window."""

    #: First sample, counted from the start of the pass.
    first: int
    #: Shape (samples,), int64: positions in the dataset, batch after batch.
    positions: Int64Array
    #: Shape (batches,), int64: end of each batch in the pass.
    stops: Int64Array


class TokenOrder:
    """An order of samples, rearranged within windows into batches of a token budget.

    Parameters
    ----------
    order
        Order of the samples in each pass. Without shuffling, batches are in the order of their
        first samples.
    sizes
        Tokens of the samples.
    budget
        The budget.

    Raises
    ------
    PlanError
        If a sample exceeds the budget.

    Notes
    -----
    Law: each pass has every sample once, at most a window from its place in ``order``. Batches of a
    window are in an order that does not depend on their lengths. Memory: that of the sizes, and 8
    bytes for each sample of a few windows.
    """

    def __init__(self, order: SampleOrder, sizes: SampleSizes, budget: TokenBudget) -> None:
        check_sizes(sizes, budget, "the dataset")
        self.order, self.sizes, self.budget = order, sizes, budget
        self.num_positions = order.num_positions
        self.kind = "token_batches"
        self.fingerprint = fingerprint_of(
            {"order": order.fingerprint, "budget": asdict(budget), "version": _VERSION}
        )
        self.num_windows = -(-self.num_positions // budget.window)
        self._open: OrderedDict[tuple[int, int], _Window] = OrderedDict()
        self._counts: dict[tuple[int, int], int] = {}

    def find_range(self, epoch: int, start: int, stop: int) -> list[int]:
        """Return the positions in the dataset at places ``[start, stop)`` of a pass."""
        found: list[int] = []
        while start < stop:
            window = self.open_window(epoch, self._find_window(start))
            part = window.positions[start - window.first : stop - window.first].tolist()
            found += part
            start += len(part)
        return found

    def find_stops(self, position: int, count: int, end: int) -> list[int]:
        """Return the ends of the next batches.

        Parameters
        ----------
        position
            A sample that begins a batch, counted over all passes.
        count
            Batches wanted.
        end
            The last batch ends here at the latest.
        """
        stops: list[int] = []
        while len(stops) < count and position < end:
            epoch, place = divmod(position, self.num_positions)
            window = self.open_window(epoch, self._find_window(place))
            first = int(np.searchsorted(window.stops, place, "right"))
            own = window.stops[first : first + count - len(stops)] + (position - place)
            stops += own.tolist()
            position = stops[-1]
        return stops

    def count_batches(self, position: int, end: int) -> int:
        """Return the number of batches between two positions that begin or end one."""
        count = 0
        while position < end:
            epoch, place = divmod(position, self.num_positions)
            number = self._find_window(place)
            first, size = self._divide(number)
            if place > first or position + size > end:
                stops = self.open_window(epoch, number).stops
                last = min(first + size, place + end - position)
                count += int(np.searchsorted(stops, last, "right"))
                count -= int(np.searchsorted(stops, place, "right"))
            else:
                if (epoch, number) not in self._counts:
                    self.open_window(epoch, number)
                count += self._counts[epoch, number]
            position += first + size - place
        return count

    def begins_batch(self, position: int) -> bool:
        """Return whether a batch begins at a position, or the pass ends there."""
        epoch, place = divmod(position, self.num_positions)
        window = self.open_window(epoch, self._find_window(place))
        found = np.searchsorted(window.stops, place)
        return place == window.first or bool(window.stops[found] == place)

    def open_window(self, epoch: int, number: int) -> _Window:
        """Return the batches of a window of a pass."""
        key = epoch, number
        window = self._open.get(key)
        if window is None:
            window = self._open[key] = self._plan(epoch, number)
            self._counts[key] = len(window.stops)
            while len(self._open) > _NUM_KEPT:
                self._open.popitem(last=False)
        return window

    def _plan(self, epoch: int, number: int) -> _Window:
        """Divide a window into batches, and shuffle them."""
        first, size = self._divide(number)
        places = np.array(self.order.find_range(epoch, first, first + size), np.int64)
        samples, stops = divide_window(self.sizes.take(places), self.budget)
        starts = np.append(0, stops[:-1])
        order = np.argsort(samples[starts])
        if self.order.kind is not None:
            [key] = stream_key(
                self.order.seed, Stage.TOKEN_BATCH, self.fingerprint, epoch, number, num_words=1
            )
            order = np.argsort(scramble(np.arange(len(stops), dtype=np.uint64), key))
        lengths = (stops - starts)[order]
        ends = np.cumsum(lengths)
        source = np.repeat(starts[order] - (ends - lengths), lengths) + np.arange(size)
        return _Window(first, places[samples[source]], first + ends)

    def _divide(self, number: int) -> tuple[int, int]:
        """Return the first place of a window, and its samples."""
        return divide_evenly(self.num_positions, number, self.num_windows)

    def _find_window(self, place: int) -> int:
        """Return the window of a place."""
        share, num_larger = divmod(self.num_positions, self.num_windows)
        number = place // (share + 1)
        if number < num_larger:
            return number
        return num_larger + (place - num_larger * (share + 1)) // share


class TokenBatchPlan(BatchPlan):
    """A stream of batches of a token budget, of which each rank takes one in each step.

    Parameters
    ----------
    order
        The batches.
    num_epochs
        Passes of the stream; None if it has no end.
    data_parallel_rank, data_parallel_size, tail
        As of `BatchPlan`; the unit of the tail is a batch.
    num_samples
        Must be None.

    Raises
    ------
    ConfigError
        If there are ``num_samples``.
    PlanError
        If ``drop_last`` leaves nothing.
    """

    __slots__ = ()
    order: TokenOrder

    def __init__(
        self,
        order: TokenOrder,
        num_epochs: int | None,
        data_parallel_rank: int,
        data_parallel_size: int,
        tail: Tail,
        num_samples: int | None = None,
    ) -> None:
        if num_samples is not None:
            raise ConfigError(
                "num_samples must be left out with a budget of tokens, whose batches are those of "
                f"whole passes, got {num_samples}; give num_epochs"
            )
        num_samples = count_samples(order.num_positions, num_epochs, None)
        super().__init__(order, num_samples, 1, data_parallel_rank, data_parallel_size, tail)
        if self.take_step(0, self.find_stop(0)) is None:
            raise PlanError(
                f"tail='drop_last' needs a batch for each of {self.data_parallel_size:,} ranks, "
                f"got {self.order.count_batches(0, self.find_stop(0)):,} of at most "
                f"{order.budget.max_tokens:,} tokens; choose tail='exact' or 'pad', or lower "
                "max_tokens"
            )

    def take_step(self, consumed_samples: int, stop: int) -> Step | None:
        """Return the step after the consumed samples; None at the end.

        The ranks take consecutive batches. In a last step with fewer batches than ranks, the others
        have none, or with ``tail="pad"`` a single sample of padding.
        """
        rank, num_ranks = self.data_parallel_rank, self.data_parallel_size
        stops = self.order.find_stops(consumed_samples, num_ranks, stop)
        if not stops or (len(stops) < num_ranks and self.tail is Tail.DROP_LAST):
            return None
        if rank >= len(stops):
            return Step(stop, stop, int(self.tail is Tail.PAD), stop)
        start = stops[rank - 1] if rank else consumed_samples
        return Step(start, stops[rank], 0, stops[-1])

    def count_steps(self, consumed_samples: int, stop: int) -> int:
        """Return the number of steps between two positions; parameters as of `take_step`."""
        num_batches = self.order.count_batches(consumed_samples, stop)
        return self.tail.count_units(num_batches, self.data_parallel_size)

    def parse_state(self, state: Mapping[str, Any]) -> int:
        """Return the consumed samples of a state; parameters and errors as of `BatchPlan`."""
        consumed = super().parse_state(state)
        if not self.order.begins_batch(consumed):
            raise StateMismatchError(
                f"consumed_samples of a loader state must be the end of a batch, {consumed:,} is "
                "within one; give what state_dict() returned"
            )
        return consumed


class TokenBatchSampler(PlanSampler):
    """A batch sampler for ``torch.utils.data.DataLoader`` whose batches have a budget of tokens.

    Parameters
    ----------
    dataset
        A dataset with ``sample_sizes``, such as those of `zindex.keyed`, or the lengths of its
        samples: shape (samples,), tokens.
    budget
        The most tokens of a batch.
    rank, num_ranks
        This rank, and how many share the batches; by default of ``torch.distributed``, or of
        ``torchrun``'s environment.
    num_epochs
        Passes over the dataset; None for one per iteration, without an end.
    shuffle, seed
        Shuffle each pass.
    tail
        How to treat a last step with fewer batches than ranks, see `zindex.plan.tail.Tail`:
        ``drop_last``; ``exact``, with empty batches; or ``pad``, with batches of one None, a
        sample without any weight in the loss.
    fingerprint
        Identity of the dataset, which states must match; by default its own, or that of the
        lengths.

    Raises
    ------
    ConfigError, PlanError
        If a setting is out of range, a sample exceeds the budget, or there is not one step.

    Notes
    -----
    Law: every rank has one batch in each step; no batch exceeds the budget; each pass has every
    sample once; and the batches, and their order, do not depend on ranks, so that a run resumes
    with another number of them. States and workers are those of `ElasticSampler`.

    Examples
    --------
    >>> lengths = np.array([5, 3, 6, 2, 4, 4])
    >>> settings = {"shuffle": False, "num_ranks": 2}
    >>> for rank in range(2):
    ...     list(TokenBatchSampler(lengths, TokenBudget(8), rank=rank, **settings, tail="exact"))
    [[0, 1], [4, 5]]
    [[2, 3], []]
    """

    def __init__(
        self,
        dataset: Any,
        budget: TokenBudget,
        *,
        rank: int | None = None,
        num_ranks: int | None = None,
        num_epochs: int | None = 1,
        shuffle: bool = True,
        seed: int = 42,
        tail: Tail | TailName = Tail.DROP_LAST,
        fingerprint: str | None = None,
    ) -> None:
        sizes = sizes_of(dataset)
        if fingerprint is None:
            has_own = isinstance(getattr(dataset, "fingerprint", None), str)
            fingerprint = dataset.fingerprint if has_own else sizes.digest()
        order = SampleOrder(len(sizes), "keyed" if shuffle else None, seed, fingerprint)
        place = check_ranks(*find_place(rank, num_ranks, names=_NAMES), _NAMES)
        tail = parse_tail(tail, BATCH_TAILS)
        super().__init__(TokenBatchPlan(TokenOrder(order, sizes, budget), num_epochs, *place, tail))


_NAMES = ("rank", "num_ranks")


def sizes_of(dataset: Any) -> SampleSizes:
    """Return the sizes of the samples of a dataset.

    Parameters
    ----------
    dataset
        With a method ``sample_sizes``, or the lengths themselves.

    Raises
    ------
    ConfigError
        If its samples have no known lengths.
    """
    if isinstance(dataset, SampleSizes):
        return dataset
    if hasattr(dataset, "sample_sizes"):
        found: SampleSizes = dataset.sample_sizes()
        return found
    if isinstance(dataset, np.ndarray | Sequence) and not isinstance(dataset, str):
        lengths = np.asarray(dataset)
        if lengths.ndim == 1 and lengths.dtype.kind in "iu" and (lengths >= 0).all():
            return SampleSizes.of_lengths(lengths)
    raise ConfigError(
        "batches of a token budget need a dataset with sample_sizes, or the lengths of its samples "
        f"as whole numbers, got {type(dataset).__name__}; give one of these"
    )
