"""What datasets of tokenised text have in common: an index that is found, built or waited for."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from zindex.building.on_demand import Needed
from zindex.building.source import is_store
from zindex.datasets.batching.sample_batch import SampleBatch, batch_of_items, resolve_positions
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.gpt_index import STORED, document_span
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.object_storage_utils import find_storage
from zindex.datasets.ranks import obtain, obtain_now
from zindex.datasets.utils import Split, current_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError
from zindex.store.identity import fingerprint
from zindex.store.open import Store

Int64Array = npt.NDArray[np.int64]
ArraysT = TypeVar("ArraysT")


class MakeBatch(Protocol):
    """Makes samples of several datasets of one class and configuration together."""

    def __call__(
        self,
        datasets: Sequence[Any],
        which: Int64Array,
        positions: Int64Array,
        is_padding: npt.NDArray[np.bool_],
        dataset_ids: npt.NDArray[Any] | None,
    ) -> SampleBatch:
        """Return the samples; see `zindex.datasets.batching.gpt_tensors.make_batch`."""


class TextDataset(MegatronDataset, Generic[ArraysT]):
    """A split of tokenised text as samples.

    Parameters
    ----------
    indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config
        As for ``GPTDataset``.

    Raises
    ------
    PlanError
        If the documents are not consecutive.
    NotReadyError
        If another rank should have built the index and has not.
    """

    #: How samples of several such datasets are made together.
    _make_together: ClassVar[MakeBatch]

    def __init__(
        self,
        indexed_dataset: Any,
        dataset_path: str | None,
        indexed_indices: npt.NDArray[np.integer[Any]] | range,
        num_samples: int | None,
        index_split: Split,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        super().__init__(
            indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config
        )
        self._span = document_span(self._indices, self._where)
        self._prepare()
        self._rank = current_rank()
        self._store: Store | None = None
        self._arrays: ArraysT | None = None
        if not config.defer_npy_index_mmap:
            self._request_index()

    def _request_index(self) -> None:
        """Have the index found or built; together with those of others if they are collected."""
        if isinstance(self._dataset, STORED):
            obtain(self._needed, self._receive, self._rank, self.config)
        else:
            self._open_arrays()

    @abstractmethod
    def _prepare(self) -> None:
        """Check the documents, and count what is known of the samples before the index is."""

    @property
    def _where(self) -> str:
        """The split and the dataset, for messages."""
        return f"{self.index_split.name} of {self.dataset_path}"

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Return the number of sequences: text is split by sequences, not documents."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(
        dataset_path: str, config: Any
    ) -> IndexedDataset | ZarrIndexedDataset:
        """Return the opened low-level dataset of a path.

        Parameters
        ----------
        dataset_path
            Path or URL of a Zarr token store, or prefix of a ``.bin/.idx`` pair: it is told from
            the files.
        config
            The configuration.

        Raises
        ------
        SourceError, StoreError
            If it is missing or damaged.
        ConfigError
            If it is a pair in object storage without ``object_storage_cache_path``, or
            ``sequences_per_dataset`` leaves it out.
        """
        storage = find_storage(dataset_path, config)
        if storage is None and is_store(dataset_path):
            return ZarrIndexedDataset(dataset_path, multimodal=False)
        counts = None
        # Only configurations of GPT datasets have these two.
        counted = getattr(config, "sequences_per_dataset", None)
        if counted:
            counts = counted.get(dataset_path)
            if counts is None:
                raise ConfigError(
                    f"sequences_per_dataset must count {dataset_path}, it counts "
                    f"{sorted(counted)}; add it or leave all of them out"
                )
        return IndexedDataset(
            dataset_path,
            multimodal=False,
            mmap=config.mmap_bin_files,
            object_storage_config=storage,
            fast_cache_load=config.fast_cache_load,
            sequences_per_dataset=counts,
            dtype_code=getattr(config, "token_dtype_code", None),
        )

    def __getitems__(self, positions: Sequence[int | None]) -> SampleBatch:
        """Return the samples of a batch, read together: torch's DataLoader calls this.

        Parameters
        ----------
        positions
            Positions, as of single samples.

        Returns
        -------
        batch
            For each position what ``self[position]`` returns, and the same as one tensor per name.
            A subclass that makes items in its own way is asked for them one by one.
        """
        if not len(positions) or not self._is_plain:
            return batch_of_items(self, positions)
        return self._make_batch(positions)

    def _make_batch(self, positions: Sequence[int | None]) -> SampleBatch:
        """Return the samples of a batch, read together."""
        numbers, is_padding = resolve_positions(positions, len(self), self._where)
        tells = getattr(self.config, "with_provenance", False)
        dataset_ids = np.zeros(len(numbers), np.int16) if tells else None
        which = np.zeros(len(numbers), np.int64)
        return self._make_together([self], which, numbers, is_padding, dataset_ids)

    @property
    @abstractmethod
    def _is_plain(self) -> bool:
        """Whether items are what `_make_together` makes; a subclass may have its own way."""

    @property
    @abstractmethod
    def _spec(self) -> dict[str, Any]:
        """Everything that decides which sample stands where."""

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of what decides which sample stands where, in any process.

        It says nothing of the tokens themselves, only of the lengths of the documents.
        """
        return fingerprint(self._spec)

    @property
    @abstractmethod
    def _needed(self) -> Needed:
        """The store of the index, and how it is built."""

    @abstractmethod
    def _read_index(self, store: Store) -> ArraysT:
        """Return the arrays of an index; nothing is read before it is used."""

    def _receive(self, store: Store) -> None:
        """Take the index, committed or followed while it is built."""
        self._store = store
        self._arrays = self._read_index(store)

    def _open_arrays(self) -> ArraysT:
        """Return the arrays of the index, built or found at first use."""
        if self._arrays is None:
            self._find_arrays()
        assert self._arrays is not None
        return self._arrays

    def _find_arrays(self) -> None:
        """Take the arrays of the index, from a store that is built if it is not there."""
        if self._store is None:
            obtain_now(self._needed, self._receive, self._rank, self.config)
        else:
            self._receive(self._store)

    def __getstate__(self) -> dict[str, Any]:
        # Arrays in memory are made again where they are needed; stored ones stay where they are.
        return super().__getstate__() | {"_arrays": None}
