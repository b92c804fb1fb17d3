"""Batch sampler whose order of samples does not depend on ranks or loader workers.

All ranks walk through one stream of samples. Each step takes the next ``micro_batch_size`` samples
for each rank, in the order of the ranks, so the number of consumed samples is the whole state. A
run can resume at any step with another number of ranks or another batch size: no sample is lost
and none is repeated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zindex.errors import ConfigError, PlanError, check_whole
from zindex.loading.order import PassOrder, SampleOrder
from zindex.loading.state import LoaderState, parse_state
from zindex.plan.tail import Tail, TailName, divide_evenly, parse_tail

Positions = list[int | None]

#: Values of ``tail`` that batches support.
BATCH_TAILS = (Tail.DROP_LAST, Tail.PAD, Tail.EXACT)


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one rank in one step of all ranks."""

    #: First sample of this rank, counted from the start of the stream.
    start: int
    #: The sample after the last one.
    stop: int
    #: Padding at the end of this rank's micro-batch.
    num_padding: int
    #: Samples that all ranks have consumed after this step.
    consumed_samples: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A stream of samples and one rank's share of each step: pure arithmetic, no state.

    The stream passes over the dataset again and again. It ends after ``num_samples``; without an
    end, each pass has its own last step.
    """

    #: Order of the samples in each pass.
    order: PassOrder
    #: Samples of the whole stream; None if it has no end.
    num_samples: int | None
    #: Samples of one rank in one step, > 0.
    micro_batch_size: int
    #: This rank.
    data_parallel_rank: int = 0
    #: Ranks that share the stream, > 0.
    data_parallel_size: int = 1
    #: How to treat a last step that is not full.
    tail: Tail = Tail.DROP_LAST
    #: Fingerprints of the dataset before its edits, and the samples up to which each is valid.
    ancestors: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        size = check_whole("micro_batch_size", self.micro_batch_size, 1)
        rank, num_ranks = check_ranks(self.data_parallel_rank, self.data_parallel_size)
        # Plain ints, because numpy's cannot be stored in a state.
        object.__setattr__(self, "micro_batch_size", size)
        object.__setattr__(self, "data_parallel_rank", rank)
        object.__setattr__(self, "data_parallel_size", num_ranks)
        if self.order.num_positions < 1:
            raise PlanError(
                "a loader or sampler needs a dataset of at least one sample, got an empty one; "
                "leave it out, or, if its samples are windows, choose a window_size below the "
                "number of its tokens"
            )
        if self.tail is Tail.DROP_LAST and self.pass_length < self.global_batch_size:
            raise PlanError(
                f"tail='drop_last' needs at least one full step of {self.global_batch_size:,} "
                f"samples ({self.micro_batch_size:,} for each of {self.data_parallel_size:,} "
                f"ranks), got {self.pass_length:,}; choose tail='exact' or 'pad', or smaller "
                "micro-batches"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in one full step."""
        return self.micro_batch_size * self.data_parallel_size

    @property
    def pass_length(self) -> int:
        """Samples of the whole stream, or of one pass if the stream has no end."""
        return self.order.num_positions if self.num_samples is None else self.num_samples

    def state_at(self, consumed_samples: int) -> LoaderState:
        """Return the state after some samples."""
        epoch = consumed_samples // self.order.num_positions
        return LoaderState(self.order.fingerprint, consumed_samples, epoch)

    def parse_state(self, state: Mapping[str, Any]) -> int:
        """Return the consumed samples of a state; StateMismatchError if it is not of this stream.

        A state from before an edit of the dataset is accepted if the pass order is the dataset's.
        """
        checked = parse_state(
            state,
            fingerprint=self.order.fingerprint,
            num_positions=self.order.num_positions,
            num_samples=self.num_samples,
            ancestors=self.ancestors if self.order.kind is None else (),
        )
        return checked.consumed_samples

    def find_stop(self, consumed_samples: int) -> int:
        """Return the end of the stream, or of the current pass if the stream has no end."""
        if self.num_samples is not None:
            return self.num_samples
        num_positions = self.order.num_positions
        return (consumed_samples // num_positions + 1) * num_positions

    def find_start(self, consumed_samples: int, *, is_restored: bool) -> int:
        """Return the first sample of an iteration.

        A stream with an end continues after the consumed samples. Without one, an iteration is a
        full pass, except that it first finishes the pass of a restored state.
        """
        if self.num_samples is not None:
            return consumed_samples
        is_at_start = consumed_samples % self.order.num_positions == 0
        stop = self.find_stop(consumed_samples)
        if is_at_start or (is_restored and self.take_step(consumed_samples, stop) is not None):
            return consumed_samples
        return stop

    def take_step(self, consumed_samples: int, stop: int) -> Step | None:
        """Return the step after the consumed samples; None at the end.

        Parameters
        ----------
        consumed_samples
            Samples that all ranks have consumed before.
        stop
            End of the stream for this step.

        Returns
        -------
        step
            Ranks take consecutive samples in their order; the last step follows `Tail`.
        """
        size, rank = self.micro_batch_size, self.data_parallel_rank
        num_left = stop - consumed_samples
        if num_left >= self.global_batch_size:
            start = consumed_samples + rank * size
            return Step(start, start + size, 0, consumed_samples + self.global_batch_size)
        if num_left <= 0 or self.tail is Tail.DROP_LAST:
            return None
        first, count = divide_evenly(num_left, rank, self.data_parallel_size)
        start = consumed_samples + first
        num_padding = size - count if self.tail is Tail.PAD else 0
        return Step(start, start + count, num_padding, stop)

    def count_steps(self, consumed_samples: int, stop: int) -> int:
        """Return the number of steps between two positions; parameters as of `take_step`."""
        return self.tail.count_units(max(0, stop - consumed_samples), self.global_batch_size)

    def plan_batches(self, consumed_samples: int, stop: int) -> Iterator[Positions]:
        """Yield the positions of this rank's batches; parameters as of `take_step`."""
        while (step := self.take_step(consumed_samples, stop)) is not None:
            yield self.find_positions(step)
            consumed_samples = step.consumed_samples

    def find_positions(self, step: Step) -> Positions:
        """Return the positions in the dataset of a step's samples, None for padding."""
        positions: Positions = []
        start, size = step.start, self.order.num_positions
        while start < step.stop:
            epoch, first = divmod(start, size)
            stop = min(first + step.stop - start, size)
            if self.order.kind is None:
                positions += range(first, stop)
            else:
                positions += self.order.find_range(epoch, first, stop)
            start += stop - first
        return positions + [None] * step.num_padding


class PlanSampler(torch.utils.data.Sampler[Positions]):
    """A batch sampler of a plan; see `ElasticSampler`.

    Parameters
    ----------
    plan
        The stream, and this rank's share.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.cursor = Cursor(plan)
        # Where the iteration began, and where the trainer is: None until `count_delivered` is
        # called.
        self._start = 0
        self._delivered: int | None = None

    def __iter__(self) -> Iterator[Positions]:
        if self._delivered is not None:
            self.cursor.load(self.state_dict())  # an interrupted pass is finished
        self.cursor.begin()
        self._start = self.cursor.consumed_samples
        if self._delivered is not None:
            self._delivered = self._start
        while (step := self.cursor.peek()) is not None:
            self.cursor.consumed_samples = step.consumed_samples
            yield self.plan.find_positions(step)

    def __len__(self) -> int:
        """Return the number of batches of the whole run, or of one pass."""
        return self.plan.count_steps(0, self.plan.pass_length)

    def count_delivered(self, num_batches: int = 1) -> None:
        """Count batches of this rank that the trainer has received.

        From the first call on, ``state_dict()`` counts delivered batches instead of prefetched
        ones, and the next iteration begins after them.

        Parameters
        ----------
        num_batches
            Batches, >= 0.

        Raises
        ------
        ConfigError
            If there were not so many.
        """
        position = self._start if self._delivered is None else self._delivered
        for count in range(check_whole("num_batches", num_batches, 0)):
            step = self.plan.take_step(position, self.cursor.stop)
            if step is None or step.consumed_samples > self.cursor.consumed_samples:
                raise ConfigError(
                    "num_batches of count_delivered must be batches that were taken, "
                    f"{count:,} are left, got {num_batches:,}; count each batch once"
                )
            position = step.consumed_samples
        self._delivered = position

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches taken from this sampler, or delivered."""
        taken = self.cursor.consumed_samples
        position = taken if self._delivered is None else self._delivered
        return self.plan.state_at(position).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state; a running iteration continues from it.

        Parameters
        ----------
        state_dict
            The result of ``state_dict()``, from any number of ranks, and any batch size unless it
            is a budget of tokens.

        Raises
        ------
        StateMismatchError
            If the state belongs to another stream.
        """
        self.cursor.load(state_dict)
        self._start, self._delivered = self.cursor.consumed_samples, None


class ElasticSampler(PlanSampler):
    """A batch sampler for ``torch.utils.data.DataLoader`` that resumes on any number of ranks.

    With ``num_epochs`` or ``num_samples`` it is a run: one stream of samples whose batches may span
    epochs. Each iteration continues where the last one stopped, until the run ends. With
    ``num_epochs=None`` each iteration is a pass over the dataset, for validation or for trainers
    that count epochs themselves.

    Parameters
    ----------
    num_positions
        Samples of the dataset.
    micro_batch_size
        Samples of one rank in one step, the same on all ranks.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    num_epochs
        Passes over the dataset; None for one per iteration, without an end.
    num_samples
        Samples of the run in place of ``num_epochs``.
    shuffle
        Shuffle each pass. The datasets of a run are already shuffled; without this setting, each
        pass has the same order.
    seed
        Seed of ``shuffle``.
    tail
        How to treat a last step that is not full, see `zindex.plan.tail.Tail`: ``drop_last``,
        ``exact`` or ``pad``. With ``exact``, every rank has a batch in each step, empty if there
        are fewer samples than ranks, so that no rank waits for others in a collective. ``pad``
        fills every micro-batch with None, a sample without any weight in the loss.
    fingerprint
        Identity of the dataset; a state of another dataset is an error.

    Raises
    ------
    ConfigError, PlanError
        If a setting is out of range, or there is not one step.

    Notes
    -----
    Law: the batches of a step, joined in the order of the ranks, are the next samples of the
    stream, for every number of ranks and every batch size. The workers of a ``DataLoader`` prefetch
    batches, so ``state_dict()`` is ahead of the trainer unless ``count_delivered`` is called after
    every batch. A ``Loader``, and ``torchdata``'s ``StatefulDataLoader``, keep the state of each
    batch themselves.

    Examples
    --------
    >>> list(ElasticSampler(10, 2, data_parallel_rank=1, data_parallel_size=2, tail="exact"))
    [[2, 3], [6, 7], [9]]
    """

    def __init__(
        self,
        num_positions: int,
        micro_batch_size: int,
        *,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        num_epochs: int | None = 1,
        num_samples: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        tail: Tail | TailName = Tail.DROP_LAST,
        fingerprint: str = "",
    ) -> None:
        super().__init__(
            BatchPlan(
                SampleOrder(num_positions, "keyed" if shuffle else None, seed, fingerprint),
                count_samples(num_positions, num_epochs, num_samples),
                micro_batch_size,
                data_parallel_rank,
                data_parallel_size,
                parse_tail(tail, BATCH_TAILS),
            )
        )


class Cursor:
    """Position in a stream, and the end of the current iteration.

    Parameters
    ----------
    plan
        The stream.

    Attributes
    ----------
    consumed_samples
        Samples that all ranks have consumed; set it after each step.
    stop
        End of the stream, or of the current pass.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.consumed_samples = 0
        self._restored: int | None = None
        self.stop = plan.find_stop(0)

    @property
    def state(self) -> LoaderState:
        """The state."""
        return self.plan.state_at(self.consumed_samples)

    def load(self, state: Mapping[str, Any]) -> None:
        """Move to the position of a state, after checking that it is of this stream."""
        self.consumed_samples = self.plan.parse_state(state)
        self._restored = self.consumed_samples
        self.stop = self.plan.find_stop(self.consumed_samples)

    def begin(self) -> None:
        """Start an iteration."""
        self.consumed_samples = self.plan.find_start(
            self.consumed_samples, is_restored=self.consumed_samples == self._restored
        )
        self.stop = self.plan.find_stop(self.consumed_samples)

    def peek(self) -> Step | None:
        """Return the next step without taking it."""
        return self.plan.take_step(self.consumed_samples, self.stop)


def count_samples(
    num_positions: int, num_epochs: int | None, num_samples: int | None
) -> int | None:
    """Return the samples of a run; None if it has no end.

    Parameters
    ----------
    num_positions
        Samples of the dataset.
    num_epochs
        Passes over it; None without an end.
    num_samples
        Samples in place of epochs.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """
    if num_samples is not None:
        return check_whole("num_samples", num_samples, 1)
    if num_epochs is None:
        return None
    return check_whole("num_epochs", num_epochs, 1) * int(num_positions)


def check_ranks(
    rank: int, size: int, names: tuple[str, str] = ("data_parallel_rank", "data_parallel_size")
) -> tuple[int, int]:
    """Return a rank and the number of ranks as plain ints, after checking them.

    Parameters
    ----------
    rank, size
        The values.
    names
        Their names in error messages.

    Raises
    ------
    ConfigError
        If one is not whole or out of range.
    """
    rank, size = check_whole(names[0], rank, 0), check_whole(names[1], size, 1)
    if rank >= size:
        raise ConfigError(
            f"{names[0]} must be less than {names[1]}, got {rank} of {size}; ranks count from 0"
        )
    return rank, size
