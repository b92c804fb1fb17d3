"""Build the datasets of all splits of a run, with their blends and indices."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from zindex.datasets.blend_requests import SplitRequest, check_sizes, request_splits
from zindex.datasets.blend_requests import (
    _get_size_per_split_per_dataset as _get_size_per_split_per_dataset,
)
from zindex.datasets.blended_dataset import BlendedDataset, plan_blend
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.megatron_dataset import LowLevelDataset, MegatronDataset
from zindex.datasets.rank_requests import describe_splits
from zindex.datasets.ranks import collect, open_builds, open_step
from zindex.datasets.sample_dataset import has_fewer, overrides
from zindex.datasets.utils import Split, log_single_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, PlanError, StoreError, ZindexError
from zindex.formats.megatron_cache import describe
from zindex.indexing.ensure import BuildRequest, Builds
from zindex.io.request_threads import map_in_threads
from zindex.io.system_errors import reason_of
from zindex.maintenance.megatron_caches import list_caches
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.split import Bookends, split_range
from zindex.samples.collectives import is_distributed
from zindex.samples.lengths import is_stored
from zindex.text.kept_tokenizer import check_stores

logger = logging.getLogger(__name__)

# Megatron Core's methods that make the members of the splits, the first of them by the second.
_MEMBER_STEPS = ("_build_megatron_datasets_parallel", "_build_megatron_dataset_splits")

MidLevelDataset: TypeAlias = MegatronDataset
TopLevelDataset: TypeAlias = BlendedDataset | MidLevelDataset
DistributedDataset: TypeAlias = TopLevelDataset | LowLevelDataset | torch.utils.data.Dataset[Any]

#: The result for a split: a dataset, several validation sets, or None.
SplitResult: TypeAlias = TopLevelDataset | list[Any] | None


class BlendedMegatronDatasetBuilder:
    """Build the datasets of train, valid and test that a configuration describes.

    Call ``build`` on every rank. All ranks derive the same plans, and therefore the same stores:
    rank 0 concurrently builds all missing indices of all members, splits and blends, and the other
    ranks poll for the commits. There is no barrier.

    Parameters
    ----------
    cls
        The class of the members, a ``MegatronDataset``.
    sizes
        Minimal number of samples of train, valid and test; None draws every sample once.
    is_built_on_rank
        Returns whether this rank needs the datasets. Other ranks get None instead and do not wait.
    config
        The configuration.

    Raises
    ------
    ConfigError
        If sizes and configuration do not match.
    """

    def __init__(
        self,
        cls: type[MidLevelDataset],
        sizes: Sequence[int | None],
        is_built_on_rank: Callable[[], bool],
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        self.cls = cls
        self.sizes = sizes
        self.is_built_on_rank = is_built_on_rank
        self.config = config
        self._sizes = check_sizes(sizes, config)
        log_single_rank(
            logger, logging.DEBUG, "%s splits of sizes %s from %s", cls.__name__, sizes, config
        )

    def build(self) -> list[SplitResult]:
        """Return the datasets of train, valid and test.

        With ``size`` its entry in ``sizes``, each split is

        - None, if it has no data or share, or this rank does not build;
        - the dataset itself, if it has one dataset (without weight, or with separate data):
          at least ``size`` samples, or one epoch;
        - a blend by weights of marginally more than ``size`` samples, which draws of each member
          in proportion to its weight; exactly ``size`` in the scalable order;
        - without weights, a blend by lengths of ``size`` samples, or of all of them;
        - a list of datasets, with several validation sets.

        Raises
        ------
        ConfigError
            If a weight is out of range, or ranks request different datasets.
        PlanError
            If a split is empty, or does not reach its size.
        ZindexError
            If data are missing or damaged, or another rank failed.
        """
        return self._build_blended_dataset_splits()

    def _build_blended_dataset_splits(self) -> list[SplitResult]:
        """Return the datasets of train, valid and test; `build` calls this."""
        with open_step() as step:
            requests = request_splits(self._sizes, self.config)
            if not _is_built_here(self.is_built_on_rank):
                step.leave()
                return [_nothing(request) for request in requests]
            if step.num_ranks > 1:
                step.agree(describe_splits(self.cls, requests, self.config))
            with _explain(self.cls, self.config), open_builds(self.config, step) as builds:
                self._begin_known_blends(requests, builds)
                kind: Any = type(self)
                if overrides(kind, BlendedMegatronDatasetBuilder, _MEMBER_STEPS):
                    with collect(builds):
                        members = self._make_members(requests)
                else:
                    members = self._open_members(requests, builds)
                with collect(builds):
                    datasets = [
                        None if request is None else self._assemble(request, part)
                        for request, part in zip(requests, members, strict=True)
                    ]
                builds.finish()
                self._check_lengths(requests, members)
            return datasets

    def _begin_known_blends(self, requests: Sequence[SplitRequest | None], builds: Builds) -> None:
        """Start building the blends that do not depend on datasets, before datasets are opened."""
        config = self.config
        if not config.path_to_cache or config.defer_npy_index_mmap:
            return
        for request in requests:
            if request is None or request.weights is None or not request.size:
                continue
            if request.size > config.max_computed_rows:
                plan = plan_blend(request.weights, request.size, request.split, config)
                if not self._has_cache(request, plan):
                    builds.add(BuildRequest(plan, config.path_to_cache), lambda store: None)

    def _has_cache(self, request: SplitRequest, plan: BlendPlan) -> bool:
        """Return whether there is a cache of Megatron Core's for a blend; it may not be sound."""
        folder, split, config = self.config.path_to_cache or "", request.split, self.config
        caches = list_caches(folder, f"{BlendedDataset.__name__}-{split.name}")
        if not caches or not issubclass(self.cls, MegatronDataset):
            return False
        members = [
            self.cls.identify(path, num_samples, split, config)
            for path, num_samples in zip(request.paths, request.num_samples, strict=True)
        ]
        weights = plan.weights.tolist()
        facts = BlendedDataset.identify(members, weights, request.size, split, config.order)
        digest = describe(facts)[1]
        return any(name.startswith(digest) for name in caches)

    def _open_members(
        self, requests: Sequence[SplitRequest | None], builds: Builds
    ) -> list[list[Any]]:
        """Return the members of each split, opened in threads, and request their indices."""
        members: list[list[Any]] = [
            [] if request is None else [None] * len(request.paths) for request in requests
        ]
        # By path and low-level dataset, which all splits of one blend share.
        by_path: dict[str | None, dict[Any, list[_Place]]] = {}
        is_shared = self.config.blend_per_split is None
        for row, request in enumerate(requests):
            if request is None:
                continue
            for member, path in enumerate(request.paths):
                key = member if is_shared else (row, member)
                places = by_path.setdefault(path, {}).setdefault(key, [])
                places.append(_Place(members[row], member, request))

        def open_path(path: str | None) -> None:
            with collect(builds):
                self._open_path(path, by_path[path].values())

        num_threads = min(self.config.num_dataset_builder_threads, len(by_path))
        map_in_threads(num_threads, open_path, by_path)
        self._check_tokenizer(members)
        return members

    def _make_members(self, requests: Sequence[SplitRequest | None]) -> list[list[Any]]:
        """Return the members of each split, made by the methods that a subclass overrides."""
        members: list[list[Any]] = [[] for _ in requests]
        is_shared = self.config.blend_per_split is None
        groups = [requests] if is_shared else [[request] for request in requests]
        for group in groups:
            wanted = [request for request in group if request is not None]
            if not wanted:
                continue
            split: list[Bookends] = [None] * len(Split)
            sizes: list[list[int | None]] = [[0] * len(Split) for _ in wanted[0].paths]
            for request in wanted:
                number = request.split.value
                split[number] = request.bookends
                for row, size in zip(sizes, request.num_samples, strict=True):
                    row[number] = size
            if wanted[0].kind == "blend":
                made = self._build_megatron_datasets_parallel(wanted[0].paths, split, sizes)
            else:
                rows = [
                    self._build_megatron_dataset_splits(path, split, row)
                    for path, row in zip(wanted[0].paths, sizes, strict=True)
                ]
                made = [list(column) for column in zip(*rows, strict=True)]
            for request in wanted:
                members[request.split.value] = made[request.split.value]
        self._check_tokenizer(members)
        return members

    def _build_megatron_datasets_parallel(
        self,
        prefixes: Sequence[str | None],
        split: Sequence[Bookends],
        sizes_per_dataset: Sequence[Sequence[int | None]],
    ) -> list[list[Any]]:
        """Return the members of blends, opened in threads; a subclass may override it.

        Parameters
        ----------
        prefixes
            Paths of the datasets.
        split
            Of each split the fractions of a dataset at which it starts and stops, or None.
        sizes_per_dataset
            Of each dataset the number of samples of each split, None for one epoch.

        Returns
        -------
        members
            For each split its dataset of each path, or None.
        """
        requests = copy_context()  # those that are collected

        def make(number: int) -> list[Any]:
            arguments = prefixes[number], split, sizes_per_dataset[number], False
            return requests.copy().run(self._build_megatron_dataset_splits, *arguments)

        num_threads = min(self.config.num_dataset_builder_threads, len(prefixes))
        rows = map_in_threads(num_threads, make, range(len(prefixes)))
        return [list(column) for column in zip(*rows, strict=True)]

    def _build_megatron_dataset_splits(
        self,
        dataset_path: str | None,
        split: Sequence[Bookends],
        sizes: Sequence[int | None],
        synchronize_ranks: bool = True,
    ) -> list[Any]:
        """Return the datasets of one path, one for each split; a subclass may override it.

        Parameters
        ----------
        dataset_path
            The path; None for mock data.
        split, sizes
            As a row of those of `_build_megatron_datasets_parallel`.
        synchronize_ranks
            As of `build_generic_dataset`.
        """
        if not _is_built_here(self.is_built_on_rank):
            return [None] * len(Split)
        low_level = self.cls.build_low_level_dataset(dataset_path, self.config)
        return [
            None
            if bookends is None
            else self._make_member(low_level, dataset_path, bookends, size, which)
            for which, bookends, size in zip(Split, split, sizes, strict=True)
        ]

    def _check_tokenizer(self, members: Iterable[Iterable[Any]]) -> None:
        """Check that the tokenizer matches the stores that keep theirs."""
        opened = {
            member.dataset_path: member.dataset
            for member in chain.from_iterable(members)
            if isinstance(member, MegatronDataset)
        }
        stores = {
            str(path): low_level.store.root
            for path, low_level in opened.items()
            if isinstance(low_level, ZarrIndexedDataset)
        }
        if stores:
            check_stores(self.config.tokenizer, stores)

    def _open_path(self, path: str | None, groups: Iterable[Sequence["_Place"]]) -> None:
        """Create the members over one path; a stored dataset is opened once for all of them."""
        low_level: Any = None
        for places in groups:
            if not is_stored(low_level):
                low_level = self.cls.build_low_level_dataset(path, self.config)
            for members, member, request in places:
                size = request.num_samples[member]
                members[member] = self._make_member(
                    low_level, path, request.bookends, size, request.split
                )

    def _make_member(
        self,
        low_level: Any,
        path: str | None,
        bookends: tuple[float, float],
        size: int | None,
        split: Split,
    ) -> Any:
        """Return the dataset of a split over a low-level dataset."""
        start, stop = split_range(self.cls.numel_low_level_dataset(low_level), bookends)
        return self.build_generic_dataset(
            self.cls,
            self.is_built_on_rank,
            True,
            low_level,
            path,
            self._indices(start, stop),
            size,
            split,
            self.config,
        )

    def _indices(self, start: int, stop: int) -> Any:
        """Return consecutive numbers: a range for classes of zindex, else an array."""
        if self.cls.__init__.__module__.startswith("zindex."):
            return range(start, stop)
        return np.arange(start, stop, dtype=np.int32 if stop <= 2**31 else np.int64)

    def _assemble(self, request: SplitRequest, members: list[Any]) -> SplitResult:
        """Return the dataset of a split over its members."""
        if request.kind != "blend":
            return members if request.kind == "many" else members[0]
        weights: list[Any] | None = request.weights
        size = request.size
        if weights is None:
            weights = [len(member) for member in members]
            total = sum(weights)
            if not total:
                raise PlanError(
                    f"the {request.split.name} blend must have samples, got none from all of its "
                    f"{len(members)} datasets, {request.paths[0]} first; give it a larger share"
                )
            if size is not None and size > total:
                text = (
                    f"the {request.split.name} blend has {total} samples instead of {size}: "
                    "without weights every sample is drawn at most once"
                )
                log_single_rank(logger, logging.WARNING, text)
            size = None if size is None else min(size, total)
        arguments = members, weights, size, self.config
        blend: SplitResult = self.build_generic_dataset(
            BlendedDataset, self.is_built_on_rank, True, *arguments
        )
        return blend

    def _check_lengths(
        self, requests: Sequence[SplitRequest | None], members: Sequence[Sequence[Any]]
    ) -> None:
        """Check that every member has as many samples as requested.

        As with Megatron Core, a deferred blend may have members without documents, which are an
        error when a sample is read.
        """
        for request, dataset in _pair(requests, members):
            if request.kind == "blend" and not len(getattr(dataset, "_indices", [0])):
                continue
            wanted = dataset.num_samples
            if wanted is not None and has_fewer(dataset, wanted):
                raise PlanError(
                    f"{dataset.index_split.name} of {dataset.dataset_path} must have at least "
                    f"{wanted:,} samples, its {type(dataset).__name__} has {len(dataset):,}; ask "
                    "for fewer, or let the class repeat its data"
                )

    @staticmethod
    def build_generic_dataset(
        cls: Callable[..., Any],
        is_built_on_rank: Callable[[], bool],
        synchronize_ranks: bool,
        *args: Any,
    ) -> Any:
        """Return ``cls(*args)``, or None if this rank does not build.

        `build` makes all datasets by this method, which a subclass may override.

        Parameters
        ----------
        cls
            A class of datasets, or a function that returns one.
        is_built_on_rank
            Returns whether this rank builds; called under ``torch.distributed`` only.
        synchronize_ranks
            Accepted for Megatron's callers, and ignored: ranks only wait for indices that they
            need.
        args
            Arguments of ``cls``.

        Raises
        ------
        StoreError
            If the file system refuses an operation, for example without permission.
        """
        if not _is_built_here(is_built_on_rank):
            return None
        with _explain(cls, next((a for a in args if hasattr(a, "path_to_cache")), None)):
            return cls(*args)


