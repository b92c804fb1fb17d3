"""Loaders of keyed datasets: batches for each rank, and where all ranks stand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.keyed.small_stores import write_dpo, write_grpo, write_sft
from tests.loading.datasets import Numbers
from zindex.errors import ConfigError, NotLoadedError, PlanError, StateMismatchError
from zindex.keyed import DatasetFactory
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.loader import keyed_loader
from zindex.keyed.sampler import ResumableDistributedSampler


@pytest.fixture
def windows(tmp_path: Path) -> BaseDataset:
    """Twenty-four windows of ten tokens that count up."""
    return DatasetFactory.load("sft", write_sft(tmp_path), 10)


def windows_of(batches: Any) -> list[list[int]]:
    """Return the numbers of the windows of each batch."""
    return [(batch["input_ids"][:, 0] // 10).tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_share_each_step_and_others_go_on(windows: BaseDataset, num_workers: int) -> None:
    settings: dict[str, Any] = {"num_epochs": 2, "tail": "exact"}
    order = [window for (window,) in windows_of(keyed_loader(windows, 1, **settings))]
    assert sorted(order) == sorted([*range(24), *range(24)])
    ranks = [
        keyed_loader(windows, 5, rank=rank, num_ranks=2, num_workers=num_workers, **settings)
        for rank in range(2)
    ]
    iterators = [iter(batches) for batches in ranks]
    done = []
    for step in range(1, 4):
        found = [next(iterator) for iterator in iterators]
        done += [window for batch in windows_of(found) for window in batch]
        assert done == order[: 10 * step]
        states = [json.dumps(batches.state_dict()) for batches in ranks]
        assert states[0] == states[1]
        rest = keyed_loader(windows, 4, state=json.loads(states[0]), **settings)
        left = windows_of(rest)
        assert done + [window for batch in left for window in batch] == order
    for batches in ranks:
        batches.close()


def test_batches_are_those_of_the_dataset(windows: BaseDataset) -> None:
    (batch,) = keyed_loader(windows, 24, shuffle=False)
    assert {name: (*value.shape, value.dtype) for name, value in batch.items()} == {
        "input_ids": (24, 10, torch.int64),
        "target_ids": (24, 10, torch.int64),
        "loss_mask": (24, 10, torch.bool),
        "position_ids": (24, 10, torch.int64),
    }
    assert batch["input_ids"].flatten().tolist() == list(range(240))
    assert torch.equal(batch["target_ids"], batch["input_ids"] + 1)
    assert torch.equal(batch["loss_mask"], batch["target_ids"] % 2 == 1)


def test_pairs_and_groups_are_padded_by_their_datasets(tmp_path: Path) -> None:
    pairs = DatasetFactory.load("dpo", write_dpo(tmp_path / "dpo"), 0)
    batches = list(keyed_loader(pairs, 4, shuffle=False, tail="exact"))
    assert [tuple(batch["chosen"].shape) for batch in batches] == [(4, 6), (4, 10), (2, 12)]
    groups = DatasetFactory.load("grpo", write_grpo(tmp_path / "grpo"), 0)
    (batch,) = keyed_loader(groups, 6, shuffle=False)
    assert (tuple(batch["prompts"].shape), tuple(batch["responses"].shape)) == ((6, 6), (6, 2, 7))
    # A rank that has none of the last pairs has a batch without pairs.
    last = [
        list(keyed_loader(pairs, 4, tail="exact", rank=rank, num_ranks=3))[-1] for rank in range(3)
    ]
    assert [len(batch["chosen"]) for batch in last] == [4, 3, 3]
    few = [
        list(keyed_loader(pairs, 3, tail="exact", rank=rank, num_ranks=3))[-1] for rank in range(3)
    ]
    assert [len(batch["chosen"]) for batch in few] == [1, 0, 0]


def test_padding_of_a_last_batch_is_masked(windows: BaseDataset) -> None:
    batches = list(keyed_loader(windows, 7, tail="pad"))
    assert [len(batch["input_ids"]) for batch in batches] == [7] * 4
    assert batches[-1]["loss_mask"].any(1).tolist() == [True] * 3 + [False] * 4


def test_the_same_with_a_plain_data_loader(windows: BaseDataset) -> None:
    """The recipe of the docstring, stopped in the middle of the second pass."""

    def train(state: dict[str, Any] | None, num_steps: int) -> tuple[list[list[int]], Any]:
        sampler = ResumableDistributedSampler(windows)
        if state is not None:
            sampler.load_state_dict(state)
        batches = DataLoader(windows, 5, sampler=sampler, collate_fn=windows.collate, num_workers=2)
        seen: list[list[int]] = []
        for _ in range(sampler.epoch, 2):
            for batch in batches:
                seen += windows_of([batch])
                sampler.count_delivered(len(batch["input_ids"]))
                if len(seen) == num_steps:
                    return seen, sampler.state_dict()
        return seen, sampler.state_dict()

    whole, end = train(None, 100)
    assert [len(batch) for batch in whole] == [5, 5, 5, 5, 4] * 2
    assert (end["epoch"], end["consumed_samples"]) == (2, 48)
    for num_steps in (2, 5, 7):
        seen, state = train(None, num_steps)
        rest, _ = train(state, 100)
        assert seen + rest == whole
    # A loader resumes from it too, and finishes the pass.
    assert state["consumed_samples"] == 24 + 10
    in_one = keyed_loader(windows, 24, num_epochs=None, tail="exact", state=state)
    assert windows_of(in_one) == [[window for batch in whole[7:] for window in batch]]


def test_invalid_loaders(windows: BaseDataset, tmp_path: Path) -> None:
    with pytest.raises(NotLoadedError, match=r"Dataset not loaded: call load\(load_path\) first"):
        keyed_loader(DatasetFactory.create("sft", 10), 4)
    with pytest.raises(ConfigError, match="a dataset that has a collate, got Numbers; give"):
        keyed_loader(Numbers(10), 4)
    assert len(keyed_loader(Numbers(10), 5, collate=list)) == 2
    with pytest.raises(PlanError, match="needs a dataset of at least one sample, got an empty one"):
        keyed_loader(DatasetFactory.load("sft", tmp_path, 1000), 4)
    with pytest.raises(PlanError, match=r"choose a window_size below the num"):
        keyed_loader(Numbers(0), 4, collate=list)
    with pytest.raises(ConfigError, match="batch_size must be a whole number of at least 1, got 0"):
        keyed_loader(windows, 0)
    with pytest.raises(ConfigError, match="rank must be less than num_ranks, got 2 of 2; ranks"):
        keyed_loader(windows, 4, rank=2, num_ranks=2)
    with pytest.raises(ConfigError, match="rank and num_ranks must be given together, got 2 and N"):
        keyed_loader(windows, 4, rank=2)
    state = keyed_loader(windows, 4).state_dict()
    with pytest.raises(StateMismatchError, match="must belong to these samples"):
        keyed_loader(DatasetFactory.load("sft", tmp_path, 9), 4, state=state)
    with pytest.raises(StateMismatchError, match="must belong to these samples"):
        keyed_loader(windows, 4, seed=43, state=state)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_loader_and_sampler_share_steps_and_states(windows: BaseDataset, num_ranks: int) -> None:
    settings: dict[str, Any] = {"num_ranks": num_ranks, "tail": "exact"}
    loaders = [keyed_loader(windows, 3, rank=rank, **settings) for rank in range(num_ranks)]
    samplers = [
        ResumableDistributedSampler(windows, rank=rank, **settings) for rank in range(num_ranks)
    ]
    parts = [list(sampler) for sampler in samplers]
    steps = zip(*loaders, strict=True)
    for start, batches in zip(range(0, len(parts[0]), 3), steps, strict=True):
        mine = {window for batch in windows_of(batches) for window in batch}
        assert mine == {window for part in parts for window in part[start : start + 3]}
        state = loaders[0].state_dict()
        for sampler in samplers:
            sampler.load_state_dict(state)
            assert sampler.state_dict() == state
    assert (state["epoch"], samplers[0].epoch) == (1, 1)
