"""Base class of the datasets of keyed stores: opening, fingerprint and list-like indexing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Self

import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, MissingKeyError, NotLoadedError, SourceError
from zindex.formats.keyed.shards import detect_format
from zindex.io.objects import PlaceLike
from zindex.keyed.record_split import RecordSplit
from zindex.keyed.store import KeyedStore
from zindex.keyed.stores import StoreFactory
from zindex.keyed.train_types import Output, TrainType
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, SampleBatch, resolve_positions
from zindex.store.commit import fingerprint as fingerprint_of

_SPLIT_WEIGHTS = "99,1,0"
_UNSIZED = (
    "batches of a token budget need windows or records of zindex, got {}; give it sample_sizes, "
    "check_packed and read_packed, or choose a batch size"
)


class BaseDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of a keyed store; created by `zindex.keyed.DatasetFactory`.

    Parameters
    ----------
    train_type
        Required keys, and the tensors of samples.
    pad_id
        Padding of token ids.
    split
        ``"train"``, ``"valid"`` or ``"test"`` selects the records of that split; None selects all.
    split_weights, split_seed
        See `zindex.keyed.record_split.RecordSplit`; the default weights are ``"99,1,0"``.
    """

    def __init__(
        self,
        train_type: TrainType,
        *,
        pad_id: int = 0,
        split: str | None = None,
        split_weights: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        if split is None and split_weights is not None:
            raise ConfigError(
                f"split_weights must come with the split to take, got {split_weights!r} and no "
                "split; give split='train', 'valid' or 'test'"
            )
        self.train_type, self.pad_id, self.split = train_type, pad_id, split
        weights = _SPLIT_WEIGHTS if split_weights is None else split_weights
        self.record_split = RecordSplit(weights, split_seed)
        self.storage: KeyedStore | None = None
        self.num_samples = 0

    def load(
        self, load_path: PlaceLike, storage_type: str | None = None, *, strict: bool = True
    ) -> Self:
        """Open a store and count its samples.

        Parameters
        ----------
        load_path
            Its file or folder.
        storage_type
            ``"h5"``, ``"bin"``, ``"zarr"``, ``"mapped_bin"`` or the name of a registered format;
            None detects it from the files.
        strict
            Whether keys must agree in every shard; see `KeyedStore.load`.

        Returns
        -------
        dataset
            This dataset.

        Raises
        ------
        StoreNotFoundError
            If the path does not exist.
        MissingKeyError
            If the store lacks a key.
        SourceError
            If its files are damaged, or its keys do not agree or have the wrong dtype. Values are
            checked when they are read: token ids that the vocabulary lacks, if the store knows it,
            negative ones, and floats that are not finite are errors.
        """
        name = detect_format(load_path) if storage_type is None else storage_type
        return self.open(StoreFactory.create(name).load(load_path, strict=strict))

    def open(self, store: KeyedStore) -> Self:
        """Use a loaded store; see `load`."""
        available = store.keys
        missing = [key for key in self.train_type.keys if key not in available]
        if missing:
            raise MissingKeyError(
                f"a store for {self.train_type.name!r} needs the keys "
                f"{', '.join(self.train_type.keys)}, got {', '.join(available)} in {store.path}: "
                f"{', '.join(missing)} is missing; make it again with all of them"
            )
        for output in self.outputs_of(store):
            dtype = store.column(output.key).dtype
            if output.dtype_of(dtype) is torch.int64 and dtype.kind not in "iu":
                raise SourceError(
                    f"{output.key} of {store.path} must hold whole numbers, got {dtype}; make the "
                    "store again with an integer dtype"
                )
        self.num_samples = self._count_samples(store)
        self.storage = store
        return self

    def outputs_of(self, store: KeyedStore) -> tuple[Output, ...]:
        """Return the declared tensors of samples; optional ones only if the store has their key."""
        keys = store.keys
        return tuple(output for output in self.train_type.outputs if output.key in keys)

    @property
    def required_keys(self) -> list[str]:
        """Required keys of a store."""
        return list(self.train_type.keys)

    @property
    def keys(self) -> list[str]:
        """Keys of the store; none before ``load``."""
        return [] if self.storage is None else self.storage.keys

    @property
    def count(self) -> int:
        """Values per key of the store; 0 before ``load``."""
        return 0 if self.storage is None else len(self.storage)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of what determines the samples: the store and the settings."""
        return fingerprint_of({"store": self.opened.fingerprint} | self._settings())

    @property
    def opened(self) -> KeyedStore:
        """The store.

        Raises
        ------
        NotLoadedError
            Before ``load``.
        """
        if self.storage is None:
            raise NotLoadedError("Dataset not loaded: call load(load_path) first")
        return self.storage

    def collate(self, batch: Sequence[Any]) -> Any:
        """Return the tensors of a batch; a ``collate_fn`` for torch's DataLoader."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        index
            Its number, from the end if negative.

        Raises
        ------
        IndexError
            If there is no such sample.
        NotLoadedError
            Before ``load``.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> SampleBatch:
        """Return several samples, read together: torch's DataLoader calls this.

        Parameters
        ----------
        indices
            Sample numbers in any order; negative ones count from the end.
        """
        if not len(indices):
            return SampleBatch.of_items([])
        return self._read(self.opened, self.resolve(indices))

    def resolve(self, indices: Sequence[int]) -> Int64Array:
        """Return the numbers of existing samples, from the start."""
        where = f"{self.train_type.name} of {self.opened.path}"
        numbers, is_padding = resolve_positions(indices, self.num_samples, where)
        if is_padding.any():
            raise TypeError("samples must be numbered by whole numbers, got None")
        return numbers

    def sample_sizes(self) -> SampleSizes:
        """Return the tokens of every sample, for batches of a `zindex.keyed.TokenBudget`."""
        raise ConfigError(_UNSIZED.format(type(self).__name__))

    def check_packed(self) -> None:
        """Raise ConfigError if the samples have no packed batches."""
        raise ConfigError(_UNSIZED.format(type(self).__name__))

    def read_packed(self, numbers: Int64Array, multiple_of: int) -> BatchTensors:
        """Return a packed batch of samples by number; see `zindex.keyed.PackedDataset`."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """Return the settings that determine the samples, as JSON values."""
        split = None if self.split is None else [self.split, asdict(self.record_split)]
        return {"train_type": self.train_type.name, "pad_id": self.pad_id, "split": split}

    def _choose_records(self, num_records: int) -> Int64Array | None:
        """Return the records of the split in ascending order; None for all."""
        return None if self.split is None else self.record_split.find(self.split, num_records)

    def _count_samples(self, store: KeyedStore) -> int:
        """Count the samples of a store, after checking it."""
        raise NotImplementedError

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return existing samples by number."""
        raise NotImplementedError
