"""Corpora by position: the protocol, Zarr token stores, and concatenations without a copy."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int8Array, Int32Array, Int64Array
from zindex.errors import SourceError
from zindex.ingest.spans import cut_span
from zindex.store.open import Store
from zindex.store.tokens import open_tokens


class Corpus(Protocol):
    """Tokens, sequences and documents, read by span; it pickles as a few fields."""

    @property
    def prefix(self) -> str:
        """Path, URL or name; its last part names the tasks."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""

    @property
    def num_sequences(self) -> int:
        """Sequences as Megatron stores them."""

    @property
    def num_documents(self) -> int:
        """Documents; ``document_indices`` has one entry more."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences together."""

    @property
    def has_modes(self) -> bool:
        """Whether there is a mode for each sequence."""

    def sequence_lengths(self, start: int, stop: int) -> Int32Array:
        """Return the lengths of sequences ``[start, stop)`` in tokens."""

    def sequence_pointers(self, start: int, stop: int) -> Int64Array:
        """Return the byte offsets of sequences ``[start, stop)``."""

    def document_indices(self, start: int, stop: int) -> Int64Array:
        """Return entries ``[start, stop)`` of the first sequence of each document."""

    def sequence_modes(self, start: int, stop: int) -> Int8Array:
        """Return the modes of sequences ``[start, stop)``."""

    def read_tokens(self, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)``."""


class StoreCorpus:
    """A Zarr token store as a corpus.

    Parameters
    ----------
    store
        The opened store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = str(store.root)
        self.dtype: np.dtype[Any] = np.dtype(store.spec["token_dtype"])
        self.num_sequences: int = store.spec["num_sequences"]
        self.num_documents: int = store.spec["num_documents"]
        self.num_tokens: int = store.spec["num_tokens"]
        self.has_modes = schema.SEQUENCE_MODE.name in store

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store,)

    def sequence_lengths(self, start: int, stop: int) -> Int32Array:
        """Return the lengths of sequences ``[start, stop)`` in tokens."""
        return self.store[schema.SEQUENCE_LENGTH.name].read(start, stop)

    def sequence_pointers(self, start: int, stop: int) -> Int64Array:
        """Return the byte offsets of sequences ``[start, stop)``."""
        starts = self.store[schema.SEQUENCE_OFFSET.name].read(start, stop)
        return starts * np.int64(self.dtype.itemsize)

    def document_indices(self, start: int, stop: int) -> Int64Array:
        """Return entries ``[start, stop)`` of the first sequence of each document."""
        return self.store[schema.DOCUMENT_OFFSET.name].read(start, stop)

    def sequence_modes(self, start: int, stop: int) -> Int8Array:
        """Return the modes of sequences ``[start, stop)``."""
        return self.store[schema.SEQUENCE_MODE.name].read(start, stop)

    def read_tokens(self, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)``."""
        return open_tokens(self.store).read(start, stop)


class JoinedCorpus:
    """Several corpora, concatenated without a copy.

    Parameters
    ----------
    parts
        The corpora, at least one.
    prefix
        Name for tasks.
    has_modes
        Whether there is a mode for each sequence; every part must then have modes.

    Raises
    ------
    SourceError
        If their dtypes differ, or a part lacks the modes.
    """

    def __init__(self, parts: Sequence[Corpus], prefix: str, has_modes: bool) -> None:
        first = parts[0]
        for part in parts:
            if part.dtype != first.dtype:
                raise SourceError(
                    "corpora that are merged must have tokens of one dtype, but "
                    f"{first.prefix} has {first.dtype.name} and {part.prefix} has "
                    f"{part.dtype.name}; leave one out, or tokenize it again with the other's dtype"
                )
            if has_modes and part.num_sequences and not part.has_modes:
                raise SourceError(
                    f"corpora that are merged must all have a mode for each sequence, or none, but "
                    f"{part.prefix} has none; leave the modes out with multimodal=False "
                    "(--no-multimodal)"
                )
        self.parts = parts
        self.prefix = prefix
        self.has_modes = has_modes
        self.dtype: np.dtype[Any] = np.dtype(first.dtype)
        self._tokens = list(accumulate((part.num_tokens for part in parts), initial=0))
        self._sequences = list(accumulate((part.num_sequences for part in parts), initial=0))
        self._documents = list(accumulate((part.num_documents for part in parts), initial=0))
        self.num_tokens = self._tokens[-1]
        self.num_sequences = self._sequences[-1]
        self.num_documents = self._documents[-1]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedCorpus, (self.parts, self.prefix, self.has_modes)

    def sequence_lengths(self, start: int, stop: int) -> Int32Array:
        """Return the lengths of sequences ``[start, stop)`` in tokens."""
        out = np.empty(stop - start, np.int32)
        for number, first, last, at in cut_span(self._sequences, start, stop):
            out[at : at + last - first] = self.parts[number].sequence_lengths(first, last)
        return out

    def sequence_pointers(self, start: int, stop: int) -> Int64Array:
        """Return the byte offsets of sequences ``[start, stop)``."""
        out = np.empty(stop - start, np.int64)
        for number, first, last, at in cut_span(self._sequences, start, stop):
            pointers = self.parts[number].sequence_pointers(first, last)
            base = self._tokens[number] * self.dtype.itemsize
            np.add(pointers, base, out=out[at : at + last - first])
        return out

    def document_indices(self, start: int, stop: int) -> Int64Array:
        """Return entries ``[start, stop)`` of the first sequence of each document."""
        out = np.full(stop - start, self.num_sequences, np.int64)
        for number, first, last, at in cut_span(self._documents, start, stop):
            entries = self.parts[number].document_indices(first, last)
            np.add(entries, self._sequences[number], out=out[at : at + last - first])
        return out

    def sequence_modes(self, start: int, stop: int) -> Int8Array:
        """Return the modes of sequences ``[start, stop)``."""
        out = np.empty(stop - start, np.int8)
        for number, first, last, at in cut_span(self._sequences, start, stop):
            out[at : at + last - first] = self.parts[number].sequence_modes(first, last)
        return out

    def read_tokens(self, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)``."""
        out = np.empty(stop - start, self.dtype)
        for number, first, last, at in cut_span(self._tokens, start, stop):
            if last - first == stop - start:
                return self.parts[number].read_tokens(first, last)
            out[at : at + last - first] = self.parts[number].read_tokens(first, last)
        return out
