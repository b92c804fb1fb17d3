"""Figures of records in the units that people read: headings, cells, and single quantities."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.record import Row, Table

_NAMES = {
    "peak": "peak memory",
    "written": "written",
    "moved": "moved",
    "seconds": "time",
}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
#: A unit holds up to this: 3,425 MiB stay what they are.
_MOST_BINARY = 9999.5
#: Least value that is shown in it, the scale, its name before a noun.
_DECIMAL = ((1e10, 1e9, "billion"), (1e5, 1e6, "million"))


@dataclass(frozen=True)
class Unit:
    """How the values of one figure are written."""

    #: What is measured, for the heading of a column.
    name: str
    #: Follows a number; empty for plain counts.
    sign: str
    #: What a recorded value is divided by.
    scale: float = 1.0
    whole: bool = False

    @property
    def heading(self) -> str:
        """The heading of a column."""
        return ", ".join(filter(None, (self.name, self.sign)))

    def number(self, value: float) -> str:
        """Return a value without its unit."""
        return f"{value:,.0f}" if self.whole else short_number(value / self.scale)

    def quantity(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{self.number(value)} {self.sign}".rstrip()


def choose_unit(figure: str, values: Iterable[float]) -> Unit:
    """Return the unit in which all of these values of a figure can be read.

    The last word of a figure's name is the unit of what is recorded.
    """
    sizes = sorted(abs(value) for value in values if value) or [0.0]
    smallest, largest = sizes[0], sizes[-1]
    if figure.endswith("_per_second"):
        return _rate(figure.removesuffix("_per_second"), largest)
    if figure.startswith("num_"):
        return Unit(_words(figure.removeprefix("num_")), "", whole=True)
    words, _, unit = figure.rpartition("_")
    name = _NAMES.get(words or unit, _words(words))
    match unit:
        case "nbytes":
            return Unit(name or "size", *_binary(largest))
        case "seconds":
            return Unit(name, *_seconds(smallest, largest))
        case "ns" | "us" | "ms":
            sign = unit.replace("u", "µ")
            per = (
                f"{sign}/{words}"
                if words in ("sample", "sentence", "element", "document")
                else sign
            )
            return Unit("" if per != sign else name, per)
        case "percent":
            return Unit(name, "%")
        case "share":
            return Unit(f"{name} share".strip(), "%", 0.01)
        case _:
            return Unit(_words(figure), "")


def table_units(table: Table) -> dict[str, Unit]:
    """Return the unit of each figure of a table, in the order in which they first come."""
    figures = dict.fromkeys(figure for row in table.rows for figure in row.figures)
    return {
        figure: choose_unit(figure, [v for row in table.rows for v in row.figures.get(figure, [])])
        for figure in figures
    }


def cell(unit: Unit, row: Row, figure: str) -> str:
    """Return the median of a figure, and the range of its runs where there are several."""
    runs, median = row.figures.get(figure), row.median(figure)
    if not runs or median is None:
        return ""
    text, low, high = (unit.number(value) for value in (median, min(runs), max(runs)))
    return text if low == high else f"{text} ({low} to {high})"


def quantity(figure: str, value: float) -> str:
    """Return a single figure with its unit."""
    return choose_unit(figure, [value]).quantity(value)


def format_ratio(ratio: float) -> str:
    """Return how many times better something is."""
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    if ratio < 0.1:
        return f"1/{1 / ratio:,.0f}x"
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def short_number(value: float) -> str:
    """Return a number of three digits, or of all before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def _binary(largest: float) -> tuple[str, float]:
    power = 0
    while largest / 1024**power > _MOST_BINARY and power + 1 < len(_BINARY):
        power += 1
    return _BINARY[power], 1024.0**power


def _seconds(smallest: float, largest: float) -> tuple[str, float]:
    if 0 < largest < 1e-4:
        return "µs", 1e-6
    return ("ms", 1e-3) if 0 < largest < 0.1 or 0 < smallest < 1e-3 else ("s", 1.0)


def _rate(things: str, largest: float) -> Unit:
    things = things.removeprefix("num_")
    if things.endswith("nbytes"):
        return Unit(_words(things.rpartition("_")[0]), "GB/s", 1e9)
    scale, word = next((each[1:] for each in _DECIMAL if largest >= each[0]), (1.0, ""))
    return Unit("", f"{word} {_words(things)}/s".strip(), scale)


def _words(name: str) -> str:
    return name.replace("_", " ")
