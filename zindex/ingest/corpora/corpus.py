"""Corpora by position: Zarr token stores, and concatenations without copying."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import SourceError
from zindex.ingest.spans import cut_span
from zindex.store.open import Store
from zindex.store.tokens import open_tokens

CorpusForm = Literal["bin", "zarr"]

#: Attributes of a corpus that count, in the order of its fields.
COUNTS = ("num_sequences", "num_documents", "num_tokens")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokens, sequences and documents, read by span as the arrays of a token store."""

    #: Path, URL or name; its last part names the tasks.
    prefix: str
    #: Dtype of the tokens.
    dtype: np.dtype[Any]
    #: Number of sequences, as Megatron stores them.
    num_sequences: int
    num_documents: int
    #: Tokens of all sequences together.
    num_tokens: int
    #: Whether there is a mode for each sequence.
    has_modes: bool
    #: Returns rows ``[start, stop)`` of the array with a name; pickles as a few fields.
    read: Callable[[str, int, int], AnyArray]
    form: CorpusForm = "bin"
    #: Changes when the corpus is rewritten.
    version: str = ""

    def shape_of(self, name: str) -> tuple[int, np.dtype[Any]]:
        """Return the number of rows and the dtype of an array."""
        rows, counted, dtype = schema.TOKEN_ARRAYS[name]
        return getattr(self, rows) + bool(counted), np.dtype(dtype or self.dtype)


def store_corpus(store: Store) -> Corpus:
    """Return a Zarr token store as a corpus."""
    facts = {name: store.spec[name] for name in COUNTS}
    facts |= {"has_modes": schema.SEQUENCE_MODE.name in store, "version": store.fingerprint}
    read, dtype = partial(_read_store, store), np.dtype(store.spec["token_dtype"])
    return Corpus(str(store.root), dtype, read=read, form="zarr", **facts)


def _read_store(store: Store, name: str, start: int, stop: int) -> AnyArray:
    """Return rows of an array of a token store."""
    reader = open_tokens(store) if name == schema.TOKENS.name else store[name]
    return reader.read(start, stop)


def join_corpora(parts: Sequence[Corpus], prefix: str, has_modes: bool) -> Corpus:
    """Return several corpora, concatenated without copying.

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
    counts = {name: sum(getattr(part, name) for part in parts) for name in COUNTS}
    read = partial(_read_joined, parts)
    return Corpus(prefix, first.dtype, has_modes=has_modes, read=read, **counts)


def _read_joined(parts: Sequence[Corpus], name: str, start: int, stop: int) -> AnyArray:
    """Return rows of an array of concatenated corpora."""
    rows, counted, _ = schema.TOKEN_ARRAYS[name]
    bounds = list(accumulate((getattr(part, rows) for part in parts), initial=0))
    bases = list(accumulate((getattr(part, counted or rows) for part in parts), initial=0))
    out = np.empty(stop - start, parts[0].shape_of(name)[1])
    if counted:
        out[-1:] = bases[-1]  # the total, unless rows of a part replace it
    for number, first, last, at in cut_span(bounds, start, stop):
        found = parts[number].read(name, first, last)
        if counted:
            np.add(found, bases[number], out=out[at : at + last - first])
        elif last - first == stop - start:
            return found
        else:
            out[at : at + last - first] = found
    return out
