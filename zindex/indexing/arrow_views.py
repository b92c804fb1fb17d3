"""Corpora, records and provenance as tables of Arrow, pandas, Polars and Hugging Face's datasets.

The tokens of a ``.bin`` are mapped into memory. Other values are read, which copies them once. The
tables of all libraries share these values.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError
from zindex.formats.bin_idx import bin_path
from zindex.ingest.corpora.corpus import Corpus, store_corpus
from zindex.ingest.corpora.document_fields import DocumentFields
from zindex.ingest.corpora.pairs import open_corpus
from zindex.ingest.length_source import is_store
from zindex.io.objects import PlaceLike
from zindex.lazy import need
from zindex.store.open import Store, open_store
from zindex.store.records import CORPUS_KIND, KEY, KIND, Form, RecordField, read_fields
from zindex.store.tokens import FlatFile, open_tokens
from zindex.text.kept_tokenizer import open_tokenizer

_TEXTS = (int(Form.TEXT), int(Form.JSON))


def to_arrow(
    source: Store | PlaceLike | Mapping[str, Any],
    start: int = 0,
    stop: int | None = None,
    *,
    text: bool = False,
) -> Any:
    """Return documents or records of a store, or the provenance of a batch, as an Arrow table.

    Parameters
    ----------
    source
        A corpus, or a store of records or keyed tokens; its location; the prefix of a
        ``.bin/.idx`` pair; or a batch, see `provenance_to_arrow`.
    start, stop
        Documents, which are Megatron's sequences, or records ``[start, stop)``; None reads to the
        end. They are loaded into memory, except for tokens in a local ``.bin``, of a pair or of a
        store that links to it: these are mapped, and the file must stay as it is.
    text
        Whether to add a column with the texts of the documents, by the tokenizer that the corpus
        keeps.

    Returns
    -------
    table
        A ``pyarrow.Table``. For a corpus: ``document``, int64, and ``tokens``, a list of the
        tokens' dtype; with ``text`` also the texts; and the fields of the source that it keeps,
        such as ``id`` and ``url``, or ``source.tokens`` for a field of the same name as a column.
        For records: each field. Lists of numbers are lists, texts and JSON are strings, and
        others are bytes; a missing value is null.

    Raises
    ------
    ConfigError
        If pyarrow is missing, there are no such documents or records, the corpus keeps no
        tokenizer, or the store is of another kind.
    SourceError
        If there is neither a store nor a pair.
    """
    if isinstance(source, Mapping):
        return provenance_to_arrow(source)
    arrow = need("pyarrow", "a table of a store")
    if not isinstance(source, Store):
        path = os.fspath(source) if isinstance(source, os.PathLike) else str(source)
        if not is_store(path):
            pair = open_corpus(path.removesuffix(".idx").removesuffix(".bin"))
            start, stop = _check_span(start, stop, pair.num_sequences, "documents", pair.prefix)
            return _corpus_table(arrow, pair, start, stop, text=text)
    store = source if isinstance(source, Store) else open_store(source)
    is_corpus = store.kind == CORPUS_KIND
    if not is_corpus and store.kind != KIND:
        raise ConfigError(
            f"{store.root} must hold a corpus or records to become a table, it holds {store.kind}; "
            "open it by zindex.open_index"
        )
    count = int(store.spec["num_sequences" if is_corpus else "num_records"])
    what = "documents" if is_corpus else "records"
    start, stop = _check_span(start, stop, count, what, store.root)
    if is_corpus:
        return _corpus_table(arrow, store_corpus(store), start, stop, text=text, store=store)
    if text:
        raise ConfigError(f"text must be left out for records, as of {store.root}; leave it out")
    fields = read_fields(store.spec, store.root)
    names = [name for name in fields if name != KEY]
    shown = [*([KEY] if KEY in fields else []), *names]
    columns = {name: _record_column(arrow, store, fields[name], start, stop) for name in shown}
    return arrow.table(columns)


def to_polars(
    source: Store | PlaceLike | Mapping[str, Any],
    start: int = 0,
    stop: int | None = None,
    *,
    text: bool = False,
) -> Any:
    """Return the table of `to_arrow` as a ``polars.DataFrame``, which shares its numbers.

    Parameters
    ----------
    source, start, stop, text
        See `to_arrow`.

    Raises
    ------
    ConfigError
        If Polars is missing; and the errors of `to_arrow`.
    """
    polars = need("polars", "a Polars frame of a store")
    return polars.from_arrow(to_arrow(source, start, stop, text=text), rechunk=False)


def to_pandas(
    source: Store | PlaceLike | Mapping[str, Any],
    start: int = 0,
    stop: int | None = None,
    *,
    text: bool = False,
) -> Any:
    """Return the table of `to_arrow` as a ``pandas.DataFrame`` of Arrow dtypes, which shares it.

    Parameters
    ----------
    source, start, stop, text
        See `to_arrow`.

    Raises
    ------
    ConfigError
        If pandas is missing; and the errors of `to_arrow`.
    """
    pandas = need("pandas", "a pandas frame of a store")
    table = to_arrow(source, start, stop, text=text)
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def to_dataset(
    source: Store | PlaceLike | Mapping[str, Any],
    start: int = 0,
    stop: int | None = None,
    *,
    text: bool = False,
) -> Any:
    """Return the table of `to_arrow` as a ``datasets.Dataset`` of Hugging Face, which shares it.

    Parameters
    ----------
    source, start, stop, text
        See `to_arrow`.

    Raises
    ------
    ConfigError
        If datasets is missing; and the errors of `to_arrow`.
    """
    datasets = need("datasets", "a dataset of Hugging Face of a store")
    return datasets.Dataset(to_arrow(source, start, stop, text=text))


def provenance_to_arrow(batch: Mapping[str, Any]) -> Any:
    """Return the provenance of a batch's tokens: one row per document span.

    Parameters
    ----------
    batch
        A batch of ``zindex.loader(..., with_provenance=True)``, in main memory.

    Returns
    -------
    table
        A ``pyarrow.Table``, all int64: ``sample``, the row of the batch; ``dataset_id`` in a blend;
        ``sample_id`` and ``epoch`` of the dataset; ``document``; and ``start`` and ``stop``, the
        positions of its tokens in the sample. Padding has no row. A document that follows itself,
        as between epochs of a corpus with a single document, is one span.

    Raises
    ------
    ConfigError
        If pyarrow is missing, or the batch has no provenance.
    """
    arrow = need("pyarrow", "a table of provenance")
    if "document_ids" not in batch:
        raise ConfigError(
            f"a batch must have document_ids, got {', '.join(batch)}; pass with_provenance=True to "
            "the loader"
        )
    documents = np.asarray(batch["document_ids"])
    length = documents.shape[1]
    is_start = np.ones(documents.shape, np.bool_)
    is_start[:, 1:] = documents[:, 1:] != documents[:, :-1]
    samples, starts = np.nonzero(is_start)
    stops = np.full(len(starts), length, np.int64)
    is_inner = samples[:-1] == samples[1:]
    stops[:-1][is_inner] = starts[1:][is_inner]
    found = documents[samples, starts]
    is_text = found >= 0
    names = [name for name in ("dataset_id", "sample_id", "epoch") if name in batch]
    columns = {"sample": samples}
    columns |= {name: np.asarray(batch[name])[samples] for name in names}
    columns |= {"document": found, "start": starts, "stop": stops}
    return arrow.table({name: column[is_text].astype(np.int64) for name, column in columns.items()})


def _check_span(
    start: int, stop: int | None, count: int, what: str, where: object
) -> tuple[int, int]:
    """Return a span of documents or records; ConfigError if there are no such ones."""
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count:
        raise ConfigError(
            f"{what} of {where} must be from 0 to {count:,}, got [{start:,}, {stop:,}); name some "
            "of these"
        )
    return start, stop


def _corpus_table(
    arrow: Any, corpus: Corpus, start: int, stop: int, *, text: bool, store: Store | None = None
) -> Any:
    """Return documents of a corpus, a pair or a store, as a table."""
    offsets = corpus.read(schema.SEQUENCE_OFFSET.name, start, stop + 1)
    bounds = np.array(offsets, np.int64)
    tokens = _read_tokens(corpus, store, int(bounds[0]), int(bounds[-1]))
    bounds -= bounds[0]
    columns = {
        "document": arrow.array(np.arange(start, stop)),
        "tokens": arrow.LargeListArray.from_arrays(arrow.array(bounds), arrow.array(tokens)),
    }
    if text:
        decode = open_tokenizer(corpus.prefix if store is None else store.root).ids_to_text
        spans = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        columns["text"] = arrow.array([decode(tokens[i:j].tolist()) for i, j in spans])
    if store is not None and corpus.fields and start < stop:
        sources = DocumentFields(store).find_sources(np.arange(start, stop))
        first, last = int(sources[0]), int(sources[-1])
        for field in corpus.fields:
            column = _record_column(arrow, store, field, first, last + 1)
            if len(column) > len(sources) or len(np.unique(sources)) < len(sources):
                column = column.take(arrow.array(sources - first))
            name = f"source.{field.name}" if field.name in (*columns, "text") else field.name
            columns[name] = column
    return arrow.table(columns)


def _read_tokens(corpus: Corpus, store: Store | None, start: int, stop: int) -> AnyArray:
    """Return tokens of a corpus, mapped into memory if they are in a local ``.bin``."""
    path = bin_path(corpus.prefix) if store is None else None
    if store is not None:
        reader = open_tokens(store)
        path = reader.path if isinstance(reader, FlatFile) else None
    if path is None or stop == start or not os.path.isfile(path):
        return corpus.read(schema.TOKENS.name, start, stop)
    offset = start * corpus.dtype.itemsize
    return np.memmap(path, corpus.dtype, "r", offset, (stop - start,))


def _read_bounds(store: Store, name: str, start: int, stop: int) -> Int64Array:
    """Return the start of rows ``[start, stop)``, and the end of the last one."""
    found: Int64Array = np.array(store[name].read(start, stop + 1), np.int64)
    return found


def _record_column(arrow: Any, store: Store, field: RecordField, start: int, stop: int) -> Any:
    """Return a field of records as a column."""
    bounds = _read_bounds(store, field.offset.name, start, stop)
    values = store[field.value.name].read(int(bounds[0]), int(bounds[-1]))
    bounds -= bounds[0]
    if field.has_forms:
        forms = np.asarray(store[field.form_array.name].read(start, stop))
    else:
        forms = np.full(stop - start, field.form, np.uint8)
    missing = forms == int(Form.NONE)
    found = set(np.unique(forms[~missing]).tolist())
    if field.form == int(Form.NUMBERS) or field.dtype != "uint8" or int(Form.NUMBERS) in found:
        mask = arrow.array(missing) if missing.any() else None
        return arrow.LargeListArray.from_arrays(arrow.array(bounds), arrow.array(values), mask=mask)
    kind = arrow.large_string() if found <= set(_TEXTS) else arrow.large_binary()
    return _byte_column(arrow, kind, values, bounds, missing)


def _byte_column(
    arrow: Any, kind: Any, values: AnyArray, bounds: Int64Array, missing: AnyArray
) -> Any:
    """Return a column of texts or bytes that shares their memory."""
    present = None
    if missing.any():
        present = arrow.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [present, arrow.py_buffer(bounds), arrow.py_buffer(np.ascontiguousarray(values))]
    return arrow.Array.from_buffers(kind, len(missing), buffers)
