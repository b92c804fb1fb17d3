"""Rounds: chosen by rules from the history, decided once, and the same for all who read them."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.growing.rollouts import grow
from tests.killing import exit_code, fork
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreNotFoundError,
)
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import Append, Eviction, History
from zindex.growing.rounds import (
    Round,
    RoundJournal,
    RoundRules,
    list_readers,
    read_rules,
)
from zindex.plan.intervals import expand


def make_history(*generations: tuple[int, int]) -> History:
    history = History(1)
    for size, version in generations:
        extend(history, size, version)
    return history


def extend(history: History, size: int, version: int) -> None:
    entry = Append("append", f"a{history.number}", size, version, (size,), 8, "d", False)
    history.add(history.number + 1, entry)


def records_of(found: Round | None) -> list[int]:
    assert found is not None
    return expand(found.ranges).tolist()


def test_new_records_are_chosen_first() -> None:
    history, rules = make_history((5, 0)), RoundRules(3)
    first = rules.choose(history, None)
    assert records_of(first) == [2, 3, 4]
    assert rules.choose(history, first) is None  # two are left
    extend(history, 2, 0)
    second = rules.choose(history, first)
    assert records_of(second) == [1, 5, 6]
    assert second is not None
    assert (second.number, second.generation) == (1, 2)
    old = RoundRules(3, priority="old")
    assert records_of(old.choose(history, old.choose(history, None))) == [3, 4, 5]


def test_stale_records_are_left_out() -> None:
    history, rules = make_history((4, 0), (4, 1), (4, 2)), RoundRules(4, staleness=1)
    found = [first := rules.choose(history, None), second := rules.choose(history, first)]
    assert [records_of(item) for item in found] == [[8, 9, 10, 11], [4, 5, 6, 7]]
    assert rules.choose(history, second) is None
    # By the version of the trainer, which is 2 from position 4 on.
    rules = RoundRules(4, staleness=0, priority="old", records_per_version=2)
    first = rules.choose(history, None)
    assert records_of(first) == [0, 1, 2, 3]
    assert records_of(rules.choose(history, first)) == [8, 9, 10, 11]


def test_records_are_used_again_when_all_are_used() -> None:
    history, rules, before = make_history((4, 0)), RoundRules(3, num_uses=2), None
    drawn = []
    for _ in range(2):
        before = rules.choose(history, before)
        drawn.append(records_of(before))
    assert drawn == [[1, 2, 3], [0, 2, 3]]  # the unused one first
    assert rules.choose(history, before) is None  # 0 and 1 are left


def test_evicted_records_are_not_chosen() -> None:
    history, rules = make_history((3, 0), (3, 1)), RoundRules(3, priority="old")
    history.add(3, Eviction("evict", 1, None))
    assert records_of(rules.choose(history, None)) == [3, 4, 5]


def test_a_lagging_process_does_not_go_back() -> None:
    history, rules = make_history((3, 0)), RoundRules(1)
    ahead = Round(4, 9, ((0, 1),), (((0, 1),),))
    assert rules.choose(history, ahead) is None


@pytest.mark.parametrize("seed", range(25))
def test_rounds_against_a_naive_reference(seed: int) -> None:
    rng = random.Random(seed)
    rules = RoundRules(
        rng.randint(1, 5),
        staleness=rng.choice((None, 0, 1, 2)),
        priority=rng.choice(("new", "old")),
        num_uses=rng.randint(1, 3),
    )
    history, before, uses = History(1), None, dict[int, int]()
    versions, evicted = list[int](), set[int]()
    for _ in range(40):
        if rng.random() < 0.5:
            size, version = rng.randint(1, 4), max(0, max(versions, default=0) + rng.randint(-2, 1))
            extend(history, size, version)
            versions += [version] * size
        elif rng.random() < 0.1:
            bound = max(versions, default=0) - 2
            history.add(history.number + 1, Eviction("evict", bound, None))
            evicted |= {i for i, version in enumerate(versions) if version < bound}
        oldest = -1 if rules.staleness is None else max(versions, default=0) - rules.staleness
        free = [i for i, v in enumerate(versions) if v >= oldest and i not in evicted]
        direction = -1 if rules.priority == "new" else 1
        free = [i for i in free if uses.get(i, 0) < rules.num_uses]
        free.sort(key=lambda i: (uses.get(i, 0), direction * i))
        found = rules.choose(history, before)
        if len(free) < rules.round_size:
            assert found is None
            continue
        assert sorted(records_of(found)) == sorted(free[: rules.round_size])
        for record in records_of(found):
            uses[record] = uses.get(record, 0) + 1
        before = found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round_size": 0}, r"round_size must be a whole number of at least 1, got 0"),
        ({"round_size": 4, "staleness": -1}, r"staleness must be a whole number of at least 0"),
        ({"round_size": 4, "num_uses": 0}, r"num_uses must be a whole number of at least 1, got 0"),
        ({"round_size": 4, "priority": "best"}, r"priority must be one of new, old, got 'best'"),
        ({"round_size": 4, "records_per_version": 0}, r"records_per_version must be a whole"),
    ],
)
def test_rules_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoundRules(**settings)


def open_journal(store: Path, reader: str = "train", **rules: Any) -> RoundJournal:
    return RoundJournal(GrowingLog(store), reader, RoundRules(**({"round_size": 4} | rules)))


def test_a_round_is_decided_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(6))
    one, two = open_journal(store), open_journal(store)
    first = one.find(0, 0)
    grow(store, range(6, 12))
    assert two.find(0, 0).round == first.round
    assert (two.find(0, 0).records == first.records).all()
    assert sorted(first.records.tolist()) == [2, 3, 4, 5]
    assert sorted(two.find(1, 0).records.tolist()) == [8, 9, 10, 11]
    assert one.find(1, 0).round.generation == 2
    assert one.read(2) is None
    with pytest.raises(
        NotReadyError, match=r"round 3 of reader 'train' needs 4 records .* 0\.05 s"
    ):
        open_journal(store).find(3, 0.05)
    assert one.read(2) is not None  # decided on the way
    # A process that begins in the middle decides what is missing.
    assert open_journal(store, "other").find(2, 0).round.number == 2


def test_processes_agree_on_rounds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(4))

    def work(number: int) -> None:
        journal = open_journal(store)
        lines = [str(journal.find(k, 20).records.tolist()) for k in range(8)]
        (tmp_path / f"seen-{number}").write_text("\n".join(lines))

    children = [fork(lambda number=number: work(number)) for number in range(3)]  # type: ignore[misc]
    for first in range(4, 40, 3):
        grow(store, range(first, first + 3))
    assert [exit_code(child) for child in children] == [0] * 3
    assert len({(tmp_path / f"seen-{number}").read_text() for number in range(3)}) == 1


def test_shuffled_rounds_differ_in_order_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(64))
    rules = {"round_size": 32}
    plain = open_journal(store, "plain", shuffle=False, **rules).find(1, 0).records
    orders = [
        open_journal(store, f"seed-{seed}", seed=seed, **rules).find(1, 0).records
        for seed in range(2)
    ]
    assert plain.tolist() == list(range(32))
    assert all(sorted(order.tolist()) == plain.tolist() for order in orders)
    assert not np.array_equal(*orders)
    again = open_journal(store, "seed-1", seed=1, **rules).find(1, 0).records
    assert np.array_equal(again, orders[1])


def test_a_reader_keeps_its_settings(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, range(6))
    open_journal(store)
    with pytest.raises(
        FingerprintMismatchError,
        match=r"reader 'train' of .* must keep its settings, it has seed=42",
    ):
        open_journal(store, seed=1)
    open_journal(store, "second", seed=1)
    assert list_readers(store) == ["second", "train"]
    assert read_rules(store, "second") == RoundRules(4, seed=1)
    with pytest.raises(StoreNotFoundError, match=r"must have the reader 'x', it has \['second', "):
        read_rules(store, "x")
    for name in ("", "a/b", ".hidden", "a" * 65):
        with pytest.raises(ConfigError, match=r"the name of a reader must be up to 64 letters"):
            open_journal(store, name)
