"""Megatron's batch samplers, with its names, arguments and batches.

Source: Megatron-LM ``megatron/training/datasets/data_samplers.py``, which is not published as a
package. For runs whose number of ranks may change, see ``zindex.loading.sampler``.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from zindex.datasets.fim_dataset import replay_draws
from zindex.errors import ConfigError, PlanError, check_whole
from zindex.loading.sampler import check_ranks


class _RankSampler(torch.utils.data.Sampler[list[int]]):
    """Attributes and checks shared by all samplers."""

    def __init__(
        self, total_samples: int, consumed_samples: int, micro_batch_size: int, rank: int, size: int
    ) -> None:
        if total_samples <= 0:
            raise PlanError(
                f"total_samples must be at least 1, got {total_samples}; leave the dataset out"
            )
        check_whole("micro_batch_size", micro_batch_size, 1)
        check_ranks(rank, size)
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = rank
        self.data_parallel_size = size
        self.micro_batch_times_data_parallel_size = micro_batch_size * size

    def __len__(self) -> int:
        """Return the samples of the dataset, not the batches, as in Megatron."""
        return self.total_samples


class MegatronPretrainingSampler(_RankSampler):
    """Consecutive micro-batches for each rank, in the dataset's order (``single``).

    Parameters
    ----------
    total_samples
        Samples of the dataset.
    consumed_samples
        Samples already consumed by all ranks together; less than ``total_samples``.
    micro_batch_size
        Samples of one rank in one step.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    drop_last
        Drop a last step that is not full. Otherwise the first ranks have full micro-batches, one
        rank a partial one, and the others an empty list, which ``default_collate`` rejects.

    Raises
    ------
    ConfigError
        If a number is out of range.
    PlanError
        If no samples are left.
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,
    ) -> None:
        place = (data_parallel_rank, data_parallel_size)
        super().__init__(total_samples, consumed_samples, micro_batch_size, *place)
        if consumed_samples >= total_samples:
            raise PlanError(
                f"consumed_samples must be less than total_samples, got {consumed_samples:,} of "
                f"{total_samples:,}; no samples are left"
            )
        self.drop_last = drop_last

    def get_start_end_idx(self) -> tuple[int, int]:
        """Return the bounds of this rank's samples within a step."""
        start = self.data_parallel_rank * self.micro_batch_size
        return start, start + self.micro_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        begin, end = self.get_start_end_idx()
        step = self.micro_batch_times_data_parallel_size
        for first in range(self.consumed_samples, self.total_samples, step):
            if first + step <= self.total_samples or not self.drop_last:
                stop = min(first + end, self.total_samples)
                yield list(range(first + begin, stop))


class MegatronFullValidationSampler(_RankSampler):
    """Every sample once, dealt to the ranks in turn, in batches of one.

    Ranks differ by at most one batch, so do not call a collective per batch.

    Parameters
    ----------
    total_samples
        Samples of the dataset.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.

    Raises
    ------
    ConfigError, PlanError
        If a number is out of range.
    """

    def __init__(
        self, total_samples: int, data_parallel_rank: int, data_parallel_size: int
    ) -> None:
        super().__init__(total_samples, 0, 1, data_parallel_rank, data_parallel_size)

    @property
    def _samples(self) -> range:
        """The samples of this rank."""
        return range(self.data_parallel_rank, self.total_samples, self.data_parallel_size)

    def __len__(self) -> int:
        """Return the batches of this rank."""
        return len(self._samples)

    def __iter__(self) -> Iterator[list[int]]:
        return ([sample] for sample in self._samples)


