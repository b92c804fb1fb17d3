"""Datasets keep their own state under torchdata's StatefulDataLoader, which replays nothing."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.test_iterations import ids, make
from tests.streaming.test_packed_stream import make as make_packed
from tests.streaming.test_packed_stream import values, write_files
from zindex.errors import StateMismatchError
from zindex.streaming import MergedDataset, merge_states, mixed_collate
from zindex.streaming.loader import stream_loader

pytestmark = pytest.mark.filterwarnings("ignore")


def load(dataset: MergedDataset, num_workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        dataset, batch_size=4, num_workers=num_workers, collate_fn=mixed_collate
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_resumes_exactly(tmp_path: Path, num_workers: int) -> None:
    loader = load(make(tmp_path), num_workers)
    first, second = [ids(batch) for batch in loader], [ids(batch) for batch in loader]
    assert first != second
    for cut in (1, 12):
        before = load(make(tmp_path), num_workers)
        assert [ids(batch) for batch in islice(before, cut)] == first[:cut]
        state = json.loads(json.dumps(before.state_dict()))
        after = load(make(tmp_path), num_workers)
        after.load_state_dict(state)
        assert [ids(batch) for batch in after] == first[cut:]
        assert [ids(batch) for batch in after] == second


@pytest.mark.parametrize("num_workers", [0, 2])
def test_its_state_resumes_with_any_number_of_workers(tmp_path: Path, num_workers: int) -> None:
    whole = Counter(name for batch in load(make(tmp_path), 0) for name in ids(batch))
    for cut in (1, 7):
        loader = load(make(tmp_path), num_workers)
        seen = [name for batch in islice(loader, cut) for name in ids(batch)]
        state = json.loads(json.dumps(loader.state_dict()))
        for given in (state, merge_states([state])):
            for other in (0, 1, 3):
                dataset = make(tmp_path)
                dataset.set_dataloader_states(given)
                rest = [name for batch in load(dataset, other) for name in ids(batch)]
                assert Counter(seen + rest) == whole
            rest = [
                name
                for batch in stream_loader(make(tmp_path), 4, state=given)
                for name in ids(batch)
            ]
            assert Counter(seen + rest) == whole
        # With as many workers, the next batch is of the worker that is next in turn.
        if num_workers:
            dataset = make(tmp_path)
            dataset.set_dataloader_states(state)
            assert ids(next(iter(load(dataset, num_workers)))) == ids(
                next(iter(loader_rest(tmp_path, state)))
            )


def loader_rest(folder: Path, state: Any) -> Any:
    loader = load(make(folder), 2)
    loader.load_state_dict(state)
    return loader


def test_its_states_of_all_ranks_resume_with_other_ranks(tmp_path: Path) -> None:
    whole = Counter(name for batch in load(make(tmp_path), 0) for name in ids(batch))

    def new(num_ranks: int, rank: int) -> MergedDataset:
        dataset = make(tmp_path)
        dataset.set_data_parallel(num_ranks, rank)
        return dataset

    seen, states = [], []
    for rank in range(2):
        loader = load(new(2, rank), 2)
        seen += [name for batch in islice(loader, 3 + rank) for name in ids(batch)]
        states.append(loader.state_dict())
    merged = json.loads(json.dumps(merge_states(states)))
    for rank in range(3):
        dataset = new(3, rank)
        dataset.set_dataloader_states(merged)
        seen += [name for batch in load(dataset, 0) for name in ids(batch)]
    assert Counter(seen) == whole
    loader = load(new(3, 0), 2)
    loader.load_state_dict(states[0])
    with pytest.raises(
        StateMismatchError, match="of 3 ranks of 2 workers, got one of 2 ranks of 2"
    ):
        list(loader)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"_steps_since_snapshot": 2}, "of its last batch, got one of 2 batches before"),
        ({"dataset_state": None}, "got none in worker 0; wrap no other dataset"),
    ],
)
def test_other_states_of_loaders_are_refused(
    tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    loader = load(make(tmp_path), 0)
    list(islice(loader, 1))
    with pytest.raises(StateMismatchError, match=match):
        make(tmp_path).set_dataloader_states(loader.state_dict() | change)


def test_packed_documents_resume_in_workers(tmp_path: Path) -> None:
    write_files(tmp_path, 3, [7, 1, 0, 23, 4, 2, 2])

    def new() -> Any:
        return load(make_packed(tmp_path, 8, documents="pack", window=4), 2)

    batches = [values(batch) for batch in new()]
    before = new()
    assert len(list(islice(before, 2))) == 2
    after = new()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert [values(batch) for batch in after] == batches[2:]


def test_nothing_is_replayed(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    samples = iter(dataset)
    list(islice(samples, 50))
    state = dataset.state_dict()
    rest = ids(samples)
    again = make(tmp_path)
    parts = again.datasets[1]
    again.load_state_dict(state)
    assert ids(again) == rest
    assert parts.num_raw_read < 21
    assert len(json.dumps(state)) < 2000


def test_states_without_an_iteration(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    assert dataset.state_dict() == {}
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert ids(dataset) == ids(make(tmp_path))
    with pytest.raises(StateMismatchError, match="a state must hold its origin"):
        dataset.load_state_dict({"other": 1})
