"""Compaction: fewer and larger stores, which no reader notices."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.growing.rollouts import die_before_write, grow
from zindex.growing.compaction import compact, compacting, find_runs
from zindex.growing.eviction import evict
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import History, Home
from zindex.growing.inspection import verify_growing
from zindex.keyed.growing_store import open_growing
from zindex.store.open import open_store


def make_homes(*sizes: int) -> History:
    """Return a history of files of some bytes, and of stores for negative numbers."""
    history = History(1)
    history._rows = history._rows.reshape(0, 4).copy()
    history._new = [(number, 1, 0, 1) for number in range(1, len(sizes) + 1)]
    history.number = len(sizes)
    history.homes = [
        Home(f"h{place}", size < 0, place, place + 1, abs(size), "d")
        for place, size in enumerate(sizes)
    ]
    return history


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ((), []),
        ((5, 5, 5), [[0, 1, 2]]),
        ((5, 5), []),
        ((40, 40, 40, 40, 40), [[3, 4], [1, 2]]),  # of at most 100 bytes, three or more
        ((-50, 5, 5, 5), [[1, 2, 3]]),  # the store is too large to be written again
        ((-50, 9, 9, 9), [[0, 1, 2, 3]]),
        ((-30, -30, -30, 5), [[0, 1, 2]]),
        ((-200, -200, 5), []),
        ((200, 200, 5), []),
    ],
)
def test_runs(sizes: tuple[int, ...], runs: list[list[int]]) -> None:
    found = find_runs(make_homes(*sizes), 3, 100)
    expected = [[f"h{k}" for k in run] for run in runs if len(run) >= 3]
    assert [[home.name for home in run] for run in found] == expected


def test_each_byte_is_written_a_few_times() -> None:
    homes, written = list[int](), 0
    for _ in range(512):
        homes.append(1)
        for run in find_runs(make_homes(*homes), 4, 1 << 30):
            first, size = int(run[0].name[1:]), sum(home.nbytes for home in run)
            homes[first : first + len(run)] = [-size]
            written += size
    assert len(homes) < 24
    assert written < 8 * 512


def test_a_compacted_store_is_plain_zarr(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(8):
        grow(store, [2 * number, 2 * number + 1])
    assert compact(store) == 1
    assert compact(store) == 0
    [home] = GrowingLog(store).history.homes
    path = store / f"records-{home.name}"
    made = open_store(path, kind="records")
    assert made.spec["num_records"] == 16
    assert made["prompts_value"][:].tolist() == [x for n in range(16) for x in (n, 7)]
    assert verify_growing(store).is_sound


def test_evicted_generations_stay_apart(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for version in range(8):
        grow(store, [version], version)
    evict(store, keep_versions=4)
    assert compact(store, min_count=2) == 1
    assert [home.is_store for home in GrowingLog(store).history.homes] == [False] * 4 + [True]


@pytest.mark.parametrize("call", [0, 1, 20, 40, 55])
def test_a_killed_compaction_is_repeated(tmp_path: Path, call: int) -> None:
    store = tmp_path / "store"
    for number in range(4):
        grow(store, [number])
    die_before_write(call, lambda: compact(store, min_count=2))
    assert open_growing(store).num_records == 4
    compact(store, min_count=2)
    assert len(GrowingLog(store).history.homes) == 1
    texts = open_growing(store).read_texts(["answer"], np.arange(4))
    assert texts["answer"] == [f"answer {number}" for number in range(4)]
    assert verify_growing(store).is_sound


def test_compactions_at_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(12):
        grow(store, [number])
    found = list[int]()
    threads = [
        threading.Thread(target=lambda n=n: found.append(compact(store, min_count=n)))  # type: ignore[misc]
        for n in (2, 2, 12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) >= 1
    assert open_growing(store).num_records == 12
    assert len(GrowingLog(store).history.homes) == 1


def test_compaction_in_the_background(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with compacting(store, every=0.01, min_count=2):  # the store does not exist yet
        for number in range(5):
            grow(store, [number])
            time.sleep(0.02)
        deadline = time.monotonic() + 100
        while not any(home.is_store for home in GrowingLog(store).history.homes):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert open_growing(store).num_records == 5
