"""Our batch sampler: one order of samples, whatever the number of ranks and loader workers.

All ranks together walk through one stream of samples. A step takes the next ``micro_batch_size``
of them for each rank, in the order of the ranks, and the number of samples taken so far is all
that there is to remember. So a run can go on with any other number of ranks, or another size of
batches, at any place: nothing comes twice and nothing is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch

from zindex.errors import ConfigError, PlanError
from zindex.loading.state import LoaderState, parse_state
from zindex.store.identity import fingerprint as fingerprint_of

Tail = Literal["drop_last", "pad", "exact"]
Positions = list[int | None]


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank takes of the stream in one step of all ranks."""

    start: int
    """First sample that this rank takes, counted from the beginning of the stream."""
    stop: int
    """The sample after the last one."""
    num_padding: int
    """Places of this rank's micro-batch that padding fills."""
    consumed_samples: int
    """Samples that all ranks have taken after this step."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A stream of samples, and how one rank takes its part: pure arithmetic, no state.

    The stream is one pass over the dataset after another. It ends after ``num_samples``; without
    an end, each pass has its own last step.
    """

    num_positions: int
    """Samples of the dataset, > 0."""
    num_samples: int | None
    """Samples of the whole stream; None if it has no end."""
    micro_batch_size: int
    """Samples of one rank in one step, > 0."""
    data_parallel_rank: int
    """This rank."""
    data_parallel_size: int
    """Ranks that share the stream, > 0."""
    tail: Tail
    """What becomes of a last step that is not full."""
    shuffle: bool
    """Whether each pass has an order of its own."""
    seed: int
    """Seed of the order, >= 0."""
    fingerprint: str
    """Of the dataset."""
    ancestors: tuple[tuple[str, int], ...] = ()
    """Fingerprints of the dataset before it was edited, and the samples up to which each holds."""

    def __post_init__(self) -> None:
        lowest = {
            "num_positions": 0,
            "micro_batch_size": 1,
            "data_parallel_rank": 0,
            "data_parallel_size": 1,
            "seed": 0,
        }
        for name, low in lowest.items():
            # Also makes plain numbers of numpy's, which no state may hold.
            object.__setattr__(self, name, _check_number(name, getattr(self, name), low))
        if self.data_parallel_rank >= self.data_parallel_size:
            raise ConfigError(
                f"data_parallel_rank must be less than data_parallel_size, got "
                f"{self.data_parallel_rank} of {self.data_parallel_size}; ranks count from 0"
            )
        if self.tail not in get_args(Tail):
            raise ConfigError(
                f"tail must be one of {', '.join(get_args(Tail))}, got {self.tail!r}; choose one"
            )
        if self.num_positions < 1:
            raise PlanError(
                "a loader needs a dataset of at least one sample, got an empty one; leave it out"
            )
        if self.tail == "drop_last" and self.pass_length < self.global_batch_size:
            raise PlanError(
                f"tail='drop_last' needs at least one full step of {self.global_batch_size:,} "
                f"samples ({self.micro_batch_size:,} for each of {self.data_parallel_size:,} "
                f"ranks), got {self.pass_length:,}; choose tail='exact' or 'pad', or smaller "
                "micro-batches"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks take in one full step."""
        return self.micro_batch_size * self.data_parallel_size

    @property
    def pass_length(self) -> int:
        """Samples between two ends: of the stream, or of one pass if the stream has no end."""
        return self.num_positions if self.num_samples is None else self.num_samples

    @property
    def order_fingerprint(self) -> str:
        """What decides the order: the dataset's fingerprint, unless passes are shuffled."""
        if not self.shuffle:
            return self.fingerprint
        return fingerprint_of({"dataset": self.fingerprint, "shuffle": 1, "seed": self.seed})

    def find_stop(self, consumed_samples: int) -> int:
        """Return where the stream, or the pass that it stands in, ends."""
        if self.num_samples is not None:
            return self.num_samples
        return (consumed_samples // self.num_positions + 1) * self.num_positions

    def find_start(self, consumed_samples: int, *, is_restored: bool) -> int:
        """Return where an iteration begins: where the stream stands, or with the next pass.

        A stream with an end goes on where it stands. Without one, an iteration is a pass of its
        own, but one that was under way when its state was saved is finished first.
        """
        if self.num_samples is not None:
            return consumed_samples
        is_at_start = consumed_samples % self.num_positions == 0
        stop = self.find_stop(consumed_samples)
        if is_at_start or (is_restored and self.take_step(consumed_samples, stop) is not None):
            return consumed_samples
        return stop

    def take_step(self, consumed_samples: int, stop: int) -> Step | None:
        """Return the step after the samples consumed so far; None if there is no more.

        Parameters
        ----------
        consumed_samples
            Samples that all ranks have taken before.
        stop
            Where the stream ends for this step.

        Returns
        -------
        step
            Ranks take consecutive samples in their order. Where too few are left for a full step,
            none is taken (``drop_last``), or they are divided so that ranks differ by one at most
            (``exact``), and their micro-batches filled up (``pad``).
        """
        size, rank = self.micro_batch_size, self.data_parallel_rank
        num_left = stop - consumed_samples
        if num_left >= self.global_batch_size:
            start = consumed_samples + rank * size
            return Step(start, start + size, 0, consumed_samples + self.global_batch_size)
        if num_left <= 0 or self.tail == "drop_last":
            return None
        share, num_larger = divmod(num_left, self.data_parallel_size)
        start = consumed_samples + rank * share + min(rank, num_larger)
        count = share + (rank < num_larger)
        num_padding = size - count if self.tail == "pad" else 0
        return Step(start, start + count, num_padding, stop)

    def count_steps(self, consumed_samples: int, stop: int) -> int:
        """Return how many steps there are from one place to another; parameters as above."""
        num_full, rest = divmod(max(0, stop - consumed_samples), self.global_batch_size)
        return num_full + (rest > 0 and self.tail != "drop_last")

    def plan_batches(self, consumed_samples: int, stop: int) -> Iterator[Positions]:
        """Yield the positions of this rank's batches from one place to another."""
        while (step := self.take_step(consumed_samples, stop)) is not None:
            yield self.find_positions(step)
            consumed_samples = step.consumed_samples

    def find_positions(self, step: Step) -> Positions:
        """Return the positions in the dataset of a step's samples; None stands for padding."""
        positions: Positions = []
        start = step.start
        while start < step.stop:
            epoch, first = divmod(start, self.num_positions)
            count = min(step.stop - start, self.num_positions - first)
            positions += self._find_in_epoch(epoch, first, first + count)
            start += count
        return positions + [None] * step.num_padding

    def _find_in_epoch(self, epoch: int, start: int, stop: int) -> list[int]:
        """Return the positions that stand at places of one pass."""
        if not self.shuffle:
            return list(range(start, stop))
        # Shuffling needs numba, which most loaders do without.
        from zindex.kernels.bijection import permute_range

        out = np.empty(stop - start, np.int64)
        permute_range(
            start, self.num_positions, _pass_keys(self.fingerprint, self.seed, epoch), 0, out
        )
        return out.tolist()


class ElasticSampler(torch.utils.data.Sampler[Positions]):
    """A batch sampler for ``torch.utils.data.DataLoader`` that any number of ranks can resume.

    With ``num_epochs`` or ``num_samples`` it is a run: one stream of samples, batches across the
    ends of epochs, that goes on where it stands whenever it is iterated, and ends once. With
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
        Passes over the dataset; None for as many as there are iterations.
    num_samples
        Samples of the run in place of ``num_epochs``.
    shuffle
        Give each pass a shuffled order of its own. The datasets of a run are shuffled already, and
        without this each pass has their order.
    seed
        Of ``shuffle``.
    tail
        What becomes of the last samples if they are too few for a full step. ``drop_last`` leaves
        them out. ``exact`` divides them so that ranks differ by one sample at most; every rank
        still has a batch, which is empty where there are fewer samples than ranks, so that no rank
        waits for others in a collective. ``pad`` divides them likewise and fills every micro-batch
        up with None, which stands for a sample without any weight in the loss.
    fingerprint
        What identifies the dataset; a state of another one is refused.

    Raises
    ------
    ConfigError, PlanError
        If a setting is out of range, or there is not one step.

    Notes
    -----
    Law: the batches of a step, joined in the order of the ranks, are the next samples of the
    stream, for every number of ranks and every size of batches.
    A ``DataLoader`` with workers takes batches ahead of the trainer, so ``state_dict()`` runs ahead
    too: ask ``torchdata``'s ``StatefulDataLoader``, which keeps the state of each batch, or a
    ``Loader``.

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
        tail: Tail = "drop_last",
        fingerprint: str = "",
    ) -> None:
        self.plan = BatchPlan(
            num_positions,
            count_samples(num_positions, num_epochs, num_samples),
            micro_batch_size,
            data_parallel_rank,
            data_parallel_size,
            tail,
            shuffle,
            seed,
            fingerprint,
        )
        self.cursor = Cursor(self.plan)

    def __iter__(self) -> Iterator[Positions]:
        self.cursor.begin()
        while (step := self.cursor.peek()) is not None:
            self.cursor.advance(step)
            yield self.plan.find_positions(step)

    def __len__(self) -> int:
        """Return the batches of the whole run, or of one pass, wherever it stands."""
        return self.plan.count_steps(0, self.plan.pass_length)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, after the batches that were taken from this sampler."""
        return self.cursor.state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where the stream stood; also in the middle of an iteration.

        Parameters
        ----------
        state_dict
            What ``state_dict()`` returned, with any number of ranks and any size of batches.

        Raises
        ------
        StateMismatchError
            If the state belongs to another stream.
        """
        self.cursor.load(state_dict)


class Cursor:
    """Where a stream stands, and where the iteration under way ends.

    Parameters
    ----------
    plan
        The stream.

    Attributes
    ----------
    consumed_samples
        Samples that all ranks have taken.
    stop
        Where the stream, or the pass under way, ends.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.consumed_samples = 0
        self._is_restored = False
        self.stop = plan.find_stop(0)

    @property
    def state(self) -> LoaderState:
        """The state."""
        epoch = self.consumed_samples // self.plan.num_positions
        return LoaderState(self.plan.order_fingerprint, self.consumed_samples, epoch)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to where a state stands, after checking that it is one of this stream."""
        plan = self.plan
        checked = parse_state(
            state,
            fingerprint=plan.order_fingerprint,
            num_positions=plan.num_positions,
            num_samples=plan.num_samples,
            ancestors=() if plan.shuffle else plan.ancestors,
        )
        self.consumed_samples = checked.consumed_samples
        self._is_restored = True
        self.stop = plan.find_stop(self.consumed_samples)

    def begin(self) -> None:
        """Begin an iteration."""
        self.consumed_samples = self.plan.find_start(
            self.consumed_samples, is_restored=self._is_restored
        )
        self.stop = self.plan.find_stop(self.consumed_samples)

    def peek(self) -> Step | None:
        """Return the next step of the iteration, which stays the next one."""
        return self.plan.take_step(self.consumed_samples, self.stop)

    def advance(self, step: Step) -> None:
        """Take a step."""
        self.consumed_samples = step.consumed_samples
        self._is_restored = False


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
        return _check_number("num_samples", num_samples, 1)
    if num_epochs is None:
        return None
    return _check_number("num_epochs", num_epochs, 1) * num_positions


@lru_cache(maxsize=4)
def _pass_keys(fingerprint: str, seed: int, epoch: int) -> Any:
    """Return the round keys of one pass over a dataset."""
    from zindex.plan.keys import Stage, round_keys

    source = fingerprint_of({"dataset": fingerprint})
    return round_keys(seed, Stage.PASS, source_digest=source, split="train", epoch=epoch)


def _check_number(name: str, value: Any, low: int) -> int:
    """Return a setting as a plain number, after checking that it is whole and in range."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < low:
        raise ConfigError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)
