"""Configurations of small runs."""

from pathlib import Path
from typing import Any

from zindex.config import DatasetConfig, RunConfig
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds, request_build
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store

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


def ensure_index(plan: Any, source: Any, folder: str, rank: Rank | None = None) -> Store:
    """Return the committed index of a plan, built or waited for."""
    return ensure_store(request_build(plan, folder, source), rank)


def ensure_store(request: BuildRequest, rank: Rank | None = None) -> Store:
    """Return a committed store, built or waited for."""
    found: list[Store] = []
    with Builds(rank or Rank()) as builds:
        builds.add(request, found.append)
        builds.finish()
    return found[0]
