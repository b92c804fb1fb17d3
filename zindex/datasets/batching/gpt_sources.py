"""The documents of many low-level datasets at once: their bounds, and spans of their tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.held_arrays import find_held
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.mock_gpt import MockGPTLowLevelDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.store.reader import Spans, read_many

Int64Array = npt.NDArray[np.int64]

#: Low-level datasets, each with those of its documents that are meant, consecutive in an array.
DocumentGroups = Sequence[tuple[Any, slice]]

# Exactly these: what a subclass does differently is asked of it item by item.
_KNOWN = (ZarrIndexedDataset, IndexedDataset, MockGPTLowLevelDataset)


class Extents(NamedTuple):
    """Where documents lie among the tokens of their dataset; made-up ones lie nowhere."""

    #: Shape (documents,), int64.
    starts: Int64Array
    #: Shape (documents,), int64.
    lengths: Int64Array


def is_known(low_level_dataset: Any) -> bool:
    """Return whether the documents of a low-level dataset can be read here."""
    return type(low_level_dataset) in _KNOWN


def token_dtype(low_level_dataset: Any) -> np.dtype[Any]:
    """Return the dtype of a dataset's tokens."""
    if isinstance(low_level_dataset, ZarrIndexedDataset):
        return low_level_dataset.dtype
    if isinstance(low_level_dataset, IndexedDataset):
        return np.dtype(low_level_dataset.index.dtype)
    return np.dtype(np.int64)


def read_extents(groups: DocumentGroups, documents: Int64Array) -> Extents:
    """Return where documents lie, in one round.

    Parameters
    ----------
    groups
        The datasets, and the part of ``documents`` that is each one's.
    documents
        Shape (documents,): numbers of documents in their datasets.
    """
    extents = Extents(np.zeros(len(documents), np.int64), np.empty(len(documents), np.int64))
    wanted, places = [], []
    for dataset, part in groups:
        numbers = documents[part]
        if isinstance(dataset, ZarrIndexedDataset):
            held = find_held(dataset.offsets, len(numbers))
            if held is None or numbers.min() < 0 or numbers.max() + 1 >= len(held):
                wanted.append(Spans(dataset.offsets, numbers, numbers + 2))
                places.append(part)
                continue
            extents.starts[part] = starts = held[numbers]
            np.subtract(held[numbers + 1], starts, out=extents.lengths[part])
        elif isinstance(dataset, IndexedDataset):
            index = dataset.index
            extents.starts[part] = index.sequence_pointers[numbers] // index.dtype_size
            extents.lengths[part] = index.sequence_lengths[numbers]
        else:
            extents.lengths[part] = dataset.sequence_lengths[numbers]
    if wanted:
        for part, bounds in zip(places, read_many(wanted), strict=True):
            pairs = bounds.reshape(-1, 2)
            extents.starts[part] = pairs[:, 0]
            np.subtract(pairs[:, 1], pairs[:, 0], out=extents.lengths[part])
    return extents


def read_tokens(
    groups: DocumentGroups,
    documents: Int64Array,
    extents: Extents,
    begins: Int64Array,
    lengths: Int64Array,
    out: npt.NDArray[Any],
    places: Int64Array,
) -> None:
    """Read a part of each document, in one round.

    Parameters
    ----------
    groups
        The datasets, and the documents that are each one's.
    documents, extents
        Shape (documents,): numbers, and where they lie.
    begins, lengths
        Shape (documents,): first token of each part, counted in the document, and its tokens.
    out
        One dimension, C order: the tokens go here, in its dtype.
    places
        Shape (documents,): where each part goes in ``out``.
    """
    wanted = []
    for dataset, part in groups:
        if isinstance(dataset, MockGPTLowLevelDataset):
            _make_up(dataset, documents[part], begins[part], lengths[part], out, places[part])
            continue
        first = extents.starts[part] + begins[part]
        wanted.append(Spans(dataset.tokens, first, first + lengths[part], out, places[part]))
    if wanted:
        read_many(wanted)


def _make_up(
    dataset: MockGPTLowLevelDataset,
    documents: Int64Array,
    begins: Int64Array,
    lengths: Int64Array,
    out: npt.NDArray[Any],
    places: Int64Array,
) -> None:
    """Make up parts of documents."""
    rows = np.stack([documents, begins, lengths, places], axis=1).tolist()
    for document, begin, length, place in rows:
        out[place : place + length] = dataset.get(document, begin, length)
