"""Base class of the datasets of keyed stores: opening, fingerprint and list-like indexing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Self

import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, MissingKeyError, NotLoadedError, SourceError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import PRESETS
from zindex.formats.keyed.shards import detect_format
from zindex.growing.growing_log import is_growing
from zindex.io.objects import PlaceLike, is_remote
from zindex.keyed.field_reads import tensor_dtype
from zindex.keyed.record_split import RecordSplit
from zindex.keyed.store import KeyedStore
from zindex.keyed.stores import StoreFactory
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
    schema
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
        schema: RecordSchema,
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
        self.schema, self.pad_id, self.split = schema, pad_id, split
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
            ``"h5"``, ``"bin"``, ``"zarr"``, ``"growing"``, ``"mapped_bin"`` or the name of a
            registered format; None detects it from the files.
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
        if storage_type is None and is_remote(load_path) and is_growing(load_path):
            name = "growing"
        return self.open(StoreFactory.create(name).load(load_path, strict=strict))

    def open(self, store: KeyedStore) -> Self:
        """Use a loaded store; see `load`."""
        available = [*store.keys, *store.text_keys]
        missing = [key for key in self.schema.keys if key not in available]
        if missing:
            raise MissingKeyError(
                f"a store for {self.schema.name!r} needs the keys "
                f"{', '.join(self.schema.keys)}, got {', '.join(available)} in {store.path}: "
                f"{', '.join(missing)} is missing; make it again with all of them"
            )
        for field in self.fields_of(store):
            dtype = store.column(field.key).dtype
            if tensor_dtype(field, dtype) is torch.int64 and dtype.kind not in "iu":
                raise SourceError(
                    f"{field.key} of {store.path} must hold whole numbers, got {dtype}; make the "
                    "store again with an integer dtype"
                )
        self.num_samples = self._count_samples(store)
        self.storage = store
        return self

    def fields_of(self, store: KeyedStore) -> tuple[Field, ...]:
        """Return the declared tensors of samples; optional ones only if the store has their key."""
        keys = store.keys
        return tuple(field for field in self.schema.tensors if field.key in keys)

    @property
    def required_keys(self) -> list[str]:
        """Required keys of a store."""
        return list(self.schema.keys)

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
        raise self._undefined("collate")

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
        where = f"{self.schema.name} of {self.opened.path}"
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
        schema = self.schema
        own = {} if PRESETS.get(schema.name) == schema else {"schema": schema.to_json()}
        return {"train_type": schema.name, "pad_id": self.pad_id, "split": split} | own

    def _choose_records(self, num_records: int) -> Int64Array | None:
        """Return the records of the split in ascending order; None for all."""
        return None if self.split is None else self.record_split.find(self.split, num_records)

    def _count_samples(self, store: KeyedStore) -> int:
        """Count the samples of a store, after checking it."""
        raise self._undefined("_count_samples")

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return existing samples by number."""
        raise self._undefined("_read")

    def _undefined(self, name: str) -> NotImplementedError:
        """Return the error of a subclass that does not define a method."""
        return NotImplementedError(
            f"a dataset of keyed stores must define {name}, {type(self).__name__} does not; "
            "declare the kind of record as a zindex.keyed.RecordSchema and give it to "
            "DatasetFactory.load, or inherit from zindex.keyed.KeyedRecordDataset"
        )
