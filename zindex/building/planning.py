"""What a run needs built: the index of every dataset and split, and the blend of every split.

A blend whose size and weights the configuration names is known before any dataset is opened; the
others follow from the datasets' tokens.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zindex import schema
from zindex.building.blend import blend_store_plan
from zindex.building.index import index_store_plan
from zindex.building.opening import open_here
from zindex.building.packing import packing_store_plan
from zindex.building.source import LengthSource
from zindex.config import RunConfig
from zindex.errors import PlanError, StoreNotFoundError
from zindex.plan.blend_plan import BlendPlan, PermutationPlan
from zindex.plan.blend_sizes import BlendSizes, resolve_blend
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.plan.shard_length import choose_grid
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.commit import StorePlan, StoreStatus, read_status
from zindex.store.open import Store


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

    def store_plan(self, folder: str) -> StorePlan:
        """Return where the index goes."""
        return index_store_plan(self.plan, folder)


@dataclass(frozen=True, slots=True)
class PlannedPacking:
    """One packed index of a run."""

    dataset: str
    plan: PackingPlan
    source: LengthSource
    #: Samples asked for; None means one epoch.
    num_requested: int | None

    @property
    def name(self) -> str:
        """Dataset and split, for people."""
        return f"{os.path.basename(self.dataset.rstrip('/'))} {self.plan.split} packed"

    def store_plan(self, folder: str) -> StorePlan:
        """Return where the index goes; how large its arrays become is not known yet."""
        return packing_store_plan(self.plan, folder)


@dataclass(frozen=True, slots=True)
class PlannedBlend:
    """The blend of one split of a run."""

    #: Paths of the datasets that it draws from, in the order of their ids.
    datasets: tuple[str, ...]
    plan: BlendPlan
    sizes: BlendSizes

    @property
    def split(self) -> str:
        """The split."""
        return self.plan.split

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"blend {self.split}"

    def store_plan(self, folder: str) -> StorePlan:
        """Return where the blend goes."""
        return blend_store_plan(self.plan, folder)


#: Anything that a run needs built.
PlannedStore = PlannedIndex | PlannedPacking | PlannedBlend


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a run needs built."""

    #: In the order of the datasets.
    indices: tuple[PlannedIndex, ...]
    #: In the order of the splits.
    blends: tuple[PlannedBlend, ...]
    #: In the order of the datasets; in the place of indices in a run that packs documents.
    packings: tuple[PlannedPacking, ...] = ()

    @property
    def members(self) -> tuple[PlannedIndex | PlannedPacking, ...]:
        """Indices of either kind."""
        return (*self.indices, *self.packings)

    def __iter__(self) -> Iterator["PlannedStore"]:
        return iter((*self.members, *self.blends))


def plan_run(
    config: RunConfig,
    *,
    require_bin: bool = True,
    sources: Sequence[LengthSource] | None = None,
) -> RunPlan:
    """Return every index and every blend that a run needs.

    Without blends, splits that hold no documents are left out unless samples are asked of them.

    Parameters
    ----------
    config
        The run.
    require_bin
        Whether pairs must have their ``.bin``.
    sources
        The members of the run, where they are open already.

    Raises
    ------
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.
    PlanError
        If samples are asked of a split without tokens, or more than may be drawn of a dataset.
    """
    if sources is None:
        sources = open_here([dataset.path for dataset in config.members], require_bin=require_bin)
    spans = {
        split: [split_range(source.facts.num_sequences, bookends) for source in sources]
        for split, bookends in zip(SPLIT_NAMES, config.split_matrix, strict=True)
    }
    tokens = {
        split: [source.count_tokens(*span) for source, span in zip(sources, rows, strict=True)]
        for split, rows in spans.items()
    }
    blends = _plan_blends(config, tokens)
    requested = {
        blend.split: dict(zip(blend.sizes.members, blend.sizes.requested, strict=True))
        for blend in blends
    }
    indices, packings = [], []
    if config.packing is None:
        sizes = [source.facts.num_sequences for source in sources]
        config = replace(config, grid=choose_grid(config.grid, sizes))
    for row, (dataset, source) in enumerate(zip(config.members, sources, strict=True)):
        for split in SPLIT_NAMES:
            if config.blend_kind is None:
                num_requested = config.samples_of(dataset, split)
            else:
                # A dataset that a blend does not draw from needs no index: 0 samples.
                num_requested = requested.get(split, {}).get(row, 0)
            wanted = (config, dataset.path, source, split, spans[split][row], num_requested)
            if config.packing is not None:
                packing = plan_packing(*wanted)
                packings += [] if packing is None else [packing]
            else:
                item = plan_split(*wanted)
                indices += [] if item is None else [item]
    return RunPlan(tuple(indices), blends, tuple(packings))


def known_blends(config: RunConfig) -> tuple[PlannedBlend, ...]:
    """Return the blends that the configuration decides by itself."""
    return _plan_blends(config, None)


