"""The base of datasets of tokenised text, whose index is found, built or computed."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.object_storage_utils import find_storage
from zindex.datasets.ranks import obtain, obtain_now
from zindex.datasets.utils import Split, current_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, PlanError
from zindex.indexing.ensure import BuildRequest
from zindex.ingest.length_source import is_store
from zindex.samples.batch import SampleBatch, batch_of_items, resolve_positions
from zindex.samples.lengths import is_stored
from zindex.samples.texts import Documents, IndexedText
from zindex.store.commit import fingerprint
from zindex.store.open import Store

ArraysT = TypeVar("ArraysT")

# Methods that subclasses override to make items in their own way.
_ITEM_METHODS = ("__getitem__", "_query_document_sample_shuffle_indices")


class MakeBatch(Protocol):
    """Makes samples of several datasets of one class and configuration."""

    def __call__(
        self,
        datasets: Sequence[Any],
        which: Int64Array,
        positions: Int64Array,
        is_padding: BoolArray,
        dataset_ids: AnyArray | None,
    ) -> SampleBatch:
        """Return the samples; see `zindex.samples.gpt.make_batch`."""


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

    #: Makes the samples of several such datasets.
    _make_together: ClassVar[MakeBatch]

    _text: IndexedText | None

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
        self._span = self._find_span()
        self._prepare()
        self._rank = current_rank()
        self._store: Store | None = None
        self._arrays: ArraysT | None = None
        if not config.defer_npy_index_mmap:
            self._request_index()

    def _find_span(self) -> range:
        """Return the consecutive documents of the split."""
        indices = self._indices
        if isinstance(indices, range) and indices.step == 1 and len(indices):
            return indices
        if not len(indices):
            raise PlanError(f"{self._where} must hold documents, got none; give it a larger share")
        breaks = np.flatnonzero(np.diff(np.asarray(indices).reshape(-1)) != 1)
        first = int(breaks[0]) if breaks.size else 0
        raise PlanError(
            f"{self._where} must hold consecutive documents in ascending order, got "
            f"{np.asarray(indices)[first : first + 2].tolist()} at place {first} of "
            f"{len(indices)}; give a range of documents"
        )

    def _request_index(self) -> None:
        """Find or build the index, together with others that are collected."""
        if is_stored(self._dataset):
            obtain(self._needed, self._receive, self._rank, self.config)
        else:
            self._open_arrays()

    @abstractmethod
    def _prepare(self) -> None:
        """Check the documents, and compute what is known without the index."""

    @property
    def _where(self) -> str:
        """Name of the split and the dataset in messages."""
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
            Path or URL of a Zarr token store, or prefix of a ``.bin/.idx`` pair; the files decide.
        config
            The configuration.

        Raises
        ------
        SourceError, StoreError
            If it is missing or damaged.
        ConfigError
            If it is a pair in object storage without ``object_storage_cache_path``, or is missing
            from ``sequences_per_dataset``.
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
            A subclass that makes items in its own way makes them one by one.
        """
        text = self._text
        if not len(positions) or not (text.is_plain if text else self._is_plain):
            return batch_of_items(self, positions)
        return self._make_batch(positions)

    def _make_batch(
        self, positions: Sequence[int | None], make: MakeBatch | None = None
    ) -> SampleBatch:
        """Return the samples of a batch, read together."""
        numbers, is_padding = resolve_positions(positions, len(self), self._where)
        has_ids = getattr(self.config, "with_provenance", False)
        dataset_ids = np.zeros(len(numbers), np.int16) if has_ids else None
        make = make or self._make_together
        return make([self], np.zeros_like(numbers), numbers, is_padding, dataset_ids)

    @property
    def _is_plain(self) -> bool:
        """Whether `_make_together` makes the items; False for a subclass with its own way."""
        kind = type(self)
        home = next(base for base in kind.__mro__ if "_make_together" in vars(base))
        return all(getattr(kind, name, None) is getattr(home, name, None) for name in _ITEM_METHODS)

    @property
    @abstractmethod
    def _spec(self) -> dict[str, Any]:
        """Everything that decides the order of the samples."""

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of all that decides the order of the samples, in any process.

        It covers the lengths of the documents, not their tokens.
        """
        return fingerprint(self._spec)

    @property
    def _index_folder(self) -> str:
        """The directory of the indices: the cache, or one next to the dataset."""
        if self.config.path_to_cache:
            return self.config.path_to_cache
        prefix = str(self.dataset.path_prefix).rstrip("/").removesuffix(".zarr")
        return os.path.join(prefix, "cache", f"{type(self).__name__}_indices")

    @property
    @abstractmethod
    def _needed(self) -> BuildRequest:
        """The build request of the index."""

    @abstractmethod
    def _read_index(self, store: Store) -> ArraysT:
        """Return the lazy arrays of an index."""

    def _receive(self, store: Store) -> None:
        """Take the index, committed or followed while it is built."""
        self._store = store
        self._arrays = self._read_index(store)
        self._text = None

    def _open_arrays(self) -> ArraysT:
        """Return the arrays of the index, built or found at first use."""
        if self._arrays is None:
            self._find_arrays()
        assert self._arrays is not None
        return self._arrays

    def _find_arrays(self) -> None:
        """Set the arrays of the index, from a store that is built if it is missing."""
        if self._store is None:
            obtain_now(self._needed, self._receive, self._rank, self.config)
        else:
            self._receive(self._store)

    def open_text(self) -> IndexedText:
        """Return the index and the documents, opened for batches at first use."""
        text = self._text  # a build in the background may reset the attribute
        if text is None:
            dataset = self.dataset
            text = self._describe_text(
                IndexedText(
                    where=self._where,
                    arrays=self._open_arrays(),
                    documents=open_documents(dataset),
                    num_documents=len(dataset),
                    is_plain=self._is_plain,
                )
            )
            self._text = text
        return text

    def _describe_text(self, text: IndexedText) -> IndexedText:
        """Add the settings of the samples."""
        return text

    def __getstate__(self) -> dict[str, Any]:
        # Computed arrays are computed again in the process that needs them.
        return super().__getstate__() | {"_arrays": None, "_text": None}


def open_documents(low_level_dataset: Any) -> Documents:
    """Return the documents of a low-level dataset as batches read them."""
    # Subclasses may override how documents are read.
    if type(low_level_dataset) is ZarrIndexedDataset:
        return Documents(low_level_dataset.tokens, low_level_dataset.offsets)
    if type(low_level_dataset) is IndexedDataset:
        return Documents(low_level_dataset.tokens, find=low_level_dataset.find_bounds)
    return Documents.of_items(low_level_dataset)
