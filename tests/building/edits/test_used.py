"""Sets of used samples: what is added, how they are stored, and the k-th that is left."""

from pathlib import Path

import numpy as np
import pytest

from zindex.building.edits.used import (
    UsedSet,
    UsedTable,
    _lay_out,
    add_draws,
    count_unused_below,
    empty_set,
    num_words,
    open_table,
    set_of_bits,
    store_sets,
    used_store_plan,
)
from zindex.errors import StoreNotFoundError
from zindex.store.layout import ChunkGrid


def table_of(sets: dict[int, UsedSet]) -> UsedTable:
    facts = [item.facts(source) for source, item in sets.items()]
    return UsedTable(facts, *_lay_out(list(sets.values())))


def draw_from(used: UsedSet, chosen: list[int], start: int = 0) -> UsedSet:
    words = np.zeros(num_words(start + max(chosen, default=0) + 70), np.uint64)
    for k in chosen:
        words[(start + k) // 64] |= np.uint64(1) << np.uint64((start + k) % 64)
    return add_draws(used, words, start, max(chosen, default=0) + 3)


@pytest.mark.parametrize("seed", range(8))
def test_draws_of_draws_are_the_samples_that_were_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total, used, found = int(rng.integers(1, 9000)), set[int](), empty_set()
    for _ in range(3):
        left = [sample for sample in range(total) if sample not in used]
        size = int(rng.integers(0, len(left) + 1))
        # A beginning, as a greedy blend draws, or anything.
        chosen = range(size) if rng.random() < 0.4 else rng.choice(len(left), size, replace=False)
        numbers = [int(k) for k in chosen]
        table = table_of({5: found, 7: empty_set(), 9: found})
        rows = np.array([0, 2] * size)[:size]
        assert table.find(rows, np.array(numbers)).tolist() == [left[k] for k in numbers]
        found = draw_from(found, numbers, start=int(rng.integers(0, 100)))
        used |= {left[k] for k in numbers}
        assert (found.num_used, found.num_unused) == (len(used), found.stop - len(used))
        bound = int(rng.integers(0, total + 5))
        unused_below = sum(sample not in used for sample in range(bound))
        assert count_unused_below(found, bound) == unused_below


def test_a_beginning_needs_no_bits() -> None:
    found = draw_from(draw_from(empty_set(), list(range(1000))), list(range(77)))
    assert (found.first, found.num_bits, len(found.words)) == (1077, 0, 0)


def test_bits_are_kept_as_few_as_can_be() -> None:
    words = np.array([0b0111, 1 << 5, 0], np.uint64)
    found = set_of_bits(words, 192)
    assert (found.first, found.stop, found.num_used) == (3, 70, 4)


def test_sets_come_back_from_their_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sets = [
        draw_from(empty_set(), rng.choice(9000, 3000, replace=False).tolist()),
        empty_set(),
        draw_from(empty_set(), [5, 7, 70]),
    ]
    plan = used_store_plan({"a": 1}, sets, ChunkGrid(64, 128), tmp_path, "train")
    store_sets(plan, sets)
    store_sets(plan, sets)
    facts = [item.facts(source) for source, item in zip((4, 6, 9), sets, strict=True)]
    table = open_table(facts, tmp_path, plan.root.name)
    memory = table_of(dict(zip((4, 6, 9), sets, strict=True)))
    rows = rng.integers(0, 3, 500)
    numbers = rng.integers(0, 9000, 500)
    assert table.find(rows, numbers).tolist() == memory.find(rows, numbers).tolist()
    for source, item in zip((4, 6, 9), sets, strict=True):
        loaded = table.load(source)
        assert loaded.facts(source) == item.facts(source)
        assert loaded.words.tolist() == item.words.tolist()


def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    facts = [draw_from(empty_set(), [5]).facts(0)]
    with pytest.raises(StoreNotFoundError, match="edit-train-abc"):
        open_table(facts, tmp_path, "edit-train-abc")
    assert UsedTable([empty_set().facts(0)]).find(np.array([0]), np.array([8])).tolist() == [8]
