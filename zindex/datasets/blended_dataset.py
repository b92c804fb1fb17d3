"""Blends: samples of several datasets in one order, each dataset by its weight.

``zindex.indexing`` builds the index of a blend.
"""

import logging
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.datasets.blend_requests import positive_weights
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.cache_paths import CachePath
from zindex.datasets.megatron_dataset import Identified, MegatronDataset
from zindex.datasets.sample_dataset import (
    IndexArray,
    IndexedSampleDataset,
    as_given,
    has_fewer,
    overrides,
)
from zindex.datasets.utils import Split, log_single_rank
from zindex.errors import ConfigError, PlanError
from zindex.formats.megatron_cache import BLEND_ARRAYS
from zindex.indexing import blend_arrays
from zindex.indexing.ensure import BuildRequest
from zindex.indexing.store_computed import is_worth_opening, store_computed
from zindex.maintenance.cache_checks import check_blend
from zindex.maintenance.megatron_caches import MegatronCache, list_caches
from zindex.plan.blend_plan import BlendPlan
from zindex.samples.batch import (
    BatchRequest,
    Sample,
    SampleBatch,
    batch_of_items,
    find_spans,
    resolve_positions,
)
from zindex.store.open import FollowedStore, Store
from zindex.store.reader import LocalReader
from zindex.store.rows import Spans, read_many
from zindex.wording import count_noun

logger = logging.getLogger(__name__)


