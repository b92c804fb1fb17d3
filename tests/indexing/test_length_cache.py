"""The cache of lengths: read once, bounded, evicted at the end of a build."""

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from tests.killing import exit_code, fork
from tests.trees import all_files
from zindex.errors import StoreError
from zindex.indexing import length_cache
from zindex.indexing.ensure import build_store
from zindex.indexing.length_cache import _ShardCache, _SplitCache, evict_lengths, find_shard
from zindex.plan.build_plan import SourceFacts

ROOT, OTHER = Path("/index/train"), Path("/index/valid")


class CountingSource:
    """Lengths 0, 1, 2, ... and how often they were read."""

    def __init__(self, digest: str = "a") -> None:
        self.facts = SourceFacts(digest, 100, 4950)
        self.reads: list[tuple[int, int]] = []

    def lengths(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        self.reads.append((start, stop))
        return np.arange(start, stop, dtype=np.int32)


def four_bytes(count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.full(count, 7, np.int32)


def test_lengths_of_a_split_are_read_once_by_all_threads() -> None:
    lengths, source = _SplitCache(1000), CountingSource()
    barrier = threading.Barrier(8)
    got = []

    def get() -> None:
        barrier.wait()
        got.append(lengths.get(source, 10, 20))

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.reads == [(10, 20)]
    assert [values.tolist() for values in got] == [[*range(10, 20)]] * 8


def test_splits_and_datasets_are_distinct() -> None:
    lengths, source, other = _SplitCache(1000), CountingSource("a"), CountingSource("b")
    for _ in range(2):
        for start in (0, 5):
            assert lengths.get(source, start, 9).tolist() == [*range(start, 9)]
            assert lengths.get(other, start, 9).tolist() == [*range(start, 9)]
    assert source.reads == other.reads == [(0, 9), (5, 9)]
    # Another path to the same content needs no second read.
    assert lengths.get(CountingSource("a"), 0, 9) is lengths.get(source, 0, 9)


def test_least_used_lengths_make_room() -> None:
    lengths, source = _SplitCache(100), CountingSource()  # 25 lengths
    for start in (0, 10):
        lengths.get(source, start, start + 10)
    lengths.get(source, 0, 10)
    lengths.get(source, 20, 30)  # makes room by dropping [10, 20), used least
    assert [key[1] for key in lengths.arrays] == [0, 20]
    lengths.get(source, 0, 100)  # too large for the budget, and cached alone: it is in use
    assert [key[1:] for key in lengths.arrays] == [(0, 100)]
    assert len(lengths.locks) == 1


def test_finished_build_is_evicted() -> None:
    lengths, source, other = _SplitCache(1000), CountingSource("a"), CountingSource("b")
    for item in (source, other):
        lengths.get(item, 0, 10)
    lengths.evict(source.facts.length_digest)
    assert [key[0] for key in lengths.arrays] == ["b"]
    lengths.get(source, 0, 10)
    assert (len(source.reads), len(other.reads)) == (2, 1)


def test_failed_read_is_not_cached() -> None:
    lengths, source = _SplitCache(1000), CountingSource()
    read = source.lengths

    def fail(start: int, stop: int) -> Any:
        source.lengths = read  # type: ignore[method-assign]
        raise OSError(5, "Input/output error")

    source.lengths = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Input/output"):
        lengths.get(source, 0, 3)
    assert lengths.get(source, 0, 3).tolist() == [0, 1, 2]


def test_lengths_beyond_the_budget_spill_to_a_scratch_file(
    write_corpus: WriteCorpus,
    plan_index: PlanIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded by the budget for any number of documents."""
    lengths = [3, 0, 5, 2, 7, 0, 4, 9]
    plan, source = plan_index(write_corpus(lengths))
    monkeypatch.setattr(length_cache._splits, "most_nbytes", 4 * len(lengths) - 1)
    monkeypatch.setattr(length_cache.tempfile, "tempdir", str(tmp_path))
    mapped = length_cache._splits.get(source, 0, len(lengths))
    assert isinstance(mapped, np.memmap)
    assert mapped.tolist() == lengths
    assert not list(tmp_path.glob("zindex-lengths-*"))
    documents = np.array([5, 0, 7, 4], np.int32)
    assert length_cache.order_lengths(plan, source, documents).tolist() == [0, 3, 9, 7]
    evict_lengths(source, ROOT)


def test_scratch_without_room_is_one_sentence(
    write_corpus: WriteCorpus, plan_index: PlanIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source = plan_index(write_corpus([3, 0, 5]))
    monkeypatch.setattr(length_cache._splits, "most_nbytes", 0)
    monkeypatch.setattr(
        length_cache.tempfile, "TemporaryFile", lambda **settings: io.FileIO("/dev/full", "w")
    )
    with pytest.raises(
        StoreError,
        match=r"the lengths of 3 documents of .*corpus need 12 bytes of scratch in .*, the system "
        r"says: No space left on device; let TMPDIR name a folder with room",
    ):
        length_cache._splits.get(source, 0, 3)


def test_ordered_lengths_without_room_are_not_cached() -> None:
    """Shards are read in the order in which they were cached: the first ones stay."""
    ordered = _ShardCache(100)
    for shard in range(4):
        ordered.put(ROOT, (10 * shard, 10 * shard + 10), four_bytes(10))
    assert [ordered.get(ROOT, (10 * shard, 10 * shard + 10)) is not None for shard in range(4)] == [
        True,
        True,
        False,
        False,
    ]


def test_ordered_lengths_of_other_builds_make_room() -> None:
    ordered = _ShardCache(100)
    for shard in range(2):
        ordered.put(OTHER, (10 * shard, 10 * shard + 10), four_bytes(10))
    ordered.put(ROOT, (0, 10), four_bytes(10))
    assert [key for key in ordered.arrays] == [(OTHER, (10, 20)), (ROOT, (0, 10))]
    ordered.put(ROOT, (10, 20), four_bytes(1000))  # never fits
    assert ordered.get(ROOT, (10, 20)) is None
    assert ordered.get(ROOT, (0, 10)) is not None
    ordered.evict(ROOT)
    assert ordered.get(ROOT, (0, 10)) is None


def test_result_does_not_depend_on_the_cache(
    write_corpus: WriteCorpus,
    plan_index: PlanIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from zindex.execution.executor import SerialExecutor, run_builds

    plan, source = plan_index(write_corpus([3, 0, 5, 2, 7, 0, 4, 9]), num_samples=30, chunk=1)

    def build(folder: str) -> dict[str, bytes]:
        result = run_builds(build_store(plan, source, tmp_path / folder, SerialExecutor()))
        # Nothing of a finished build stays.
        assert find_shard(result.store.root, (0, 16)) is None
        cached = {key[0] for key in length_cache._splits.arrays}
        assert source.facts.length_digest not in cached
        return all_files(result.store.root)

    expected = build("usual")
    monkeypatch.setattr(length_cache._shards, "most_nbytes", 0)
    monkeypatch.setattr(length_cache._splits, "most_nbytes", 0)
    assert build("nothing-cached") == expected


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_an_empty_cache(write_corpus: WriteCorpus, plan_index: PlanIndex) -> None:
    """A lock of a thread of the parent would never be released in the child."""
    plan, source = plan_index(write_corpus([1, 2, 3]))
    length_cache.order_lengths(plan, source, np.array([2, 0], np.int32))
    length_cache.cache_shard(ROOT, (0, 10), four_bytes(3))

    def find_nothing() -> None:
        ordered = length_cache.order_lengths(plan, source, np.array([2, 0], np.int32))
        assert ordered.tolist() == [3, 1]
        assert find_shard(ROOT, (0, 10)) is None

    with length_cache._splits.lock, length_cache._shards.lock:
        assert exit_code(fork(find_nothing)) == 0
    assert find_shard(ROOT, (0, 10)) is not None
    evict_lengths(source, ROOT)
    assert find_shard(ROOT, (0, 10)) is None
