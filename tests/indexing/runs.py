"""Configurations of small runs."""

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteCorpus
from tests.killing import Killed, death_before
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import NotReadyError
from zindex.execution.executor import Executor, SerialExecutor, run_builds
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds, build_store
from zindex.io import local
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store

LENGTHS = [5, 7, 3, 9, 6, 8, 4, 10, 2, 6]  # 60 tokens
GRID = ChunkGrid(2, 4)


def make_config(tmp_path: Path, *datasets: Any, **settings: Any) -> RunConfig:
    values: dict[str, Any] = {
        "datasets": tuple(
            item if isinstance(item, DatasetConfig) else DatasetConfig(item) for item in datasets
        ),
        "sequence_length": 4,
        "split": "60,30,10",
        "index": str(tmp_path / "index"),
        "grid": GRID,
    }
    return RunConfig(**(values | settings))


def make_run(tmp_path: Path, write_corpus: WriteCorpus, **settings: Any) -> RunConfig:
    """Return a blend of two corpora, web and code."""
    members = (
        DatasetConfig(write_corpus(LENGTHS, name="web"), weight=3.0),
        DatasetConfig(write_corpus(LENGTHS * 2, name="code"), weight=1.0),
    )
    samples = {"train": 40, "valid": 10, "test": 0}
    return make_config(tmp_path, *members, **{"samples": samples, "split": "60,40,0"} | settings)


def ensure_index(plan: Any, source: Any, folder: str, rank: Rank | None = None) -> Store:
    """Return the committed index of a plan, built or waited for."""
    return ensure_store(BuildRequest(plan, folder, source), rank)


def ensure_store(request: BuildRequest, rank: Rank | None = None) -> Store:
    """Return a committed store, built or waited for."""
    found: list[Store] = []
    with Builds(rank or Rank()) as builds:
        builds.add(request, found.append)
        builds.finish()
    return found[0]


class ElsewhereExecutor(SerialExecutor):
    """Runs tasks as a worker does that was started in another directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.keys: list[str] = []

    async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
        self.keys.append(key)
        function, args = pickle.loads(pickle.dumps((function, args)))
        with contextlib.chdir(self.folder):
            return pickle.loads(pickle.dumps(function(*args)))


@dataclass(frozen=True, eq=False)
class OwnBuild(BuildRequest):
    """A request that is built in a test's own way."""

    how: Callable[[Executor], Any] | None = None

    async def build(self, executor: Executor) -> Any:
        """Build as the test does."""
        assert self.how is not None
        return await self.how(executor)


def with_build(request: BuildRequest, how: Callable[[Executor], Any]) -> BuildRequest:
    """Return the request with another build."""
    return OwnBuild(request.plan, request.folder, request.source, how=how)


def cut_before_every_write(
    plan: Any,
    source: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Store], None],
) -> int:
    """Build, cut at the k-th write for every k, and resume; return the number of writes.

    A cut build is not ready, and the resumed one writes no finished shard again.
    """
    monkeypatch.setattr("zindex.store.shard_files._NUM_WRITERS", 1)
    for num_writes in count():
        place = folder / f"cut-{num_writes}"
        try:
            with death_before(num_writes, (local, "write_once")):
                run_builds(build_store(plan, source, place, SerialExecutor()))
        except (Killed, BaseExceptionGroup):
            num_done = 0
            if num_writes:
                with pytest.raises(NotReadyError, match="is not built yet") as caught:
                    open_store(plan.store_plan(place).root)
                num_done = caught.value.num_done
        else:
            break
        resumed = run_builds(build_store(plan, source, place, SerialExecutor()))
        assert resumed.num_written == resumed.num_shards - num_done
        check(resumed.store)
    return num_writes
