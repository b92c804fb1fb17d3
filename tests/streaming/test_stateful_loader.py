"""Datasets keep their own state under torchdata's StatefulDataLoader, which replays nothing."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.test_iterations import ids, make
from tests.streaming.test_packed_stream import make as make_packed
from tests.streaming.test_packed_stream import values, write_files
from zindex.errors import StateMismatchError
from zindex.streaming import MergedDataset, mixed_collate

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
