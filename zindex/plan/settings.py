"""Settings as they come from a file: which keys and types a mapping must have."""

import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zindex.errors import ConfigError

# Shows wrong values in short: aliases can make a value that no memory could print.
_show = reprlib.Repr()
_show.maxlevel, _show.maxstring, _show.maxother = 3, 100, 100


def show(value: Any) -> str:
    """Return a value for a message, in short."""
    return _show.repr(value)


def check_keys(values: Any, kind: type, where: str) -> dict[str, Any]:
    """Return a mapping as a dict, all of whose keys are fields of a dataclass.

    Raises
    ------
    ConfigError
        If it is no mapping, or has another key.
    """
    names = [item.name for item in fields(kind)]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {show(values)}")
    unknown = sorted(set(map(str, values)) - set(names))
    if unknown:
        raise ConfigError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(names)}")
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
                f"{name} must be {kind.__name__}, got {show(value)}; quote or unquote it"
            )
