"""Base class of datasets of tokenised text: their documents, their index, and where it is."""

import os
from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.megatron_dataset import Indices, MegatronDataset
from zindex.datasets.object_storage_utils import find_storage
from zindex.datasets.sample_dataset import ArraysT, IndexedSampleDataset
from zindex.datasets.utils import Split
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, PlanError
from zindex.indexing.computed_arrays import ComputedArray
from zindex.indexing.ensure import BuildRequest
from zindex.ingest.length_source import is_store
from zindex.plan.build_plan import SplitPlan
from zindex.samples.lengths import is_stored, stored_source
from zindex.samples.texts import Documents, IndexedText
from zindex.store.layout import ArrayShape
from zindex.store.open import Store


class TextDataset(IndexedSampleDataset[ArraysT], MegatronDataset):
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
        If another rank failed to build the index in time.
    """

    _text: IndexedText | None

    def __init__(
        self,
        indexed_dataset: Any,
        dataset_path: str | None,
        indexed_indices: Indices,
        num_samples: int | None,
        index_split: Split,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        super().__init__(
            indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config
        )
        self._request_index()

    def _prepare(self) -> None:
        """Check the documents, and compute everything that does not need the index."""
        self._span = self._find_span()

    def _find_span(self) -> range:
        """Return the consecutive documents of the split."""
        indices = self._indices
        if isinstance(indices, range) and indices.step == 1 and len(indices):
            return indices
        if not len(indices):
            if self.config.defer_npy_index_mmap:  # an error if a sample of it is read
                return range(0)
            raise PlanError(f"{self._where} must hold documents, got none; give it a larger share")
        breaks = np.flatnonzero(np.diff(np.asarray(indices).reshape(-1)) != 1)
        first = int(breaks[0]) if breaks.size else 0
        raise PlanError(
            f"{self._where} must hold consecutive documents in ascending order, got "
            f"{np.asarray(indices)[first : first + 2].tolist()} at place {first} of "
            f"{len(indices)}; give a range of documents"
        )

    def _refuse_follow(self) -> None:
        """Raise on reading an index during its build, if its size is known only at the end."""
        if self.config.follow is not None:
            raise ConfigError(
                f"{self._where} cannot be followed while its index is built, got follow="
                f"{self.config.follow}: how many samples it has is known when all are counted; "
                "leave follow out"
            )

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
            Path or URL of a Zarr token store, or prefix of a ``.bin/.idx`` pair; detected from the
            files.
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
        # Only configurations of GPT datasets have these two.
        counts = getattr(config, "sequences_per_dataset", None) or {}
        is_pair = config.fast_cache_load and counts and not dataset_path.endswith(".zarr")
        if storage is None and not is_pair and is_store(dataset_path):
            return ZarrIndexedDataset(dataset_path, multimodal=False)
        if counts and dataset_path not in counts:
            raise ConfigError(
                f"sequences_per_dataset must count {dataset_path}, it counts {sorted(counts)}; add "
                "it or leave all of them out"
            )
        return IndexedDataset(
            dataset_path,
            multimodal=False,
            mmap=config.mmap_bin_files,
            object_storage_config=storage,
            fast_cache_load=config.fast_cache_load,
            sequences_per_dataset=counts.get(dataset_path),
            dtype_code=getattr(config, "token_dtype_code", None),
        )

    @abstractmethod
    def _plan(self) -> SplitPlan:
        """Return the plan of this split's index, equal to that of ``zindex.build``."""

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of everything that determines the order of the samples.

        It depends on the lengths of the documents, not on their tokens.
        """
        return self._identify_arrays(self._plan().spec)

    @property
    def _index_folder(self) -> str:
        """The directory of the indices: the cache, or one next to the dataset."""
        if self.config.path_to_cache:
            return self.config.path_to_cache
        prefix = str(self.dataset.path_prefix).rstrip("/").removesuffix(".zarr")
        return os.path.join(prefix, "cache", f"{type(self).__name__}_indices")

    @property
    def _is_stored(self) -> bool:
        """Whether the index can be stored, because the low-level dataset is stored."""
        return is_stored(self.dataset)

    @property
    def _needed(self) -> BuildRequest:
        """The build request of the index."""
        return BuildRequest(self._plan(), self._index_folder, self._source)

    @property
    def _source(self) -> Any:
        """The input of a build of the index."""
        return stored_source(self.dataset)

    def _receive(self, store: Store | None) -> None:
        """Receive the index, committed or followed while it is built; None to compute it."""
        super()._receive(store)
        self._text = None

    def _assign(self, name: str, array: Any) -> None:
        """Replace one of the arrays."""
        super()._assign(name, array)
        self._text = None

    def open_text(self) -> IndexedText:
        """Return the index and the documents, opened for batches at first use."""
        text = self._text  # a background build may reset the attribute
        if text is None:
            dataset = self.dataset
            documents = open_documents(dataset)
            text = IndexedText(self._where, self._open_arrays(), documents, len(dataset))
            self._describe_text(text)
            self._text = text
        return text

    def _describe_text(self, text: IndexedText) -> None:
        """Add the settings of the samples."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_text": None}


def open_documents(low_level_dataset: Any) -> Documents:
    """Return the documents of a low-level dataset as batches read them."""
    # Subclasses may override how documents are read.
    if type(low_level_dataset) is ZarrIndexedDataset:
        return Documents(low_level_dataset.tokens, low_level_dataset.offsets)
    if type(low_level_dataset) is IndexedDataset:
        index, length = low_level_dataset.index, len(low_level_dataset) + 1
        shape = ArrayShape(schema.SEQUENCE_OFFSET.name, length, 1, "int64", length, length)
        offsets = ComputedArray(shape, index, _compute_offsets)
        return Documents(low_level_dataset.tokens, offsets, low_level_dataset.find_bounds)
    return Documents.of_items(low_level_dataset)


def _compute_offsets(index: Any, start: int, stop: int) -> Int64Array:
    """Return the tokens before sequences ``[start, stop)`` of a pair; the last is the total."""
    offsets = np.full(stop - start, index.file.num_tokens, np.int64)
    pointers = index.pointers[start:stop]
    offsets[: len(pointers)] = pointers // index.dtype_size
    return offsets
