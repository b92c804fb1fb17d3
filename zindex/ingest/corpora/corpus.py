"""Corpora by position: Zarr token stores, and concatenations without copying.

The documents of a corpus may have fields, such as their id or url, which are arrays as well.
"""

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
from zindex.store.records import DocumentField, read_document_fields
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
    #: Fields of the documents.
    fields: tuple[DocumentField, ...] = ()

    def shape_of(self, name: str) -> tuple[int, np.dtype[Any]]:
        """Return the number of rows and the dtype of an array."""
        if name in schema.TOKEN_ARRAYS:
            rows, counted, dtype = schema.TOKEN_ARRAYS[name]
            return getattr(self, rows) + bool(counted), np.dtype(dtype or self.dtype)
        _, length, dtype = next(array for array in self.field_arrays() if array[0].name == name)
        return length, np.dtype(dtype)

    def field_arrays(self) -> list[tuple[schema.ArraySpec, int, str]]:
        """Return the arrays of all fields, with their lengths and dtypes."""
        return [array for field in self.fields for array in field.arrays(self.num_documents)]


def store_corpus(store: Store) -> Corpus:
    """Return a Zarr token store as a corpus."""
    facts = {name: store.spec[name] for name in COUNTS}
    facts |= {"has_modes": schema.SEQUENCE_MODE.name in store, "version": store.fingerprint}
    facts["fields"] = read_document_fields(store.spec, store.root)
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
    fields = _join_fields(parts)
    read = partial(_read_joined, parts, fields)
    return Corpus(prefix, first.dtype, has_modes=has_modes, read=read, fields=fields, **counts)


def _join_fields(parts: Sequence[Corpus]) -> tuple[DocumentField, ...]:
    """Return the fields of concatenated corpora: those of all parts, in order of appearance."""
    found: dict[str, list[DocumentField | None]] = {}
    for number, part in enumerate(parts):
        for field in part.fields:
            found.setdefault(field.name, [None] * len(parts))[number] = field
    joined = []
    for name, fields in found.items():
        present = [field for field in fields if field is not None]
        forms = {field.form for field in present}
        form = forms.pop() if len(forms) == 1 else None
        is_partial = any(
            field is None and part.num_documents for field, part in zip(fields, parts, strict=True)
        )
        has_forms = form is None or is_partial or any(field.has_forms for field in present)
        num_values = sum(field.num_values for field in present)
        joined.append(DocumentField(name, num_values, form, has_forms))
    return tuple(joined)


def _read_joined(
    parts: Sequence[Corpus], fields: Sequence[DocumentField], name: str, start: int, stop: int
) -> AnyArray:
    """Return rows of an array of concatenated corpora."""
    if name not in schema.TOKEN_ARRAYS:
        return _read_joined_field(parts, fields, name, start, stop)
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


def _read_joined_field(
    parts: Sequence[Corpus], fields: Sequence[DocumentField], name: str, start: int, stop: int
) -> AnyArray:
    """Return rows of an array of a field of concatenated corpora, which some of them may lack."""
    field = next(
        each for each in fields if name in (each.value.name, each.offset.name, each.form_array.name)
    )
    own = [next((each for each in part.fields if each.name == field.name), None) for part in parts]
    sizes = [0 if each is None else each.num_values for each in own]
    bases = list(accumulate(sizes, initial=0))
    if name == field.value.name:
        pieces = [parts[at].read(name, i, j) for at, i, j, _ in cut_span(bases, start, stop)]
        return np.concatenate([np.empty(0, np.uint8), *pieces])
    is_offset = name == field.offset.name
    out: AnyArray = np.zeros(stop - start, np.int64 if is_offset else np.uint8)
    if is_offset:
        out[-1:] = field.num_values  # the total, unless rows of a part replace it
    bounds = list(accumulate((part.num_documents for part in parts), initial=0))
    for number, first, last, at in cut_span(bounds, start, stop):
        held, rows = own[number], slice(at, at + last - first)
        if held is not None and (is_offset or held.has_forms):
            out[rows] = parts[number].read(name, first, last)
        elif held is not None:
            out[rows] = np.uint8(held.form or 0)
        if is_offset:
            out[rows] += np.int64(bases[number])
    return out
