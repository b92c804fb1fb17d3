"""Ragged records in a store: what their fields are, and which arrays hold them.

A record is a dict of fields. Of each field there is one flat array of values, record after record,
and one of the places where records start, so that any record is found by two short reads. What
values mean is here; how they are read is in `zindex.store.record_reader`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import ConfigError, SourceError
from zindex.schema import ArraySpec
from zindex.store.layout import ArrayLayout, ChunkGrid

#: What a store of records is of, as `open_store` takes it.
KIND = "records"
#: Fields that a record carries beside its own.
KEY, URL = "__key__", "__url__"
#: Behind the name of a field whose records are groups of items: the field of the items' lengths.
LENGTH_SUFFIX = "_length"
#: Each field has arrays of its own, and each array is a folder.
MAX_FIELDS = 64

#: Default grid, in bytes: 64 KiB are checked and, from an object store, fetched at once.
BYTE_GRID = ChunkGrid(chunk_length=1 << 16, shard_length=1 << 26)

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.\-]|^[._]")
_MAX_NAME_LENGTH = 80
# Of each kind of dtype, the types of Python that its numbers may have, and what they are called.
_NUMBERS: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool, int}), "true and false"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "f": (frozenset({int, float}), "numbers"),
}
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_from_json = json.JSONDecoder().raw_decode


class Form(IntEnum):
    """What a record holds of a field."""

    NONE = 0
    BYTES = 1
    TEXT = 2
    JSON = 3
    NUMBERS = 4


# Members of an enumeration are slower than plain numbers, and records are many.
_BYTES, _TEXT, _JSON = int(Form.BYTES), int(Form.TEXT), int(Form.JSON)


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of the records of a store."""

    #: As in the records.
    name: str
    #: Values of all records together: bytes, or numbers.
    num_values: int
    #: What the records hold, if it is the same in all of them that have the field; else None.
    form: int | None
    #: Whether the form of each record is stored: some lack the field, or hold another form.
    has_forms: bool = False
    #: Numpy dtype name of the values.
    dtype: str = "uint8"

    @property
    def value(self) -> ArraySpec:
        """The array of the values."""
        return schema.KEY_TEXT if self.name == KEY else schema.FIELD_VALUE.of(array_name(self.name))

    @property
    def offset(self) -> ArraySpec:
        """The array of the places where records start."""
        if self.name == KEY:
            return schema.KEY_TEXT_BOUND
        return schema.FIELD_OFFSET.of(array_name(self.name))

    @property
    def form_array(self) -> ArraySpec:
        """The array of the records' forms."""
        return schema.FIELD_FORM.of(array_name(self.name))

    def layouts(self, num_records: int, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the arrays of this field for so many records; see `plan_array`."""
        layouts = [
            plan_array(self.value, self.num_values, self.dtype, grid),
            plan_array(self.offset, num_records + 1, "int64", grid),
        ]
        if self.has_forms:
            layouts.append(plan_array(self.form_array, num_records, "uint8", grid))
        return layouts

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def plan_array(spec: ArraySpec, length: int, dtype: str, grid: ChunkGrid) -> ArrayLayout:
    """Return the layout of one array of a store of records.

    Parameters
    ----------
    spec, length, dtype
        The array.
    grid
        Bytes per chunk and shard: wider values have fewer elements there, for a reader fetches
        whole chunks.
    """
    chunk_length = max(1, grid.chunk_length // np.dtype(dtype).itemsize)
    shard_length = chunk_length * (grid.shard_length // grid.chunk_length)
    return ArrayLayout.plan(spec, length, dtype, ChunkGrid(chunk_length, shard_length, grid.codec))


def array_name(field: str) -> str:
    """Return what the arrays of a field are called: another name for every field.

    Letters, digits, ``_``, ``-`` and ``.`` stay as they are, other bytes are written ``=XX``.

    Examples
    --------
    >>> array_name("seg.png"), array_name("a/b")
    ('seg.png', 'a=2Fb')
    """
    encoded = field.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"=%02X" % found.group()[0], encoded).decode()
    if len(name) > _MAX_NAME_LENGTH:
        # Two signs in a row are in no other name.
        return f"{name[:40]}=={hashlib.sha256(encoded).hexdigest()[:32]}"
    return name or "="


def record_layouts(
    fields: Sequence[RecordField], num_records: int, grid: ChunkGrid
) -> list[ArrayLayout]:
    """Return the arrays of the fields of a store of records.

    Parameters
    ----------
    fields
        What the records have; for keys a field of the name ``KEY``.
    num_records
        Records of the store.
    grid
        Bytes per chunk and shard, and the codec.

    Raises
    ------
    ConfigError
        If there are more than ``MAX_FIELDS`` fields beside the key.
    """
    own = [field.name for field in fields if field.name != KEY]
    check_fields(own)
    return [layout for field in fields for layout in field.layouts(num_records, grid)]


def check_fields(names: Sequence[str]) -> None:
    """Refuse more fields than a store can have; see `record_layouts`."""
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
        If one is not a dtype of booleans, whole numbers or floats that Zarr has too.
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
    """Return the form and the bytes of a value that is no array of numbers.

    Raises
    ------
    SourceError
        If it is neither bytes nor text nor a JSON value.
    """
    kind = value.__class__
    if kind is str or isinstance(value, str):
        try:
            return _TEXT, value.encode()
        except UnicodeEncodeError:
            # JSON may hold halves of surrogate pairs, which come back as they are.
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
    """Return the bytes of a flat list of numbers; booleans may be written 0 and 1 too.

    Raises
    ------
    SourceError
        If it is another value, or a number does not fit the dtype.
    """
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == 1:
        return value.tobytes()
    kinds, nouns = _NUMBERS[dtype.kind]
    if not isinstance(value, list) or not kinds.issuperset(map(type, value)):
        raise SourceError(f"a value must be a list of {nouns}, got {_shorten(value)}")
    if dtype.kind == "b":
        if not {0, 1}.issuperset(value):
            raise SourceError(f"a value must be a list of {nouns}, got {_shorten(value)}")
        return bytes(value)
    numbers = _convert(value, dtype)
    if numbers is None:
        raise SourceError(f"the numbers must fit {dtype.name}, got {_shorten(value)}")
    return numbers.tobytes()


def _convert(value: list[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return a list of numbers as an array; None if one does not fit."""
    wide = np.dtype(dtype if dtype == np.uint64 else np.float64 if dtype.kind == "f" else np.int64)
    if dtype == np.uint64 and value and min(value) < 0:
        return None
    try:
        numbers = np.array(value, wide)
    except OverflowError:
        return None
    if dtype == wide or not value:
        return numbers.astype(dtype, copy=False)
    if dtype.kind == "f":
        sizes = np.abs(numbers)
        fits = not np.any((sizes > np.finfo(dtype).max) & (sizes != np.inf))
    else:
        limits = np.iinfo(dtype)
        fits = numbers.min() >= limits.min and numbers.max() <= limits.max
    return numbers.astype(dtype) if fits else None


def _shorten(value: Any) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def decode_value(form: int, content: bytes) -> Any:
    """Return the value that is no array of numbers from its form and its bytes."""
    if form == _TEXT:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content.decode("utf-8", "surrogatepass")
    if form == _JSON:
        # Written without blanks around it, so that nobody need look for any.
        return _from_json(content.decode("utf-8", "surrogatepass"))[0]
    return content
