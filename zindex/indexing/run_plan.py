"""The plan of a run: the index of every dataset and split, and the blend of every split.

A blend with configured size and weights is known before any dataset is opened; others depend on the
datasets' tokens.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from zindex import schema
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import ConfigError, PlanError
from zindex.indexing.open_sources import open_here, read_notes
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import is_remote
from zindex.plan.blend_plan import BlendPlan, PermutationPlan
from zindex.plan.blend_sizes import BlendSizes, resolve_blend
from zindex.plan.build_plan import MAX_SHARD_LENGTH, SplitPlan, choose_grid
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.journal import BlendFacts
from zindex.plan.packing import PackingPlan
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.open import Store
from zindex.text.kept_tokenizer import check_blend

P = TypeVar("P", bound=SplitPlan)

#: Name of the blend among those of datasets.
BLEND_LABEL = "blend"

#: Dataset and split; None instead of a dataset for the blend.
ResultKey = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class PlannedIndex(Generic[P]):
    """One index of a run, packed or not."""

    dataset: str
    plan: P
    source: LengthSource
    #: Samples requested; None means one epoch.
    num_requested: int | None

    @property
    def key(self) -> ResultKey:
        """Dataset and split."""
        return self.dataset, self.plan.split

    def name(self, labels: Mapping[str, str]) -> str:
        """Return the short name of the dataset, and the split, for messages."""
        suffix = " packed" if isinstance(self.plan, PackingPlan) else ""
        return f"{labels[self.dataset]} {self.plan.split}{suffix}"


@dataclass(frozen=True, slots=True)
class PlannedBlend:
    """The blend of one split of a run."""

    #: Paths of the datasets that it draws from, in order of their ids.
    datasets: tuple[str, ...]
    plan: BlendPlan
    sizes: BlendSizes

    @property
    def split(self) -> str:
        """The split."""
        return self.plan.split

    @property
    def key(self) -> ResultKey:
        """No dataset, and the split."""
        return None, self.split

    def name(self, labels: Mapping[str, str]) -> str:
        """Return the name of the blend, for messages."""
        return f"{BLEND_LABEL} {self.split}"


#: Any store of a run.
PlannedStore = PlannedIndex[Any] | PlannedBlend


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All stores of a run."""

    #: Indices of either kind, in the order of the datasets.
    members: tuple[PlannedIndex[Any], ...]
    #: In the order of the splits.
    blends: tuple[PlannedBlend, ...]

    @property
    def indices(self) -> tuple[PlannedIndex[IndexPlan], ...]:
        """Indices of a run that takes samples from a token stream."""
        return tuple(item for item in self.members if isinstance(item.plan, IndexPlan))

    @property
    def packings(self) -> tuple[PlannedIndex[PackingPlan], ...]:
        """Indices of a run with packed documents."""
        return tuple(item for item in self.members if isinstance(item.plan, PackingPlan))

    def __iter__(self) -> Iterator["PlannedStore"]:
        return iter((*self.members, *self.blends))


