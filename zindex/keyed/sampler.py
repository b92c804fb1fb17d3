"""Sampler of single indices for torch's ``DataLoader``, resumable on any number of ranks.

The ranks take the samples of one order in turn. After each step they have consumed a prefix of that
order, so its length is the whole state, and another number of ranks can resume from it.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Any, get_args

import numpy as np
import torch

from zindex.errors import ConfigError, StateMismatchError, check_choice, check_whole
from zindex.loading.data_parallel import find_place
from zindex.loading.order import Order, SampleOrder
from zindex.loading.sampler import BatchPlan, check_ranks
from zindex.loading.state import dataset_fingerprint
from zindex.plan.tail import Tail, TailName, parse_tail

# Indices computed at a time.
_BLOCK = 1024
# Keys of the states of AstrAI's sampler.
_ASTRAI_KEYS = {"epoch", "iter"}


class ResumableDistributedSampler(torch.utils.data.Sampler[int]):
    """The indices of this rank, pass after pass, with the state of all ranks.

    Each iteration is a pass over the dataset, or the rest of one, and the next iteration is the
    next pass, with or without ``set_epoch``. The arguments up to ``process_group`` are those of
    AstrAI's sampler of this name, and so are the indices with ``order="astrai_randperm"``.

    Parameters
    ----------
    data_source
        The dataset; only its length and its ``fingerprint`` are used.
    start_epoch, start_iter
        The first pass, and the number of its samples that each rank has already consumed. A full
        pass of samples means the next pass. To resume exactly, also on a different number of ranks,
        use ``load_state_dict``.
    seed
        Seed of the order.
    drop_last
        Used if ``tail`` is None: True means ``tail="drop_last"``, False ``tail="wrap"``.
    shuffle
        Shuffle each pass; False keeps the order of the dataset.
    process_group
        Provides the rank and size if ``rank`` and ``num_ranks`` are not given.
    order
        ``"keyed"`` computes each index on demand, from the seed, the pass and the dataset's
        fingerprint, in constant memory. ``"astrai_randperm"`` is AstrAI's order, which takes 8
        bytes per sample.
    tail
        How to treat the last samples of a pass if there are fewer than ranks; see
        `zindex.plan.tail.Tail`. ``"wrap"`` gives the remaining ranks the first samples of the pass
        again, as often as needed. ``"drop_last"`` drops the last samples. ``"exact"`` gives every
        sample once, so ranks can differ by one sample (and some have none if there are fewer
        samples than ranks): for validation without a collective in each step. ``"pad"`` is accepted
        as an alias of ``"wrap"``, as in AstrAI, since an index cannot be padded. A ``Loader`` pads
        with samples without weight, and has batches for all ranks in each step.
    rank, num_ranks
        This rank, and how many share the samples; by default of ``process_group``, of
        ``torch.distributed``, or of ``torchrun``'s environment.
    fingerprint
        Identity of the dataset, which states must match; by default its own, or its class and
        length.

    Raises
    ------
    ConfigError
        If a setting is out of range.
    PlanError
        If the dataset is empty, or ``drop_last`` leaves no sample, so that every pass is empty.

    Notes
    -----
    Law: after k samples of each rank, all ranks together have had the first ``k * num_ranks``
    samples of the order, for every number of ranks.
    The workers of a ``DataLoader`` prefetch indices, so ``state_dict()`` is ahead of the trainer
    unless ``count_delivered`` is called after every batch. ``torchdata``'s ``StatefulDataLoader``
    keeps the state of each batch, and so does the ``Loader`` of `keyed_loader`, whose states equal
    those of this sampler in its ``"keyed"`` order.
    In AstrAI's order, its own states ``{"epoch": ..., "iter": ...}`` are read, too, and ``epoch``
    and ``iter`` may be assigned as its trainers do.

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
        tail: Tail | TailName | None = None,
        rank: int | None = None,
        num_ranks: int | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.rank, self.num_ranks = find_ranks(process_group, rank, num_ranks)
        self.tail = _choose_tail(tail, drop_last)
        check_choice("order", order, get_args(Order))
        self.num_samples = len(data_source)
        self.order = SampleOrder(
            self.num_samples,
            order if shuffle else None,
            seed,
            dataset_fingerprint(data_source) if fingerprint is None else fingerprint,
        )
        #: Steps of one sample per rank.
        self.plan = BatchPlan(self.order, None, 1, self.rank, self.num_ranks, self.tail)
        num_passes, num_taken = divmod(
            check_whole("start_iter", start_iter, 0), self.plan.count_steps(0, self.num_samples)
        )
        start = (check_whole("start_epoch", start_epoch, 0) + num_passes) * self.num_samples
        # Samples of the iteration that the trainer has received: None until `count_delivered` is
        # called.
        self._delivered: int | None = None
        self._iteration = 0
        self._begin_at(start + num_taken * self.num_ranks)

    def __iter__(self) -> Iterator[int]:
        self._begin_at(self._find_next())
        return self._walk(self._start, self._iteration)

    def _walk(self, start: int, iteration: int) -> Iterator[int]:
        """Yield this rank's samples of an iteration; only the latest iteration is counted."""
        epoch, first = divmod(start, self.num_samples)
        num_left = self._count(start)
        find = self.order.open_pass(epoch)
        for step in range(0, num_left, _BLOCK):
            steps = np.arange(step, min(step + _BLOCK, num_left), dtype=np.int64)
            # Only a wrapped tail exceeds the pass.
            places = (first + self.rank + steps * self.num_ranks) % self.num_samples
            for index in find(places).tolist():
                if iteration == self._iteration:
                    self._taken += 1
                yield index
        if iteration == self._iteration:
            self._is_ended = True

    def __len__(self) -> int:
        """Return this rank's samples of the current iteration, or of the next one."""
        is_running = not self._is_ended or self._num_done < self._count(self._start)
        return self._count(self._start if is_running else self._find_next())

    @property
    def epoch(self) -> int:
        """Number of the current pass, or of the next one if none is running."""
        return self._find_next() // self.num_samples

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    @property
    def iter(self) -> int:
        """Samples of this rank in the current pass that count as taken, as AstrAI names them.

        With ``epoch`` it is a state of AstrAI, on the same number of ranks: ``state_dict()`` is
        one for any number. Assigning it moves the sampler there, which needs AstrAI's order.
        """
        return self._find_resumed() % self.num_samples // self.num_ranks

    @iter.setter
    def iter(self, num_taken: int) -> None:
        self.load_state_dict({"epoch": self.epoch, "iter": num_taken})

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of a pass; setting the current pass has no effect.

        Parameters
        ----------
        epoch
            Number of the pass, >= 0.
        """
        if check_whole("epoch", epoch, 0) != self.epoch:
            self._begin_at(int(epoch) * self.num_samples)

    def count_delivered(self, num_samples: int) -> None:
        """Count samples of this rank that the trainer has received.

        From the first call on, ``state_dict()`` counts delivered samples instead of prefetched
        ones, and an iteration after an interrupted one continues with the first sample that was
        not delivered, instead of repeating the pass.

        Parameters
        ----------
        num_samples
            Samples of the last batch, wrapped ones included.

        Raises
        ------
        ConfigError
            If it is more than was taken.
        """
        delivered = (self._delivered or 0) + check_whole("num_samples", num_samples, 0)
        if delivered > self._taken:
            raise ConfigError(
                "num_samples of count_delivered must be samples that were taken, "
                f"{self._taken - (self._delivered or 0):,} are left of {self._taken:,}, got "
                f"{num_samples:,}; count the samples of this rank's batches, each once"
            )
        self._delivered = delivered

    def state_dict(self) -> dict[str, Any]:
        """Return the state, equal on all ranks after the same number of samples.

        Returns
        -------
        state
            ``version``, ``fingerprint``, ``consumed_samples`` of all ranks and passes, without
            wrapped samples, and ``epoch``: plain values. A pass without another step is finished:
            ``epoch`` is then the next one, and samples dropped by ``drop_last`` are counted.
        """
        return self.plan.state_at(self._find_resumed()).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state with the next iteration.

        Parameters
        ----------
        state_dict
            The result of ``state_dict()`` on any number of ranks. If ``drop_last`` leaves nothing
            of its pass for this number of ranks, the next iteration is empty. Or the ``epoch`` and
            ``iter`` of AstrAI's sampler of the same seed and samples, on as many ranks.

        Raises
        ------
        StateMismatchError
            If the state belongs to other samples, or to another order of them; or AstrAI's could
            mean two passes.
        """
        if isinstance(state_dict, Mapping) and set(state_dict) == _ASTRAI_KEYS:
            self._begin_at(self._read_astrai(state_dict["epoch"], state_dict["iter"]))
        else:
            self._begin_at(self.plan.parse_state(state_dict))

    def _read_astrai(self, epoch: Any, num_taken: Any) -> int:
        """Return the position of a state of AstrAI, counted over all passes."""
        shown = f"{{'epoch': {epoch!r}, 'iter': {num_taken!r}}}"
        if self.order.kind == "keyed":
            raise StateMismatchError(
                f"a state of AstrAI's sampler, {shown}, must come with its order of samples, got "
                "order='keyed'; create the sampler with order='astrai_randperm' and the seed of "
                "that run"
            )
        if type(epoch) is not int or type(num_taken) is not int or min(epoch, num_taken) < 0:
            raise StateMismatchError(
                "epoch and iter of a state of AstrAI's sampler must be whole numbers from 0 on, "
                f"got {shown}; give those of its checkpoint"
            )
        # Some versions count on from pass to pass.
        per_rank = self.plan.count_steps(0, self.num_samples)
        num_passes, num_taken = divmod(num_taken, per_rank)
        is_ended = num_passes > 0 and num_taken == 0
        if num_passes > epoch + is_ended:
            raise StateMismatchError(
                f"iter of a state of AstrAI's sampler must be at most {(epoch + 1) * per_rank:,} "
                f"in pass {epoch} of {per_rank:,} samples per rank, got {shown}; use as many "
                "ranks, the same tail and the same samples as that run"
            )
        if is_ended and epoch > 0:
            raise StateMismatchError(
                f"iter of a state of AstrAI's sampler must be within a pass of {per_rank:,} "
                f"samples per rank, got {shown}, which may be before or after pass {epoch}; give "
                f"iter 0 and epoch {epoch} or {epoch + 1}"
            )
        position: int = (epoch + is_ended) * self.num_samples + num_taken * self.num_ranks
        return position

    def _begin_at(self, position: int) -> None:
        """Start the next iteration at a position; the current one is no longer counted."""
        # First position of the current or next iteration, counted over all passes.
        self._start = position
        # Samples of the iteration that this rank has taken.
        self._taken = 0
        self._delivered = None if self._delivered is None else 0
        self._is_ended = False
        self._iteration += 1

    def _find_resumed(self) -> int:
        """Return the position of the state: the next pass if no step of this one is left."""
        position = self._find_position()
        stop = self.plan.find_stop(position)
        return position if self.plan.count_steps(position, stop) else stop

    @property
    def _num_done(self) -> int:
        """Samples of this rank that count in the current iteration."""
        return self._taken if self._delivered is None else self._delivered

    def _find_position(self) -> int:
        """Return the position of all ranks, counted over all passes."""
        stop = self.plan.find_stop(self._start)
        if self._is_finished:
            return stop
        return min(self._start + self._num_done * self.num_ranks, stop)

    @property
    def _is_finished(self) -> bool:
        """Whether this rank has all its samples of the iteration, which may be one less."""
        return self._is_ended and self._num_done == self._count(self._start)

    def _find_next(self) -> int:
        """Return the position at which an iteration would start now."""
        if self._delivered is None and not self._is_finished:
            return self._start
        position = self._find_position()
        is_finished = self._num_done > 0 and self._count(position) == 0
        return self.plan.find_stop(position) if is_finished else position

    def _count(self, position: int) -> int:
        """Return this rank's samples from a position to the end of its pass."""
        stop = self.plan.find_stop(position)
        # The last step of an exact tail has a sample for the first ranks only.
        skipped = self.rank if self.tail is Tail.EXACT else 0
        return self.tail.count_units(stop - position - skipped, self.num_ranks)


def find_ranks(process_group: Any, rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Return this rank and the number of ranks, after checking them."""
    if process_group is not None and rank is None and num_ranks is None:
        rank = torch.distributed.get_rank(process_group)
        num_ranks = torch.distributed.get_world_size(process_group)
    names = ("rank", "num_ranks")
    return check_ranks(*find_place(rank, num_ranks, names=names), names)


def _choose_tail(tail: Tail | TailName | None, drop_last: bool) -> Tail:
    """Return the tail of an index sampler; AstrAI uses "pad" for wrapping."""
    if tail is None:
        return Tail.DROP_LAST if drop_last else Tail.WRAP
    if drop_last and tail not in (Tail.DROP_LAST, "drop"):
        raise ConfigError(
            f"drop_last=True and tail={str(tail)!r} must not be given together; leave drop_last out"
        )
    if tail == Tail.PAD:
        return Tail.WRAP
    return parse_tail(tail, (Tail.WRAP, Tail.DROP_LAST, Tail.EXACT))
