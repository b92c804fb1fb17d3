"""A sampler of single indices for torch's ``DataLoader``, which any number of ranks can resume.

All ranks together walk through one order of samples, one sample for each rank in turn. So at every
step they have taken the samples before one place of the order, and that place is all that there is
to remember: another number of ranks goes on from it.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Literal, get_args

import numpy as np
import torch

from zindex.errors import ConfigError, PlanError
from zindex.keyed.sampler_orders import Order, SampleOrder
from zindex.loading.place import find_place
from zindex.loading.state import LoaderState, dataset_fingerprint, parse_state

Tail = Literal["pad", "drop_last", "exact"]

# Indices that are computed at a time.
_BLOCK = 1024


class ResumableDistributedSampler(torch.utils.data.Sampler[int]):
    """The indices of this rank, pass after pass, and where all ranks together stand.

    Each iteration is a pass over the dataset, or what is left of one, and the next iteration is
    the next pass, with or without ``set_epoch``. The arguments up to ``process_group`` are those of
    AstrAI's sampler of this name, and so are the indices with ``order="astrai_randperm"``.

    Parameters
    ----------
    data_source
        The dataset; only its length and its ``fingerprint`` are asked for.
    start_epoch, start_iter
        The pass to begin with, and the samples of it that this rank (and every other) has had. As
        many as a pass gives one rank stand for the next pass. To go on exactly, also with another
        number of ranks, use ``load_state_dict``.
    seed
        Seed of the order.
    drop_last
        Without ``tail``: leave out the last samples (True), or pad (False).
    shuffle
        Give each pass an order of its own; False keeps that of the dataset.
    process_group
        Whose rank and size count, if ``rank`` and ``num_ranks`` are not given.
    order
        ``"keyed"`` computes each index when it is asked for, from the seed, the pass and the
        dataset's fingerprint, in constant memory. ``"astrai_randperm"`` is AstrAI's order, which
        takes 8 bytes for each sample.
    tail
        What becomes of the last samples of a pass if they are fewer than ranks. ``"pad"`` gives the
        other ranks the first samples of the pass once more, as often as it takes. ``"drop_last"``
        leaves them out. ``"exact"`` gives every sample once, so that ranks can differ by one sample
        (and some have none if there are fewer samples than ranks): for validation where no rank
        waits for others in each step. A ``Loader`` has batches for all ranks in each step.
    rank, num_ranks
        This rank, and how many share the samples; by default of ``process_group``, of
        ``torch.distributed``, or of ``torchrun``'s environment.
    fingerprint
        What identifies the dataset, whose state no other accepts; by default its own, or its class
        and its length.

    Raises
    ------
    ConfigError
        If a setting is out of range.
    PlanError
        If the dataset is empty, or ``drop_last`` leaves nothing of it: every pass would be empty.

    Notes
    -----
    Law: after k samples of each rank, all ranks together had the first ``k * num_ranks`` samples of
    the order, whatever the number of ranks.
    A ``DataLoader`` with workers takes indices ahead of the trainer, so ``state_dict()`` runs ahead
    too, unless ``count_delivered`` is told of every batch. ``torchdata``'s ``StatefulDataLoader``
    keeps the state of each batch by itself, and so does the ``Loader`` of `keyed_loader`, whose
    states and those of this sampler (in its ``"keyed"`` order) are the same.

    Examples
    --------
    >>> for rank in range(2):
    ...     list(ResumableDistributedSampler(range(5), shuffle=False, rank=rank, num_ranks=2))
    [0, 2, 4]
    [1, 3, 0]
    """

    def __init__(
        self,
        data_source: Sized,
        start_epoch: int = 0,
        start_iter: int = 0,
        seed: int = 42,
        drop_last: bool = False,
        shuffle: bool = True,
        process_group: Any = None,
        *,
        order: Order = "keyed",
        tail: Tail | None = None,
        rank: int | None = None,
        num_ranks: int | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.rank, self.num_ranks = find_ranks(process_group, rank, num_ranks)
        self.tail = _choose_tail(tail, drop_last)
        if order not in get_args(Order):
            raise ConfigError(
                f"order must be one of {', '.join(get_args(Order))}, got {order!r}; choose one"
            )
        self.num_samples = len(data_source)
        self._check_size()
        self.order = SampleOrder(
            self.num_samples,
            check_number("seed", seed, 0),
            order if shuffle else None,
            dataset_fingerprint(data_source) if fingerprint is None else fingerprint,
        )
        num_passes, num_taken = divmod(check_number("start_iter", start_iter, 0), self._most(0))
        start = (check_number("start_epoch", start_epoch, 0) + num_passes) * self.num_samples
        # Where the iteration under way began (or the next one will), in samples of all passes, and
        # what this rank took of it, and the trainer was handed: None if nobody tells.
        self._begin = start + num_taken * self.num_ranks
        self._taken = 0
        self._delivered: int | None = None
        self._is_ended = False
        self._iteration = 0

    def __iter__(self) -> Iterator[int]:
        self._begin = self._find_next()
        self._taken = 0
        self._is_ended = False
        self._delivered = None if self._delivered is None else 0
        self._iteration += 1
        return self._walk(self._begin, self._iteration)

    def _walk(self, begin: int, iteration: int) -> Iterator[int]:
        """Yield this rank's samples of an iteration; only the latest one is counted."""
        epoch, first = divmod(begin, self.num_samples)
        num_left = self._count(begin)
        samples = self.order.open_pass(epoch)
        for start in range(0, num_left, _BLOCK):
            steps = np.arange(start, min(start + _BLOCK, num_left), dtype=np.int64)
            # Padding begins the pass once more.
            places = (first + self.rank + steps * self.num_ranks) % self.num_samples
            for index in samples.find(places).tolist():
                if iteration == self._iteration:
                    self._taken += 1
                yield index
        if iteration == self._iteration:
            self._is_ended = True

    def __len__(self) -> int:
        """Return this rank's samples of the iteration under way, or else of the next one."""
        is_under_way = not self._is_ended or self._num_done < self._count(self._begin)
        return self._count(self._begin if is_under_way else self._find_next())

    @property
    def epoch(self) -> int:
        """Number of the pass under way, or else of the next one."""
        return self._find_next() // self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of a pass; that of the pass under way changes nothing.

        Parameters
        ----------
        epoch
            Number of the pass, >= 0.
        """
        if check_number("epoch", epoch, 0) != self.epoch:
            self._go_to(int(epoch) * self.num_samples)

    def count_delivered(self, num_samples: int) -> None:
        """Say that the trainer has been handed more samples of this rank.

        From the first call on, ``state_dict()`` is about what was delivered, not about what was
        taken ahead; and an iteration after one that was stopped goes on with what was not delivered
        instead of repeating that pass.

        Parameters
        ----------
        num_samples
            Samples of the last batch, padding included.

        Raises
        ------
        ConfigError
            If it is more than was taken.
        """
        delivered = (self._delivered or 0) + check_number("num_samples", num_samples, 0)
        if delivered > self._taken:
            raise ConfigError(
                "num_samples of count_delivered must be samples that were taken, "
                f"{self._taken - (self._delivered or 0):,} are left of {self._taken:,}, got "
                f"{num_samples:,}; count the samples of this rank's batches, each once"
            )
        self._delivered = delivered

    def state_dict(self) -> dict[str, Any]:
        """Return where all ranks stand, equal on each of them after as many samples of each.

        Returns
        -------
        state
            ``version``, ``fingerprint``, ``consumed_samples`` of all ranks and passes, padding not
            counted, and ``epoch``: plain values. A pass of which no step is left is finished, so
            that ``epoch`` is then the next one, and what ``drop_last`` left out is counted.
        """
        place = self._find_place()
        if self._most(place) == 0:
            place = self._next_pass(place)
        epoch = place // self.num_samples
        return LoaderState(self.order.fingerprint, place, epoch).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where the ranks of a state stood, with the next iteration.

        Parameters
        ----------
        state_dict
            What ``state_dict()`` returned, with any number of ranks. If ``drop_last`` leaves
            nothing of its pass for this number of ranks, the next iteration is empty.

        Raises
        ------
        StateMismatchError
            If the state belongs to other samples, or to another order of them.
        """
        checked = parse_state(
            state_dict,
            fingerprint=self.order.fingerprint,
            num_positions=self.num_samples,
            num_samples=None,
        )
        self._go_to(checked.consumed_samples)

    def _go_to(self, place: int) -> None:
        """Begin the next iteration at a place; what is under way is not counted any more."""
        self._begin = place
        self._taken = 0
        self._delivered = None if self._delivered is None else 0
        self._is_ended = False
        self._iteration += 1

    @property
    def _num_done(self) -> int:
        """Samples of this rank that count in the iteration under way."""
        return self._taken if self._delivered is None else self._delivered

    def _find_place(self) -> int:
        """Return where all ranks stand, in samples of all passes."""
        if self._is_finished:
            return self._next_pass(self._begin)
        place = self._begin + self._num_done * self.num_ranks
        return min(place, self._next_pass(self._begin))

    @property
    def _is_finished(self) -> bool:
        """Whether this rank has had its samples of the iteration, which may be one less."""
        return self._is_ended and self._num_done == self._count(self._begin)

    def _find_next(self) -> int:
        """Return where an iteration would begin now."""
        if self._delivered is None and not self._is_finished:
            return self._begin
        place = self._find_place()
        is_finished = self._num_done > 0 and self._count(place) == 0
        return self._next_pass(place) if is_finished else place

    def _next_pass(self, place: int) -> int:
        """Return where the pass after that of a place begins."""
        return (place // self.num_samples + 1) * self.num_samples

    def _count(self, place: int) -> int:
        """Return the samples that this rank has from a place to the end of its pass."""
        if self.tail != "exact":
            return self._most(place)
        num_left = self.num_samples - place % self.num_samples
        return -(-(num_left - self.rank) // self.num_ranks)

    def _most(self, place: int) -> int:
        """Return the most samples that any rank has from a place to the end of its pass."""
        num_left = self.num_samples - place % self.num_samples
        if self.tail == "drop_last":
            return num_left // self.num_ranks
        return -(-num_left // self.num_ranks)

    def _check_size(self) -> None:
        """Check that a pass has samples."""
        check_not_empty(self.num_samples, "a sampler")
        if self.tail == "drop_last" and self.num_samples < self.num_ranks:
            raise PlanError(
                f"drop_last needs at least one sample for each of {self.num_ranks:,} ranks, got "
                f"{self.num_samples:,}; choose tail='pad' or 'exact'"
            )


def check_not_empty(num_samples: int, what: str) -> None:
    """Check that a dataset has samples; PlanError names what needs them."""
    if num_samples < 1:
        raise PlanError(
            f"{what} needs a dataset of at least one sample, got an empty one; leave it out, or "
            "choose a window_size below the number of its tokens"
        )


def find_ranks(process_group: Any, rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Return this rank and the number of ranks, after checking them."""
    if process_group is not None and rank is None and num_ranks is None:
        rank = torch.distributed.get_rank(process_group)
        num_ranks = torch.distributed.get_world_size(process_group)
    if (rank is None) != (num_ranks is None):
        raise ConfigError(
            f"rank and num_ranks must be given together, got {rank} and {num_ranks}; give both or "
            "none"
        )
    rank, num_ranks = find_place(rank, num_ranks)
    rank, num_ranks = check_number("rank", rank, 0), check_number("num_ranks", num_ranks, 1)
    if rank >= num_ranks:
        raise ConfigError(
            f"rank must be less than num_ranks, got {rank} of {num_ranks}; ranks count from 0"
        )
    return rank, num_ranks


def _choose_tail(tail: Tail | None, drop_last: bool) -> Tail:
    """Return what becomes of the last samples of a pass."""
    if tail is None:
        return "drop_last" if drop_last else "pad"
    if tail not in get_args(Tail):
        raise ConfigError(
            f"tail must be one of {', '.join(get_args(Tail))}, got {tail!r}; choose one"
        )
    if drop_last and tail != "drop_last":
        raise ConfigError(
            f"drop_last=True and tail={tail!r} must not be given together; leave drop_last out"
        )
    return tail


def check_number(name: str, value: Any, low: int) -> int:
    """Return a setting as a plain number, after checking that it is whole and in range."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < low:
        raise ConfigError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)
