"""Base classes of datasets that read samples in batches, and of those with an index.

An index is opened, built or computed on demand, or made by a subclass: one that overrides Megatron
Core's methods that build it, or assigns its arrays.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.ranks import obtain
from zindex.datasets.utils import current_rank
from zindex.indexing.ensure import BuildRequest
from zindex.maintenance.megatron_caches import MegatronCache
from zindex.samples.batch import BatchRequest, Item, SampleBatch, batch_of_items, resolve_positions
from zindex.store.commit import fingerprint
from zindex.store.open import Store

ArraysT = TypeVar("ArraysT")

# Methods that subclasses override to customise items.
_ITEM_METHODS = ("__getitem__", "_query_document_sample_shuffle_indices")
# Members that a class defines to make items in batches.
_BATCH_METHODS = {"_make_together", "_read_batch"}


class SampleDataset(torch.utils.data.Dataset[Item]):
    """Samples by position, read in batches; a single sample is a batch of one."""

    config: Any

    #: Makes the samples of a `BatchRequest`, for datasets of one class and configuration.
    _make_together: ClassVar[Callable[..., SampleBatch]]

    @property
    @abstractmethod
    def _where(self) -> str:
        """Name of the dataset in messages."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, idx: int | None) -> Item:
        """Return a sample.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative; None returns padding: the first sample
            with a loss mask of zeros.

        Returns
        -------
        item
            Tensors by name, as the class describes them.

        Raises
        ------
        IndexError
            If the position is out of range.
        """
        return self._make_batch([idx])[0]

    def __getitems__(self, positions: Sequence[int | None]) -> Any:
        """Return the samples of a batch, read together: torch's DataLoader calls this.

        Parameters
        ----------
        positions
            Positions, as of single samples.

        Returns
        -------
        batch
            For each position the item ``self[position]``, and the same as one tensor per name. A
            subclass that customises items makes them one by one.
        """
        if not len(positions) or not self._is_plain:
            return batch_of_items(self, positions)
        return self._make_batch(positions)

    def _make_batch(self, positions: Sequence[int | None]) -> Sequence[Item]:
        """Return the samples of a batch, read together."""
        return self._read_batch(*resolve_positions(positions, len(self), self._where))

    def _read_batch(self, positions: Int64Array, is_padding: BoolArray) -> Sequence[Item]:
        """Return the samples at positions from the start; some are padding."""
        return self._make_together(self._request(positions, is_padding))

    def _request(self, positions: Int64Array, is_padding: BoolArray) -> BatchRequest:
        """Return the request for samples of this dataset alone."""
        has_ids = getattr(self.config, "with_provenance", False)
        dataset_ids = np.zeros(len(positions), np.int16) if has_ids else None
        return BatchRequest([self], np.zeros_like(positions), positions, is_padding, dataset_ids)

    @property
    def _is_plain(self) -> bool:
        """Whether batches make the items; False for a subclass that customises them."""
        kind: Any = type(self)
        return inherits(kind, _ITEM_METHODS)


def as_given(positions: Int64Array, is_padding: BoolArray) -> list[int | None]:
    """Return positions as `SampleDataset.__getitems__` takes them, None for padding."""
    pairs = zip(positions.tolist(), is_padding.tolist(), strict=True)
    return [None if is_pad else position for position, is_pad in pairs]


@cache
def inherits(kind: type, names: tuple[str, ...]) -> bool:
    """Return whether methods are inherited from the class that defines how batches are read."""
    home = next(base for base in kind.__mro__ if _BATCH_METHODS & vars(base).keys())
    return all(getattr(kind, name, None) is getattr(home, name, None) for name in names)


@cache
def overrides(kind: type, base: type, names: tuple[str, ...]) -> bool:
    """Return whether a class overrides methods of one of its bases."""
    return any(getattr(kind, name) is not getattr(base, name) for name in names)


def has_fewer(dataset: Any, num_samples: int) -> bool:
    """Return whether a dataset has fewer samples, without counting those that it surely has."""
    if getattr(dataset, "_reaches_size", False) and num_samples <= (dataset.num_samples or 0):
        kind: Any = type(dataset)
        is_sure = inherits(kind, ("__len__",)) and not dataset._has_own_arrays
        if is_sure and len(dataset._indices):
            return False
    return len(dataset) < num_samples


