"""Datasets and loaders of rounds: the same batches for all ranks, workers, and resumed runs."""

import json
import pickle
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.growing.rollouts import grow, numbers_of, rollout
from tests.killing import exit_code, fork
from zindex.errors import (
    ConfigError,
    MissingKeyError,
    NotReadyError,
    SourceError,
    StateMismatchError,
    StoreUnavailableError,
)
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict, find_unused, remove_unused
from zindex.growing.growing_log import GrowingLog
from zindex.growing.writer import append
from zindex.keyed.growing_dataset import GrowingBatches, GrowingDataset, growing_loader
from zindex.keyed.loader import keyed_loader
from zindex.loading.sampler import ElasticSampler


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for first in range(0, 32, 4):
        grow(tmp_path / "store", range(first, first + 4), version=first // 8)
    return tmp_path / "store"


def open_rounds(store: Path, **settings: Any) -> GrowingDataset:
    return GrowingDataset("grpo", store, **({"round_size": 8, "patience": 0.0} | settings))


def read(store: Path, batch_size: int = 4, **settings: Any) -> list[list[int]]:
    """Return the numbers of all batches of one rank."""
    dataset = open_rounds(store, num_samples=32)
    batches = growing_loader(dataset, batch_size, **({"rank": 0, "num_ranks": 1} | settings))
    return [numbers_of(batch) for batch in batches]


def test_rounds_have_the_newest_records(store: Path) -> None:
    batches = read(store)
    rounds = [sorted(batches[k] + batches[k + 1]) for k in range(0, 8, 2)]
    assert rounds == [list(range(first, first + 8)) for first in (24, 16, 8, 0)]
    assert read(store) == batches


def test_samples_have_all_keys(store: Path) -> None:
    dataset = open_rounds(store)
    sample = dataset[0]
    number = int(sample["prompts"][0])
    assert sample["policy_version"].item() == number // 8
    assert [len(item) for item in sample["logprobs"]] == [1 + number % 3, 2]
    responses = [item.tolist() for item in sample["responses"]]
    assert responses == rollout(number)["responses"]
    batch = dataset.collate([dataset[k] for k in range(4)])
    assert batch["logprobs"].shape == batch["responses"].shape
    assert batch["group_mask"].all()
    assert len(dataset) == 1 << 60
    with pytest.raises(IndexError, match=r"positions must lie within \[0, 8\), got 8 to 8"):
        open_rounds(store, reader="short", num_samples=8)[8]
    assert len(dataset.__getitems__([])) == 0


@pytest.mark.parametrize(("num_ranks", "batch_size"), [(1, 8), (2, 4), (4, 2), (3, 1)])
def test_ranks_share_the_rounds(store: Path, num_ranks: int, batch_size: int) -> None:
    expected = [number for batch in read(store) for number in batch]
    shares = [read(store, batch_size, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    steps = zip(*shares, strict=True)
    assert [number for step in steps for batch in step for number in batch] == expected


def test_states_resume_at_every_step_on_any_number_of_ranks(store: Path) -> None:
    whole, states = [], []
    batches = growing_loader(open_rounds(store, num_samples=32), 4, rank=0, num_ranks=1)
    for batch in batches:
        states.append(json.loads(json.dumps(batches.state_dict())))
        whole += numbers_of(batch)
    assert {state["generation"] for state in states} == {8}
    # The store goes on, old generations are compacted, evicted and removed.
    grow(store, range(32, 40), version=9)
    compact(store, min_count=2)
    evict(store, keep_versions=1)
    remove_unused(find_unused(store, hours=-1))
    for step, state in enumerate(states):
        resumed = read(store, 2, state=state)
        assert [n for batch in resumed for n in batch] == whole[4 * (step + 1) :]
        parts = [read(store, 1, state=state, rank=rank, num_ranks=2) for rank in range(2)]
        steps = zip(*parts, strict=True)
        assert [n for step in steps for batch in step for n in batch] == whole[4 * (step + 1) :]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_prefetched_batches_are_the_same(store: Path, num_workers: int) -> None:
    expected = read(store)
    assert read(store, num_workers=num_workers, prefetch=3) == expected


def test_plain_data_loaders(store: Path) -> None:
    expected = read(store)
    dataset = open_rounds(store, num_samples=32)
    found = {}
    for num_workers in (0, 2):
        batches = GrowingBatches(dataset, 4, rank=0, num_ranks=1)
        loader = DataLoader(batches, batch_size=None, num_workers=num_workers)
        found[num_workers] = [numbers_of(batch) for batch in loader]
    assert found[0] == found[2] == expected
    later = GrowingBatches(dataset, 4, rank=0, num_ranks=1, start=20)
    assert [numbers_of(batch) for batch in later] == expected[5:]
    sampler = ElasticSampler(32, 4, fingerprint=dataset.fingerprint)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)
    assert [numbers_of(batch) for batch in loader] == expected
    keyed = keyed_loader(dataset, 4, shuffle=False, rank=0, num_ranks=1)
    assert [numbers_of(batch) for batch in keyed] == expected


def test_a_pickled_dataset_reads_the_same(store: Path) -> None:
    dataset = open_rounds(store)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    for one, two in zip(dataset[3].values(), again[3].values(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_reader_waits_for_records(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(4))
    batches = iter(growing_loader(open_rounds(store, patience=200.0), 8, rank=0, num_ranks=1))
    writer = threading.Timer(0.2, grow, (store, range(4, 9)))
    writer.start()
    start = time.monotonic()
    assert sorted(numbers_of(next(batches))) == [*range(1, 9)]
    assert time.monotonic() - start < 150
    writer.join()
    late = iter(growing_loader(open_rounds(store), 8, rank=0, num_ranks=1, state=None))
    next(late)
    with pytest.raises(
        NotReadyError, match=r"round 1 of reader 'train' needs 8 records of .*store"
    ):
        next(late)


def test_a_failed_batch_is_read_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(8))
    batches = growing_loader(open_rounds(store), 8, rank=0, num_ranks=1)
    assert len(list(islice(batches, 1))) == 1
    with pytest.raises(NotReadyError):
        next(iter(batches))
    state = batches.state_dict()
    assert (state["consumed_samples"], state["generation"]) == (8, 1)
    grow(store, range(8, 16))
    assert sorted(numbers_of(next(iter(batches)))) == [*range(8, 16)]
    assert batches.state_dict()["generation"] == 2


def test_states_of_other_runs_are_refused(store: Path) -> None:
    batches = growing_loader(open_rounds(store), 4, rank=0, num_ranks=1)
    state = batches.state_dict()
    assert state["generation"] == 0
    next(iter(batches))
    state = batches.state_dict()
    other = growing_loader(open_rounds(store, reader="other"), 4, rank=0, num_ranks=1)
    with pytest.raises(StateMismatchError, match=r"must belong to these samples"):
        other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"must be a mapping with a generation, got"):
        batches.load_state_dict({"version": 1})
    with pytest.raises(StateMismatchError, match=r"must be of generation 8, as recorded, got 5"):
        batches.load_state_dict(state | {"generation": 5})
    with pytest.raises(
        StateMismatchError, match=r"position 400 must be one that reader 'train' of"
    ):
        batches.load_state_dict(state | {"consumed_samples": 400})


def test_a_finished_run_is_extended(store: Path) -> None:
    batches = growing_loader(open_rounds(store, num_samples=16), 8, rank=0, num_ranks=1)
    first = [numbers_of(batch) for batch in batches]
    longer = open_rounds(store, num_samples=32)
    resumed = growing_loader(longer, 8, rank=0, num_ranks=1, state=batches.state_dict())
    assert first + [numbers_of(batch) for batch in resumed] == read(store, 8)


def test_a_node_waits_until_it_sees_the_generation_of_a_round(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = open_rounds(store)
    behind = open_rounds(store)
    grow(store, range(32, 36), version=9)
    expected = ahead[0]["prompts"].tolist()
    advance, calls = GrowingLog.advance, list[int]()

    def look_later(log: GrowingLog) -> bool:
        calls.append(1)
        return len(calls) > 3 and advance(log)

    monkeypatch.setattr(GrowingLog, "advance", look_later)
    assert behind[0]["prompts"].tolist() == expected
    assert len(calls) == 4
    monkeypatch.setattr("zindex.growing.growing_log._VISIBILITY_TIMEOUT", 0.0)
    with pytest.raises(StoreUnavailableError, match=r"generation 99 of .* must be visible here, "):
        GrowingLog(store).wait_for(99)


def test_forked_workers_need_no_lock_of_their_parent(store: Path) -> None:
    dataset = open_rounds(store, num_samples=32)
    expected = numbers_of(dataset.collate(dataset.__getitems__(range(4))))
    log, is_held, is_over = dataset._journal.log, threading.Event(), threading.Event()

    def hold() -> None:
        with log.lock, dataset._lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    child = fork(lambda: _compare(dataset, expected))
    assert exit_code(child) == 0
    is_over.set()
    thread.join()


def _compare(dataset: GrowingDataset, expected: list[int]) -> None:
    assert numbers_of(dataset.collate(dataset.__getitems__(range(4)))) == expected


def test_settings_are_checked(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"split must be left out for rounds of a growing store"):
        open_rounds(store, split="train")
    with pytest.raises(ConfigError, match=r"needs a GrowingDataset, got list; use keyed_loader"):
        growing_loader([1], 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"num_samples must be a whole number of at least 1"):
        open_rounds(store, num_samples=0)
    with pytest.raises(MissingKeyError, match=r"needs the keys chosen, rejected"):
        GrowingDataset("dpo", store, round_size=8, reader="pairs")[0]


def test_texts_and_declared_kinds_come_in_rounds(store: Path) -> None:
    kind = RecordSchema(
        "scored",
        [
            Field("prompts", axes="prompt", pads_left=True),
            Field("rewards", values="floats", axes="group"),
            Field("answer", values="text"),
        ],
    )
    dataset = GrowingDataset(kind, store, round_size=8, reader="scored")
    batch = dataset.collate(dataset.__getitems__(range(8)))
    assert batch["answer"] == [f"answer {number}" for number in numbers_of(batch)]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.collate(again.__getitems__(range(8)))["answer"] == batch["answer"]
    with pytest.raises(ConfigError, match=r"mode of 'sft' must be one of windows, got 'records'"):
        GrowingDataset("sft", store, round_size=8, reader="windows")


def test_a_key_that_loses_its_alignment_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(4))
    dataset = open_rounds(store, round_size=2, priority="old")
    assert dataset[0]["logprobs"][1].tolist() == [-0.5, -0.5]
    odd = rollout(9) | {"logprobs": [[-0.5], [-0.5]]}
    append(store, [odd, odd])
    assert dataset[3]["prompts"][0] < 4
    with pytest.raises(SourceError, match=r"responses and logprobs of a record must be of one len"):
        dataset[4]
