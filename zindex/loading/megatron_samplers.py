"""Megatron's batch samplers, by their names, arguments and batches.

Source: Megatron-LM ``megatron/training/datasets/data_samplers.py``, which no wheel holds. For a
run that may change its number of ranks, see ``zindex.loading.sampler``.
"""

import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from zindex.errors import ConfigError, PlanError

logger = logging.getLogger(__name__)


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

    Parameters
    ----------
    dataset
        The dataset; a ``RandomSeedDataset`` is told of each epoch.
    total_samples
        Its samples: at least ``micro_batch_size * data_parallel_size``.
    consumed_samples
        Samples that all ranks together have taken before, in all epochs: in each of them a
        multiple of ``micro_batch_size * data_parallel_size``.
    micro_batch_size
        Samples of one rank in one step.
    data_parallel_rank, data_parallel_size
        This rank, and how many share the samples.
    data_sharding
        Whether each rank shuffles a bucket of its own, the same samples in every epoch. Another
        number of ranks has other buckets, and no epoch can be gone on with exactly.

    Raises
    ------
    ConfigError, PlanError
        If a number is out of range.

    Notes
    -----
    Without ``data_sharding`` ranks can have unequal numbers of batches in an epoch, and then
    disagree on how many samples are consumed; this is as in Megatron, and logged. It happens if
    ``total_samples // micro_batch_size`` is no multiple of the ranks.
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
    ) -> None:
        _check_sizes(total_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
        step = micro_batch_size * data_parallel_size
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
        self.epoch = 0
        counts = [] if data_sharding else self._count_batches()
        if counts and min(counts) < max(counts):
            logger.warning(
                "an epoch of %d samples gives some of %d ranks %d micro-batches and others %d: "
                "ranks that wait for each other in every step will hang; use data_sharding, or a "
                "number of samples that micro_batch_size * data_parallel_size = %d divides",
                total_samples,
                data_parallel_size,
                max(counts),
                min(counts),
                step,
            )

    def __len__(self) -> int:
        """Return the samples of the dataset: not the batches, as in Megatron."""
        return self.total_samples

    def _count_batches(self) -> list[int]:
        """Return the micro-batches that the first and the last rank have in a whole epoch."""
        num_shuffled = self.total_samples // self.micro_batch_size * self.micro_batch_size
        ranks = (0, self.data_parallel_size - 1)
        shares = [len(range(rank, num_shuffled, self.data_parallel_size)) for rank in ranks]
        return [share // self.micro_batch_size for share in shares]

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_times_data_parallel_size
        self.epoch, consumed = divmod(
            self.consumed_samples, self.total_samples - self.last_batch_size
        )
        if consumed % step:
            raise PlanError(
                f"consumed_samples must be a multiple of {step:,} in each epoch, got {consumed:,} "
                f"in epoch {self.epoch}; go on with the ranks and micro-batches of before"
            )
        if isinstance(self.dataset, RandomSeedDataset):
            self.dataset.set_epoch(self.epoch)
        samples = self._shuffle(consumed)
        for start in range(0, len(samples) - self.micro_batch_size + 1, self.micro_batch_size):
            self.consumed_samples += step
            batch: list[int] = samples[start : start + self.micro_batch_size].tolist()
            yield batch

    def _shuffle(self, consumed: int) -> torch.Tensor:
        """Return the samples that are left for this rank in an epoch, in their order."""
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        if self.data_sharding:
            num_steps = self.total_samples // self.micro_batch_times_data_parallel_size
            bucket_size = num_steps * self.micro_batch_size
            order = torch.randperm(bucket_size, generator=generator)
            skipped = consumed // self.data_parallel_size
            return order[skipped:] + self.data_parallel_rank * bucket_size
        num_shuffled = self.total_samples // self.micro_batch_size * self.micro_batch_size
        order = torch.randperm(num_shuffled, generator=generator)
        # A copy, so that the other ranks' samples are not kept.
        return order[consumed + self.data_parallel_rank :: self.data_parallel_size].clone()


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
