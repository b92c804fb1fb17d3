"""Settings of a mapping: keys, types, and wrong values in short."""

from dataclasses import dataclass
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.plan.settings import check_keys, check_types, show


@dataclass
class Box:
    """Two settings."""

    width: int = 0
    depth: int = 0


def test_known_keys_are_returned() -> None:
    assert check_keys({"depth": 3}, Box, "the box") == {"depth": 3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], r"the box must be a mapping, got \[1\]"),
        ({"height": 1, "depth": 2}, "the box has no setting 'height'; it has width, depth"),
        ({7: 1}, "the box has no setting '7'"),
    ],
)
def test_wrong_keys(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_keys(values, Box, "the box")


@pytest.mark.parametrize("value", [True, "3", 3.0, None])
def test_wrong_types(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"width must be a whole number, got {value!r}"):
        check_types({"width": value}, {"width": int})
    check_types({"depth": value}, {"width": int})


def test_large_values_are_shown_in_short() -> None:
    value: Any = 1
    for _ in range(30):
        value = [value] * 10
    assert len(show(value)) < 5_000
