"""How figures are drawn: one look for all, the same bytes for the same data."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from tests.benchmarks.record import Record, Table, tables_in

Records = Mapping[str, Record]
#: Readable on white and on black: the page has no say in what it is shown on.
INK = "#6e7781"
OURS = ("#2f81f7", "#2da44e", "#a371f7", "#bf8700")
RIVALS = ("#d1622b", "#6e7781")
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "zindex",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "savefig.transparent": True,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "axes.grid": True,
    "axes.grid.which": "major",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "figure.constrained_layout.use": True,
}
_INCHES = (7.2, 4.2)
REST, LIMIT = "all other stages", "what the disk alone would need"
IDEAL = "in proportion to nodes"
#: Of a legend.
_LAST = (REST, LIMIT, IDEAL)
#: A number in the key of a table.
SIZE = r"(\d[\d.e+]*)"


@dataclass(frozen=True)
class Figure:
    """One figure: which data it takes from the records, and how they are drawn."""

    name: str
    #: The benchmark in whose section it is shown.
    benchmark: str
    caption: str
    #: Return JSON of all that is drawn; nothing where the records do not hold it.
    data: Callable[[Records], dict[str, Any]]
    draw: Callable[[Axes, dict[str, Any]], None]

    def digest(self, data: dict[str, Any]) -> str:
        """Return a digest of the data; the bytes of a drawing depend on versions."""
        return hashlib.sha256(json.dumps([self.caption, data]).encode()).hexdigest()[:16]

    def save(self, data: dict[str, Any], path: Path) -> None:
        """Draw into a file; the same data make the same bytes."""
        with mpl.rc_context(_STYLE):
            canvas = Canvas(figsize=_INCHES)
            self.draw(canvas.subplots(), data)
            metadata = {"Date": None, "Creator": None, "Title": self.caption}
            if path.suffix == ".svg":
                metadata["Description"] = f"data {self.digest(data)}"
                canvas.savefig(path, metadata=metadata)
            else:
                canvas.savefig(path, dpi=100, facecolor="white")


def drawn_digest(path: Path) -> str | None:
    """Return of which data a file was drawn."""
    found = re.search(r"<dc:description>data (\w+)</dc:description>", path.read_text())
    return found and found[1]


def tables_of(records: Records, benchmark: str, pattern: str) -> list[tuple[Table, list[float]]]:
    """Return the tables whose keys match, with the numbers that the pattern's groups hold."""
    found = []
    for table in tables_in(records, benchmark):
        match = re.fullmatch(pattern, table.key)
        if match:
            found.append((table, [float(group) for group in match.groups()]))
    return sorted(found, key=lambda pair: pair[1])


def make_series(
    tables: list[tuple[Table, float]], figure: str, leave_out: tuple[str, ...] = ()
) -> dict[str, list[list[float]]]:
    """Return by contender its (x, median) points; contenders of a single point are left out."""
    lines: dict[str, list[list[float]]] = {}
    for table, x in tables:
        for row in table.rows:
            value = row.median(figure)
            if value and not any(word in row.contender for word in leave_out):
                lines.setdefault(row.contender, []).append([x, value])
    return {name: points for name, points in lines.items() if len(points) > 1}


def colour_of(name: str, number: int = 0) -> str:
    """Return the colour of a contender: blue for ours, orange for rivals, others for more."""
    colours = OURS if name.startswith("zindex") else RIVALS
    return colours[number % len(colours)]


def draw_lines(axes: Axes, lines: dict[str, list[list[float]]]) -> None:
    """Draw each contender's points."""
    seen: Counter[bool] = Counter()
    for name, points in lines.items():
        ours = name.startswith("zindex")
        colour = colour_of(name, seen[ours])
        seen[ours] += 1
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=colour)


def label_ticks(axis: Any) -> None:
    """Label powers of ten as numbers that are spoken."""
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _spoken(value)))
    axis.set_minor_formatter(ticker.NullFormatter())


def _spoken(value: float) -> str:
    if value >= 1e6:
        scale, word = next((s, w) for s, w in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= s)
        return f"{value / scale:g}{word}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def finish_lines(axes: Axes, x: str, y: str, *, log: str = "xy") -> None:
    """Name and scale the axes of lines."""
    axes.set(xlabel=x, ylabel=y)
    if "x" in log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xticks(sorted({float(at) for line in axes.lines for at in line.get_xdata()}))
        label_ticks(axes.xaxis)
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    label_ticks(axes.yaxis)
    add_legend(axes, 2)


def add_legend(axes: Axes, num_columns: int) -> None:
    """Put the legend below all, each name once."""
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    for name in _LAST:
        if name in once:
            once[name] = once.pop(name)
    axes.figure.legend(once.values(), once, loc="outside lower center", ncols=num_columns)
