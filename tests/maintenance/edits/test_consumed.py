"""Sets of consumed samples: how they grow, how they are stored, and the k-th one left."""

from pathlib import Path

import numpy as np
import pytest

from zindex.errors import StoreNotFoundError
from zindex.maintenance.edits.consumed import (
    ConsumedSet,
    ConsumedTable,
    num_words,
    open_table,
    pack_sets,
    set_of_bits,
    store_sets,
)
from zindex.store.layout import ChunkGrid


def table_of(sets: dict[int, ConsumedSet]) -> ConsumedTable:
    facts = [item.facts(source) for source, item in sets.items()]
    return ConsumedTable(facts, *pack_sets(list(sets.values())))


def draw_from(found: ConsumedSet, chosen: list[int], start: int = 0) -> ConsumedSet:
    words = np.zeros(num_words(start + max(chosen, default=0) + 70), np.uint64)
    for k in chosen:
        words[(start + k) // 64] |= np.uint64(1) << np.uint64((start + k) % 64)
    return found.add_draws(words, start, max(chosen, default=0) + 3)


@pytest.mark.parametrize("seed", range(8))
def test_draws_of_draws_are_the_remaining_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total, used, found = int(rng.integers(1, 9000)), set[int](), ConsumedSet()
    for _ in range(3):
        left = [sample for sample in range(total) if sample not in used]
        size = int(rng.integers(0, len(left) + 1))
        # A beginning, as a greedy blend draws, or anything.
        chosen = range(size) if rng.random() < 0.4 else rng.choice(len(left), size, replace=False)
        numbers = [int(k) for k in chosen]
        table = table_of({5: found, 7: ConsumedSet(), 9: found})
        rows = np.array([0, 2] * size)[:size]
        assert table.find(rows, np.array(numbers)).tolist() == [left[k] for k in numbers]
        ranks = {sample: k for k, sample in enumerate(left)}
        every = np.arange(total + 5)
        left_beyond = [len(left) + k for k in range(5)]
        expected = [ranks.get(sample, -1) for sample in range(total)] + left_beyond
        assert table.rank(2, every).tolist() == table.rank(0, every).tolist() == expected
        assert table.rank(1, every).tolist() == every.tolist()
        found = draw_from(found, numbers, start=int(rng.integers(0, 100)))
        used |= {left[k] for k in numbers}
        assert (found.num_consumed, found.num_left) == (len(used), found.stop - len(used))
        bound = int(rng.integers(0, total + 5))
        left_below = sum(sample not in used for sample in range(bound))
        assert found.count_left_below(bound) == left_below


def test_a_beginning_needs_no_bits() -> None:
    found = draw_from(draw_from(ConsumedSet(), list(range(1000))), list(range(77)))
    assert (found.first, found.num_bits, len(found.words)) == (1077, 0, 0)


def test_a_set_has_its_shortest_form() -> None:
    words = np.array([0b0111, 1 << 5, 0], np.uint64)
    found = set_of_bits(words, 192)
    assert (found.first, found.stop, found.num_consumed) == (3, 70, 4)


def test_stored_sets_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sets = [
        draw_from(ConsumedSet(), rng.choice(9000, 3000, replace=False).tolist()),
        ConsumedSet(),
        draw_from(ConsumedSet(), [5, 7, 70]),
    ]
    name, again = (
        store_sets({"a": 1}, sets, ChunkGrid(64, 128), tmp_path, "train") for _ in range(2)
    )
    assert name == again
    facts = [item.facts(source) for source, item in zip((4, 6, 9), sets, strict=True)]
    table = open_table(facts, tmp_path, name)
    memory = table_of(dict(zip((4, 6, 9), sets, strict=True)))
    rows = rng.integers(0, 3, 500)
    numbers = rng.integers(0, 9000, 500)
    assert table.find(rows, numbers).tolist() == memory.find(rows, numbers).tolist()
    for source, item in zip((4, 6, 9), sets, strict=True):
        loaded = table.load(source)
        assert loaded.facts(source) == item.facts(source)
        assert loaded.words.tolist() == item.words.tolist()


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    facts = [draw_from(ConsumedSet(), [5]).facts(0)]
    with pytest.raises(StoreNotFoundError, match="edit-train-abc"):
        open_table(facts, tmp_path, "edit-train-abc")
    assert ConsumedTable([ConsumedSet().facts(0)]).find(np.array([0]), np.array([8])).tolist() == [
        8
    ]
