"""Ragged records in a store: fields, their arrays, and the encoding of values.

A record is a dict of fields. Each field has one flat array of the values of all records and one
array of record offsets, so any record is found with two short reads. `zindex.store.record_reader`
reads them.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import ConfigError, SourceError, StoreError, shorten
from zindex.formats.keyed.schema_field import LENGTH_SUFFIX as LENGTH_SUFFIX
from zindex.schema import ArraySpec
from zindex.store.checked_json import parse_as
from zindex.store.layout import ArrayLayout, ChunkGrid

#: Kind of a store of records, for `open_store`.
KIND = "records"
#: Kind of a corpus, whose documents may have fields too.
CORPUS_KIND = "tokens"
#: Fields that every record has in addition to its own.
KEY, URL = "__key__", "__url__"
#: Maximum number of fields: each one has several arrays, and each array is a folder.
MAX_FIELDS = 64

#: Default grid, in bytes: chunks of 64 KiB.
BYTE_GRID = ChunkGrid(chunk_length=1 << 16, shard_length=1 << 26)

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.\-]|^[._]")
_MAX_NAME_LENGTH = 80
# Python types of the numbers of each kind of dtype, and their name.
_NUMBERS: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool, int}), "true and false"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "f": (frozenset({int, float}), "numbers"),
}
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_from_json = json.JSONDecoder().raw_decode


class Form(IntEnum):
    """Type of a record's value of a field."""

    NONE = 0
    BYTES = 1
    TEXT = 2
    JSON = 3
    NUMBERS = 4


