"""The document index: frozen golden orders, and tasks by themselves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from zindex.errors import StoreNotFoundError, VerificationError
from zindex.indexing.index_tasks import (
    GENERATOR_KEY,
    IndexTasks,
    compute_documents,
    read_generator,
    shuffle_documents,
)
from zindex.store.commit import begin_store, seal

LENGTHS = [3, 0, 5, 2, 7, 0, 4, 9, 1, 6]

# Two epochs of the scalable order with seed 7.
SCALABLE = [2, 0, 4, 8, 9, 3, 7, 6, 5, 1, 7, 5, 1, 8, 0, 4, 9, 2, 6, 3]

Begin = Callable[..., IndexTasks]


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS)


@pytest.fixture
def begin(prefix: str, plan_index: PlanIndex, tmp_path: Path) -> Begin:
    """Plan an index over LENGTHS and begin its store."""

    def begun(**options: Any) -> IndexTasks:
        plan, source = plan_index(prefix, **options)
        store_plan = plan.store_plan(tmp_path / "index")
        begin_store(store_plan)
        return IndexTasks(plan, Path(str(store_plan.root)), source)

    return begun


def test_frozen_orders(begin: Begin) -> None:
    """What a seed gives is part of the format."""
    scalable = begin(order="scalable", num_samples=9).plan
    assert compute_documents(scalable, 0, 20).tolist() == SCALABLE
    megatron = begin(order="megatron", num_samples=9).plan
    documents, state = shuffle_documents(megatron)
    generator = np.random.RandomState(7)
    expected = np.tile(np.arange(10), 2)
    generator.shuffle(expected)
    np.testing.assert_array_equal(documents, expected)
    np.testing.assert_array_equal(state[:624], generator.get_state()[1])


@pytest.mark.parametrize("stored", ["all", "minimal"])
def test_shard_of_the_scalable_order(begin: Begin, stored: str) -> None:
    tasks = begin(order="scalable", stored=stored, num_samples=9, chunk=2)
    plan = tasks.plan
    rows = compute_documents(plan, 8, 16)
    first, num_tokens = tasks.store_document_shard(1, counted=True)
    assert num_tokens == sum(LENGTHS[document] for document in rows)
    assert [result.written for result in first] == [True] * (stored == "all")
    again, _ = tasks.store_document_shard(1, counted=True)
    assert again == [replace(result, written=False) for result in first]
    np.testing.assert_array_equal(tasks.read_documents(8, 16), rows)
    assert tasks.count_document_shard(1) == num_tokens


def test_shards_of_megatrons_order_are_written_once(begin: Begin) -> None:
    tasks = begin(num_samples=9, chunk=1)
    plan, root = tasks.plan, tasks.root
    first = tasks.store_shuffled_documents()
    assert [result.written for result in first] == [True] * 5
    again = tasks.store_shuffled_documents()
    assert [result.written for result in again] == [False] * 5
    documents, state = shuffle_documents(plan)
    np.testing.assert_array_equal(tasks.read_documents(0, 20), documents)
    np.testing.assert_array_equal(read_generator(root), state)
    counts = [tasks.count_document_shard(shard) for shard in range(5)]
    assert counts == np.array(LENGTHS)[documents].reshape(5, 4).sum(axis=1).tolist()


def test_lost_shard_or_generator_is_made_again(begin: Begin) -> None:
    tasks = begin(num_samples=9, chunk=1)
    root = tasks.root
    first = tasks.store_shuffled_documents()
    state = read_generator(root)
    (root / "document_index" / "c" / "3").unlink()
    again = tasks.store_shuffled_documents()
    assert [result.written for result in again] == [False, False, False, True, False]
    (root / GENERATOR_KEY).unlink()
    assert not any(result.written for result in tasks.store_shuffled_documents())
    np.testing.assert_array_equal(read_generator(root), state)
    assert [result.receipt for result in again] == [result.receipt for result in first]


@pytest.mark.parametrize("words", [None, 7, [1, 2, 3], [0] * 624])
def test_damaged_generator_is_refused(begin: Begin, words: Any) -> None:
    tasks = begin(chunk=1)
    root = tasks.root
    tasks.store_shuffled_documents()
    (root / GENERATOR_KEY).write_bytes(seal({"mt19937": words}, "sha256"))
    with pytest.raises(VerificationError, match=r"generator\.json must hold 625 words"):
        tasks.store_shuffled_samples()


def test_a_resumed_build_repairs_a_flipped_bit(begin: Begin) -> None:
    """In the generator it would give other samples, in a chunk it would stop every build."""
    tasks = begin(num_samples=9, chunk=1)
    root = tasks.root
    tasks.store_shuffled_documents()
    shard, generator = root / "document_index" / "c" / "3", root / GENERATOR_KEY
    golden = shard.read_bytes(), generator.read_bytes()
    shard.write_bytes(bytes([golden[0][0] ^ 1]) + golden[0][1:])
    again = tasks.store_shuffled_documents()
    assert [result.written for result in again] == [False, False, False, True, False]
    generator.write_bytes(golden[1].replace(b"[2", b"[1", 1).replace(b",2", b",1", 1))
    assert generator.read_bytes() != golden[1]
    with pytest.raises(VerificationError, match=r"generator\.json fails its digest; build again"):
        tasks.store_shuffled_samples()
    assert not any(result.written for result in tasks.store_shuffled_documents())
    assert (shard.read_bytes(), generator.read_bytes()) == golden


def test_missing_generator_is_refused(begin: Begin) -> None:
    tasks = begin(chunk=1)
    with pytest.raises(StoreNotFoundError, match=r"no file .*_zindex/generator\.json"):
        tasks.store_shuffled_samples()
