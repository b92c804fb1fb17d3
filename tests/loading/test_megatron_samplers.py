"""Megatron's samplers against plain loops that say what each of them yields."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from zindex.errors import ConfigError, PlanError
from zindex.loading.megatron_samplers import (
    MegatronFullValidationSampler,
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
    RandomSeedDataset,
)


def single(
    total: int, consumed: int, micro_batch_size: int, rank: int, size: int, *, drop_last: bool
) -> Iterator[list[int]]:
    """Yield one rank's part of each group of samples, taken one by one."""
    group = []
    for sample in range(consumed, total):
        group.append(sample)
        if len(group) == micro_batch_size * size:
            yield group[rank * micro_batch_size : (rank + 1) * micro_batch_size]
            group = []
    if group and not drop_last:
        yield group[rank * micro_batch_size : (rank + 1) * micro_batch_size]


def cyclic(
    total: int, consumed: int, micro_batch_size: int, rank: int, size: int, *, sharding: bool
) -> list[list[int]]:
    """Return one rank's batches of what is left of an epoch, by lists of all samples."""
    group = micro_batch_size * size
    epoch, done = divmod(consumed, total - total % group)
    generator = torch.Generator()
    generator.manual_seed(epoch)
    if sharding:
        bucket = total // group * micro_batch_size
        order = torch.randperm(bucket, generator=generator).tolist()
        samples = [rank * bucket + sample for sample in order][done // size :]
    else:
        shuffled = total // micro_batch_size * micro_batch_size
        samples = torch.randperm(shuffled, generator=generator).tolist()
        samples = samples[done : total - total % group][rank::size]
    batches = [samples[i : i + micro_batch_size] for i in range(0, len(samples), micro_batch_size)]
    return [batch for batch in batches if len(batch) == micro_batch_size]


def places() -> Iterator[tuple[int, int, int, int]]:
    """Yield totals, micro-batches, ranks and world sizes; seed 0."""
    draw = random.Random(0)
    for _ in range(300):
        size = draw.randint(1, 9)
        yield draw.randint(1, 200), draw.randint(1, 6), draw.randrange(size), size


@pytest.mark.parametrize("drop_last", [True, False])
def test_single_yields_what_a_plain_loop_does(drop_last: bool) -> None:
    for total, micro_batch_size, rank, size in places():
        for consumed in {0, total // 3, total - 1}:
            place = (total, consumed, micro_batch_size, rank, size)
            sampler = MegatronPretrainingSampler(*place, drop_last=drop_last)
            expected = list(single(*place, drop_last=drop_last))
            assert list(sampler) == list(sampler) == expected
            assert len(sampler) == total


@pytest.mark.parametrize("sharding", [True, False])
def test_cyclic_yields_what_a_plain_loop_does(sharding: bool) -> None:
    for total, micro_batch_size, rank, size in places():
        group = micro_batch_size * size
        if total < group:
            continue
        consumed = (total * 3 // 2) // group * group
        if (consumed % (total - total % group)) % group:
            continue
        sampler = MegatronPretrainingRandomSampler(
            range(total), total, consumed, micro_batch_size, rank, size, data_sharding=sharding
        )
        for _ in range(3):
            before = sampler.consumed_samples
            place = (total, before, micro_batch_size, rank, size)
            expected = cyclic(*place, sharding=sharding)
            assert list(sampler) == expected
            assert sampler.consumed_samples == before + len(expected) * group
        assert len(sampler) == total


def test_full_validation_takes_every_sample_once() -> None:
    for total, _, _, size in places():
        samplers = [MegatronFullValidationSampler(total, rank, size) for rank in range(size)]
        batches = [list(sampler) for sampler in samplers]
        assert [len(sampler) for sampler in samplers] == [len(part) for part in batches]
        joined = sorted(batch for part in batches for batch in part)
        assert joined == [[sample] for sample in range(total)]
        assert batches[0] == [[sample] for sample in range(0, total, size)]


def test_ranks_have_equal_numbers_of_batches() -> None:
    def take(total: int, *, sharding: bool = False) -> list[list[list[int]]]:
        settings = [(None, total, 0, 2, rank, 4, sharding) for rank in range(4)]
        return [list(MegatronPretrainingRandomSampler(*place)) for place in settings]

    assert [len(batches) for batches in take(14)] == [1] * 4  # and not 2, 2, 1, 1
    assert [len(batches) for batches in take(14, sharding=True)] == [1] * 4
    assert [len(batches) for batches in take(16)] == [2] * 4
    assert sorted(i for batches in take(16) for batch in batches for i in batch) == [*range(16)]


def test_steps_have_the_same_samples_with_any_number_of_ranks() -> None:
    total, global_batch_size, num_steps = 50, 12, 20

    def take_steps(size: int, consumed: int, count: int) -> list[list[int]]:
        samplers = [
            MegatronPretrainingRandomSampler(
                None, total, consumed, 2, rank, size, False, global_batch_size
            )
            for rank in range(size)
        ]
        streams = [endless(sampler) for sampler in samplers]
        steps = []
        for _ in range(count):
            batches = [next(stream) for stream in streams for _ in range(6 // size)]
            steps.append(sorted(sample for batch in batches for sample in batch))
        ends = {sampler.consumed_samples for sampler in samplers}
        assert ends == {consumed + count * global_batch_size}
        return steps

    def endless(sampler: MegatronPretrainingRandomSampler) -> Iterator[list[int]]:
        while True:
            yield from sampler

    orders = [torch.randperm(total, generator=torch.Generator().manual_seed(e)) for e in range(5)]
    stream = torch.cat(orders).tolist()
    bounds = range(0, num_steps * global_batch_size, global_batch_size)
    expected = [sorted(stream[start : start + global_batch_size]) for start in bounds]
    for size in (1, 2, 3, 6):
        assert take_steps(size, 0, num_steps) == expected
        assert take_steps(size, 7 * global_batch_size, 13) == expected[7:]


def test_step_at_the_end_of_an_epoch_continues_in_the_next() -> None:
    dataset = RandomSeedDataset(range(10), seed=5)
    sampler = MegatronPretrainingRandomSampler(dataset, 10, 0, 2, 0, 1, False, global_batch_size=6)
    seeds = [dataset.curr_seed for _ in sampler]
    assert seeds == [5] * 5 + [6]
    assert (sampler.epoch, sampler.consumed_samples) == (1, 12)
    assert len(list(sampler)) == 6  # to 24, where the second epoch has ended
    straddling = MegatronPretrainingRandomSampler(dataset, 10, 8, 2, 0, 2, False, 4)
    assert [dataset.curr_seed for _ in straddling] == [6]


def test_seeds_follow_the_epoch() -> None:
    class Draws(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, idx: int) -> tuple[float, float, int]:
            return random.random(), float(np.random.rand()), int(torch.randint(10**9, ()))

    dataset = RandomSeedDataset(Draws(), seed=5)
    assert len(dataset) == 8
    sampler = MegatronPretrainingRandomSampler(dataset, 8, 8, 2, 0, 2, data_sharding=True)
    next(iter(sampler))
    assert (sampler.epoch, dataset.curr_seed) == (1, 6)
    drawn = dataset[3]
    torch.manual_seed(9)
    assert drawn[2] == int(torch.randint(10**9, ()))
    assert dataset[3] == drawn != dataset[4]
    dataset.set_epoch(2)
    assert dataset[2] == drawn


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(PlanError, match="total_samples must be at least 1, got 0"):
        MegatronPretrainingSampler(0, 0, 1, 0, 1)
    with pytest.raises(PlanError, match="less than total_samples, got 5 of 5; no samples are left"):
        MegatronPretrainingSampler(5, 5, 1, 0, 1)
    with pytest.raises(ConfigError, match=r"micro_batch_size must be .* at least 1, got 0"):
        MegatronPretrainingSampler(5, 0, 0, 0, 1)
    with pytest.raises(ConfigError, match=r"data_parallel_size must be .* at least 1, got 0"):
        MegatronFullValidationSampler(5, 0, 0)
    with pytest.raises(ConfigError, match="got 2 of 2; ranks count from 0"):
        MegatronFullValidationSampler(5, 2, 2)
    with pytest.raises(
        PlanError, match="at least 6, a micro-batch of 2 for each of 3 ranks, got 5"
    ):
        MegatronPretrainingRandomSampler(None, 5, 0, 2, 0, 3, data_sharding=False)
    for global_batch_size, sharding in ((9, False), (12, True)):
        message = f"multiple of 6, .* got {global_batch_size} and data_sharding={sharding}; leave"
        with pytest.raises(ConfigError, match=message):
            MegatronPretrainingRandomSampler(None, 50, 0, 2, 0, 3, sharding, global_batch_size)
    sampler = MegatronPretrainingRandomSampler(None, 50, 8, 2, 0, 3, False, 12)
    with pytest.raises(PlanError, match="multiple of 6 with global_batch_size, got 8; go on with"):
        next(iter(sampler))
    sampler = MegatronPretrainingRandomSampler(None, 13, 14, 2, 0, 2, data_sharding=True)
    with pytest.raises(PlanError, match="multiple of 4 in each epoch, got 2 in epoch 1; go on"):
        next(iter(sampler))
