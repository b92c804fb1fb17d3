"""Resumed at every step, with other ranks and other workers, a run is the uninterrupted one."""

import json
from typing import Any

import pytest

from tests.loading.datasets import Numbers
from zindex.loading.loader import Loader, loader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WORLD_SIZES = (1, 2, 3, 4, 6, 8, 12)
NUM_SAMPLES = 61
SETTINGS: dict[str, Any] = {"num_samples": NUM_SAMPLES, "tail": "exact", "shuffle": True}


def open_ranks(world_size: int, micro_batch_size: int, num_workers: int) -> list[Loader]:
    return [
        loader(
            Numbers(40),
            micro_batch_size=micro_batch_size,
            data_parallel_rank=rank,
            data_parallel_size=world_size,
            num_workers=num_workers,
            **SETTINGS,
        )
        for rank in range(world_size)
    ]


def run(ranks: list[Loader]) -> list[tuple[list[int], str]]:
    """Return the samples of each step, ranks joined, and the state after it, as JSON."""
    steps = []
    for batches in zip(*ranks, strict=True):
        states = {json.dumps(rank.state_dict()) for rank in ranks}
        assert len(states) == 1
        samples = [sample for batch in batches for sample in batch["sample"].tolist()]
        steps.append((samples, states.pop()))
    return steps


def join(steps: list[tuple[list[int], str]]) -> list[int]:
    return [sample for samples, _ in steps for sample in samples]


WHOLE = join(run(open_ranks(1, 1, 0)))


def check_every_step(steps: list[tuple[list[int], str]], others: list[Loader]) -> None:
    """Check that ranks go on after every step of others as if nothing had happened."""
    assert join(steps) == WHOLE
    start = json.dumps(others[0].state_dict())
    done: list[int] = []
    for samples, state in [([], start), *steps]:
        done += samples
        for other in others:
            other.load_state_dict(json.loads(state))
        assert done + join(run(others)) == WHOLE


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_ranks_go_on_for_any_others(world_size: int) -> None:
    steps = run(open_ranks(world_size, 3, 0))
    for other_size in WORLD_SIZES:
        check_every_step(steps, open_ranks(other_size, 2, 0))


@pytest.mark.parametrize(("num_workers", "other_workers"), [(0, 2), (2, 1), (1, 0)], ids=str)
def test_any_workers_go_on_for_any_others(num_workers: int, other_workers: int) -> None:
    check_every_step(run(open_ranks(2, 3, num_workers)), open_ranks(1, 4, other_workers))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_ranks_and_all_workers(world_size: int, num_workers: int) -> None:
    steps = run(open_ranks(world_size, 3, num_workers))
    for other_size in (1, 3, 4):
        check_every_step(steps, open_ranks(other_size, 2, 1))
