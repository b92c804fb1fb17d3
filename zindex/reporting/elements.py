"""Tables, tiles and panels of a report."""

from collections.abc import Sequence
from typing import NamedTuple

from zindex.reporting.markup import Html, tag

#: Maximum number of characters of a name on the page.
MAX_NAME = 120


class Cell(NamedTuple):
    """A cell: its text, and the value by which its column is sorted."""

    text: object
    value: float | None = None


def shorten(name: str) -> str:
    """Return a name with its middle left out if it is long."""
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME // 2]}…{name[-MAX_NAME // 2 :]}"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    text_columns: Sequence[int] = (0,),
    num_shown: int | None = None,
    rest: Sequence[object] | None = None,
) -> Html:
    """Return a table in a box that scrolls sideways.

    Parameters
    ----------
    headers, rows
        The cells: elements, texts, or a `Cell`.
    text_columns
        Columns that are aligned left.
    num_shown
        Rows shown at first; the table can be sorted if this is given.
    rest
        The row shown instead of all others while they are hidden.
    """

    def align(column: int) -> str | None:
        return "text" if column in text_columns else None

    def make_row(cells: Sequence[object], kind: str | None) -> Html:
        made = []
        for column, cell in enumerate(cells):
            item = cell if isinstance(cell, Cell) else Cell(cell)
            value = None if item.value is None else f"{item.value:.6g}"
            made.append(tag("td", item.text, class_=align(column), data_v=value))
        return tag("tr", *made, class_=kind)

    shown = len(rows) if num_shown is None else num_shown
    body = [make_row(row, "extra" if number >= shown else None) for number, row in enumerate(rows)]
    if len(rows) > shown and rest is not None:
        body.append(make_row(rest, "rest"))
    kinds = ["sortable"] * (num_shown is not None) + ["short"] * (len(rows) > shown)
    head = [tag("th", header, class_=align(number)) for number, header in enumerate(headers)]
    return tag(
        "div",
        tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", *head)),
                tag("tbody", *body),
                class_=" ".join(kinds) or None,
            ),
            class_="scroll",
        ),
    )


def tiles(rows: Sequence[tuple[str, str]]) -> Html:
    """Return a row of key figures: value and what it is."""
    return tag(
        "div",
        *(tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in rows),
        class_="tiles",
    )


def panel(title: object, *children: object) -> Html:
    """Return a box with a title."""
    return tag("div", tag("h3", title) if title else None, *children, class_="panel")


def facts(rows: Sequence[tuple[str, str]]) -> Html:
    """Return pairs of a name and a sentence."""
    pairs = [tag(name, text) for row in rows for name, text in zip(("dt", "dd"), row, strict=True)]
    return tag("dl", *pairs)


def soft(text: str) -> Html:
    """Return a remark."""
    return tag("p", text, class_="soft")


def note(text: str, kind: str = "") -> Html:
    """Return a sentence that must not be missed."""
    return tag("p", text, class_=f"note {kind}".strip())


def format_seconds(seconds: float) -> str:
    """Format a duration in the unit in which it is short.

    Examples
    --------
    >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(600), format_seconds(90_000)
    ('12 ms', '2.50 s', '10.0 min', '25.0 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def format_p(p_value: float | None) -> str:
    """Format a p-value.

    Examples
    --------
    >>> format_p(0.1234), format_p(1e-20), format_p(None)
    ('0.12', 'below 1e-12', '')
    """
    if p_value is None:
        return ""
    if p_value < 1e-12:
        return "below 1e-12"
    return f"{p_value:.2f}" if p_value >= 0.01 else f"{p_value:.2g}"
