"""Parse JSON into instances of annotated types, with every value checked.

A digest proves that bytes are unchanged, not that zindex wrote them: a forger computes the digest
as well. So the type of every value of a file is checked before the value is used.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from zindex.errors import MissingKeyError, StoreError, shorten

T = TypeVar("T")
#: Metadata of a dataclass field: its name in files, if different.
STORED = "stored"
#: Largest size of anything stored, in bytes or in elements.
MAX_SIZE = 1 << 62
# Integers of files: seeds have up to 64 bits, and may be negative.
_MAX_INTEGER = 1 << 64


class Facts(dict[str, Any]):
    """An object of a file; raises `MissingKeyError` for a missing name."""

    def __missing__(self, name: str) -> Any:
        raise MissingKeyError(
            f"a store must describe its {name}, this one has {shorten(sorted(self))}; it was not "
            "written by zindex"
        )


class _MismatchError(Exception):
    """The requirement, and the actual value."""


def parse_as(kind: Callable[..., T], value: Any, where: str) -> T:
    """Return a JSON value as an instance of a type.

    Parameters
    ----------
    kind
        A dataclass; ``int``, ``float``, ``bool``, ``str``, ``dict`` or ``list``; or a tuple, dict,
        union or literal of these. Floats must be finite. Dataclass fields without a default are
        required, and no other fields are allowed.
    value
        The value from the file.
    where
        The file, for the message.

    Raises
    ------
    StoreError
        If it has another type.

    Examples
    --------
    >>> parse_as(tuple[int, ...], [1, 2], "a file")
    (1, 2)
    """
    try:
        parsed: T = _parser(kind)(value)
    except _MismatchError as error:
        raise StoreError(f"{where} must hold {error}; it was not written by zindex") from None
    return parsed


def _refuse(must: str, value: Any) -> _MismatchError:
    return _MismatchError(f"{must}, it holds {shorten(value)}")


@cache
def _parser(kind: Any) -> Callable[[Any], Any]:
    """Return the function that parses a type."""
    origin, given = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if is_dataclass(kind):
        return _dataclass_parser(kind)
    if origin is tuple:
        return _tuple_parser(given)
    if origin in (dict, Mapping):
        return _dict_parser(_parser(given[1]))
    if origin is UnionType:
        return _union_parser([_parser(each) for each in given], [*map(_plain, given)], kind)
    if origin is Literal:
        return _choice_parser(given)
    return _plain_parser(kind)


def _plain(kind: Any) -> tuple[type, ...]:
    """Return the types of JSON values that can represent a type."""
    origin = get_origin(kind) or kind
    if origin is float:
        return float, int
    if is_dataclass(origin) or origin in (dict, Mapping):
        return (dict,)
    if origin is Literal:
        return (str,)
    return (list,) if origin is tuple else (origin,)


def _plain_parser(kind: type) -> Callable[[Any], Any]:
    known = _plain(kind)

    def parse(value: Any) -> Any:
        if type(value) not in known:
            raise _refuse(f"a value of type {kind.__name__}", value)
        if (kind is int and not -_MAX_INTEGER < value < _MAX_INTEGER) or (
            kind is float and not (abs(value) < _MAX_INTEGER or math.isfinite(value))
        ):
            raise _refuse("a finite number of at most 64 bits", value)
        return value

    return parse


def _choice_parser(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise _refuse(f"one of {', '.join(map(str, choices))}", value)
        return value

    return parse


def _union_parser(
    parsers: list[Callable[[Any], Any]], kinds: list[tuple[type, ...]], kind: Any
) -> Callable[[Any], Any]:
    by_type = {each: parse for parse, many in zip(parsers, kinds, strict=True) for each in many}

    def parse(value: Any) -> Any:
        found = by_type.get(type(value))
        if found is None:
            raise _refuse(f"a value of type {kind}", value)
        return None if type(value) is NoneType else found(value)

    return parse


def _tuple_parser(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    parsers = [_parser(kind) for kind in kinds if kind is not ...]
    is_any_length = kinds[-1] is ...

    def parse(value: Any) -> Any:
        if type(value) is not list or not (is_any_length or len(value) == len(parsers)):
            raise _refuse("a list" if is_any_length else f"a list of {len(parsers)} values", value)
        if is_any_length:
            return tuple(map(parsers[0], value))
        return tuple(each(item) for each, item in zip(parsers, value, strict=True))

    return parse


def _dict_parser(parse_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not dict:
            raise _refuse("an object", value)
        return {name: parse_item(item) for name, item in value.items()}

    return parse


def _dataclass_parser(kind: Any) -> Callable[[Any], Any]:
    own = {item.metadata.get(STORED, item.name): item for item in fields(kind)}
    known = get_type_hints(kind)
    hints = {name: known[item.name] for name, item in own.items()}
    parsers = {name: _parser(hint) for name, hint in hints.items()}
    renamed = {name: item.name for name, item in own.items() if name != item.name}
    # Names are sorted in canonical JSON, so a single comparison usually suffices.
    names = tuple(sorted(parsers))
    types = tuple(_plain(hints[name])[0] for name in names)
    deep = [name for name in names if hints[name] not in (str, bool)]
    required = {name for name, item in own.items() if item.default is MISSING}

    def parse(value: Any) -> Any:
        if type(value) is not dict or not required <= value.keys() <= parsers.keys():
            raise _refuse(f"an object with {', '.join(parsers)}", value)
        values = value.copy()
        is_plain = tuple(value) == names and tuple(map(type, value.values())) == types
        for name, item in ((name, value[name]) for name in deep) if is_plain else value.items():
            try:
                values[name] = parsers[name](item)
            except _MismatchError as error:
                raise _MismatchError(f"as {name} {error}") from None
        for name in renamed.keys() & values.keys():
            values[renamed[name]] = values.pop(name)
        return kind(**values)

    return parse
