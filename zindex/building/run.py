"""A whole run: every index of every dataset and split of a configuration."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zindex.building.executor import open_executor, run_builds
from zindex.building.index import BuildResult, build_index, find_index, index_store_plan
from zindex.building.progress import Progress, open_progress
from zindex.building.source import LengthSource, open_source
from zindex.config import DatasetConfig, RunConfig, as_config
from zindex.errors import PlanError, StoreNotFoundError
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.commit import StoreStatus, read_status


@dataclass(frozen=True, slots=True)
class PlannedIndex:
    """One index of a run."""

    dataset: str
    plan: IndexPlan
    source: LengthSource
    #: Samples asked for; None means one epoch.
    num_requested: int | None

    @property
    def name(self) -> str:
        """Dataset and split, for people."""
        return f"{os.path.basename(self.dataset.rstrip('/'))} {self.plan.split}"


def plan_run(config: RunConfig, *, require_bin: bool = True) -> list[PlannedIndex]:
    """Return every index that a run needs, in the order of its datasets.

    Splits that hold no documents are left out unless samples are asked of them.

    Raises
    ------
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.
    PlanError
        If samples are asked of a split without tokens.
    """
    planned = []
    for dataset in config.datasets:
        source = open_source(dataset.path, require_bin=require_bin)
        for split, bookends in zip(SPLIT_NAMES, config.split_matrix, strict=True):
            item = _plan_split(config, dataset, source, split, bookends)
            if item is not None:
                planned.append(item)
    return planned


def _plan_split(
    config: RunConfig,
    dataset: DatasetConfig,
    source: LengthSource,
    split: str,
    bookends: tuple[float, float] | None,
) -> PlannedIndex | None:
    """Return the plan of one dataset's split, or None if nothing is to be built."""
    num_requested = config.samples_of(dataset, split)
    start, stop = split_range(source.facts.num_sequences, bookends)
    num_tokens = source.count_tokens(start, stop)
    if num_requested == 0 or (not num_tokens and num_requested is None):
        return None
    if not num_tokens:
        raise PlanError(
            f"{split} of {dataset.path} must hold tokens to give {num_requested} samples, split "
            f"{config.split!r} gives it documents [{start}, {stop}) of "
            f"{source.facts.num_sequences}; give it a larger share or set its samples to 0"
        )
    extra_token = int(config.add_extra_token_to_sequence)
    epochs = plan_epochs(
        num_tokens,
        num_requested,
        sequence_length=config.sequence_length,
        extra_token=extra_token,
        drop_last=config.drop_last(split),
    )
    plan = IndexPlan(
        source=source.facts,
        split=split,
        start=start,
        stop=stop,
        epochs=epochs,
        sequence_length=config.sequence_length,
        extra_token=extra_token,
        seed=config.seed,
        drop_last=config.drop_last(split),
        order=config.order,
        stored=config.store,
        grid=config.grid,
    )
    return PlannedIndex(dataset.path, plan, source, num_requested)


def index_status(item: PlannedIndex, folder: str) -> StoreStatus:
    """Return how far the index of a plan has come."""
    store_plan = index_store_plan(item.plan, folder)
    try:
        return read_status(store_plan.root)
    except StoreNotFoundError:
        return StoreStatus(num_done=0, num_shards=store_plan.num_shards, committed=False)


def build(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    client: Any = None,
    *,
    progress: bool = False,
) -> dict[tuple[str, str], BuildResult]:
    """Build every index of a run; what is finished already is kept.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    client
        A ``distributed.Client`` or a scheduler's address. With None the process's current client
        is used; without one a cluster of this machine's cores starts inside this process and ends
        with the build.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    results
        For each dataset path and split, the opened index and what was done for it.

    Raises
    ------
    ZindexError
        If an input is missing, damaged or too small, or the disk is full; what was finished stays.

    Notes
    -----
    Law: the result does not depend on chunks, workers, threads or interruptions.
    """
    config = as_config(config)
    planned = plan_run(config)
    with open_progress(progress) as shown:
        return _build_planned(planned, config.index, client, shown)


def _build_planned(
    planned: list[PlannedIndex], folder: str, client: Any, progress: Progress
) -> dict[tuple[str, str], BuildResult]:
    """Build planned indices side by side; a cluster is started only if something is missing."""
    finished: dict[tuple[str, str], BuildResult] = {}
    missing = []
    for item in planned:
        store = find_index(index_store_plan(item.plan, folder))
        if store is None:
            missing.append(item)
        else:
            finished[item.dataset, item.plan.split] = BuildResult(store, 0, store.num_shards)
    if missing:
        with open_executor(client) as executor:

            async def main() -> None:
                async with asyncio.TaskGroup() as group:
                    for item in missing:
                        group.create_task(one(item))

            async def one(item: PlannedIndex) -> None:
                num_shards = index_store_plan(item.plan, folder).num_shards
                with progress.step(item.name, num_shards) as advance:
                    finished[item.dataset, item.plan.split] = await build_index(
                        item.plan, item.source, folder, executor, advance
                    )

            run_builds(main())
    return {
        (item.dataset, item.plan.split): finished[item.dataset, item.plan.split] for item in planned
    }
