"""Numbers as people write them."""

import re
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.plan.settings import NumberName, check_number, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5B", 1_500_000_000),
        ("300M", 300_000_000),
        ("2T", 2 * 10**12),
        ("2 t", 2 * 10**12),
        (" 7k ", 7000),
        ("2.0e9", 2 * 10**9),  # texts to YAML, for want of a sign
        ("2E9", 2 * 10**9),
        ("1e-3M", 1000),
        ("12", 12),
        ("0", 0),
        ("0.000001T", 10**6),
        ("999999999999999999", 999_999_999_999_999_999),  # no float holds it
        (2.0e9, 2 * 10**9),
        (5, 5),
    ],
)
def test_tokens(text: Any, number: int) -> None:
    parsed = parse_number(text, "tokens", "tokens")
    assert parsed == number
    assert type(parsed) is int
    check_number(parsed, "tokens", "tokens")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0.7", 0.7), ("1e-3", 1e-3), (".5", 0.5), ("5.", 5.0), ("1e300", 1e300), (3, 3), (0.5, 0.5)],
)
def test_weights(text: Any, number: float) -> None:
    assert parse_number(text, "weight", "weight") == number
    check_number(number, "weight", "weight")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", "many", "x must be a number such as 1.5B, 300M or 2e9, got 'many'"),
        ("tokens", "", "x must be a number such as 1.5B, 300M or 2e9, got ''"),
        ("tokens", "-5", "got '-5'"),
        ("tokens", "1,000", "got '1,000'"),
        ("tokens", "1.5G", "got '1.5G'"),
        ("tokens", "1BB", "got '1BB'"),
        ("tokens", "٣", "got '٣'"),  # digits of other scripts
        ("tokens", "1e9999999999", "got '1e9999999999'"),  # nor is it made first
        ("tokens", "9" * 10**6, "got '99999"),
        ("tokens", "1.5", "x must be a whole number from 0 to 1e+18, got 1.5"),
        ("tokens", "1e-12B", "from 0 to 1e+18, got 0.001"),
        ("tokens", "2e18", "from 0 to 1e+18, got 2e+18"),
        ("tokens", "1e999", "from 0 to 1e+18, got inf"),
        ("tokens", 10**18 + 1, "from 0 to 1e+18, got 1000000000000000001"),
        ("tokens", 2.5, "x must be a whole number from 0 to 1e+18, got 2.5"),
        ("tokens", 1e30, "from 0 to 1e+18, got 1000000000000000019884624838656"),
        ("tokens", -1, "got -1"),
        ("tokens", True, "got True"),
        ("tokens", float("nan"), "got nan"),
        ("weight", "heavy", "x must be a number such as 2.5, got 'heavy'"),
        ("weight", "1M", "x must be a number such as 2.5, got '1M'"),
        ("weight", "1e400", "x must be a number from 0 to 1e+300, got inf"),
        ("weight", -0.1, "x must be a number from 0 to 1e+300, got -0.1"),
        ("weight", float("inf"), "got inf"),
        ("weight", float("nan"), "got nan"),
        ("weight", 10**400, "got 10000"),
        ("weight", False, "got False"),
        ("weight", [1], "got [1]"),
        ("epochs", 1e7, "x must be a number from 0 to 1e+06, got 10000000.0"),
        ("epochs", -1, "got -1"),
        ("max_epochs", 0, "x must be a number above 0 and at most 1e+06, got 0"),
        ("max_epochs", -2, "got -2"),
        ("max_epochs", "all", "x must be a number such as 2.5, got 'all'"),
        ("surplus", 1.5, "x must be a number from 0 to 1, got 1.5"),
        ("surplus", None, "x must be a number from 0 to 1, got None"),
    ],
)
def test_invalid_numbers(name: NumberName, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        check_number(parse_number(value, name, "x"), name, "x")
    assert len(str(caught.value)) < 300
