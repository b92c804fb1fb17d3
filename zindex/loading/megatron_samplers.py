"""Megatron's batch samplers, by their names, arguments and batches.

Source: Megatron-LM ``megatron/training/datasets/data_samplers.py``, which no wheel holds. For a
run that may change its number of ranks, see ``zindex.loading.sampler``.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from zindex.errors import ConfigError, PlanError


class MegatronPretrainingSampler(torch.utils.data.Sampler[list[int]]):
    """Consecutive micro-batches for each rank, in the dataset's order (``single``).

    Parameters
    ----------
    total_samples
        Samples of the dataset.
    consumed_samples
        Samples that all ranks together have taken before; less than ``total_samples``.
    micro_batch_size
        Samples of one rank in one step.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    drop_last
        Leave out a last step that is not full. Otherwise the first ranks have full micro-batches,
        one a part, and the others an empty list, which ``default_collate`` refuses.

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
        _check_sizes(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        if consumed_samples >= total_samples:
            raise PlanError(
                f"consumed_samples must be less than total_samples, got {consumed_samples:,} of "
                f"{total_samples:,}; no samples are left"
            )
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = data_parallel_rank
        self.micro_batch_times_data_parallel_size = micro_batch_size * data_parallel_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Return the samples of the dataset: not the batches, as in Megatron."""
        return self.total_samples

    def get_start_end_idx(self) -> tuple[int, int]:
        """Return where this rank's samples of a step begin and end."""
        start = self.data_parallel_rank * self.micro_batch_size
        return start, start + self.micro_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        begin, end = self.get_start_end_idx()
        step = self.micro_batch_times_data_parallel_size
        for first in range(self.consumed_samples, self.total_samples, step):
            if first + step <= self.total_samples or not self.drop_last:
                stop = min(first + end, self.total_samples)
                yield list(range(first + begin, stop))


class MegatronFullValidationSampler(torch.utils.data.Sampler[list[int]]):
    """Every sample once, one for each rank in turn, so that few samples suffice.

    Ranks differ by one batch at most: those that have fewer must not wait for the others.

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
        _check_sizes(total_samples, 1, data_parallel_rank, data_parallel_size)
        self.total_samples = total_samples
        self.data_parallel_rank = data_parallel_rank
        self.data_parallel_size = data_parallel_size
        self.micro_batch_size = 1

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
    """A dataset whose samples are made with a seed of their own: of their place and the epoch.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    seed
        Its first seed. Sample i of epoch e has ``seed + e + i``, as in Megatron, so that
        neighbours in one epoch meet in the next.
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


class MegatronPretrainingRandomSampler(torch.utils.data.Sampler[list[int]]):
    """Shuffled micro-batches for each rank, anew in every epoch (``cyclic``).

    An iteration is what is left of an epoch. ``consumed_samples`` counts the batches that were
    taken from the sampler, which a ``DataLoader`` with workers takes ahead of the trainer.

    Every rank has as many batches as the others: the samples of an epoch that give no batch to
    each rank are left out of it, or with ``global_batch_size`` go before those of the next epoch.

    Parameters
    ----------
    dataset
        The dataset; a ``RandomSeedDataset`` is told of each epoch.
    total_samples
        Its samples: at least ``micro_batch_size * data_parallel_size``.
    consumed_samples
        Samples that all ranks together have taken before, in all epochs: in each of them, or
        with ``global_batch_size`` in all, a multiple of ``micro_batch_size * data_parallel_size``.
    micro_batch_size
        Samples of one rank in one step.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    data_sharding
        Whether each rank shuffles a bucket of its own, the same samples in every epoch. Another
        number of ranks has other buckets, and no epoch can be gone on with exactly.
    global_batch_size
        Samples of one optimiser step, a multiple of ``micro_batch_size * data_parallel_size``; it
        needs ``data_sharding=False``. Every step then has the same samples with any number of
        ranks, and an iteration ends with the step in which its epoch does. A micro-batch with
        samples of two epochs tells a ``RandomSeedDataset`` the later one.

    Raises
    ------
    ConfigError, PlanError
        If a number is out of range.

    Notes
    -----
    Source: Megatron-LM's sampler of 2026-08. In version 0.16 ranks could have unequal numbers of
    batches, and hang; where they have equal numbers, the batches are the same.
    Memory: 8 bytes for each sample that is shuffled, since ``torch.randperm`` decides the order.
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
        _check_sizes(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        step = micro_batch_size * data_parallel_size
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
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = data_parallel_rank
        self.data_parallel_size = data_parallel_size
        self.data_sharding = data_sharding
        self.micro_batch_times_data_parallel_size = step
        self.last_batch_size = total_samples % step
        self.global_batch_size = global_batch_size
        self.epoch = 0

    def __len__(self) -> int:
        """Return the samples of the dataset: not the batches, as in Megatron."""
        return self.total_samples

    def __iter__(self) -> Iterator[list[int]]:
        return self._iterate_epoch() if self.global_batch_size is None else self._iterate_steps()

    def _iterate_epoch(self) -> Iterator[list[int]]:
        """Yield this rank's batches of what is left of an epoch."""
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
            batch: list[int] = samples[start : start + self.micro_batch_size].tolist()
            yield batch

    def _take_own(self, consumed: int) -> torch.Tensor:
        """Return the samples that are left for this rank in an epoch, in their order."""
        if self.data_sharding:
            num_steps = self.total_samples // self.micro_batch_times_data_parallel_size
            bucket_size = num_steps * self.micro_batch_size
            skipped = consumed // self.data_parallel_size
            return self._shuffle(bucket_size)[skipped:] + self.data_parallel_rank * bucket_size
        active = self.total_samples - self.last_batch_size
        order = self._shuffle(self._num_shuffled)
        # A copy, so that the other ranks' samples are not kept.
        return order[consumed + self.data_parallel_rank : active : self.data_parallel_size].clone()

    def _iterate_steps(self) -> Iterator[list[int]]:
        """Yield this rank's batches up to the end of the step in which an epoch ends."""
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
            batch: list[int] = samples[self.data_parallel_rank :: self.data_parallel_size].tolist()
            yield batch

    @property
    def _num_shuffled(self) -> int:
        """The samples that are shuffled with each other: whole micro-batches."""
        return self.total_samples // self.micro_batch_size * self.micro_batch_size

    def _set_epoch(self, epoch: int) -> None:
        """Go to an epoch, and tell the dataset."""
        self.epoch = epoch
        if isinstance(self.dataset, RandomSeedDataset):
            self.dataset.set_epoch(epoch)

    def _shuffle(self, num_samples: int) -> torch.Tensor:
        """Return numbers from 0 on in the order of this epoch."""
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        return torch.randperm(num_samples, generator=generator)


def _check_sizes(
    total_samples: int, micro_batch_size: int, data_parallel_rank: int, data_parallel_size: int
) -> None:
    """Check what all samplers are given."""
    if total_samples <= 0:
        raise PlanError(
            f"total_samples must be at least 1, got {total_samples}; leave the dataset out"
        )
    if micro_batch_size <= 0:
        raise ConfigError(f"micro_batch_size must be at least 1, got {micro_batch_size}")
    if data_parallel_size <= 0:
        raise ConfigError(f"data_parallel_size must be at least 1, got {data_parallel_size}")
    if not 0 <= data_parallel_rank < data_parallel_size:
        raise ConfigError(
            f"data_parallel_rank must be less than data_parallel_size, got {data_parallel_rank} of "
            f"{data_parallel_size}; ranks count from 0"
        )
