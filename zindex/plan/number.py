"""Numbers as people write them into a run's settings: 0.7, 1e9, 300M, 1.5B."""

import re
import reprlib
from decimal import Decimal
from typing import Any, Literal

from zindex.errors import ConfigError

#: Settings whose values may be written so.
NumberName = Literal["weight", "tokens", "epochs", "max_epochs", "surplus"]

# YAML itself reads 1e9 as a text. Few digits, so that no number takes long to make.
_NUMBER = re.compile(
    r"([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,3})? ?([kmbt]?)", re.ASCII
)
# Shows wrong values in short: aliases can make a value that no memory could print.
_show = reprlib.Repr()
_show.maxlevel = 3

_UNITS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}
_LARGEST = {"weight": 1e300, "tokens": 1e18, "epochs": 1e6, "max_epochs": 1e6, "surplus": 1.0}


def parse_number(value: Any, name: NumberName, where: str) -> Any:
    """Return the number that a value means; one that is no text and no number is returned as it is.

    Parameters
    ----------
    value
        A number, or a text such as ``"1e9"``; of tokens also with a unit of K, M, B or T.
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
        if found is None or (found[3] and name != "tokens"):
            example = "1.5B, 300M or 2e9" if name == "tokens" else "2.5"
            raise ConfigError(
                f"{where} must be a number such as {example}, got {_show.repr(value)}"
            )
        number = Decimal(found[1] + (found[2] or "")).scaleb(_UNITS[found[3]])
        whole = name == "tokens" and number <= Decimal(_LARGEST[name])
        return int(number) if whole and number == number.to_integral_value() else float(number)
    if name == "tokens" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def check_number(value: Any, name: NumberName, where: str) -> None:
    """Check that a setting is a number of its kind and within its bounds.

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
        raise ConfigError(
            f"{where} must be {kind} {low} {_LARGEST[name]:g}, got {_show.repr(value)}"
        )
