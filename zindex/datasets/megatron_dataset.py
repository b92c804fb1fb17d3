"""Base class of all Megatron datasets: attributes, cache key and pad token."""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import torch

from zindex.arrays import IntegerArray
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.utils import Split
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.formats.megatron_cache import describe
from zindex.maintenance.megatron_caches import MegatronCache

LowLevelDataset: TypeAlias = IndexedDataset | ZarrIndexedDataset | Iterable[Any]
#: Elements of a low-level dataset, by number.
Indices: TypeAlias = IntegerArray | range

#: Pad id if the tokenizer's is missing or ambiguous: no dataset contains this id.
_PAD_TOKEN_ID = -1
# Numbers of documents that are checked at a time.
_CHECKED = 1 << 16


class Identified:
    """An object with an identity in Megatron."""

    unique_identifiers: OrderedDict[str, Any]

    @classmethod
    def _identify(cls, facts: dict[str, Any], order: str) -> OrderedDict[str, Any]:
        """Return the identity: the class and other facts, and the order unless it is Megatron's."""
        # Megatron's key has no entry for the order.
        ours = {} if order == "megatron" else {"order": order}
        return OrderedDict({"class": cls.__name__} | facts | ours)

    @property
    def unique_description(self) -> str:
        """``unique_identifiers`` as JSON."""
        return describe(self.unique_identifiers)[0]

    @property
    def unique_description_hash(self) -> str:
        """The MD5 of the description: Megatron's cache key, not that of zindex."""
        return describe(self.unique_identifiers)[1]

    def _name_cache(self, folder: str, split: str, arrays: tuple[str, ...]) -> MegatronCache:
        """Return where Megatron Core has its cache; ``split`` is the end of its name, or empty."""
        words = (self.unique_description_hash, type(self).__name__, split)
        return MegatronCache(folder, "-".join(filter(None, words)), arrays)


class MegatronDataset(ABC, Identified, torch.utils.data.Dataset[dict[str, Any]]):
    """A split of a low-level dataset, as samples.

    It pickles as paths, numbers and its config; an unpickled ``IndexedDataset`` is reopened at the
    first sample.

    Parameters
    ----------
    dataset
        The low-level dataset.
    dataset_path
        Its path, as the user wrote it: part of Megatron's cache key.
    indices
        Shape (documents,), or a ``range``: the elements of the low-level dataset in the split.
    num_samples
        Minimal number of samples; None for one epoch.
    index_split
        The split.
    config
        The configuration.

    Attributes
    ----------
    unique_identifiers
        The identity of the dataset in Megatron, with keys in Megatron's order.
    """

    def __init__(
        self,
        dataset: LowLevelDataset,
        dataset_path: str | None,
        indices: Indices,
        num_samples: int | None,
        index_split: Split,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        super().__init__()
        self._dataset = dataset
        #: What batches read from, opened on first use.
        self._text: Any = None
        self.dataset_path = dataset_path
        self._indices = _as_range(indices)
        self.num_samples = None if num_samples is None else int(num_samples)
        self.index_split = index_split
        self.config = config
        self.unique_identifiers = self.identify(dataset_path, self.num_samples, index_split, config)
        self._pad_token_id = _resolve_pad(
            config.tokenizer, allow_ambiguous=bool(config.allow_ambiguous_pad_tokens)
        )
        self._prepare()

    @classmethod
    def identify(
        cls,
        dataset_path: str | None,
        num_samples: int | None,
        index_split: Split,
        config: BlendedMegatronDatasetConfig,
    ) -> OrderedDict[str, Any]:
        """Return the ``unique_identifiers`` of a dataset, from its constructor's arguments."""
        settings = {name: getattr(config, name) for name in cls._key_config_attributes()}
        facts = {"dataset_path": dataset_path, "num_samples": num_samples}
        return cls._identify(facts | {"index_split": index_split.name} | settings, config.order)

    def _prepare(self) -> None:
        """Check the elements, and compute what follows from the constructor's arguments."""

    @property
    def dataset(self) -> Any:
        """The low-level dataset."""
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: LowLevelDataset) -> None:
        self._dataset = dataset
        self._text = None

    @property
    def indices(self) -> IntegerArray:
        """Shape (documents,): the elements of the split; a range is expanded at each use."""
        found = self._indices
        if isinstance(found, range):
            dtype = np.int32 if found.stop <= np.iinfo(np.int32).max else np.int64
            return np.arange(found.start, found.stop, found.step, dtype=dtype)
        return found

    @indices.setter
    def indices(self, indices: Indices) -> None:
        self._indices = _as_range(indices)

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, that identifies the samples of this dataset."""
        return hashlib.sha256(self.unique_description.encode()).hexdigest()

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Return the number of elements of a low-level dataset, which splits divide."""
        raise NotImplementedError

    @staticmethod
    def build_low_level_dataset(dataset_path: Any, config: Any) -> Any:
        """Return the opened low-level dataset of a path."""
        raise NotImplementedError

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Return the settings that are part of Megatron's cache key."""
        return ["random_seed", "sequence_length", "split", "split_matrix", "tokenizer"]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def __getitem__(self, idx: Any) -> dict[str, Any]:
        """Return a sample."""


def _as_range(indices: Indices) -> Indices:
    """Return consecutive numbers as a range, others unchanged."""
    if isinstance(indices, range) or not indices.size:
        return indices
    starts = range(0, len(indices), _CHECKED)
    steps = (np.diff(indices[start : start + _CHECKED + 1]) for start in starts)
    if indices.ndim != 1 or not all((step == 1).all() for step in steps):
        return indices
    return range(int(indices[0]), int(indices[-1]) + 1)


def _resolve_pad(tokenizer: Any, *, allow_ambiguous: bool) -> int:
    """Return the pad id of a tokenizer, or -1 if it is missing or ambiguous.

    Source: Megatron Core ``MegatronDataset.__init__``.
    """
    pad = None
    with suppress(Exception):
        pad = tokenizer.pad
    if pad is None:
        return _PAD_TOKEN_ID
    if pad not in _special_tokens(tokenizer):
        return int(pad)
    if allow_ambiguous:
        then = "each of them is masked out as padding, since allow_ambiguous_pad_tokens is set"
    else:
        then = f"{_PAD_TOKEN_ID} marks padding, and pad tokens in the data count as others"
    text = (
        f"the pad token must have an id of its own, got {pad}, which is another special token too: "
        f"{then}; give the tokenizer a pad token that nothing else uses"
    )
    warnings.warn(text, stacklevel=3)
    return int(pad) if allow_ambiguous else _PAD_TOKEN_ID


def _special_tokens(tokenizer: Any) -> list[Any]:
    """Return the ids of the special tokens that a tokenizer names, except padding."""
    named: list[Any] = []
    with suppress(AttributeError, IndexError, ValueError):
        tokens = tokenizer.special_tokens_dict
        named = [value for name, value in tokens.items() if name != "pad_token"]
    if not named:
        for name in ("eos", "eod"):
            with suppress(AttributeError, NotImplementedError):
                named.append(getattr(tokenizer, name))
    return named