def known_permutations(config: RunConfig) -> tuple[PermutationPlan, ...]:
    """Return the permutations of blends whose size is known, though not yet what they hold."""
    if config.blend_kind is None or config.order != "scalable" or config.store != "all":
        return ()
    known = {blend.split for blend in known_blends(config)}
    return tuple(
        PermutationPlan(num_samples, config.seed, split, config.shuffle, config.grid)
        for split, num_samples in config.samples.items()
        if num_samples and split not in known
    )


def _plan_blends(
    config: RunConfig, tokens: dict[str, list[int]] | None
) -> tuple[PlannedBlend, ...]:
    """Return the blends of a run, or without tokens those that need none."""
    request = config.blend_request
    if request is None:
        return ()
    blends = []
    for split in SPLIT_NAMES:
        sizes = resolve_blend(request, split, tokens)
        if sizes is None or not sizes.members:
            continue
        settings: dict[str, Any] = {
            "split": split,
            "order": config.order,
            "seed": config.seed,
            "shuffle": config.shuffle,
            "stored": config.store,
            "grid": config.grid,
        }
        if sizes.weights is not None:
            plan = BlendPlan.weighted(sizes.weights, sizes.num_samples, **settings)
        else:
            assert sizes.sizes is not None
            plan = BlendPlan.exhaustive(sizes.sizes, **settings)
        datasets = tuple(request.datasets[row] for row in sizes.members)
        blends.append(PlannedBlend(datasets, plan, sizes))
    return tuple(blends)


def plan_split(
    config: RunConfig,
    path: str,
    source: LengthSource,
    split: str,
    span: tuple[int, int],
    num_requested: int | None,
) -> PlannedIndex | None:
    """Return the plan of one dataset's split, or None if nothing is to be built.

    Parameters
    ----------
    config
        The run.
    path, source
        The dataset.
    split, span
        The split, and its documents, half-open.
    num_requested
        Samples wanted; None for one epoch.

    Raises
    ------
    PlanError
        If samples are asked of a split without tokens.
    """
    num_tokens = _count_wanted(config, path, source, split, span, num_requested)
    if not num_tokens:
        return None
    start, stop = span
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
    return PlannedIndex(path, plan, source, num_requested)


def plan_packing(
    config: RunConfig,
    path: str,
    source: LengthSource,
    split: str,
    span: tuple[int, int],
    num_requested: int | None,
) -> PlannedPacking | None:
    """Return the plan of one dataset's packed split; arguments and errors as of `plan_split`."""
    num_tokens = _count_wanted(config, path, source, split, span, num_requested)
    if not num_tokens:
        return None
    assert config.packing is not None
    plan = PackingPlan(
        source=source.facts,
        split=split,
        start=span[0],
        stop=span[1],
        tokens_per_epoch=num_tokens,
        sequence_length=config.sequence_length,
        extra_token=int(config.add_extra_token_to_sequence),
        seed=config.seed,
        num_requested=num_requested,
        rules=config.packing,
        stored=config.store,
        grid=config.grid,
    )
    return PlannedPacking(path, plan, source, num_requested)


def _count_wanted(
    config: RunConfig,
    path: str,
    source: LengthSource,
    split: str,
    span: tuple[int, int],
    num_requested: int | None,
) -> int:
    """Return the tokens of a split, or 0 if nothing is to be built; see `plan_split`."""
    start, stop = span
    num_tokens = source.count_tokens(start, stop)
    if num_requested == 0 or (not num_tokens and num_requested is None):
        return 0
    if not num_tokens:
        raise PlanError(
            f"{split} of {path} must hold tokens to give {num_requested} samples, split "
            f"{config.split!r} gives it documents [{start}, {stop}) of "
            f"{source.facts.num_sequences}; give it a larger share or set its samples to 0"
        )
    return num_tokens


def build_status(item: PlannedStore, folder: str) -> StoreStatus:
    """Return how far an index or a blend has come."""
    store_plan = item.store_plan(folder)
    try:
        return read_status(store_plan.root)
    except StoreNotFoundError:
        return StoreStatus(num_done=0, num_shards=store_plan.num_shards, committed=False)


def check_members(store: Store, names: Sequence[str], lengths: Sequence[int], split: str) -> None:
    """Check that each member of a committed blend has the samples that are drawn of it.

    Parameters
    ----------
    store
        The blend.
    names, lengths
        Of each member: what to call it, and its samples.
    split
        The split, for the message.

    Raises
    ------
    PlanError
        If a member has too few.
    """
    counts = store[schema.DATASET_COUNT.name][:]
    short = np.flatnonzero(counts > np.asarray(lengths, np.int64))
    if short.size:
        first = int(short[0])
        raise PlanError(
            f"the {split} blend draws {int(counts[first]):,} samples of {names[first]}, which has "
            f"{lengths[first]:,}; raise the surplus or lower its weight"
        )
