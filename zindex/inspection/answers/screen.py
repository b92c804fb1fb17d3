"""Format output for a terminal of 80 columns, or of fewer."""

from collections.abc import Mapping, Sequence
from typing import Any

from zindex.inspection.tables.formatting import align_columns, terminal_width

#: Most columns of the output.
WIDTH = 80
_NAMES = ("seed", "format_version")
# Maximum number of list values in terminal output; JSON output has all of them.
_MAX_ITEMS = 8


def screen_width() -> int:
    """Return the columns of the terminal, at most `WIDTH`."""
    return min(WIDTH, terminal_width(WIDTH))


def fit(text: str, width: int | None = None) -> str:
    """Shorten a text to ``width`` columns, by default those of the screen, in its middle.

    Examples
    --------
    >>> fit("abcdefghij", 7)
    'abc…hij'
    """
    width = screen_width() if width is None else width
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def escape(text: str, allowed: str = "") -> str:
    r"""Escape characters that are not printable, such as control sequences, except allowed ones.

    Examples
    --------
    >>> print(escape("a\x1b[1m"))
    a\x1b[1m
    """
    return "".join(
        each
        if each.isprintable() or each in allowed
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def fit_lines(lines: Sequence[str]) -> list[str]:
    """Shorten each line to the screen."""
    return [fit(line) for line in lines]


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """Format facts as aligned lines of name and value, with one line per item of a list.

    Examples
    --------
    >>> fact_lines({"num_tokens": 12_345, "split": None, "datasets": ["web", "code"]})
    ['  tokens    12,345', '  datasets  web', '            code']
    """
    rows = []
    for name, value in facts.items():
        if value is None or value == [] or value == {}:
            continue
        values = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in value.values()):
            values = [f"{key}: {_show(item)}" for key, item in value.items()]
        # Identifiers, such as seeds, get no thousands separators.
        texts = [str(item) if name in _NAMES else _show(item) for item in values[:_MAX_ITEMS]]
        if len(values) > _MAX_ITEMS:
            texts.append(f"and {len(values) - _MAX_ITEMS:,} more; --json lists all")
        label = name.removeprefix("num_").replace("_", " ")
        rows += [(label if number == 0 else "", text) for number, text in enumerate(texts)]
    width = max((len(label) for label, _ in rows), default=0)
    return [fit(f"  {label.ljust(width)}  {text}") for label, text in rows]


def _show(value: Any) -> str:
    """Format a value for display."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_show(item)}" for name, item in value.items())
    return str(value)


def fit_table(
    rows: Sequence[Mapping[str, str]], *, text_columns: Sequence[str], wide: str
) -> list[str]:
    """Format rows as a table, shortening one column so that the rows fit.

    Parameters
    ----------
    rows
        One mapping per row, from header to cell; all have the same headers.
    text_columns
        Headers of left-aligned columns.
    wide
        Header of the column to shorten.
    """
    if not rows:
        return []
    cells = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
    excess = max(map(len, align_columns(cells, text_columns))) - screen_width()
    column = cells[0].index(wide)
    room = max(len(wide), 8, max(len(row[column]) for row in cells) - max(excess, 0))
    fitted = [(*row[:column], fit(row[column], room), *row[column + 1 :]) for row in cells]
    return fit_lines(align_columns(fitted, text_columns))