def _pair(
    requests: Sequence[SplitRequest | None], members: Sequence[Sequence[Any]]
) -> Iterator[tuple[SplitRequest, Any]]:
    """Yield each member with the request of its split."""
    for request, part in zip(requests, members, strict=True):
        if request is not None:
            yield from ((request, dataset) for dataset in part)


class _Place(NamedTuple):
    """A member of a split: the members of the split, its number among them, and the request."""

    members: list[Any]
    number: int
    request: SplitRequest


def _is_built_here(is_built_on_rank: Callable[[], bool]) -> bool:
    """Return whether this process builds: always outside ``torch.distributed``."""
    return not is_distributed() or bool(is_built_on_rank())


def _nothing(request: SplitRequest | None) -> SplitResult:
    """Return the result for a split on ranks that do not build."""
    if request is not None and request.kind == "many":
        return [None] * len(request.paths)
    return None


@contextmanager
def _explain(cls: Any, config: Any) -> Iterator[None]:
    """Explain errors of the file system, and of classes without mock data."""
    name = getattr(cls, "__name__", cls)
    try:
        yield
    except ZindexError:
        raise
    except OSError as error:
        folder = getattr(config, "path_to_cache", None)
        place = "next to the data" if folder is None else os.fspath(folder)
        raise StoreError(
            f"{name} must be able to read its data and to write its indices {place}, the file "
            f"system refuses {error.filename or 'it'}: {reason_of(error)}; set path_to_cache "
            "(--data-cache-path) to a directory that you may write"
        ) from error
    except Exception as error:
        if not getattr(config, "mock", False):
            raise
        raise ConfigError(
            f"without blend and blend_per_split data are made up, which {name} cannot do: "
            f"{type(error).__name__}: {error}; give it data, or take a class such as MockGPTDataset"
        ) from error