class IndexArray:
    """An array of a dataset's index, opened on first access; the attribute has the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, dataset: Any, owner: type) -> Any:
        return self if dataset is None else getattr(dataset._open_arrays(), self._name)

    def __set__(self, dataset: Any, array: Any) -> None:
        dataset._assign(self._name, array)


class IndexedSampleDataset(SampleDataset, Generic[ArraysT]):
    """Samples by an index that is opened or built at construction, or computed on first use."""

    config: BlendedMegatronDatasetConfig

    _rank: int
    _store: Store | None
    _arrays: ArraysT | None
    #: Arrays of a subclass, or assigned, instead of those of the index; they are pickled.
    _own_arrays: ArraysT | None = None
    #: Megatron Core's cache that is read instead of a store; False if there is none.
    _cache: MegatronCache | Literal[False] | None = None

    @property
    @abstractmethod
    def _is_stored(self) -> bool:
        """Whether the index may be stored; small ones, and all others, each process computes."""

    @property
    @abstractmethod
    def _needed(self) -> BuildRequest:
        """The build request of the index."""

    @abstractmethod
    def _read_index(self, store: Store) -> ArraysT:
        """Return the lazy arrays of an index, committed or followed while it is built."""

    def _find_cache(self) -> MegatronCache | Literal[False]:
        """Return Megatron Core's cache of the index, if it is sound and worth reading."""
        return False

    def _read_cache(self, arrays: list[AnyArray]) -> ArraysT:
        """Return the arrays of a cache as those of the index."""
        raise NotImplementedError

    def _compute_arrays(self) -> ArraysT:
        """Return the arrays of an index that is not stored."""
        raise NotImplementedError

    def _check_computable(self) -> None:
        """Raise the error that computing the index would raise."""

    @property
    def _makes_arrays(self) -> bool:
        """Whether a subclass overrides how the arrays are made."""
        return False

    def _make_arrays(self) -> ArraysT:
        """Return the arrays that a subclass makes."""
        raise NotImplementedError

    @property
    def _has_own_arrays(self) -> bool:
        """Whether the arrays are not those of the index."""
        return self._own_arrays is not None or self._makes_arrays

    def _request_index(self) -> None:
        """Open, adopt or build the index, with other collected requests, unless deferred."""
        self._rank = current_rank()
        self._store = self._arrays = self._cache = None
        if self.config.defer_npy_index_mmap:
            return
        if self._makes_arrays:
            self._open_arrays()
            return
        self._cache = self._find_cache()
        if self._cache:
            return
        if self._is_stored:
            obtain(self._needed, self._receive, self._rank, self.config)
        elif len(self) <= self.config.max_computed_rows:
            self._receive(None)
        else:
            self._open_arrays()

    def _receive(self, store: Store | None) -> None:
        """Receive the index, committed or followed while it is built; None to compute it."""
        if store is None:
            self._check_computable()
        else:
            self._arrays = self._read_index(store)
        self._store = store

    def _open_arrays(self) -> ArraysT:
        """Return the arrays that determine the samples, on first use."""
        if self._own_arrays is None and self._makes_arrays:
            self._own_arrays = self._make_arrays()
        return self._open_index() if self._own_arrays is None else self._own_arrays

    def _open_index(self) -> ArraysT:
        """Return the arrays of the index, adopted, built, opened or computed on first use."""
        if self._arrays is None and self._cache is None and self._store is None:
            self._cache = self._find_cache()
        if self._arrays is None and self._cache:
            self._arrays = self._read_cache(self._cache.open())
        if self._arrays is None and self._is_stored:
            if self._store is None:
                obtain(self._needed, self._receive, self._rank, self.config, may_collect=False)
            else:
                self._arrays = self._read_index(self._store)
        if self._arrays is None:
            self._arrays = self._compute_arrays()
        return self._arrays

    def _assign(self, name: str, array: Any) -> None:
        """Replace one of the arrays."""
        arrays: Any = self._open_arrays()
        self._own_arrays = arrays._replace(**{name: array})
        self.__dict__.pop("fingerprint", None)

    def _identify_arrays(self, spec: dict[str, Any]) -> str:
        """Return the SHA-256 of the plan of the index, and of arrays that are not those of it."""
        if not self._has_own_arrays:
            return fingerprint(spec)
        arrays: Any = self._open_arrays()
        digests = {
            name: hashlib.sha256(np.ascontiguousarray(array[:]).data).hexdigest()
            for name, array in arrays._asdict().items()
        }
        return fingerprint({"plan": spec, "arrays": digests})

    def __getstate__(self) -> dict[str, Any]:
        # Computed arrays are recomputed in the process that needs them.
        return self.__dict__ | {"_arrays": None}
