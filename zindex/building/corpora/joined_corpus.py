"""Several corpora one after the other, as one; nothing is copied to join them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.any_corpus import AnyCorpus
from zindex.errors import SourceError
from zindex.store.open import Store
from zindex.store.tokens import open_tokens


class StoreCorpus:
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
        self.num_tokens: int = store.spec["num_tokens"]
        self.has_modes = schema.SEQUENCE_MODE.name in store

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store,)

    @property
    def prefix(self) -> str:
        """Where the store is."""
        return str(self.store.root)

    path = prefix

    @property
    def index(self) -> "StoreCorpus":
        """Sequences and documents: this object."""
        return self

    @property
    def tokens(self) -> "StoreCorpus":
        """Tokens by position: this object."""
        return self

    @property
    def bin_nbytes(self) -> int:
        """Bytes of all tokens."""
        return self.num_tokens * self.dtype.itemsize

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

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset`` of the tokens."""
        itemsize, nbytes = self.dtype.itemsize, count * np.dtype(dtype).itemsize
        start, stop = offset // itemsize, -(-(offset + nbytes) // itemsize)
        values = open_tokens(self.store).read(start, stop)
        skipped = offset - start * itemsize
        return values.view(np.uint8)[skipped : skipped + nbytes].view(dtype)


class JoinedCorpus:
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

    @property
    def index(self) -> "JoinedCorpus":
        """Sequences and documents: this object."""
        return self

    @property
    def tokens(self) -> "JoinedCorpus":
        """Tokens by position: this object."""
        return self

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self._tokens[-1]

    @property
    def num_sequences(self) -> int:
        """Stored runs of tokens."""
        return self._sequences[-1]

    @property
    def num_documents(self) -> int:
        """Documents."""
        return self._documents[-1]

    @property
    def bin_nbytes(self) -> int:
        """Bytes of all tokens."""
        return self.num_tokens * self.dtype.itemsize

    def sequence_lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of sequences ``[start, stop)``, int32."""
        out = np.empty(stop - start, np.int32)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            lengths = self.parts[number].index.sequence_lengths(first, last)
            out[place : place + last - first] = lengths
        return out

    def sequence_pointers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of sequences ``[start, stop)``, int64."""
        out = np.empty(stop - start, np.int64)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            pointers = self.parts[number].index.sequence_pointers(first, last)
            before = self._tokens[number] * self.dtype.itemsize
            np.add(pointers, before, out=out[place : place + last - first])
        return out

    def document_indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return entries ``[start, stop)`` of the document indices, int64."""
        out = np.full(stop - start, self.num_sequences, np.int64)
        for number, first, last, place in cut_span(self._documents, start, stop):
            entries = self.parts[number].index.document_indices(first, last)
            np.add(entries, self._sequences[number], out=out[place : place + last - first])
        return out

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return the modes of sequences ``[start, stop)``, int8."""
        out = np.empty(stop - start, np.int8)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            modes = self.parts[number].index.sequence_modes(first, last)
            out[place : place + last - first] = modes
        return out

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset`` of the tokens."""
        itemsize, nbytes = self.dtype.itemsize, count * np.dtype(dtype).itemsize
        start, stop = offset // itemsize, -(-(offset + nbytes) // itemsize)
        out = np.empty(stop - start, self.dtype)
        for number, first, last, place in cut_span(self._tokens, start, stop):
            tokens = self.parts[number].tokens.read(self.dtype, last - first, first * itemsize)
            out[place : place + last - first] = tokens
        skipped = offset - start * itemsize
        return out.view(np.uint8)[skipped : skipped + nbytes].view(dtype)


def _join_again(parts: Sequence[AnyCorpus], prefix: str, has_modes: bool) -> JoinedCorpus:
    """Return a corpus that arrives in another process."""
    return JoinedCorpus(parts, prefix, has_modes=has_modes)


def cut_span(bounds: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield what of each part lies within a span of all of them.

    Parameters
    ----------
    bounds
        Where each part begins, and where the last one ends.
    start, stop
        The span; what of it is behind the last part is left out.

    Yields
    ------
    number, first, last, place
        A part, its elements ``[first, last)``, and where they are in the span.
    """
    at = start
    number = max(0, bisect_right(bounds, start) - 1)
    while at < stop and number < len(bounds) - 1:
        end = min(stop, bounds[number + 1])
        if at < end:
            yield number, at - bounds[number], end - bounds[number], at - start
            at = end
        number += 1