# Plain numbers are faster than members of an enumeration.
_BYTES, _TEXT, _JSON = _BYTE_FORMS = int(Form.BYTES), int(Form.TEXT), int(Form.JSON)


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of the records of a store."""

    #: Name in the records.
    name: str
    #: Values of all records: bytes, or numbers.
    num_values: int
    #: Form of all records that have the field; None if it varies.
    form: int | None
    #: Whether the form of each record is stored, because it varies or some records lack the field.
    has_forms: bool = False
    #: Numpy dtype name of the values.
    dtype: str = "uint8"

    @property
    def value(self) -> ArraySpec:
        """The array of the values."""
        return schema.KEY_TEXT if self.name == KEY else schema.FIELD_VALUE.of(array_name(self.name))

    @property
    def offset(self) -> ArraySpec:
        """The array of record offsets."""
        if self.name == KEY:
            return schema.KEY_TEXT_BOUND
        return schema.FIELD_OFFSET.of(array_name(self.name))

    @property
    def form_array(self) -> ArraySpec:
        """The array of the records' forms."""
        return schema.FIELD_FORM.of(array_name(self.name))

    def layouts(self, num_records: int, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the layouts of this field for a number of records; see `plan_array`."""
        return [plan_array(*array, grid) for array in self.arrays(num_records)]

    def arrays(self, num_records: int) -> list[tuple[ArraySpec, int, str]]:
        """Return the arrays of this field for a number of records: spec, length and dtype."""
        arrays = [
            (self.value, self.num_values, self.dtype),
            (self.offset, num_records + 1, "int64"),
        ]
        return arrays + [(self.form_array, num_records, "uint8")] * self.has_forms

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


class DocumentField(RecordField):
    """One field of the documents of a corpus, such as their id: bytes, texts and JSON values."""

    __slots__ = ()

    @property
    def value(self) -> ArraySpec:
        """The array of the values."""
        return schema.DOCUMENT_FIELD_VALUE.of(array_name(self.name))

    @property
    def offset(self) -> ArraySpec:
        """The array of document offsets."""
        return schema.DOCUMENT_FIELD_OFFSET.of(array_name(self.name))

    @property
    def form_array(self) -> ArraySpec:
        """The array of the documents' forms."""
        return schema.DOCUMENT_FIELD_FORM.of(array_name(self.name))


def plan_array(spec: ArraySpec, length: int, dtype: str, grid: ChunkGrid) -> ArrayLayout:
    """Return the layout of one array of a store of records.

    Parameters
    ----------
    spec, length, dtype
        The array.
    grid
        Bytes per chunk and shard: wider values have fewer elements, as readers fetch whole chunks.
    """
    chunk_length = max(1, grid.chunk_length // np.dtype(dtype).itemsize)
    shard_length = chunk_length * (grid.shard_length // grid.chunk_length)
    return ArrayLayout.plan(spec, length, dtype, ChunkGrid(chunk_length, shard_length, grid.codec))


def array_name(field: str) -> str:
    """Return the unique name of a field's arrays.

    Letters, digits, ``_``, ``-`` and ``.`` are kept, other bytes become ``=XX``.

    Examples
    --------
    >>> array_name("seg.png"), array_name("a/b")
    ('seg.png', 'a=2Fb')
    """
    encoded = field.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"=%02X" % found.group()[0], encoded).decode()
    if len(name) > _MAX_NAME_LENGTH:
        # No other name contains two consecutive equal signs.
        return f"{name[:40]}=={hashlib.sha256(encoded).hexdigest()[:32]}"
    return name or "="


def record_layouts(
    fields: Sequence[RecordField], num_records: int, grid: ChunkGrid
) -> list[ArrayLayout]:
    """Return the layouts of a store of records.

    Parameters
    ----------
    fields
        The fields; for keys a field named ``KEY``.
    num_records
        Records of the store.
    grid
        Bytes per chunk and shard, and the codec.

    Raises
    ------
    ConfigError
        If there are more than ``MAX_FIELDS`` fields, not counting the key.
    """
    own = [field.name for field in fields if field.name != KEY]
    check_fields(own)
    return [layout for field in fields for layout in field.layouts(num_records, grid)]


def read_fields(store_spec: Mapping[str, Any], where: object) -> dict[str, RecordField]:
    """Return the fields of a store of records by name, from its description.

    Raises
    ------
    StoreError
        If it describes none.
    """
    rows = parse_as(tuple[RecordField, ...], store_spec.get("fields"), f"{where} as fields")
    return {field.name: field for field in rows}


def read_document_fields(store_spec: Mapping[str, Any], where: object) -> tuple[DocumentField, ...]:
    """Return the fields of the documents of a corpus, from its description; it may have none.

    Raises
    ------
    StoreError
        If the description is invalid.
    """
    rows = store_spec.get("fields", [])
    fields = parse_as(tuple[DocumentField, ...], rows, f"{where} as fields")
    forms = (None, *_BYTE_FORMS)
    if any(item.dtype != "uint8" or item.form not in forms for item in fields):
        raise StoreError(
            f"{where} must hold bytes, texts and JSON values as fields of documents, it describes "
            "numbers; it was not written by zindex"
        )
    return fields


def check_fields(names: Sequence[str]) -> None:
    """Raise if there are more fields than a store can have; see `record_layouts`."""
    if len(names) > MAX_FIELDS:
        shown = ", ".join(map(repr, names[:3]))
        raise ConfigError(
            f"records must have at most {MAX_FIELDS} fields together, got {len(names)} or more "
            f"({shown}, ...): their names may be data; name the fields to keep"
        )


def check_dtypes(dtypes: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype names of fields of numbers.

    Raises
    ------
    ConfigError
        If one is not a dtype of booleans, integers or floats that Zarr supports.
    """
    names = {}
    for field, given in dtypes.items():
        try:
            dtype = np.dtype(given)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in _NUMBERS or dtype.itemsize > 8:
            raise ConfigError(
                f"the numbers of field {field!r} must have a dtype such as int32, float64 or bool, "
                f"got {given!r}"
            )
        names[field] = dtype.name
    return names


def encode_value(value: Any) -> tuple[int, bytes]:
    """Return the form and the bytes of a value other than an array of numbers.

    Raises
    ------
    SourceError
        If it is not bytes, text or a JSON value.
    """
    kind = value.__class__
    if kind is str or isinstance(value, str):
        try:
            return _TEXT, value.encode()
        except UnicodeEncodeError:
            # JSON may contain lone surrogates, which must survive a round trip.
            return _TEXT, value.encode("utf-8", "surrogatepass")
    if kind is int:
        return _JSON, b"%d" % value
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES, bytes(value)
    try:
        text = _to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise SourceError(
            f"a value must be bytes, text or JSON, got {type(value).__name__}: {error}"
        ) from error
    return _JSON, text.encode("utf-8", "surrogatepass")


def encode_numbers(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a flat list of numbers; booleans may also be 0 and 1.

    Raises
    ------
    SourceError
        If it is not such a list, or a number does not fit the dtype.
    """
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == 1:
        return value.tobytes()
    kinds, nouns = _NUMBERS[dtype.kind]
    is_known = isinstance(value, list) and kinds.issuperset(map(type, value))
    if not is_known or (dtype.kind == "b" and not {0, 1}.issuperset(value)):
        raise SourceError(f"a value must be a list of {nouns}, got {shorten(value)}")
    if dtype.kind == "b":
        return bytes(value)
    numbers = _convert(value, dtype)
    if numbers is None:
        raise SourceError(f"the numbers must fit {dtype.name}, got {shorten(value)}")
    return numbers.tobytes()


def _convert(value: list[Any], dtype: np.dtype[Any]) -> AnyArray | None:
    """Return a list of numbers as an array; None if one does not fit."""
    try:
        if dtype.kind != "f":
            return np.array(value, dtype)
        numbers = np.array(value, np.float64)
    except OverflowError:
        return None
    sizes = np.abs(numbers)
    fits = not np.any((sizes > np.finfo(dtype).max) & (sizes != np.inf))
    return numbers.astype(dtype, copy=False) if fits else None


def decode_value(form: int, content: bytes) -> Any:
    """Return a value, other than an array of numbers, from its form and bytes."""
    if form == _TEXT:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content.decode("utf-8", "surrogatepass")
    if form == _JSON:
        # Written without surrounding whitespace, so none needs to be skipped.
        return _from_json(content.decode("utf-8", "surrogatepass"))[0]
    return content
