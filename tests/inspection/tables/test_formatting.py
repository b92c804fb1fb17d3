"""Numbers and tables for people."""

import pytest

from zindex.inspection.tables.formatting import (
    align_columns,
    fit_columns,
    format_count,
    format_epochs,
    format_nbytes,
    format_share,
    terminal_width,
    wrap_lines,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999_999, "999,999"),
        (1_000_000, "1.00 M"),
        (9_994_999, "9.99 M"),
        (9_999_999, "10.0 M"),
        (99_960_000, "100 M"),
        (999_600_000, "1.00 B"),
        (3 * 10**15, "3.00 Q"),
        (5 * 10**18, "5,000 Q"),
    ],
)
def test_counts_for_people(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (10_239, "10,239 B"),
        (10_240, "10.0 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (1 << 40, "1.00 TiB"),
    ],
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert format_nbytes(nbytes) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.7, "70%"),
        (1 / 3, "33.3%"),
        (0.9999, "100%"),
        (1e-5, "0.001%"),
        (1e-9, "1e-07%"),
    ],
)
def test_shares_for_people(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("num_epochs", "text"),
    [
        (0.0, "0.00"),
        (1.0, "1.00"),
        (2.499, "2.50"),
        (12345.678, "12,345.68"),
        (0.0951, "0.10"),
        (0.0949, "0.095"),
        (1e-7, "1e-07"),
    ],
)
def test_epochs_for_people(num_epochs: float, text: str) -> None:
    assert format_epochs(num_epochs) == text


def test_columns_are_aligned() -> None:
    rows = [("name", "number", "mark"), ("a", "1", ""), ("longer", "10,000,000", "x")]
    assert align_columns(rows, text_columns=("name", "mark")) == [
        "  name        number  mark",
        "  a                1",
        "  longer  10,000,000  x",
    ]


def test_long_lines_are_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a title that is long, and has words\n\n  an indented line of several words"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wrap_lines(text) == text
    monkeypatch.setenv("COLUMNS", "24")
    assert wrap_lines(text).split("\n") == [
        "a title that is long,",
        "  and has words",
        "",
        "  an indented line of",
        "    several words",
    ]


def test_rows_become_paragraphs_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("split", "documents", "tokens", "note"), ("train", "1,000", "2,000,000", "")]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert fit_columns(rows, ("split",)) == align_columns(rows, ("split",))
    monkeypatch.setenv("COLUMNS", "26")
    assert terminal_width(80) == 26
    assert fit_columns(rows, ("split",)) == [
        "  split",
        "  train: documents 1,000,\n    tokens 2,000,000",
    ]
    assert fit_columns([("a", "b"), ("1", "2")]) == ["  a  b", "  1  2"]
