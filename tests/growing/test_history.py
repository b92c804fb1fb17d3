"""The history of a store: what its commits say together."""

import json
import random

import numpy as np
import pytest

from zindex.errors import StoreError, VerificationError
from zindex.growing.history import Append, Compaction, Eviction, History, parse_entry


def grow(history: History, num_records: int, version: int = 0) -> None:
    number = history.number + 1
    counts = (2 * num_records, num_records)
    history.add(number, Append("append", f"a{number}", num_records, version, counts, 8, "d", False))


def make_history() -> History:
    """Return six generations, of which the second was evicted and the first four compacted."""
    history = History(2)
    for size, version in ((3, 0), (1, 1), (4, 0), (2, 2)):
        grow(history, size, version)
    history.add(5, Eviction("evict", 1, None))
    history.add(6, Compaction("compact", "c", 2, 4, 50, "e"))
    grow(history, 5, 3)
    return history


def test_generations_have_global_numbers() -> None:
    history = make_history()
    assert history.numbers.tolist() == [1, 2, 3, 4, 7]
    assert history.versions.tolist() == [0, 1, 0, 2, 3]
    assert history.record_offset.tolist() == [0, 3, 4, 8, 10, 15]
    assert history.value_offset.tolist() == [[2 * n, n] for n in (0, 3, 4, 8, 10, 15)]
    assert history.find_newest_version(7) == 3
    assert history.find_newest_version(6) == 2
    assert History(1).find_newest_version(0) == 0


def test_evicted_generations_are_gone_from_the_eviction_on() -> None:
    history = make_history()
    assert history.find_live(4).tolist() == [True, True, True, True, False]
    assert history.find_live(5).tolist() == [False, True, False, True, False]
    assert history.find_live().tolist() == [False, True, False, True, True]
    assert history.find_records(history.find_live()).tolist() == [[3, 4], [8, 15]]
    grow(history, 1, 0)  # appended late: the eviction is of those before it
    assert history.find_live()[-1]
    history.add(9, Eviction("evict", None, 4))
    assert history.find_live().tolist() == [False, False, False, True, True, True]


def test_compaction_changes_homes_only() -> None:
    history = make_history()
    assert [(home.name, home.start, home.stop) for home in history.homes] == [
        ("a1", 0, 1),
        ("c", 1, 4),
        ("a7", 4, 5),
    ]
    for first, last in ((1, 2), (3, 4), (9, 9), (3, 2)):
        with pytest.raises(VerificationError, match=r"must replace whole files or stores"):
            history.find_homes(first, last)
    assert history.find_homes(2, 4) == (1, 2)
    assert history.find_homes(1, 7) == (0, 3)


def test_generations_of_ranges_are_found() -> None:
    history = make_history()
    ranges = np.array([[9, 10], [2, 4], [11, 15]])
    assert history.find_generations(ranges).tolist() == [0, 1, 3, 4]


def test_a_history_survives_json() -> None:
    history = make_history()
    again = History(2)
    again.load(json.loads(json.dumps(history.to_json())), "a summary")
    assert again.to_json() == history.to_json()
    assert again.number == 7
    for at in range(8):
        assert (again.find_live(at) == history.find_live(at)).all()
    grow(again, 2)
    assert again.record_offset.tolist() == [0, 3, 4, 8, 10, 15, 17]
    empty = History(2)
    empty.load(json.loads(json.dumps(History(2).to_json())), "a summary")
    assert empty.num_generations == 0
    with pytest.raises(StoreError, match=r"must have a column for each field; remove it"):
        History(3).load(history.to_json(), "a summary")


def test_entries_are_parsed() -> None:
    entry = Eviction("evict", None, 4)
    fields = {"kind": "evict", "version_below": None, "number_below": 4, "number": 9}
    assert parse_entry(fields, "x") == entry
    with pytest.raises(StoreError, match=r"x must be one of append, compact, evict, got 'merge'"):
        parse_entry({"kind": "merge"}, "x")
    entry = {"kind": "compact", "name": "../x", "first": 1, "last": 2, "nbytes": 3, "digest": ""}
    with pytest.raises(
        StoreError, match=r"x must name files by digits and letters, it has '../x';"
    ):
        parse_entry(entry, "x")
    with pytest.raises(StoreError, match=r"x must hold"):
        parse_entry({"kind": "evict", "version_below": "1", "number_below": None}, "x")


def test_an_append_must_count_its_fields() -> None:
    history = History(3)
    with pytest.raises(VerificationError, match=r"commit 1 must count the values of 3 fields"):
        grow(history, 1)


@pytest.mark.parametrize("seed", range(10))
def test_random_compactions_keep_all_generations(seed: int) -> None:
    rng, history = random.Random(seed), History(2)
    for _ in range(60):
        if rng.random() < 0.7 or len(history.homes) < 2:
            grow(history, rng.randint(1, 4))
            continue
        first = rng.randrange(len(history.homes) - 1)
        last = rng.randint(first + 1, len(history.homes) - 1)
        bounds = history.homes[first].start, history.homes[last].stop - 1
        numbers = history.numbers[list(bounds)].tolist()
        number = history.number + 1
        history.add(number, Compaction("compact", f"c{number}", *numbers, 1, "d"))
        stops = [home.stop for home in history.homes]
        assert [0, *stops[:-1]] == [home.start for home in history.homes]
        assert stops[-1] == history.num_generations


@pytest.mark.parametrize("seed", range(10))
def test_each_of_random_evictions_leaves_earlier_generations_out(seed: int) -> None:
    rng, history = random.Random(seed), History(2)
    for number in range(1, 41):
        if rng.random() < 0.7:
            grow(history, 1, rng.randrange(8))
        else:
            bounds = rng.choice((None, rng.randrange(-2, 9))), rng.choice((None, rng.randrange(45)))
            history.add(number, Eviction("evict", *bounds))
    for head in range(42):
        expected = [
            number <= head
            and not any(
                number < at <= head
                and (version < (item.version_below or 0) or number < (item.number_below or 0))
                for at, item in history.evictions.items()
            )
            for number, version in zip(history.numbers, history.versions, strict=True)
        ]
        assert history.find_live(head).tolist() == expected
