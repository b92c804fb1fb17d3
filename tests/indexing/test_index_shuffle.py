"""The shuffle index: its cost, a frozen golden order, tasks by themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from zindex.indexing.index_tasks import (
    IndexTasks,
    compute_shuffle,
    shuffle_documents,
    shuffle_samples,
)
from zindex.plan.keys import round_keys
from zindex.store.commit import begin_store
from zindex.store.reader import LocalReader

LENGTHS = [3, 0, 5, 2, 7, 0, 4, 9, 1, 6]  # 37 tokens
# Three epochs of the scalable order with seed 7: 27 samples of 4 tokens.
SCALABLE = [
    *(3, 2, 4, 7, 9, 1, 5, 6, 0, 8),
    *(10, 11, 17, 16, 18, 13, 12, 14, 15),
    *(24, 21, 20, 19, 23, 25, 26, 22),
]


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS)


def test_one_position_costs_the_same_after_a_million_epochs(
    prefix: str, plan_index: PlanIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = plan_index(prefix, order="scalable", num_samples=10**7, sequence_length=4)
    assert plan.epochs.num_epochs > 10**6
    made = []

    def keys_of(*key: Any, epoch: int, **rest: Any) -> Any:
        made.append(epoch)
        return round_keys(*key, epoch=epoch, **rest)

    monkeypatch.setattr("zindex.plan.build_plan.round_keys", keys_of)
    position = plan.num_samples - 1
    start, stop = plan.samples_of_epoch(plan.epochs.num_epochs - 1)
    assert start <= compute_shuffle(plan, position, position + 1)[0] < stop
    assert made == [plan.epochs.num_epochs - 1]


def test_frozen_order(prefix: str, plan_index: PlanIndex) -> None:
    """What a seed gives is part of the format."""
    plan, _ = plan_index(prefix, order="scalable", num_samples=20, sequence_length=4)
    assert [plan.samples_of_epoch(epoch) for epoch in range(3)] == [(0, 10), (10, 19), (19, 27)]
    assert compute_shuffle(plan, 0, plan.num_samples).tolist() == SCALABLE


def test_epochs_and_splits_have_orders_of_their_own(prefix: str, plan_index: PlanIndex) -> None:
    """Never the sum of two seeds: neighbouring seeds, epochs and splits share nothing."""
    orders = set()
    for seed in (7, 8):
        for split in ("train", "valid"):
            plan, _ = plan_index(
                prefix, order="scalable", num_samples=100, sequence_length=1, seed=seed, split=split
            )
            samples = compute_shuffle(plan, 0, plan.num_samples)
            for start, stop in map(plan.samples_of_epoch, range(plan.epochs.num_epochs)):
                orders.add(tuple((samples[start:stop] - start)[:36].tolist()))
    assert len(orders) == 2 * 2 * 3


def test_shards_of_megatrons_order_are_written_once(
    prefix: str, plan_index: PlanIndex, tmp_path: Path
) -> None:
    plan, source = plan_index(prefix, num_samples=20, sequence_length=4, chunk=2)
    store_plan = plan.store_plan(tmp_path)
    begin_store(store_plan)
    tasks = IndexTasks(plan, store_plan.root, source)
    tasks.store_shuffled_documents()
    first = tasks.store_shuffled_samples()
    assert [result.written for result in first] == [True] * 4
    (store_plan.root / "shuffle_index" / "c" / "2").unlink()
    again = tasks.store_shuffled_samples()
    assert [result.written for result in again] == [False, False, True, False]
    assert [result.receipt for result in again] == [result.receipt for result in first]
    _, state = shuffle_documents(plan)
    stored = np.asarray(LocalReader(store_plan.root, plan.shuffle_layout))
    np.testing.assert_array_equal(stored, shuffle_samples(plan, state))
