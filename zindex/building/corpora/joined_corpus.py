"""Several corpora one after the other, as one; nothing is copied to join them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.corpora.any_corpus import AnyCorpus
from zindex.building.corpora.parted_corpus import CorpusByPosition, PartedCorpus, cut_span
from zindex.errors import SourceError
from zindex.store.open import Store
from zindex.store.tokens import open_tokens


class StoreCorpus(CorpusByPosition):
    """A Zarr token store as a corpus: at once what has the sequences, and what has the tokens.

    Parameters
    ----------
    store
        The opened store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dtype: np.dtype[Any] = np.dtype(store.spec["token_dtype"])
        self.num_sequences: int = store.spec["num_sequences"]
        self.num_documents: int = store.spec["num_documents"]
        self.has_modes = schema.SEQUENCE_MODE.name in store

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store,)

    @property
    def prefix(self) -> str:
        """Where the store is."""
        return str(self.store.root)

    path = prefix

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.store.spec["num_tokens"])

    def sequence_lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of sequences ``[start, stop)``, int32."""
        return self.store[schema.SEQUENCE_LENGTH.name].read(start, stop)

    def sequence_pointers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of sequences ``[start, stop)``, int64."""
        starts = self.store[schema.SEQUENCE_OFFSET.name].read(start, stop)
        return starts * np.int64(self.dtype.itemsize)

    def document_indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return entries ``[start, stop)`` of the document indices, int64."""
        return self.store[schema.DOCUMENT_OFFSET.name].read(start, stop)

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return the modes of sequences ``[start, stop)``, int8."""
        return self.store[schema.SEQUENCE_MODE.name].read(start, stop)

    def _read_tokens(self, start: int, stop: int) -> npt.NDArray[Any]:
        return open_tokens(self.store).read(start, stop)


class JoinedCorpus(PartedCorpus):
    """Corpora one after the other: at once what has the sequences, and what has the tokens.

    Parameters
    ----------
    parts
        The corpora, at least one.
    prefix
        What tasks are called by.
    has_modes
        Whether there is a mode for each sequence, which every part must then have.

    Raises
    ------
    SourceError
        If their dtypes differ, or a part lacks the modes.
    """

    def __init__(self, parts: Sequence[AnyCorpus], prefix: str, *, has_modes: bool) -> None:
        first = parts[0]
        for part in parts:
            if part.index.dtype != first.index.dtype:
                raise SourceError(
                    "corpora that are merged must have tokens of one dtype, but "
                    f"{first.prefix} has {first.index.dtype.name} and {part.prefix} has "
                    f"{part.index.dtype.name}; leave one out, or tokenize it again with the "
                    "other's dtype"
                )
            if has_modes and part.index.num_sequences and not part.index.has_modes:
                raise SourceError(
                    f"corpora that are merged must all have a mode for each sequence, or none, but "
                    f"{part.prefix} has none; leave the modes out with multimodal=False "
                    "(--no-multimodal)"
                )
        self.parts = parts
        self.prefix = prefix
        self.has_modes = has_modes
        self.dtype: np.dtype[Any] = np.dtype(first.index.dtype)
        indices = [part.index for part in parts]
        self._tokens = list(accumulate((index.num_tokens for index in indices), initial=0))
        self._sequences = list(accumulate((index.num_sequences for index in indices), initial=0))
        self._documents = list(accumulate((index.num_documents for index in indices), initial=0))

    def __reduce__(self) -> tuple[Any, ...]:
        return _join_again, (self.parts, self.prefix, self.has_modes)

    @property
    def path(self) -> str:
        """What is merged."""
        return self.prefix

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return the modes of sequences ``[start, stop)``, int8."""
        out = np.empty(stop - start, np.int8)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            modes = self.parts[number].index.sequence_modes(first, last)
            out[place : place + last - first] = modes
        return out

    def _part_lengths(self, number: int, start: int, stop: int) -> npt.NDArray[np.int32]:
        return self.parts[number].index.sequence_lengths(start, stop)

    def _part_pointers(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self.parts[number].index.sequence_pointers(start, stop)

    def _part_documents(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self.parts[number].index.document_indices(start, stop)

    def _fill_tokens(self, number: int, start: int, out: npt.NDArray[Any]) -> None:
        tokens = self.parts[number].tokens
        out[:] = tokens.read(self.dtype, out.size, start * self.dtype.itemsize)


def _join_again(parts: Sequence[AnyCorpus], prefix: str, has_modes: bool) -> JoinedCorpus:
    """Return a corpus that arrives in another process."""
    return JoinedCorpus(parts, prefix, has_modes=has_modes)
