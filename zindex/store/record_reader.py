"""Read records of a store by number: two short reads per field, or two rounds for many records."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import check_choice
from zindex.store.open import Store
from zindex.store.records import (
    CORPUS_KIND,
    KEY,
    URL,
    Form,
    RecordField,
    decode_value,
    read_document_fields,
    read_fields,
)
from zindex.store.rows import RowReader, Spans, read_many

_NONE, _NUMBERS = int(Form.NONE), int(Form.NUMBERS)


class FieldColumn(NamedTuple):
    """The readers of one field."""

    name: str
    values: RowReader
    offsets: RowReader
    forms: RowReader | None
    form: int
    empty: AnyArray


class FieldReader:
    """Fields of records, wherever their arrays are.

    Parameters
    ----------
    columns
        The readers of each field.
    num_records
        Records that all of them have.
    """

    def __init__(self, columns: Sequence[FieldColumn], num_records: int) -> None:
        self._columns, self.num_records = columns, num_records
        self.fields = tuple(column.name for column in columns)

    def __len__(self) -> int:
        return self.num_records

    def read_many(
        self, records: Sequence[int] | Int64Array, names: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return several records in two rounds: first the offsets, then the values.

        Parameters
        ----------
        records
            Their numbers in the store.
        names
            Fields to return; None returns all.
        """
        rows = np.asarray(records, np.int64).reshape(-1)
        columns = self._columns
        if names is not None:
            columns = [column for column in columns if column.name in names]
        first: list[Spans] = []
        for column in columns:
            first.append(Spans(column.offsets, rows, rows + 2))
            if column.forms is not None:
                first.append(Spans(column.forms, rows, rows + 1))
        answers = iter(read_many(first))
        second: list[Spans] = []
        forms: list[list[int]] = []
        for column in columns:
            bounds = next(answers).reshape(-1, 2)
            second.append(Spans(column.values, bounds[:, 0].copy(), bounds[:, 1].copy()))
            given = next(answers).tolist() if column.forms is not None else None
            forms.append(given or [column.form] * len(rows))
        found: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        answers = iter(read_many(second))
        for column, spans, given in zip(columns, second, forms, strict=True):
            parts = _cut(next(answers), spans)
            for record, form, part in zip(found, given, parts, strict=True):
                if form == _NUMBERS:
                    # A view would keep the values of all records alive.
                    record[column.name] = np.array(part)
                elif form != _NONE:
                    record[column.name] = decode_value(form, part.tobytes())
        return found


class RecordReader(FieldReader):
    """The records of a store, or the fields of a corpus's documents, read lazily.

    Parameters
    ----------
    store
        A store of records, or a corpus.
    fields
        Fields to read; None reads all. Keys and file names are always included.

    Raises
    ------
    ConfigError
        If the store has no such field.
    """

    def __init__(self, store: Store, fields: Sequence[str] | None = None) -> None:
        self.store = store
        is_corpus = store.kind == CORPUS_KIND
        found: dict[str, RecordField]
        if is_corpus:
            found = {field.name: field for field in read_document_fields(store.spec, store.root)}
        else:
            found = read_fields(store.spec, store.root)
        names = [name for name in found if name != KEY]
        for name in fields or ():
            check_choice(f"a field of {store.root}", name, names)
        own = tuple(names if fields is None else fields)
        wanted = [*own, *(name for name in (KEY,) if name in found)]
        num_records = int(store.spec["num_documents" if is_corpus else "num_records"])
        super().__init__([_open_column(store, found[name]) for name in wanted], num_records)
        self.fields = own
        self._has_urls = schema.URL_TEXT.name in store
        self._urls: dict[int, str] = {}

    def read(self, record: int) -> dict[str, Any]:
        """Return one record.

        Parameters
        ----------
        record
            Its number in the store.

        Returns
        -------
        values
            The fields that it has: bytes, text, JSON values, or arrays of numbers; its key as
            ``__key__`` and the name of its file as ``__url__``.
        """
        values: dict[str, Any] = {}
        for name, reader, offsets, forms, form, empty in self._columns:
            if forms is not None:
                form = int(forms.read(record, record + 1)[0])
                if form == _NONE:
                    continue
            start, stop = offsets.read(record, record + 2).tolist()
            found = reader.read(start, stop) if start < stop else empty
            values[name] = found if form == _NUMBERS else decode_value(form, found.tobytes())
        if self._has_urls:
            values[URL] = self._url_of(record)
        return values

    def read_many(
        self, records: Sequence[int] | Int64Array, names: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return several records in two rounds: first the offsets, then the values.

        Parameters
        ----------
        records
            Their numbers in the store.
        names
            Return these fields alone, without key and file; None returns all.
        """
        found = super().read_many(records, names)
        if self._has_urls and names is None:
            rows = np.asarray(records, np.int64).reshape(-1).tolist()
            for record, row in zip(found, rows, strict=True):
                record[URL] = self._url_of(row)
        return found

    @cached_property
    def url_bounds(self) -> list[int]:
        """First record of each file, and the total number of records."""
        bounds: list[int] = self.store[schema.URL_RECORD_BOUND.name][:].tolist()
        return bounds

    def name_url(self, number: int) -> str:
        """Return the name of a file by its number."""
        url = self._urls.get(number)
        if url is None:
            start, stop = self.store[schema.URL_TEXT_BOUND.name].read(number, number + 2).tolist()
            text = self.store[schema.URL_TEXT.name].read(start, stop)
            prefix = self.store.attributes.get("url_prefix", "")
            url = self._urls[number] = prefix + str(text.data, "utf-8", "surrogateescape")
        return url

    def _url_of(self, record: int) -> str:
        """Return the name of a record's file."""
        return self.name_url(bisect_right(self.url_bounds, record) - 1)


def _cut(values: AnyArray, spans: Spans) -> Iterator[memoryview]:
    """Yield the values of each span from the concatenated values."""
    # Slicing a memoryview is faster than slicing an array.
    memory, start = values.data, 0
    for stop in np.cumsum(spans.stops - spans.starts).tolist():
        yield memory[start:stop]
        start = stop


def _open_column(store: Store, field: RecordField) -> FieldColumn:
    """Return the readers of a field."""
    forms = store[field.form_array.name] if field.has_forms else None
    values, offsets = store[field.value.name], store[field.offset.name]
    form = _NONE if field.form is None else field.form
    return FieldColumn(field.name, values, offsets, forms, form, np.empty(0, field.dtype))
