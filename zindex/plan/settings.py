"""Values of a configuration file: keys, types, and numbers such as 0.7, 1e9, 300M or 1.5B."""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, Literal

from zindex.errors import ConfigError, suggest

#: Settings that take a number with an exponent or a unit.
NumberName = Literal["weight", "tokens", "samples", "epochs", "max_epochs", "surplus"]

# YAML reads 1e9 as a string. The number of digits is limited, so that parsing stays cheap.
_NUMBER = re.compile(
    r"([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,3})? ?([kmbt]?)", re.ASCII
)
_UNITS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}
_COUNTS: tuple[NumberName, ...] = ("tokens", "samples")
_LARGEST = {
    **{"weight": 1e300, "tokens": 1e18, "samples": 1e18},
    **{"epochs": 1e6, "max_epochs": 1e6, "surplus": 1.0},
}
_KINDS = {int: "a whole number", str: "a text", bool: "true or false"}
# Truncates wrong values: with YAML aliases a small file can hold a value too large to print.
_show = reprlib.Repr()
_show.maxlevel, _show.maxstring, _show.maxother = 3, 100, 100


def show(value: Any) -> str:
    """Return a value for a message, truncated."""
    return _show.repr(value)


def check_keys(values: Any, kind: type, where: str) -> dict[str, Any]:
    """Return a mapping as a dict, after checking that all its keys are fields of a dataclass.

    Raises
    ------
    ConfigError
        If it is not a mapping, or has another key.
    """
    names = [item.name for item in fields(kind)]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {show(values)}")
    unknown = sorted(set(map(str, values)) - set(names))
    if unknown:
        remedy = suggest(unknown[0], names) or f"; it has {', '.join(names)}"
        raise ConfigError(f"{where} has no setting {unknown[0]!r}{remedy}")
    return dict(values)


def check_types(known: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Check the plain settings against the types that they must have.

    Raises
    ------
    ConfigError
        If one is of another type.
    """
    for name, kind in kinds.items():
        value = known.get(name)
        wrong = isinstance(value, bool) and kind is not bool
        if name in known and (wrong or not isinstance(value, kind)):
            raise ConfigError(
                f"{name} must be {_KINDS.get(kind, kind.__name__)}, got {show(value)}"
            )


def parse_number(value: Any, name: NumberName, where: str) -> Any:
    """Parse a number; a value that is neither text nor number is returned unchanged.

    Parameters
    ----------
    value
        A number, or a text such as ``"1e9"``; of tokens and samples also with a unit of K, M, B
        or T.
    name
        The setting.
    where
        The setting and its place, for errors.

    Raises
    ------
    ConfigError
        If a text is no number.

    Examples
    --------
    >>> parse_number("1.5B", "tokens", "tokens"), parse_number("1e-3", "weight", "weight")
    (1500000000, 0.001)
    """
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip().lower())
        if found is None or (found[3] and name not in _COUNTS):
            example = "1.5B, 300M or 2e9" if name in _COUNTS else "2.5"
            raise ConfigError(f"{where} must be a number such as {example}, got {show(value)}")
        number = Decimal(found[1] + (found[2] or "")).scaleb(_UNITS[found[3]])
        whole = name in _COUNTS and number <= Decimal(_LARGEST[name])
        return int(number) if whole and number == number.to_integral_value() else float(number)
    if name in _COUNTS and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def check_number(value: Any, name: NumberName, where: str) -> None:
    """Check that a setting is a number of its type and within its bounds.

    Raises
    ------
    ConfigError
        If it is not.
    """
    kinds = (int,) if name == "tokens" else (int, float)
    wrong = isinstance(value, bool) or not isinstance(value, kinds)
    positive = name == "max_epochs"
    if wrong or not 0 <= value <= _LARGEST[name] or (positive and value == 0):
        kind = "a whole number" if name == "tokens" else "a number"
        low = "above 0 and at most" if positive else "from 0 to"
        raise ConfigError(f"{where} must be {kind} {low} {_LARGEST[name]:g}, got {show(value)}")
