"""The steps of ranks, over torch's process groups."""

import pytest
import torch

from zindex.datasets.ranks import open_step


def test_a_rank_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = open_step(), open_step()
    assert int(second.name) == int(first.name) + 1
    with first:
        first.listen()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with open_step() as step:  # its process group has no store
        assert (step.rank, step.num_ranks) == (1, 2)
        step.listen()
