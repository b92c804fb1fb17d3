"""Format numbers and tables for the terminal."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence

_GAP = "  "


def format_count(count: int) -> str:
    """Format a count: exact below a million, three digits above.

    Examples
    --------
    >>> format_count(999_999), format_count(1_234_567), format_count(15_000_000_000_000)
    ('999,999', '1.23 M', '15.0 T')
    """
    return _shorten(count, 1000, ("", "K", "M", "B", "T", "Q"), exact_below=1_000_000)


def format_nbytes(nbytes: int) -> str:
    """Format a size in bytes: exact below 10 KiB, three digits above.

    Examples
    --------
    >>> format_nbytes(4000), format_nbytes(3 << 20), format_nbytes(200 << 30)
    ('4,000 B', '3.00 MiB', '200 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    return _shorten(nbytes, 1024, units, exact_below=10_240)


def _shorten(number: int, base: int, units: Sequence[str], *, exact_below: int) -> str:
    """Format a number in the largest unit in which it is at least 1."""
    if number < exact_below:
        return f"{number:,} {units[0]}".rstrip()
    value, power = float(number), 0
    while value >= base - 0.5 and power < len(units) - 1:
        value /= base
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {units[power]}"


def format_share(share: float) -> str:
    """Format a share in percent, with three digits.

    Examples
    --------
    >>> format_share(0.7), format_share(0.12345), format_share(0.0000123)
    ('70%', '12.3%', '0.00123%')
    """
    return f"{100 * share:.3g}%"


def format_epochs(num_epochs: float) -> str:
    """Format a number of epochs, with two decimals, or two digits if small.

    Examples
    --------
    >>> format_epochs(3.99999), format_epochs(1234.5), format_epochs(0.00123)
    ('4.00', '1,234.50', '0.0012')
    """
    return f"{num_epochs:,.2f}" if num_epochs >= 0.095 or not num_epochs else f"{num_epochs:.2g}"


def table_lines(
    rows: Sequence[Mapping[str, str]], *, text_columns: Sequence[str] = ()
) -> list[str]:
    """Format rows of cells as lines with headers; empty without rows.

    Columns without any text are omitted.
    """
    columns = [[header, *(row[header] for row in rows)] for header in (rows[0] if rows else ())]
    shown = [column for column in columns if any(column[1:])]
    return fit_columns(list(zip(*shown, strict=True)), text_columns)


def terminal_width(default: int) -> int:
    """Return the columns of the terminal, or of COLUMNS; the default if output is redirected."""
    return max(20, shutil.get_terminal_size((default, 0)).columns)


def wrap_lines(text: str) -> str:
    """Wrap the lines of a text that are longer than the terminal; all stay if it is redirected."""
    width = terminal_width(1_000_000)

    def wrap(line: str) -> str:
        indent = line[: len(line) - len(line.lstrip())] + _GAP
        return textwrap.fill(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    return "\n".join(wrap(line) if len(line) > width else line for line in text.split("\n"))


def fit_columns(rows: Sequence[Sequence[str]], text_columns: Sequence[str] = ()) -> list[str]:
    """Format rows as `align_columns` does or, on a narrower terminal, each row as a paragraph.

    Either way there is one text for the headers and for each row.
    """
    lines = align_columns(rows, text_columns)
    width = terminal_width(1_000_000)
    if max(map(len, lines), default=0) <= width:
        return lines
    headers, *cells = rows
    paragraphs = [f"{_GAP}{headers[0]}"]
    for first, *others in cells:
        facts = [f"{name} {cell}" for name, cell in zip(headers[1:], others, strict=True) if cell]
        paragraphs.append(
            textwrap.fill(
                f"{first}: {', '.join(facts)}",
                width,
                initial_indent=_GAP,
                subsequent_indent=2 * _GAP,
                break_on_hyphens=False,
            )
        )
    return paragraphs


def align_columns(rows: Sequence[Sequence[str]], text_columns: Sequence[str] = ()) -> list[str]:
    """Format rows as lines: text columns left-aligned, numbers right-aligned.

    Parameters
    ----------
    rows
        The headers, followed by the cells.
    text_columns
        Headers of text columns.

    Examples
    --------
    >>> align_columns([("split", "samples"), ("train", "10")], text_columns=("split",))
    ['  split  samples', '  train       10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for texts in rows:
        aligned = [
            text.ljust(width) if header in text_columns else text.rjust(width)
            for header, text, width in zip(rows[0], texts, widths, strict=True)
        ]
        lines.append((_GAP + _GAP.join(aligned)).rstrip())
    return lines
