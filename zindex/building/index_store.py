"""What builds of every kind of index have in common: where it goes, and its beginning and end."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.store.commit import StorePlan, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import Store, open_store
from zindex.store.shard_files import ShardResult


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build of one index did."""

    store: Store
    #: Shards that this build computed and wrote; the others were there already.
    num_written: int
    num_shards: int


def name_store(
    prefix: str,
    spec: Mapping[str, Any],
    layouts: tuple[ArrayLayout, ...],
    grid: ChunkGrid | None,
    folder: PlaceLike,
) -> StorePlan:
    """Return the store that an index goes to.

    Parameters
    ----------
    prefix
        What its name begins with; the fingerprint follows.
    spec
        Everything that decides the values.
    layouts, grid
        How it is cut.
    folder
        Directory of the index stores.
    """
    nameless = StorePlan(Path(), "index", dict(spec), layouts, grid)
    return nameless.at(place_of(folder) / f"{prefix}-{nameless.fingerprint[:32]}")


def task_key(root: Place, stage: str, number: int | None = None) -> str:
    """Return the key of a task of the build of a store; its first word is the kind of step."""
    suffix = "" if number is None else f"-{number}"
    return f"{stage}-{root.name[:28]}{suffix}"


def find_index(store_plan: StorePlan) -> Store | None:
    """Return the committed index of a plan, or None while it is not finished."""
    try:
        return open_store(store_plan.root, kind="index", expected=store_plan.fingerprint)
    except (NotReadyError, StoreNotFoundError):
        return None


def find_built(store_plan: StorePlan, advance: Callable[[int], None]) -> BuildResult | None:
    """Return the result of a build that finds its index committed, and report it as progress."""
    store = find_index(store_plan)
    if store is None:
        return None
    advance(store_plan.num_shards)
    return BuildResult(store, num_written=0, num_shards=store.num_shards)


async def commit_index(
    store_plan: StorePlan, results: Sequence[ShardResult], facts: Mapping[str, Any]
) -> BuildResult:
    """Commit an index whose shards are all written, and return it.

    Parameters
    ----------
    store_plan
        The store.
    results
        What became of each shard.
    facts
        What the store's attributes tell of it.
    """
    receipts = [result.receipt for result in results]
    await asyncio.to_thread(commit_store, store_plan, receipts, dict(facts))
    return BuildResult(
        open_store(store_plan.root, kind="index", expected=store_plan.fingerprint),
        num_written=sum(result.written for result in results),
        num_shards=store_plan.num_shards,
    )
