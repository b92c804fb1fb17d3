"""The plan of a run: the index of every dataset and split, and the blend of every split.

A blend with configured size and weights is known before any dataset is opened; others depend on the
datasets' tokens. A ``.idx`` file is read completely before it is trusted: tens of gigabytes for
trillions of tokens, which all nodes together read faster than one.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from zindex import schema
from zindex.config import RunConfig
from zindex.errors import PlanError
from zindex.execution.executor import Executor, run_together
from zindex.indexing.task_size import batch_items, choose_task_seconds
from zindex.ingest.length_source import LengthSource, open_source
from zindex.io.objects import is_remote
from zindex.io.request_threads import map_in_threads
from zindex.plan.blend_plan import BlendPlan, PermutationPlan
from zindex.plan.blend_sizes import BlendSizes, resolve_blend
from zindex.plan.build_plan import SplitPlan, choose_grid
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.journal import BlendFacts
from zindex.plan.packing import PackingPlan
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.open import Store
from zindex.store.tokenizer_note import TokenizerNote
from zindex.text.kept_tokenizer import check_blend

P = TypeVar("P", bound=SplitPlan)

#: Bytes of ``.idx`` files that one process checks itself, in about a tenth of a second.
FEW_NBYTES = 1 << 28
#: Maximum bytes and files per task; more bytes if there are more threads than tasks pay for.
TASK_NBYTES, TASK_FILES = 1 << 28, 64
# Bytes that a thread checks per second.
_CHECK_BANDWIDTH = 2e9
# Threads that open datasets, which mostly wait for the file system.
_NUM_OPENERS = 8
# Priority over permutations computed ahead, because all other tasks need the datasets.
_FIRST = 3


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

    @property
    def name(self) -> str:
        """Dataset and split, for messages."""
        suffix = " packed" if isinstance(self.plan, PackingPlan) else ""
        return f"{os.path.basename(self.dataset.rstrip('/'))} {self.plan.split}{suffix}"


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

    @property
    def name(self) -> str:
        """Name of the blend, for messages."""
        return f"blend {self.split}"


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
        name = os.path.basename(path.rstrip("/")).removesuffix(".zarr")
        label, number = name, 1
        while label in taken:
            number += 1
            label = f"{name}-{number}"
        taken.add(label)
        labels[path] = label
    return labels


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
    if config.packing is None:
        sizes = [source.facts.num_sequences for source in sources]
        config = replace(config, grid=choose_grid(config.grid, sizes))
    members = []
    for row, (dataset, source) in enumerate(zip(config.members, sources, strict=True)):
        for split in SPLIT_NAMES:
            if config.blend_kind is None:
                num_requested = config.samples_of(dataset, split)
            else:
                # A dataset that a blend does not draw from needs no index: 0 samples.
                num_requested = requested.get(split, {}).get(row, 0)
            span = spans[split][row]
            item = plan_split(config, dataset.path, source, split, span, num_requested)
            members += [] if item is None else [item]
    return RunPlan(tuple(members), blends)


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


def open_here(paths: Sequence[str], *, require_bin: bool = True) -> list[LengthSource]:
    """Return the opened datasets, several opened at a time; raises as `open_source` does."""
    num_threads = min(_NUM_OPENERS, len(paths))
    return map_in_threads(num_threads, partial(open_source, require_bin=require_bin), paths)


def read_notes(sources: Sequence[LengthSource]) -> dict[str, TokenizerNote | None]:
    """Return the description of each dataset's tokenizer, by path."""
    num_threads = min(_NUM_OPENERS, len(sources))
    notes = map_in_threads(num_threads, LengthSource.read_note, sources)
    return {source.path: note for source, note in zip(sources, notes, strict=True)}


def has_much_to_check(paths: Iterable[str]) -> bool:
    """Return whether the ``.idx`` files of datasets are large enough to check them in tasks."""
    return sum(map(_idx_nbytes, paths)) > FEW_NBYTES


async def open_by_tasks(paths: Sequence[str], executor: Executor) -> list[LengthSource]:
    """Return the opened datasets, their ``.idx`` files checked by tasks, small ones in batches.

    Parameters
    ----------
    paths
        Paths of stores, and of pairs without their suffix.
    executor
        Where the tasks run; its workers must see the same files.

    Raises
    ------
    StoreNotFoundError, SourceError
        As `open_source` does.
    """
    pairs = [path for path in paths if _idx_nbytes(path)]

    async def one(rows: range) -> list[LengthSource]:
        # Workers may have another working directory.
        absolute = [os.path.abspath(pairs[row]) for row in rows]
        key = f"check-{rows.start}"
        found = await executor.run(open_pairs, absolute, key=key, priority=_FIRST)
        return [replace(source, path=pairs[row]) for source, row in zip(found, rows, strict=True)]

    sizes = [_idx_nbytes(path) for path in pairs]
    room = check_nbytes(sum(sizes), executor.num_threads, executor.overhead)
    batches = batch_items(sizes, TASK_FILES, room)
    opened = chain.from_iterable(await run_together(map(one, batches)))
    by_path = dict(zip(pairs, opened, strict=True))
    others = [path for path in paths if path not in by_path]
    by_path |= zip(others, open_here(others), strict=True)
    return [by_path[path] for path in paths]


def check_nbytes(nbytes: int, num_threads: int, overhead: float) -> float:
    """Return the maximum bytes of ``.idx`` files per task, of so many in total."""
    seconds = choose_task_seconds(nbytes / _CHECK_BANDWIDTH, num_threads, overhead)
    return max(TASK_NBYTES, seconds * _CHECK_BANDWIDTH)


def open_pairs(paths: Sequence[str]) -> list[LengthSource]:
    """Task: open pairs."""
    return [open_source(path) for path in paths]


def _idx_nbytes(path: str) -> int:
    """Return the size of a pair's ``.idx`` file; 0 if there is none."""
    if is_remote(path):
        return 0
    try:
        return Path(f"{path}.idx").stat().st_size
    except OSError:
        return 0