class RandomSeedDataset(torch.utils.data.Dataset[Any]):
    """A dataset that seeds all generators before each sample, by its position and the epoch.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    seed
        Base seed. Sample i of epoch e has ``seed + e + i``, as in Megatron, so neighbours share
        seeds in successive epochs.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.base_seed = seed
        self.curr_seed = seed
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.curr_seed = self.base_seed + epoch

    def __getitem__(self, idx: int) -> Any:
        seed = idx + self.curr_seed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        return self.dataset[idx]


class MegatronPretrainingRandomSampler(_RankSampler):
    """Micro-batches for each rank, shuffled in every epoch (``cyclic``).

    An iteration is the rest of an epoch. ``consumed_samples`` counts the batches taken from the
    sampler, including those that the workers of a ``DataLoader`` prefetch.

    All ranks have the same number of batches: samples left over at the end of an epoch are dropped,
    or, with ``global_batch_size``, precede those of the next epoch.

    Parameters
    ----------
    dataset
        The dataset; ``set_epoch`` of a ``RandomSeedDataset`` is called in each epoch.
    total_samples
        Its samples: at least ``micro_batch_size * data_parallel_size``.
    consumed_samples
        Samples already consumed by all ranks in all epochs: a multiple of ``micro_batch_size *
        data_parallel_size`` in each epoch, or in total with ``global_batch_size``.
    micro_batch_size
        Samples of one rank in one step.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    data_sharding
        Whether each rank shuffles a fixed bucket of samples in every epoch. The buckets depend on
        the number of ranks, so an epoch cannot be resumed exactly on a different number.
    global_batch_size
        Samples of one optimiser step, a multiple of ``micro_batch_size * data_parallel_size``; it
        needs ``data_sharding=False``. Every step then has the same samples on any number of ranks,
        and an iteration ends with the step in which its epoch ends. A micro-batch with samples of
        two epochs sets the later one on a ``RandomSeedDataset``.

    Raises
    ------
    ConfigError, PlanError
        If a number is out of range.

    Notes
    -----
    Source: Megatron-LM's sampler of 2026-08. In version 0.16 ranks could have unequal numbers of
    batches, and hang; with equal numbers, the batches are the same.
    Memory: 8 bytes per shuffled sample, because ``torch.randperm`` decides the order.
    """

    def __init__(
        self,
        dataset: Any,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_sharding: bool,
        global_batch_size: int | None = None,
    ) -> None:
        place = (data_parallel_rank, data_parallel_size)
        super().__init__(total_samples, consumed_samples, micro_batch_size, *place)
        step = self.micro_batch_times_data_parallel_size
        if global_batch_size is not None and (global_batch_size % step or data_sharding):
            raise ConfigError(
                f"global_batch_size must be a multiple of {step:,}, micro_batch_size * "
                f"data_parallel_size, without data_sharding, got {global_batch_size:,} and "
                f"data_sharding={data_sharding}; leave it out otherwise"
            )
        if total_samples < step:
            raise PlanError(
                f"total_samples must be at least {step:,}, a micro-batch of {micro_batch_size:,} "
                f"for each of {data_parallel_size:,} ranks, got {total_samples:,}; use smaller "
                "micro-batches"
            )
        self.dataset = dataset
        self.data_sharding = data_sharding
        self.last_batch_size = total_samples % step
        self.global_batch_size = global_batch_size
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        return self._iterate_epoch() if self.global_batch_size is None else self._iterate_steps()

    def _iterate_epoch(self) -> Iterator[list[int]]:
        """Yield this rank's batches of the rest of an epoch."""
        step = self.micro_batch_times_data_parallel_size
        epoch, consumed = divmod(self.consumed_samples, self.total_samples - self.last_batch_size)
        if consumed % step:
            raise PlanError(
                f"consumed_samples must be a multiple of {step:,} in each epoch, got {consumed:,} "
                f"in epoch {epoch}; go on with the ranks and micro-batches of before"
            )
        self._set_epoch(epoch)
        samples = self._take_own(consumed)
        for start in range(0, len(samples), self.micro_batch_size):
            self.consumed_samples += step
            yield samples[start : start + self.micro_batch_size].tolist()

    def _take_own(self, consumed: int) -> torch.Tensor:
        """Return the remaining samples of this rank in an epoch, in order."""
        if self.data_sharding:
            num_steps = self.total_samples // self.micro_batch_times_data_parallel_size
            bucket_size = num_steps * self.micro_batch_size
            skipped = consumed // self.data_parallel_size
            return self._shuffle(bucket_size)[skipped:] + self.data_parallel_rank * bucket_size
        active = self.total_samples - self.last_batch_size
        order = self._shuffle(self._num_shuffled)
        # A copy, so that the other ranks' samples are freed.
        return order[consumed + self.data_parallel_rank : active : self.data_parallel_size].clone()

    def _iterate_steps(self) -> Iterator[list[int]]:
        """Yield this rank's batches up to the step in which the epoch ends."""
        step, size = self.micro_batch_times_data_parallel_size, self._num_shuffled
        if self.consumed_samples % step:
            raise PlanError(
                f"consumed_samples must be a multiple of {step:,} with global_batch_size, got "
                f"{self.consumed_samples:,}; go on with a whole number of steps"
            )
        self._set_epoch(self.consumed_samples // size)
        order = self._shuffle(size)
        steps_end = -(-(self.epoch + 1) * size // (self.global_batch_size or step))
        stop = steps_end * (self.global_batch_size or step)
        while self.consumed_samples < stop:
            start = self.consumed_samples - self.epoch * size
            samples = order[start : start + step]
            if len(samples) < step:
                self._set_epoch(self.epoch + 1)
                order = self._shuffle(size)
                samples = torch.cat([samples, order[: step - len(samples)]])
            self.consumed_samples += step
            yield samples[self.data_parallel_rank :: self.data_parallel_size].tolist()

    @property
    def _num_shuffled(self) -> int:
        """Samples that are shuffled together: whole micro-batches."""
        return self.total_samples // self.micro_batch_size * self.micro_batch_size

    def _set_epoch(self, epoch: int) -> None:
        """Set the epoch, also of the dataset."""
        self.epoch = epoch
        if isinstance(self.dataset, RandomSeedDataset):
            self.dataset.set_epoch(epoch)

    def _shuffle(self, num_samples: int) -> torch.Tensor:
        """Return a permutation of ``range(num_samples)`` for this epoch."""
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        return torch.randperm(num_samples, generator=generator)


class ReplayedDraws:
    """A ``worker_init_fn`` with which a job continues the draws of fill-in-the-middle of another.

    Megatron starts the generators of its workers again when a job resumes. With this function a
    resumed job has the samples of one that was never interrupted; see `zindex.datasets.
    fim_dataset.replay_draws`, which does the same without workers.

    Parameters
    ----------
    batches
        The batch sampler of this rank as the earlier job began, with its ``consumed_samples``. The
        number of loader workers must be that of the earlier job.
    num_batches
        Batches that training has taken from it.
    then
        Another ``worker_init_fn``, called afterwards.
    """

    def __init__(
        self,
        batches: Iterable[Sequence[int | None]],
        num_batches: int,
        then: Callable[[int], Any] | None = None,
    ) -> None:
        self.batches = batches
        self.num_batches = check_whole("num_batches", num_batches, 0)
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Replay the batches of a worker.

        Raises
        ------
        ConfigError
            If the dataset does not draw in sequence.
        """
        worker: Any = torch.utils.data.get_worker_info()
        # The first batch now is the one after those, and worker 0 reads it.
        first = (self.num_batches + worker_id) % worker.num_workers
        replay_draws(
            worker.dataset, islice(self.batches, first, self.num_batches, worker.num_workers)
        )
        if self.then is not None:
            self.then(worker_id)
