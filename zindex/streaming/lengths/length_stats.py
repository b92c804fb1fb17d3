"""The lengths that datasets say of themselves, beside what a run requires of them, printed."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

_RED, _GREEN, _PLAIN = "\033[31m", "\033[32m", "\033[0m"
_HEADERS = ("dataset", "samples", "required", "percent")


def print_dataset_length_stats(info: Sequence[Any], file: TextIO | None = None) -> None:
    """Print what `MergedDataset.check_length` returns, a line for each dataset.

    On a terminal a line is red where less than a quarter of what is required is there, and green
    where there is more than twice as much. The percents are those of the whole run.

    Parameters
    ----------
    info
        ``(name, samples, required)`` of each dataset, in nested lists; samples are None where
        nobody knows them.
    file
        Where to print; standard output if None.

    Examples
    --------
    >>> print_dataset_length_stats([("a", 100, 300), [("b", None, 100)]])
    dataset  samples  required  percent
    a            100       300    75.0%
      b            ?       100    25.0%
    """
    file = sys.stdout if file is None else file
    in_color = file.isatty()
    rows = list(_flatten(info, 0))
    whole = sum(required for _, _, required in rows) or 1
    cells = [
        (
            name,
            "?" if length is None else f"{length:,}",
            f"{required:,}",
            f"{100 * required / whole:.1f}%",
        )
        for name, length, required in rows
    ]
    widths = [max(map(len, column)) for column in zip(_HEADERS, *cells, strict=True)]
    colors = [_PLAIN, *(_color(length, required) for _, length, required in rows)]
    for color, (name, *numbers) in zip(colors, [_HEADERS, *cells], strict=True):
        aligned = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        line = "  ".join([name.ljust(widths[0]), *aligned])
        print(f"{color}{line}{_PLAIN}" if in_color and color != _PLAIN else line, file=file)


def _flatten(info: Sequence[Any], depth: int) -> Iterator[tuple[str, int | None, int]]:
    """Yield the datasets of all levels, names indented by their level."""
    for entry in info:
        if isinstance(entry, list):
            yield from _flatten(entry, depth + 1)
        else:
            name, length, required = entry
            yield "  " * depth + name, length, required


def _color(length: int | None, required: int) -> str:
    if length is None:
        return _PLAIN
    if length < required / 4:
        return _RED
    return _GREEN if length > 2 * required else _PLAIN
