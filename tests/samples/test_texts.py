"""The cache of small arrays: what is cached, when, and its lookups."""

import gc
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.damage import flip
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import VerificationError
from zindex.samples import texts
from zindex.samples.texts import cached_rows, take_spans
from zindex.store.open import open_store

LENGTH = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_arrays(tmp_path / "store", {ONE: count_up(LENGTH)})
    return tmp_path / "store"


def test_cached_after_enough_requests(root: Path) -> None:
    reader = open_store(root)["one"]
    # 15 requests for 64 rows each are not all of them.
    assert cached_rows(reader, 10) is None
    assert cached_rows(reader, 5) is None
    rows = cached_rows(reader, 1)
    assert rows is not None
    assert rows.tolist() == list(range(LENGTH))
    assert cached_rows(reader, 1) is rows
    memory = np.arange(3)
    assert cached_rows(memory, 1) is memory


def test_never_cached(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached_rows(open_store(root, verify="always")["one"], 100) is None
    monkeypatch.setattr(texts, "MAX_NBYTES", 4 * LENGTH - 1)
    assert cached_rows(open_store(root)["one"], 100) is None


def test_the_limit_is_shared_and_freed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    texts._entries.clear()
    monkeypatch.setattr(texts, "MAX_NBYTES", 10 * LENGTH)
    readers: list[Any] = [open_store(root)["one"] for _ in range(3)]
    kept = [cached_rows(reader, 100) is not None for reader in readers]
    assert kept == [True, True, False]
    del readers[0]
    gc.collect()
    assert cached_rows(readers[1], 100) is not None


def test_concurrent_threads(root: Path) -> None:
    store = open_store(root)
    readers = [[open_store(root)["one"] for _ in range(100)] for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda some: [cached_rows(x, 100) for x in some], readers))
    finally:
        sys.setswitchinterval(interval)
    assert all(
        rows is not None and len(rows) == len(store["one"]) for some in found for rows in some
    )


def test_damage_is_raised_by_reads_of_its_rows(root: Path) -> None:
    shard = root / "one" / "c" / "3"
    flip(shard, 0)
    reader = open_store(root)["one"]
    for _ in range(3):
        assert cached_rows(reader, 100) is None
    assert reader.read(0, 18).tolist() == list(range(18))
    with pytest.raises(VerificationError):
        reader.read(18, 19)


@pytest.mark.parametrize(
    "spans", [[(0, 3)], [(4, 4)], [(2, 5), (0, 1), (7, 7), (1, 4)], [(3, 3), (3, 3)], [(0, 10)] * 3]
)
def test_spans(spans: list[tuple[int, int]]) -> None:
    rows = np.arange(20).reshape(10, 2)
    starts, stops = np.array(spans).T
    expected = np.concatenate([rows[start:stop] for start, stop in spans])
    np.testing.assert_array_equal(take_spans(rows, starts, stops), expected)


@pytest.mark.parametrize("span", [(-1, 2), (9, 11), (5, 4)])
def test_spans_outside(span: tuple[int, int]) -> None:
    message = re.escape(f"rows [{span[0]}, {span[1]}) are outside an array of length 10")
    for spans in ([span], [(0, 1), span]):
        starts, stops = np.array(spans).T
        with pytest.raises(IndexError, match=message):
            take_spans(np.arange(10), starts, stops)
