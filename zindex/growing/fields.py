"""The keys of a growing store, and the values of records as flat arrays.

Every generation has the same keys and dtypes. All records are checked before any byte is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int64Array
from zindex.errors import ConfigError, SourceError, shorten
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import TOKEN_KEYS
from zindex.formats.keyed.value_rules import check_values, dtype_by_name
from zindex.store.records import (
    KEY,
    LENGTH_SUFFIX,
    URL,
    Form,
    RecordField,
    check_dtypes,
    check_fields,
    encode_value,
)

#: Key that every record gets: the version of the policy that made it.
VERSION_KEY = "policy_version"

#: What a record has under a key: one number, numbers, groups of numbers, a text, bytes, or JSON.
Shape = Literal["scalar", "row", "group", "text", "bytes", "json"]
_FORMS = {"text": Form.TEXT, "bytes": Form.BYTES, "json": Form.JSON}
#: Shapes of values that are no numbers.
TEXT_SHAPES = frozenset(_FORMS)
_TYPES: dict[type, Shape] = {str: "text", bytes: "bytes", dict: "json"}
# By the number of dimensions.
_SHAPES: tuple[Shape, ...] = ("scalar", "row", "group")
_RESERVED = (KEY, URL, VERSION_KEY)
_MUST_BE = {
    "scalar": "one number",
    "row": "a list or an array of numbers",
    "group": "a list of lists or arrays of numbers",
    "text": "a text",
    "bytes": "bytes",
    "json": "a JSON value",
}


@dataclass(frozen=True, slots=True)
class GrowingKey:
    """One key of the records."""

    name: str
    #: Numpy dtype name of its numbers; ``uint8`` for texts.
    dtype: str
    shape: Shape
    #: Key whose lengths its own must equal in each record.
    like: str | None = None
    is_tokens: bool = False

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        """Name, dtype and form of its stored fields: the lengths of items have one of their own."""
        field = self.name, self.dtype, int(_FORMS.get(self.shape, Form.NUMBERS))
        if self.shape != "group":
            return (field,)
        return field, (f"{self.name}{LENGTH_SUFFIX}", "int64", int(Form.NUMBERS))


class FieldValues(NamedTuple):
    """The values of one stored field of some records."""

    values: AnyArray
    #: Values of each record.
    lengths: Int64Array


@dataclass(frozen=True, slots=True)
class GrowingSchema:
    """What all records of a growing store have in common."""

    keys: tuple[GrowingKey, ...]
    #: Number of ids of the vocabulary; None if unknown.
    num_ids: int | None = None
    #: Declared kind of the records, as JSON values; None if there is none.
    kind: Mapping[str, Any] | None = None

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        """Name, dtype and form of each stored field."""
        return tuple(chain.from_iterable(key.fields for key in self.keys))

    def record_fields(self, num_values: Sequence[int]) -> list[RecordField]:
        """Return the fields of a record store with so many values of each."""
        return [
            RecordField(name, count, form, dtype=dtype)
            for (name, dtype, form), count in zip(self.fields, num_values, strict=True)
        ]

    def flatten(self, records: Sequence[Mapping[str, Any]], version: int) -> list[FieldValues]:
        """Return the values of each stored field of some records.

        Raises
        ------
        SourceError
            If a record has other keys, or a value does not fit its key.
        """
        names = {key.name for key in self.keys} - {VERSION_KEY}
        columns: list[list[Any]] = [[] for _ in self.fields]
        for number, record in enumerate(records):
            if record.keys() != names:
                raise SourceError(_describe_keys(record, names, number))
            column = iter(columns)
            for key in self.keys:
                value = version if key.name == VERSION_KEY else record[key.name]
                for part in self._flatten_value(key, value, number):
                    next(column).append(part)
        found = {
            name: FieldValues(
                np.concatenate(parts).astype(dtype, copy=False),
                np.fromiter(map(len, parts), np.int64, len(parts)),
            )
            for parts, (name, dtype, _) in zip(columns, self.fields, strict=True)
        }
        by_name = {key.name: key for key in self.keys}
        for key in self.keys:
            if key.like in by_name:
                _check_lengths(key, by_name[key.like], found)
        return [*found.values()]

    def _flatten_value(self, key: GrowingKey, value: Any, record: int) -> tuple[AnyArray, ...]:
        """Return the values of one record for the stored fields of a key."""
        if key.shape in _FORMS:
            form, content = encode_value(value)
            if form != _FORMS[key.shape]:
                raise _refuse(key, value, record)
            return (np.frombuffer(content, np.uint8),)
        if key.shape != "group":
            return (self._to_numbers(key, value, record),)
        if not isinstance(value, list | tuple) and getattr(value, "ndim", 0) != 2:
            raise _refuse(key, value, record)
        items = [self._to_numbers(key, item, record) for item in value]
        flat = np.concatenate(items) if items else np.empty(0, key.dtype)
        return flat, np.array([len(item) for item in items], np.int64)

    def _to_numbers(self, key: GrowingKey, value: Any, record: int) -> AnyArray:
        """Return the numbers of a value in the dtype of its key, after checking them."""
        found, wanted = as_array(value), np.dtype(key.dtype)
        if found is None or found.ndim != (key.shape != "scalar"):
            raise _refuse(key, value, record)
        numbers = found.reshape(-1)
        if numbers.dtype != wanted:
            cast = _cast(numbers, wanted)
            if cast is None:
                raise SourceError(
                    f"numbers of {key.name!r} must fit {key.dtype}, as in the first generation, "
                    f"got {shorten(value)} in record {record:,}; convert them, or begin a new store"
                )
            numbers = cast
        checks: Any = {"is_tokens": key.is_tokens, "num_ids": self.num_ids}
        check_values(key.name, numbers, f"record {record:,}", **checks)
        return numbers


def as_array(value: Any) -> AnyArray | None:
    """Return numbers as an array: a tensor, an array, a number or a list; None if they are none."""
    if hasattr(value, "detach"):  # a tensor, without importing torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return np.asarray(value.numpy())
    if isinstance(value, list | tuple) and not len(value):
        return np.empty(0, np.bool_)
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    return found if found.dtype.kind in "biuf" else None


def _cast(numbers: AnyArray, dtype: np.dtype[Any]) -> AnyArray | None:
    """Return numbers in another dtype, or None if it cannot hold them."""
    if not numbers.size or dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = numbers.astype(dtype)
        is_same = np.array_equal(np.isfinite(found), np.isfinite(numbers))
        return found if is_same else None
    if numbers.dtype.kind == "f":
        return None
    found = numbers.astype(dtype)
    return (
        found
        if np.array_equal(found.astype(numbers.dtype), numbers)
        and bool(((found < 0) == (numbers < 0)).all())
        else None
    )


def _refuse(key: GrowingKey, value: Any, record: int) -> SourceError:
    return SourceError(
        f"{key.name!r} must be {_MUST_BE[key.shape]}, as in the first generation, got "
        f"{shorten(value)} in record {record:,}; fix the record, or begin a new store"
    )


def _describe_keys(record: Mapping[str, Any], names: set[str], number: int) -> str:
    """Return the message for a record of other keys."""
    if VERSION_KEY in record:
        return (
            f"a record must not have the key {VERSION_KEY}, which its store adds, record "
            f"{number:,} has it; give the number as version"
        )
    missing, surplus = sorted(names - record.keys()), sorted(map(str, record.keys() - names))
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"has {', '.join(surplus)}"] if surplus else []
    return (
        f"records must have the keys of the first generation, {', '.join(sorted(names))}, record "
        f"{number:,} {' and '.join(parts)}; fix the record, or begin a new store"
    )


def _check_lengths(key: GrowingKey, other: GrowingKey, found: Mapping[str, FieldValues]) -> None:
    """Check that the values of a key are as many as those of another one, in each record."""

    def find_levels(each: GrowingKey) -> list[Int64Array]:
        values = found[each.name]
        if each.shape != "group":
            return [values.lengths]
        items = found[f"{each.name}{LENGTH_SUFFIX}"]
        return [items.lengths, items.values]

    own, wanted = find_levels(key), find_levels(other)
    for depth, (one, two) in enumerate(zip(own, wanted, strict=False)):
        wrong = np.flatnonzero(one != two)
        if len(wrong):
            place = record = int(wrong[0])
            if depth:  # an item, not a record
                record = int(np.searchsorted(np.cumsum(own[0]), place, "right"))
            raise SourceError(
                f"{key.name} and {other.name} of a record must be of one length, got "
                f"{one[place]:,} and {two[place]:,} in record {record:,}; fix the record"
            )


def infer_schema(
    records: Sequence[Mapping[str, Any]],
    dtypes: Mapping[str, DTypeLike] | None = None,
    num_ids: int | None = None,
    kind: RecordSchema | None = None,
) -> GrowingSchema:
    """Return the schema of the first records of a store.

    Parameters
    ----------
    records
        One or more. Arrays and tensors keep their dtype. Lists of fractions, and those under a key
        with ``reward`` in its name, become float32, those under one with ``mask`` bool, others
        int32, as ``zindex convert`` reads JSON lines.
    dtypes
        Numpy dtypes by key, in place of those.
    num_ids
        Number of ids of the vocabulary.
    kind
        Declares keys, their dtypes, and which have equal lengths; the records may have others.

    Raises
    ------
    SourceError
        If there is no record, a value is neither numbers nor a text, or a declared key is missing.
    ConfigError
        If a key cannot be stored.
    """
    if not records or not records[0]:
        raise SourceError(
            "the first generation must have records, whose keys and dtypes all later ones have, "
            "got none; append one or more"
        )
    given = check_dtypes(dtypes or {})
    declared = {} if kind is None else kind.by_key
    missing = [key for key, field in declared.items() if not field.optional]
    missing = [key for key in missing if key not in records[0]]
    if kind is not None and missing:
        raise SourceError(
            f"a record of {kind.name!r} must have the keys {', '.join(declared)}, the first one "
            f"lacks {', '.join(missing)}; add them"
        )
    keys = [_infer_key(name, records, given.get(name), declared.get(name)) for name in records[0]]
    keys.append(GrowingKey(VERSION_KEY, "int64", "scalar"))
    if unknown := sorted(given.keys() - {key.name for key in keys}):
        raise ConfigError(
            f"dtypes must be of keys of the records, {', '.join(records[0])}, got "
            f"{', '.join(unknown)}; leave them out"
        )
    names = [field[0] for key in keys for field in key.fields]
    for name in names:
        if names.count(name) > 1 or name in _RESERVED[:2]:
            raise ConfigError(f"a key must not be called {name!r}, which is reserved; rename it")
    check_fields(names)
    return GrowingSchema(tuple(keys), num_ids, None if kind is None else kind.to_json())


def _infer_key(
    name: str, records: Sequence[Mapping[str, Any]], dtype: str | None, declared: Field | None
) -> GrowingKey:
    """Return a key from its values in the first records, and its declaration."""
    if not isinstance(name, str) or name in _RESERVED:
        raise ConfigError(
            f"a key must be a text other than {', '.join(_RESERVED)}, which the store adds itself, "
            f"got {name!r}; rename it"
        )
    values = [record[name] for record in records if name in record]
    first = values[0]
    shape = _TYPES.get(type(first))
    if shape is not None and (declared is None or declared.values == "text"):
        return GrowingKey(name, "uint8", shape)
    full = next((value for value in values if _len(value)), first)
    shape = _shape_of(full)
    if declared is not None and (
        declared.values == "text" or shape is None or len(declared.axes) != _SHAPES.index(shape)
    ):
        raise SourceError(
            f"{name!r} must be {'a text' if declared.values == 'text' else 'numbers'} with "
            f"{len(declared.axes)} axes, as declared, got {shorten(full)} in record 0; convert it"
        )
    if shape is None:
        raise SourceError(
            f"{name!r} must be a text, a number, or one or two levels of lists or arrays of "
            f"numbers, got {shorten(full)} in record 0; convert it"
        )
    if dtype is None:
        flat = chain.from_iterable(values) if shape == "group" else values
        dtype = _choose_dtype(name, [found for each in flat if (found := _typed(each)) is not None])
        if declared is not None:
            is_mask = declared.values == "weights" and np.dtype(dtype).kind in "iu"
            if is_mask or np.can_cast(dtype, declared.stored_dtype, "same_kind"):
                dtype = declared.stored_dtype
        check_dtypes({name: dtype})
    if declared is None:
        return GrowingKey(name, dtype, shape, is_tokens=name in TOKEN_KEYS)
    declared = replace(declared, dtype=dtype)  # refuses a dtype of other values
    return GrowingKey(name, dtype, shape, declared.like, declared.values == "ids")


def _len(value: Any) -> int:
    try:
        return len(value)
    except TypeError:  # an array or a tensor of no dimension
        return 1


def _shape_of(value: Any) -> Shape | None:
    """Return the shape of a value of numbers; None if it has none."""
    if isinstance(value, list | tuple) and any(_dim(item) for item in value):
        return "group" if all(_dim(item) == 1 for item in value) else None
    found = as_array(value)
    if found is None:
        return None
    return _SHAPES[found.ndim] if found.ndim < len(_SHAPES) else None


def _dim(value: Any) -> int:
    found = as_array(value)
    return 0 if found is None else found.ndim


def _typed(value: Any) -> tuple[AnyArray, bool] | None:
    """Return numbers as an array, and whether they have a dtype of their own."""
    found = as_array(value)
    has_dtype = hasattr(value, "dtype")
    return None if found is None or (not found.size and not has_dtype) else (found, has_dtype)


def _choose_dtype(name: str, found: Sequence[tuple[AnyArray, bool]]) -> str:
    """Return the dtype of numbers: their own, or by the name of their key."""
    kinds = {array.dtype.kind for array, _ in found}
    if found and all(has_dtype for _, has_dtype in found):
        return np.result_type(*(array.dtype for array, _ in found)).name
    dtype = dtype_by_name(name, has_fractions="f" in kinds)
    return "bool" if dtype == "int32" and kinds == {"b"} else dtype
