"""The lengths of the documents of low-level datasets, stored or in memory."""

from typing import Any, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np

from zindex.arrays import Int32Array
from zindex.formats.bin_idx import IdxFile
from zindex.ingest.length_source import LengthSource, count_tokens, digest_array
from zindex.plan.build_plan import SourceFacts
from zindex.store.open import Store


class StoredDataset(Protocol):
    """A low-level dataset on disk or in object storage, whose indices can be stored, too."""

    path_prefix: str

    @property
    def length_file(self) -> Store | IdxFile:
        """The token store, or the checked ``.idx`` file."""


# The three splits of a dataset share one validation and one digest.
_sources: "WeakKeyDictionary[Any, LengthSource]" = WeakKeyDictionary()


def is_stored(low_level_dataset: Any) -> TypeGuard[StoredDataset]:
    """Return whether a low-level dataset is stored instead of in memory."""
    kind = type(low_level_dataset)  # the property of an instance may open a file
    return hasattr(kind, "length_file") or hasattr(low_level_dataset, "length_file")


def stored_source(low_level_dataset: StoredDataset) -> LengthSource:
    """Return the lengths of a stored dataset, digested once for all its splits."""
    source = _sources.get(low_level_dataset)
    if source is None:
        source = LengthSource.of(str(low_level_dataset.path_prefix), low_level_dataset.length_file)
        _sources[low_level_dataset] = source
    return source


def adopt_source(low_level_dataset: StoredDataset, source: LengthSource) -> None:
    """Use lengths that a plan of the same dataset has already opened and digested."""
    _sources.setdefault(low_level_dataset, source)


def memory_facts(lengths: Int32Array) -> SourceFacts:
    """Return the identity of an index of a dataset whose lengths are in memory."""
    values = np.ascontiguousarray(lengths, "<i4")
    digest = digest_array(lambda start, stop: values[start:stop], len(values))
    return SourceFacts(digest, len(values), int(values.sum(dtype=np.int64)))


def count_span(low_level_dataset: Any, span: range) -> int:
    """Return the tokens of a span of documents, from offsets if available."""
    if is_stored(low_level_dataset):
        return count_tokens(low_level_dataset.length_file, span.start, span.stop)
    lengths = low_level_dataset.sequence_lengths
    return int(np.sum(lengths[span.start : span.stop], dtype=np.int64))