class BlendedDataset(IndexedSampleDataset[blend_arrays.BlendArrays], Identified):
    """Samples of several datasets in one order.

    With ``order="megatron"`` the order equals Megatron Core's: each position draws from the dataset
    with the largest deficit to its weight, and the samples of one dataset keep their order. The
    scalable order draws exact counts, and shuffles all samples together.

    With ``config.path_to_cache`` the index of the blend is a store in that directory, found or
    built like a GPT index; otherwise each process computes it in memory. With
    ``config.defer_npy_index_mmap`` this happens at the first sample.

    Parameters
    ----------
    datasets
        The datasets, all of one class and one split.
    weights
        One per dataset. Datasets of weight 0 are ignored.
    size
        Samples of the blend. None draws ``weights[i]`` samples of dataset i, which must be whole
        numbers.
    config
        The configuration.

    Attributes
    ----------
    datasets, split, size, config
        As given, without datasets of weight 0.
    weights
        Normalised if a size is given.
    unique_identifiers
        The identity of the blend in Megatron, with keys in Megatron's order.

    Raises
    ------
    ConfigError
        If datasets and weights do not match.
    PlanError
        If the blend draws more samples of a dataset than it has.
    NotReadyError
        If another rank has not built the index in time.
    """

    #: Samples that the blend draws of each dataset, according to Megatron Core's cache.
    _drawn: Int64Array

    #: Shape (samples,), int16 or int32: the dataset at each position.
    dataset_index = IndexArray()
    #: Shape (samples,), int32 or int64: the sample of that dataset at each position.
    dataset_sample_index = IndexArray()

    path_to_dataset_index = CachePath()
    path_to_dataset_sample_index = CachePath()

    def __init__(
        self,
        datasets: Sequence[MegatronDataset],
        weights: Sequence[float],
        size: int | None,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        super().__init__()
        self.datasets = list(datasets)
        self._check_datasets(len(weights))
        self.split: Split = self.datasets[0].index_split
        self.size = None if size is None else operator.index(size)
        self.config = config
        kept = self._drop_unweighted(weights)
        self.plan = plan_blend(kept, self.size, self.split, config)
        self.weights = kept if self.size is None else self.plan.weights.tolist()
        members = [item.unique_identifiers for item in self.datasets]
        self.unique_identifiers = self.identify(
            members, self.weights, self.size, self.split, config.order
        )
        if len(self.datasets) == 1:
            text = f"a blend of {self._path_of(0)} alone is made"
            log_single_rank(logger, logging.WARNING, text)
        self._request_index()

    @classmethod
    def identify(
        cls, members: Sequence[Any], weights: list[Any], size: int | None, split: Split, order: str
    ) -> OrderedDict[str, Any]:
        """Return the ``unique_identifiers`` of a blend, from those of its datasets."""
        facts = {"datasets": members, "split": split.name, "weights": weights, "size": size}
        return cls._identify(facts, order)

    def _check_datasets(self, num_weights: int) -> None:
        """Check that the datasets can be blended."""
        datasets = self.datasets
        if not datasets or len(datasets) != num_weights:
            raise ConfigError(
                f"a blend must have datasets and a weight for each, got {len(datasets)} datasets "
                f"and {num_weights} weights; add or remove some"
            )
        for i, dataset in enumerate(datasets):
            if type(dataset) is not type(datasets[0]):
                raise ConfigError(
                    f"datasets of a blend must be of one class, got {type(datasets[0]).__name__} "
                    f"for {self._path_of(0)} and {type(dataset).__name__} for {self._path_of(i)}; "
                    "blend them apart"
                )
            if dataset.index_split != datasets[0].index_split:
                raise ConfigError(
                    "datasets of a blend must be of one split, got "
                    f"{datasets[0].index_split.name} of {self._path_of(0)} and "
                    f"{dataset.index_split.name} of {self._path_of(i)}; blend them apart"
                )

    def _drop_unweighted(self, weights: Sequence[float]) -> list[Any]:
        """Drop datasets of weight 0, and return the weights of the others."""
        names = [self._path_of(i) for i in range(len(self.datasets))]
        kept = positive_weights(weights, names, f"the {self.split.name} blend")
        if len(kept) < len(names):
            self.datasets = [self.datasets[i] for i in kept]
            missing = sorted(set(range(len(names))) - set(kept))
            text = (
                f"{len(missing)} of {len(names)} datasets have weight 0 in the {self.split.name} "
                f"blend and are left out, {names[missing[0]]} first"
            )
            log_single_rank(logger, logging.WARNING, text)
        return [weights[i] for i in kept]

    def _path_of(self, dataset: int) -> str:
        """Return the path of a dataset, for messages."""
        path = self.datasets[dataset].dataset_path
        return f"dataset {dataset}" if path is None else str(path)

    @property
    def dataset_count(self) -> Int64Array:
        """Shape (datasets,), int64: samples that the blend draws of each dataset."""
        return np.asarray(self._open_arrays().dataset_count)

    def __len__(self) -> int:
        if self._has_own_arrays:
            return len(self._open_arrays().dataset_index)
        return self.plan.num_samples

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of everything that determines the order of the samples."""
        members = [dataset.fingerprint for dataset in self.datasets]
        return self._identify_arrays({"blend": self.plan.spec, "members": members})

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx
            Its position, from the end if negative; None returns padding: the first sample of the
            dataset at position 0, with a loss mask of zeros.

        Returns
        -------
        item
            The sample of the dataset, preceded by ``dataset_id``, its index in ``datasets``.

        Raises
        ------
        IndexError
            If the position is out of range.
        """
        (position,), _ = resolve_positions([idx], len(self), self._where)
        arrays = self._open_arrays()
        dataset_id = arrays.dataset_index[position]
        sample = None if idx is None else int(arrays.dataset_sample_index[position])
        item: dict[str, Any] = self.datasets[dataset_id][sample]
        # First, replacing the member's own.
        kind = Sample if isinstance(item, Sample) else type(item)  # not a deferred one
        return kind({"dataset_id": dataset_id} | item | {"dataset_id": dataset_id})

    def _read_batch(self, positions: Int64Array, is_padding: BoolArray) -> SampleBatch:
        """Return the samples at positions, read together unless a dataset overrides items."""
        request = self._request(positions, is_padding)
        make = self._find_maker(request.which)
        if make is None:
            return batch_of_items(self, as_given(positions, is_padding))
        return make(request)

    def _request(self, positions: Int64Array, is_padding: BoolArray) -> BatchRequest:
        """Return the request for samples of the datasets."""
        dataset_ids, samples = read_draws(self._open_arrays(), positions)
        samples = np.where(is_padding, 0, samples.astype(np.int64))
        which = dataset_ids.astype(np.int64)
        return BatchRequest(self.datasets, which, samples, is_padding, dataset_ids)

    def _find_maker(self, dataset_ids: AnyArray) -> Callable[..., SampleBatch] | None:
        """Return the function that reads items together; None if a dataset overrides it."""
        datasets: list[Any] = [self.datasets[i] for i in set(dataset_ids.tolist())]
        first = datasets[0]
        for item in datasets:
            if not getattr(item, "_is_plain", False):
                return None
            if item.config is not first.config and item.config != first.config:
                return None
        maker: Callable[..., SampleBatch] = first._make_together
        return maker

    @cached_property
    def _where(self) -> str:
        """Name of the blend in messages."""
        return f"the {self.split.name} blend of {count_noun(len(self.datasets), 'dataset')}"

    @property
    def _is_stored(self) -> bool:
        """Whether the index is a store; that of an empty blend is not."""
        return bool(self.config.path_to_cache) and self.plan.num_samples > 0

    @property
    def _needed(self) -> BuildRequest:
        """The build request of the index."""
        assert self.config.path_to_cache is not None
        return BuildRequest(self.plan, self.config.path_to_cache)

    def _check_computable(self) -> None:
        """Raise if the blend draws too many samples, without drawing if no count is close."""
        plan = self.plan
        if plan.order == "scalable" or plan.sizes is not None:
            most = plan.counts
        else:  # a dataset is drawn only below its share, so its count exceeds it by at most 1
            most = np.floor(plan.weights * plan.num_samples + 1.001)
        if any(map(has_fewer, self.datasets, most.tolist())):
            self._arrays = self._compute_arrays()

    def _compute_arrays(self) -> blend_arrays.BlendArrays:
        """Return the arrays of a blend without a store."""
        if self.plan.num_samples > self.config.max_computed_rows:
            text = (
                f"the {self.split.name} blend of {self.plan.num_samples} samples is computed in "
                "each process, because path_to_cache is not set"
            )
            log_single_rank(logger, logging.INFO, text)
        arrays = self._checked(blend_arrays.compute_blend_arrays(self.plan))
        if self._is_stored and self._rank == 0:
            store_computed(self.plan, self.config.path_to_cache or "", arrays)
        return arrays

    def _find_cache(self) -> MegatronCache | Literal[False]:
        """Return Megatron Core's cache, if it is worth it and sound."""
        plan, folder = self.plan, self.config.path_to_cache
        if plan.order != "megatron" or not folder or not is_worth_opening(plan):
            return False
        # The description of thousands of datasets takes longer to write.
        if not list_caches(folder, f"{type(self).__name__}-{self.split.name}"):
            return False

        def check(arrays: list[AnyArray]) -> None:
            self._drawn = check_blend(plan, arrays[0], arrays[1])

        cache = self._name_cache(folder, self.split.name, BLEND_ARRAYS)
        if not cache.is_sound(self.unique_description, plan.store_plan(folder), check):
            return False
        self._checked(self._read_cache(cache.open()))
        return cache

    def _read_cache(self, arrays: list[AnyArray]) -> blend_arrays.BlendArrays:
        """Return the arrays of a cache as those of the index."""
        return blend_arrays.BlendArrays(arrays[0], arrays[1], self._drawn)

    def _build_indices(self) -> tuple[AnyArray, AnyArray]:
        """Return the dataset and the sample at each position; a subclass may override it.

        Returns
        -------
        dataset_index, dataset_sample_index
            Shape (samples,), int16 or int32, and int64.
        """
        arrays = self._open_index()
        return np.asarray(arrays.dataset_index[:]), np.asarray(
            arrays.dataset_sample_index[:], np.int64
        )

    @property
    def _makes_arrays(self) -> bool:
        """Whether a subclass overrides `_build_indices`."""
        kind: Any = type(self)
        return overrides(kind, BlendedDataset, ("_build_indices",))

    def _make_arrays(self) -> blend_arrays.BlendArrays:
        """Return the arrays that `_build_indices` of a subclass returns."""
        datasets, samples = map(np.asarray, self._build_indices())
        num_datasets = len(self.datasets)
        is_known = (datasets >= 0) & (datasets < num_datasets)
        if len(datasets) != len(samples) or not is_known.all():
            raise ConfigError(
                f"{type(self).__name__}._build_indices must return a dataset from 0 to "
                f"{num_datasets - 1} and a sample for each position of {self._where}, got "
                f"{len(datasets)} datasets and {len(samples)} samples; correct it"
            )
        counts = np.bincount(datasets, minlength=num_datasets)
        return blend_arrays.BlendArrays(datasets, samples, counts)

    def _read_index(self, store: Store) -> blend_arrays.BlendArrays:
        """Return the arrays of a store, committed or followed while it is built."""
        if isinstance(store, FollowedStore):
            return blend_arrays.follow_blend_arrays(store, self.plan)
        arrays = blend_arrays.open_blend_arrays(store)
        # A worker reopens a store that its parent process has already checked.
        return arrays if store is self._store else self._checked(arrays)

    def _checked(self, arrays: blend_arrays.BlendArrays) -> blend_arrays.BlendArrays:
        """Return the arrays after checking that every dataset has enough samples."""
        counts = np.asarray(arrays.dataset_count)
        short = np.flatnonzero([*map(has_fewer, self.datasets, counts.tolist())])
        if short.size:
            i = int(short[0])
            raise PlanError(
                f"the {self.split.name} blend of {self.plan.num_samples:,} samples needs "
                f"{int(counts[i]):,} samples of {self._path_of(i)}, which has "
                f"{len(self.datasets[i]):,} ({short.size} of {len(counts)} datasets are too "
                "short); "
                "raise mid_level_dataset_surplus from "
                f"{self.config.mid_level_dataset_surplus}{self._better_surplus(short, arrays)}, "
                "lower its weight, or give it more epochs"
            )
        return arrays

    def _better_surplus(self, short: Int64Array, arrays: blend_arrays.BlendArrays) -> str:
        """Return a surplus that makes the datasets long enough, for the message."""
        needed = 0.0
        for i in short.tolist():
            asked = self.datasets[i].num_samples
            if not asked:
                return ""
            target = asked / (1 + self.config.mid_level_dataset_surplus)
            needed = max(needed, int(arrays.dataset_count[i]) / target - 1)
        return f" to {(math.ceil(1000 * needed - 1e-6) + 1) / 1000:g}"


def read_draws(blend: blend_arrays.BlendArrays, positions: Int64Array) -> list[AnyArray]:
    """Return the datasets and samples at positions of a blend, in one round."""
    arrays = (blend.dataset_index, blend.dataset_sample_index)
    if all(isinstance(array, np.ndarray) for array in arrays):
        return [array[positions] for array in arrays]
    starts, stops = find_spans(positions)
    readers = [array for array in arrays if isinstance(array, LocalReader)]
    if len(starts) == 1 and len(readers) == len(arrays):
        return [array.read(int(starts[0]), int(stops[0])) for array in readers]
    return read_many([Spans(array, starts, stops) for array in arrays])


def plan_blend(
    weights: Sequence[Any], size: int | None, split: Split, config: BlendedMegatronDatasetConfig
) -> BlendPlan:
    """Return the plan of the blend, equal to that of ``zindex.build``.

    Raises
    ------
    ConfigError
        If there is no size and a weight is not a whole number of samples.
    """
    settings = config.plan_settings(split) | {"order": config.order, "shuffle": config.shuffle}
    if size is not None:
        return BlendPlan.weighted(weights, size, **settings)
    for weight in weights:
        if not isinstance(weight, (int, np.integer)):
            raise ConfigError(
                f"weights of the {split.name} blend must be whole numbers of samples when size is "
                f"None, got {weight!r}; give a size"
            )
    return BlendPlan.exhaustive(weights, **settings)
