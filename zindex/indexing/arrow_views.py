"""Corpora and records as Arrow tables, for pandas, Polars, DuckDB and Hugging Face's datasets.

Reading copies the stored values once; the tables share that copy.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError
from zindex.io.objects import PlaceLike
from zindex.lazy import need
from zindex.store.open import Store, open_store
from zindex.store.records import KEY, KIND, Form, RecordField, read_fields
from zindex.store.tokens import open_tokens
from zindex.text.kept_tokenizer import open_tokenizer

_TEXTS = (int(Form.TEXT), int(Form.JSON))


def to_arrow(
    store: Store | PlaceLike, start: int = 0, stop: int | None = None, *, text: bool = False
) -> Any:
    """Return documents or records of a store as an Arrow table.

    Parameters
    ----------
    store
        A corpus, or a store of records or keyed tokens; or its location.
    start, stop
        Documents, which are Megatron's sequences, or records ``[start, stop)``; None reads to the
        end. They are loaded into memory.
    text
        Whether to add a column with the texts of the documents, by the tokenizer that the corpus
        keeps.

    Returns
    -------
    table
        A ``pyarrow.Table``. For a corpus: ``document``, int64, and ``tokens``, a list of the
        tokens' dtype; with ``text`` also the texts. For records: each field, with lists of numbers
        as lists, texts and JSON as strings, and others as bytes; null if a record lacks it.

    Raises
    ------
    ConfigError
        If pyarrow is missing, there are no such documents or records, or the corpus keeps no
        tokenizer.
    StoreError
        If the store is of another kind.

    Notes
    -----
    ``table.to_pandas()``, ``polars.from_arrow(table)`` and ``datasets.Dataset(table)`` accept it.
    """
    arrow = need("pyarrow", "a table of a store")
    store = store if isinstance(store, Store) else open_store(store)
    is_corpus = store.kind == "tokens"
    if not is_corpus and store.kind != KIND:
        raise ConfigError(
            f"{store.root} must hold a corpus or records to become a table, it holds {store.kind}; "
            "open it by zindex.open_index"
        )
    count = int(store.spec["num_sequences" if is_corpus else "num_records"])
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count:
        what = "documents" if is_corpus else "records"
        raise ConfigError(
            f"{what} of {store.root} must be from 0 to {count:,}, got [{start:,}, {stop:,}); name "
            "some of these"
        )
    if is_corpus:
        return _corpus_table(arrow, store, start, stop, text=text)
    if text:
        raise ConfigError(f"text must be left out for records, as of {store.root}; leave it out")
    fields = read_fields(store.spec, store.root)
    names = [name for name in fields if name != KEY]
    shown = [*([KEY] if KEY in fields else []), *names]
    columns = {name: _record_column(arrow, store, fields[name], start, stop) for name in shown}
    return arrow.table(columns)


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


def _corpus_table(arrow: Any, store: Store, start: int, stop: int, *, text: bool) -> Any:
    """Return documents of a corpus as a table."""
    bounds = _read_bounds(store, schema.SEQUENCE_OFFSET.name, start, stop)
    tokens = open_tokens(store).read(int(bounds[0]), int(bounds[-1]))
    bounds -= bounds[0]
    columns = {
        "document": arrow.array(np.arange(start, stop)),
        "tokens": arrow.LargeListArray.from_arrays(arrow.array(bounds), arrow.array(tokens)),
    }
    if text:
        decode = open_tokenizer(store.root).ids_to_text
        spans = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        columns["text"] = arrow.array([decode(tokens[i:j].tolist()) for i, j in spans])
    return arrow.table(columns)


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
