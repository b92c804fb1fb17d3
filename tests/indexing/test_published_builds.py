"""Large indices that rank 0 reads in memory while they are stored in the background."""

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex, naive_megatron
from zindex.errors import NotReadyError, StoreError
from zindex.indexing import ensure, index, store_build
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.store_build import find_index
from zindex.store.open import FollowedStore, Store

LENGTHS = [3, 0, 5, 2, 7, 4, 6]


class Commits:
    """Holds all commits back, then lets them through or fails them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.event = threading.Event()
        self.error: Exception | None = None
        commit = store_build.commit_store

        def wait(*args: Any) -> None:
            assert self.event.wait(60)
            if self.error is not None:
                raise self.error
            commit(*args)

        monkeypatch.setattr(store_build, "commit_store", wait)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ensure, "MAX_COMPUTED_ROWS", 0)
    monkeypatch.setattr(index, "is_few", lambda plan: False)
    made = Commits(monkeypatch)
    yield made
    made.event.set()


@pytest.fixture
def request_index(write_corpus: WriteCorpus, plan_index: PlanIndex, tmp_path: Path) -> BuildRequest:
    plan, source = plan_index(write_corpus(LENGTHS), num_samples=9, chunk=2)
    return BuildRequest(plan, str(tmp_path), source)


def assert_read(store: Store, request: BuildRequest) -> None:
    expected = naive_megatron(request.plan, np.array(LENGTHS))  # type: ignore[arg-type]
    for array, values in zip(open_index_arrays(store), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(array), values)


def start(builds: Builds, request: BuildRequest) -> list[Any]:
    received: list[Any] = []
    with builds:
        builds.add(request, received.append)
        builds.finish()
    return received


def test_index_is_read_before_its_commit(commits: Commits, request_index: BuildRequest) -> None:
    builds = Builds(Rank())
    received = start(builds, request_index)
    (store,) = received
    assert isinstance(store, FollowedStore)
    assert isinstance(store["document_index"], np.ndarray)
    assert_read(store, request_index)
    assert find_index(request_index.store_plan) is None
    with pytest.raises(NotReadyError, match="0 s"):
        start(Builds(Rank(1, timeout=0)), request_index)
    commits.event.set()
    builds.wait()
    assert [type(each) for each in received] == [FollowedStore, Store]
    assert_read(received[1], request_index)
    # Another process reads the files.
    copy = pickle.loads(pickle.dumps(store))
    assert not isinstance(copy["document_index"], np.ndarray)
    assert_read(copy, request_index)


def test_failed_commit_is_raised_at_the_next_read_and_reported(
    commits: Commits, request_index: BuildRequest
) -> None:
    reported: list[Exception] = []
    builds = Builds(Rank(), report=reported.append)
    received = start(builds, request_index)
    commits.error = StoreError("the disk is full")
    commits.event.set()
    with pytest.raises(StoreError, match="the disk is full"):
        builds.wait()
    with pytest.raises(StoreError, match="the disk is full"):
        received[-1]["sample_index"][0]
    assert list(map(str, reported)) == ["the disk is full"]
    assert find_index(request_index.store_plan) is None


def test_an_earlier_error_is_raised_immediately(
    commits: Commits, request_index: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise StoreError("no lengths")

    monkeypatch.setattr(index, "order_lengths", fail)
    with pytest.raises(StoreError, match="no lengths"):
        start(Builds(Rank()), request_index)


def test_indices_beyond_the_memory_are_awaited(
    commits: Commits, request_index: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_ROWS_IN_MEMORY", 1)
    commits.event.set()
    assert [type(each) for each in start(Builds(Rank()), request_index)] == [Store]