def label_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the last component of each path, numbered if ambiguous or equal to the blend's name.

    Examples
    --------
    >>> label_paths(["data/web.zarr", "more/web", "code"])
    {'data/web.zarr': 'web', 'more/web': 'web-2', 'code': 'code'}
    """
    labels = dict[str, str]()
    taken = {BLEND_LABEL}
    for path in paths:
        name = os.path.basename(_without_suffix(path))
        label, number = name, 1
        while label in taken:
            number += 1
            label = f"{name}-{number}"
        taken.add(label)
        labels[path] = label
    return labels


def _without_suffix(path: str) -> str:
    return path.rstrip("/").removesuffix(".zarr")


def find_dataset(paths: Sequence[str], name: str | int) -> int:
    """Return the number of a dataset of a run.

    Parameters
    ----------
    paths
        Paths of the datasets of the run.
    name
        The short name of one (see `label_paths`), its path or the end of it, or its number. The end
        must be of one path only.

    Raises
    ------
    ConfigError
        If no dataset has the name.

    Examples
    --------
    >>> paths = ["/data/web.zarr", "more/web", "code"]
    >>> [find_dataset(paths, name) for name in ("web", "web-2", "more/web", "data/web.zarr", 2)]
    [0, 1, 1, 0, 2]
    """
    labels = label_paths(paths)
    text = str(name)
    for number, (path, label) in enumerate(labels.items()):
        is_local = not (is_remote(path) or is_remote(text))
        if text in (path, label) or (is_local and os.path.abspath(path) == os.path.abspath(text)):
            return number
    end = f"/{_without_suffix(text)}"
    found = [n for n, path in enumerate(paths) if f"/{_without_suffix(path)}".endswith(end)]
    if len(found) == 1:
        return found[0]
    if text.isdecimal() and int(text) < len(paths):
        return int(text)
    listed = ", ".join(list(labels.values())[:8])
    more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
    raise ConfigError(
        f"a dataset must be one of the run, got {name!r}; it has {listed}{more}; give one of "
        "these, or a path"
    )


def plan_run(
    config: RunConfig, *, require_bin: bool = True, sources: Sequence[LengthSource] | None = None
) -> RunPlan:
    """Return every index and every blend of a run.

    Without blends, splits without documents are omitted unless samples are requested.

    Parameters
    ----------
    config
        The run.
    require_bin
        Whether the ``.bin`` of pairs must exist.
    sources
        The opened members of the run, if already open.

    Raises
    ------
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.
    ConfigError
        If blended datasets have different tokenizers.
    PlanError
        If samples are requested of a split without tokens, or too many of a dataset.
    """
    if sources is None:
        sources = open_here([dataset.path for dataset in config.members], require_bin=require_bin)
    if config.blend_kind is not None:
        check_blend(read_notes(sources))
    spans = [split_spans(config, source) for source in sources]
    tokens = {
        split: [
            source.count_tokens(*own[split]) for source, own in zip(sources, spans, strict=True)
        ]
        for split in SPLIT_NAMES
    }
    blends = _plan_blends(config, tokens)
    requested = {
        blend.split: dict(zip(blend.sizes.members, blend.sizes.requested, strict=True))
        for blend in blends
    }
    if config.packing is None:
        sizes = [source.facts.num_sequences for source in sources]
        config = replace(config, grid=choose_grid(config.grid, sizes))
    members = []
    for row, (dataset, source) in enumerate(zip(config.members, sources, strict=True)):
        if config.blend_kind is None:
            members += plan_dataset(config, dataset, source)
            continue
        for split in SPLIT_NAMES:
            # A dataset that a blend does not draw from needs no index: 0 samples.
            num_requested = requested.get(split, {}).get(row, 0)
            item = plan_split(config, dataset.path, source, split, spans[row][split], num_requested)
            members += [] if item is None else [item]
    return RunPlan(tuple(members), blends)


def split_spans(config: RunConfig, source: LengthSource) -> dict[str, tuple[int, int]]:
    """Return the documents of each split of a dataset, half-open."""
    splits = zip(SPLIT_NAMES, config.split_matrix, strict=True)
    num_documents = source.facts.num_sequences
    return {split: split_range(num_documents, bookends) for split, bookends in splits}


def plan_dataset(
    config: RunConfig, dataset: DatasetConfig, source: LengthSource
) -> list[PlannedIndex[Any]]:
    """Return the indices of one dataset of a run without a blend."""
    spans = split_spans(config, source).items()
    items = [
        plan_split(config, dataset.path, source, split, span, config.samples_of(dataset, split))
        for split, span in spans
    ]
    return [item for item in items if item is not None]


def are_independent(config: RunConfig) -> bool:
    """Return whether the indices of each dataset of a run do not depend on the other datasets."""
    sizes = [MAX_SHARD_LENGTH] * len(config.members)
    has_grid = config.packing is not None or choose_grid(config.grid, sizes) == config.grid
    return config.blend_kind is None and has_grid


def known_blends(config: RunConfig) -> tuple[PlannedBlend, ...]:
    """Return the blends that depend on the configuration only."""
    return _plan_blends(config, None)


def known_permutations(config: RunConfig) -> tuple[PermutationPlan, ...]:
    """Return the permutations of blends whose size is configured but whose counts are not."""
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
    """Return the blends of a run; without tokens, only those that do not depend on them."""
    request = config.blend_request
    if request is None:
        return ()
    blends = []
    for split in SPLIT_NAMES:
        sizes = resolve_blend(request, split, tokens)
        if sizes is None or not sizes.members:
            continue
        datasets = tuple(request.datasets[row] for row in sizes.members)
        plan = plan_blend(config, split, sizes, config.seed)
        blends.append(PlannedBlend(datasets, plan, sizes))
    return tuple(blends)


def plan_blend(
    config: RunConfig, split: str, shares: BlendSizes | BlendFacts, seed: int
) -> BlendPlan:
    """Return the plan of a blend of a run, with given shares."""
    settings: dict[str, Any] = {"split": split, "seed": seed, "order": config.order}
    settings |= {"shuffle": config.shuffle, "stored": config.store, "grid": config.grid}
    if shares.sizes is not None:
        return BlendPlan.exhaustive(shares.sizes, **settings)
    assert shares.weights is not None
    return BlendPlan.weighted(shares.weights, shares.num_samples, **settings)


def plan_split(
    config: RunConfig,
    path: str,
    source: LengthSource,
    split: str,
    span: tuple[int, int],
    num_requested: int | None,
) -> PlannedIndex[Any] | None:
    """Return the plan of one dataset's split, packed or not, or None if nothing is needed.

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
        If samples are requested of a split without tokens.
    """
    start, stop = span
    num_tokens = source.count_tokens(start, stop)
    if num_requested == 0 or (not num_tokens and num_requested is None):
        return None
    if not num_tokens:
        raise PlanError(
            f"{split} of {path} must hold tokens to give {num_requested} samples, split "
            f"{config.split!r} gives it documents [{start}, {stop}) of "
            f"{source.facts.num_sequences}; give it a larger share or set its samples to 0"
        )
    samples = {
        "sequence_length": config.sequence_length,
        "extra_token": int(config.add_extra_token_to_sequence),
    }
    settings: dict[str, Any] = {"source": source.facts, "start": start, "stop": stop, **samples}
    settings |= {"split": split, "seed": config.seed, "stored": config.store, "grid": config.grid}
    plan: IndexPlan | PackingPlan
    if config.packing is not None:
        plan = PackingPlan(
            tokens_per_epoch=num_tokens,
            num_requested=num_requested,
            rules=config.packing,
            **settings,
        )
    else:
        drop_last = config.drop_last(split)
        epochs = plan_epochs(num_tokens, num_requested, drop_last=drop_last, **samples)
        plan = IndexPlan(epochs=epochs, drop_last=drop_last, order=config.order, **settings)
    return PlannedIndex(path, plan, source, num_requested)


def check_members(store: Store, names: Sequence[str], lengths: Sequence[int], split: str) -> None:
    """Check that each member of a committed blend has the samples that the blend draws.

    Parameters
    ----------
    store
        The blend.
    names, lengths
        Name and number of samples of each member.
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
