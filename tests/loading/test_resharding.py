"""Trainers that would share a stream's samples a second time are refused."""

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError
from zindex.loading import resharding
from zindex.streaming import MergedDataset, merge_states, mixed_collate, stream_loader

accelerate = pytest.importorskip("accelerate.data_loader")


def make_stream(num_ranks: int) -> MergedDataset:
    stream = MergedDataset([Items("a", 12)], cyclic=False)
    stream.set_data_parallel(num_ranks, 0)
    return stream


def shard(stream: MergedDataset, rank: int = 0) -> Any:
    return accelerate.IterableDatasetShard(
        stream, batch_size=2, num_processes=2, process_index=rank
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_second_share_is_refused(num_workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        shard(make_stream(2)), num_workers=num_workers, collate_fn=mixed_collate
    )
    with pytest.raises(ConfigError, match=r"its 2 ranks have .* accelerate\.data_loader\.Iterable"):
        list(loader)


# Stands for that of Accelerate, whose rank 0 reads for all ranks, and needs a process group.
DISPATCHER = """
class DataLoaderDispatcher:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader
"""


def dispatch(loader: Any) -> Any:
    module: dict[str, Any] = {"__name__": "accelerate.data_loader"}
    exec(DISPATCHER, module)
    return module["DataLoaderDispatcher"](loader)


def pickled(stream: MergedDataset) -> Iterator[bytes]:
    """Stands for a loader whose workers are not forked."""
    yield pickle.dumps(stream)


def test_a_loader_that_rank_0_reads_for_all_is_refused() -> None:
    stream = make_stream(2)
    for loader in (stream, pickled(stream)):
        with pytest.raises(ConfigError, match="would share them again"):
            list(dispatch(loader))
    assert len(list(stream)) == 6


def test_one_share_by_accelerate_is_whole() -> None:
    found = [sample["id"] for rank in range(2) for sample in shard(make_stream(1), rank)]
    assert sorted(found) == sorted(f"a:{number}" for number in range(12))


# Accelerate and Lightning ask all ranks for the state of a loader, and save that of the first.
SAVING = """
def save(loader):
    return [loader.state_dict() for loader in [loader]][0]
"""


@pytest.mark.parametrize("package", ["accelerate.checkpointing", "lightning.pytorch.x", "mine"])
def test_a_trainer_that_saves_one_state_gets_that_of_all_ranks(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, states = [], []
    for rank in range(2):
        stream = MergedDataset([Items("a", 12)], cyclic=False)
        stream.set_data_parallel(2, rank)
        streams.append(stream_loader(stream, 2))
        next(iter(streams[-1]))
        states.append(streams[-1].state_dict())
    monkeypatch.setattr("zindex.streaming.loader.is_distributed", lambda: True)
    monkeypatch.setattr(
        "zindex.streaming.loader.gather_states", lambda own, group: merge_states(states)
    )
    module: dict[str, Any] = {"__name__": package}
    exec(SAVING, module)
    found = [module["save"](stream) for stream in streams]
    assert found == (states if package == "mine" else [merge_states(states)] * 2)


def test_shares_of_datasets_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(resharding, "is_distributed", lambda: True)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    for rank, size in enumerate((7, 7, 6)):
        monkeypatch.setattr(resharding, "_num_compared", Counter())
        for name in "ab":  # of which one is the same on all ranks
            stream = MergedDataset([Items(name, size if name == "a" else 7)], cyclic=False)
            stream.set_data_parallel(3, rank)
            for loader in (stream, stream_loader(stream, 2)):
                list(loader)
    [message] = caplog.messages
    assert message.startswith("'a' must be the same dataset on all ranks, which share its items, ")
    assert "it has 6 on rank 2 and 7 on rank 1; do not give each rank a share" in message
