"""Steps and ranks of positions, against the samplers of trainings."""

import numpy as np
import pytest

from zindex.errors import ConfigError
from zindex.inspection.answers.steps import Steps, make_steps
from zindex.loading.megatron_samplers import MegatronPretrainingSampler


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_positions_are_those_of_megatron(
    num_ranks: int, micro_batch_size: int, num_micro_batches: int
) -> None:
    size = num_ranks * micro_batch_size * num_micro_batches
    steps = Steps(size, num_ranks, micro_batch_size)
    for rank in range(num_ranks):
        sampler = MegatronPretrainingSampler(4 * size, 0, micro_batch_size, rank, num_ranks)
        taken = iter(sampler)
        for step in range(4):
            wanted = [p for _ in range(num_micro_batches) for p in next(taken)]
            found = steps.positions_of(step, rank)
            assert found.tolist() == wanted
            assert set(steps.steps_of(found)) == {step}
            assert set(steps.ranks_of(found)) == {rank}
    assert steps.positions_of(2).tolist() == list(range(2 * size, 3 * size))


def test_sizes() -> None:
    assert make_steps(None, 4, None) is None
    assert make_steps(None, 4, 2) == Steps(8, 4, 2)
    assert make_steps(12, 4, None) == Steps(12, 4)
    assert np.array_equal(Steps(12, 4).positions_of(1, 2), [18, 19, 20])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0,), "global_batch_size .* must be a whole number of at least 1, got 0"),
        ((4, 0), "num_ranks .* must be a whole number of at least 1, got 0"),
        ((4, 1, 0), "micro_batch_size .* must be a whole number of at least 1, got 0"),
        ((5, 2), "got 5 samples for 2 ranks and micro-batches of 2"),
        ((8, 2, 3), "got 8 samples for 2 ranks and micro-batches of 3"),
    ],
)
def test_refusals(settings: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Steps(*settings)


def test_steps_and_ranks_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"step .*must be a whole number of at least 0, got -1"):
        Steps(4).positions_of(-1)
    with pytest.raises(ConfigError, match=r"a rank must be in \[0, 1\), got 3"):
        Steps(4).positions_of(0, 3)
