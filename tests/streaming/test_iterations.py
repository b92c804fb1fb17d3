"""Each iteration over a stream is a whole epoch in an order of its own, also after resuming."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import zindex
from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    merge_states,
    mixed_collate,
    to_state,
)

Sample = dict[str, Any]


def make(folder: Path, *, cyclic: bool = False, order: Any = True) -> MergedDataset:
    if not (folder / "a.jsonl").exists():
        for name in "ab":
            lines = [json.dumps({"id": f"{name}:{number}"}) for number in range(40)]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files: Any = JsonlIterableDataset(folder)
    files.name, files.percent = "files", 1
    sources = [files, Parts("parts", [7, 9, 5]), Items("items", 23)]
    return MergedDataset(sources, cyclic, order)


def ids(samples: Any) -> list[str]:
    return [sample["id"] for sample in samples]


def test_every_iteration_is_an_epoch_in_another_order(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    epochs = [list(dataset) for _ in range(3)]
    assert len({tuple(ids(epoch)) for epoch in epochs}) == 3
    assert sorted(ids(epochs[0])) == sorted(ids(epochs[1])) == sorted(ids(epochs[2]))
    assert [{sample["__epoch__"] for sample in epoch} for epoch in epochs] == [{0}, {1}, {2}]
    again = make(tmp_path)
    again.set_epoch(2)
    assert ids(again) == ids(epochs[2])
    again.set_epoch(1)
    assert ids(again) == ids(epochs[1])


def test_an_infinite_stream_does_not_repeat_itself(tmp_path: Path) -> None:
    dataset = make(tmp_path, cyclic=True)
    first, second = list(islice(dataset, 500)), list(islice(dataset, 500))
    assert ids(first) != ids(second)
    state = to_state(second[:123])
    assert ids(islice(make(tmp_path, cyclic=True).__iter_from__(state), 377)) == ids(second[123:])


@pytest.mark.parametrize("cut", [1, 60, 123])
@pytest.mark.parametrize("iteration", [0, 2])
def test_a_loaded_state_is_used_once(tmp_path: Path, cut: int, iteration: int) -> None:
    expected = make(tmp_path)
    epochs = [ids(expected) for _ in range(iteration + 3)]
    first = make(tmp_path)
    first.set_epoch(iteration)
    state: dict[str, Any] = {}
    for sample in islice(first, cut):
        state.update(to_state(sample))
    resumed = make(tmp_path)
    resumed.set_dataloader_states(json.loads(json.dumps(state)))
    for number in range(iteration, iteration + 3):
        begin = cut if number == iteration else 0
        assert ids(resumed) == epochs[number][begin:]


def test_one_dict_of_a_trainer_serves_all_iterations(tmp_path: Path) -> None:
    expected = make(tmp_path)
    epochs = [ids(expected) for _ in range(4)]
    state: dict[str, Any] = {}
    dataset = make(tmp_path)
    begin = 0
    for number in range(4):
        for cut, sample in enumerate(dataset, begin + 1):
            state.update(to_state(sample))
            if cut == 71 + number:
                rest = make(tmp_path).__iter_from__(json.loads(json.dumps(state)))
                assert ids(rest) == epochs[number][cut:]
        begin = 0
        if number == 1:
            # A restart in the middle of the next epoch.
            begin = 50
            for sample in islice(dataset, begin):
                state.update(to_state(sample))
            dataset = make(tmp_path)
            dataset.set_dataloader_states(json.loads(json.dumps(state)))


def batches(loader: Any) -> Iterator[Sample]:
    for batch in loader:
        yield from batch


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_count_iterations(tmp_path: Path, method: str, persistent: bool) -> None:
    dataset = make(tmp_path)
    loader: Any = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        collate_fn=mixed_collate,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    epochs = [list(batches(loader)) for _ in range(2)]
    assert [{sample["__epoch__"] for sample in epoch} for epoch in epochs] == [{0}, {1}]
    assert sorted(ids(epochs[0])) == sorted(ids(epochs[1])) == sorted(ids(make(tmp_path)))
    assert ids(epochs[0]) != ids(epochs[1])
    dataset.set_epoch(0)
    assert ids(batches(loader)) == ids(epochs[0])


def test_persistent_workers_take_later_states_and_epochs(tmp_path: Path) -> None:
    fresh = zindex.stream_loader(make(tmp_path), 4, num_workers=2)
    epochs = [ids(batches(fresh)) for _ in range(3)]
    loader = zindex.stream_loader(make(tmp_path), 4, num_workers=2, persistent_workers=True)
    assert ids(batches(loader)) == epochs[0]
    begun = list(batches(islice(loader, 10)))
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert ids(begun) + ids(batches(loader)) == epochs[1]
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        assert ids(batches(loader)) == epochs[epoch]


def test_running_workers_of_another_loader_refuse_a_state(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    loader: Any = DataLoader(
        dataset, 4, num_workers=1, collate_fn=mixed_collate, persistent_workers=True
    )
    state = to_state([*batches(loader)][:5])
    dataset.set_dataloader_states(state)
    assert dataset.state_dict() == state
    with pytest.raises(ConfigError, match="make a new DataLoader"):
        list(loader)


def test_one_dict_of_a_trainer_serves_epochs_that_are_set(tmp_path: Path) -> None:
    state = to_state(list(islice(make(tmp_path), 9)))
    states = []
    for rank in range(2):
        dataset = make(tmp_path)
        dataset.datasets.append(Items("more", 30))
        dataset.set_data_parallel(2, rank)
        dataset.set_dataloader_states(state)
        own = dict(state)
        for epoch, most in ((0, None), (1, 9)):
            dataset.set_epoch(epoch)
            own |= to_state(list(islice(dataset, most)))
        states.append(json.loads(json.dumps(own)))
    resumed = make(tmp_path)
    resumed.datasets.append(Items("more", 30))
    resumed.set_dataloader_states(merge_states(states))
    assert len(ids(resumed)) == 80 + 21 + 23 + 30 - 18


def test_orders_of_files_have_no_iterations(tmp_path: Path) -> None:
    dataset = make(tmp_path, order=False)
    dataset.datasets = dataset.datasets[2:]
    assert ids(dataset) == ids(dataset)
