"""Sources of a stream: their checks, their identity and their length."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.mixing.mixture_tree import is_epochs
from zindex.sources.part_files import PartFiles
from zindex.streaming.protocols import UrlDataset
from zindex.streaming.worker_slots import StreamOrigin

#: Prefix of the identity of sources whose sequences, not parts, are shared.
WHOLE_SOURCE = "whole, "
_MAX_SEQUENCES = 1 << 40
_BATCH = 16  # items that a map-style dataset with __getitems__ reads at once


@dataclass(frozen=True)
class StreamSource:
    """A dataset of a MergedDataset, and its reading order."""

    name: str
    dataset: Any
    seed: int
    cyclic: bool
    #: ``"keyed"``, ``"none"`` or a mode of cogdata.
    order: str
    #: Name of its view in a state; its name without one.
    view: str = ""
    #: Epochs that it gives; None if they have no end.
    num_epochs: int | None = None
    #: The first part that it no longer has, counted over all epochs; None if that follows.
    last: int | None = None

    @property
    def key(self) -> str:
        """Prefix of its entries in a state."""
        return f"leaf {self.view or self.name}"

    @property
    def end(self) -> float:
        """Parts, files or items of all its epochs."""
        if self.last is not None:
            return self.last
        return math.inf if self.num_epochs is None else self.num_epochs * self.num_items

    @property
    def is_partitioned(self) -> bool:
        """Whether it is read part by part, not item by item."""
        return is_streaming(self.dataset)

    @property
    def kind(self) -> str:
        """Units of an epoch: ``"parts"``, ``"files"`` or ``"items"``."""
        if self.order == "cogdata_urlbuffer":
            return "files"
        return "parts" if self.is_partitioned else "items"

    @property
    def is_packed(self) -> bool:
        """Whether its sequences continue from part to part."""
        return self.kind == "parts" and getattr(self.dataset, "packs", False)

    @property
    def is_whole(self) -> bool:
        """Whether each worker slot packs all parts, and has its share of the sequences."""
        return self.is_packed and not self.cyclic and getattr(self.dataset, "packs_whole", False)

    @property
    def num_turns(self) -> int:
        """Numbers of an epoch that worker slots take in turn; there are fewer sequences."""
        return _MAX_SEQUENCES if self.is_whole else self.num_items

    @property
    def num_items(self) -> int:
        """Parts, files or items of an epoch."""
        if self.kind == "files":
            return len(self.dataset.urls)
        return int(self.dataset.num_parts) if self.is_partitioned else len(self.dataset)

    def count_samples(self, num_worker_slots: int, iteration: int) -> Int64Array | None:
        """Return the samples of each worker slot in an epoch; None if that is not known."""
        lengths = self.lengths(iteration) if self.is_partitioned else np.ones(self.num_items)
        if lengths is None:
            return None
        slots = np.arange(len(lengths)) % num_worker_slots
        return np.bincount(slots, lengths, num_worker_slots).astype(np.int64)

    def labelled(self, labels: dict[str, Any]) -> Any:
        """Return the dataset; its process function, if any, gets samples with labels."""
        labelled = getattr(self.dataset, "labelled", None)
        return self.dataset if labelled is None else labelled(labels)

    def lengths(self, epoch: int) -> Int64Array | None:
        """Return the samples of each part of an epoch; None if that is not known."""
        units = getattr(self.dataset, "units", None)
        if units is None or not self.dataset.can_skip or self.kind == "files":
            return None
        order = (self.seed, self.name, epoch) if self.order == "keyed" else None
        found: Int64Array = units.lengths(order)
        return found

    def check(self) -> "StreamSource":
        """Return this source after checking that it can be read.

        Raises
        ------
        ConfigError
            If the dataset lacks a method that its order needs, or is empty but cyclic.
        """
        what = f"dataset {self.name!r} ({describe(self.dataset)}) must"
        if self.kind == "files":
            if not isinstance(self.dataset, UrlDataset):
                raise ConfigError(
                    f"{what} have urls and read_url for the order 'cogdata_urlbuffer'; take "
                    "another order for it, or write them"
                )
        elif self.is_partitioned:
            missing = [name for name in _PARTITIONED if not hasattr(self.dataset, name)]
            if missing:
                raise ConfigError(
                    f"{what} be map-style or partitioned (a zindex.streaming.protocols."
                    f"PartitionedDataset), it lacks {', '.join(missing)}; add these, so that "
                    "loader workers can share it"
                )
        elif not hasattr(self.dataset, "__len__"):
            raise ConfigError(
                f"{what} have a length; a map-style dataset needs __len__ and __getitem__"
            )
        if not is_epochs(self.num_epochs):
            raise ConfigError(
                f"{what} have max_epochs >= 1, got {self.num_epochs!r}; set its percent to 0 to "
                "leave it out"
            )
        if self.cyclic and not self.num_items:
            raise ConfigError(
                f"dataset {self.name!r} must have samples, it is empty; leave it out, or set "
                "cyclic=False"
            )
        return self

    def identity(self) -> str:
        """Return the identity of its states: the order, and the fingerprint of the dataset."""
        dataset = self.dataset
        fingerprint = getattr(dataset, "fingerprint", None)
        if callable(fingerprint):
            fingerprint = fingerprint()
        if fingerprint is None:
            fingerprint = f"{describe(dataset)} of {len(dataset)} items"
        shuffles = self.is_partitioned and self.order != "none"
        buffer = f", buffer {dataset.shuffle_buffer}" if shuffles else ""
        whole = WHOLE_SOURCE if self.is_whole else ""
        return f"{whole}{self.order}, seed {self.seed}{buffer}: {fingerprint}"

    @property
    def num_skipped(self) -> int:
        """Damaged samples, and truncated files, skipped so far in this process."""
        return int(self.dataset.num_skipped) if self.is_partitioned else 0

    def read(self, numbers: list[int]) -> Iterator[Any]:
        """Yield the samples of parts, files or items, unshuffled."""
        if not self.is_partitioned:
            return read_items(self.dataset, self.name, numbers)
        if self.is_packed:
            packed: Iterator[Any] = self.dataset.read_parts(numbers)
            return packed
        read = self.dataset.read_url if self.kind == "files" else self.dataset.read_part
        return chain.from_iterable(map(read, numbers))


def make_source(dataset: Any, seed: int, cyclic: bool, order: str) -> StreamSource:
    """Return a dataset of a mixture as a checked source; see `StreamSource.check`."""
    num_epochs = getattr(dataset, "max_epochs", None)
    if num_epochs is not None and not cyclic:
        raise ConfigError(
            f"max_epochs of {dataset.name!r} must be in a mixture with cyclic=True, otherwise each "
            "dataset gives one epoch; remove max_epochs"
        )
    num_epochs = num_epochs if cyclic else 1
    return StreamSource(dataset.name, dataset, seed, cyclic, order, num_epochs=num_epochs).check()


def list_files(dataset: Any) -> str:
    """Return the list of the files of a source that may grow; empty of any other source."""
    files = getattr(dataset, "files", None)
    return files.listing() if isinstance(files, PartFiles) else ""


def list_views(source: StreamSource, origin: StreamOrigin) -> list[StreamSource]:
    """Return the views of a source that a state has, oldest first; see `StreamOrigin.files`."""
    views = []
    for view in origin.views(source.name) or [source.name]:
        dataset, listing = source.dataset, origin.files.get(view)
        if listing and listing != list_files(dataset):
            dataset = dataset.as_listed(listing)
        last = origin.ends.get(view)
        views.append(replace(source, dataset=dataset, view=view, last=last))
    return views


_PARTITIONED = ("num_parts", "read_part", "shuffle_buffer", "num_skipped", "fingerprint")


def is_streaming(dataset: Any) -> bool:
    """Return whether a dataset is read part by part, not item by item."""
    return isinstance(dataset, torch.utils.data.IterableDataset) or hasattr(dataset, "num_parts")


def read_items(dataset: Any, name: str, indices: list[int]) -> Iterator[Any]:
    """Yield items of a map-style dataset; a note on errors names the items."""
    read_many: Callable[[list[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)
    step = 1 if read_many is None else _BATCH
    for first in range(0, len(indices), step):
        some = indices[first : first + step]
        try:
            items = [dataset[some[0]]] if read_many is None else read_many(some)
        except Exception as error:
            error.add_note(f"This came up at the items {some} of {name!r}.")
            raise
        yield from items


def known_length(dataset: Any) -> int | None:
    """Return the declared number of samples of a source, or None without a declaration.

    It is ``length`` or ``len()``, times ``length_multiplier`` and divided by ``length_divisor``.
    """
    length = getattr(dataset, "length", None)
    if length is None and hasattr(dataset, "__len__"):
        length = len(dataset)
    if length is None:
        return None
    multiplier = getattr(dataset, "length_multiplier", 1)
    return int(length * multiplier / getattr(dataset, "length_divisor", 1))


def describe(dataset: Any) -> str:
    """Return the class of a dataset, for messages."""
    return type(dataset).__qualname__
