"""The figures of the page, drawn from records: each from one kind of table, if that is there."""

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

from tests.benchmarks.record import Record, Table
from tests.benchmarks.units import short_number

Records = Mapping[str, Record]
#: Readable on white and on black: the page has no say in what it is shown on.
_INK = "#6e7781"
_OURS = ("#2f81f7", "#2da44e", "#a371f7", "#bf8700")
_RIVALS = ("#d1622b", "#6e7781")
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "zindex",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "savefig.transparent": True,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
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
_INCHES = (7.2, 3.8)
#: A number in the key of a table.
_SIZE = r"(\d[\d.e+]*)"


@dataclass(frozen=True)
class Figure:
    """One figure: which data it takes from the records, and how they are drawn."""

    name: str
    #: In whose section it stands.
    benchmark: str
    caption: str
    #: Return JSON of all that is drawn; nothing where the records do not hold it.
    data: Callable[[Records], dict[str, Any]]
    draw: Callable[[Axes, dict[str, Any]], None]

    def digest(self, data: dict[str, Any]) -> str:
        """Return what stands in the file for its data: drawings differ by version, data do not."""
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
    for table in records[benchmark].tables if benchmark in records else []:
        match = re.fullmatch(pattern, table.key)
        if match:
            found.append((table, [float(group) for group in match.groups()]))
    return sorted(found, key=lambda pair: pair[1])


def _series(
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


def _colour(name: str, number: int = 0) -> str:
    """Return the colour of a contender: blue for ours, orange for rivals, others for more."""
    colours = _OURS if name.startswith("zindex") else _RIVALS
    return colours[number % len(colours)]


def _draw_lines(axes: Axes, lines: dict[str, list[list[float]]]) -> None:
    """Draw each contender's points."""
    seen: Counter[bool] = Counter()
    for name, points in lines.items():
        ours = name.startswith("zindex")
        colour = _colour(name, seen[ours])
        seen[ours] += 1
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=colour)


def _log_ticks(axis: Any) -> None:
    """Label powers of ten as numbers that are spoken."""
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _spoken(value)))
    axis.set_minor_formatter(ticker.NullFormatter())


def _spoken(value: float) -> str:
    if value >= 1e6:
        scale, word = next((s, w) for s, w in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= s)
        return f"{value / scale:g}{word}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _finish(axes: Axes, x: str, y: str, *, log: str = "xy") -> None:
    """Name and scale the axes, and put the legend beside the lines."""
    if "x" in log:
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
    if "y" in log:
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)
    axes.set(xlabel=x, ylabel=y)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def blend_data(records: Records) -> dict[str, Any]:
    """Return the cost per sample against the number of datasets, at one size of run."""
    found = tables_of(records, "bench_blend", f"datasets-{_SIZE}-samples-{_SIZE}")
    if not found:
        return {}
    size = Counter(numbers[1] for _, numbers in found).most_common(1)[0][0]
    tables = [(table, numbers[0]) for table, numbers in found if numbers[1] == size]
    lines = _series(tables, "sample_ns", ("exhaustive",))
    return {"samples": size, "lines": lines} if lines else {}


def draw_blend(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the cost per sample against the number of datasets."""
    _draw_lines(axes, data["lines"])
    _finish(axes, "datasets", "ns per sample")


def build_data(records: Records) -> dict[str, Any]:
    """Return the seconds of whole builds against documents."""
    found = tables_of(records, "bench_build", f"documents-{_SIZE}")
    lines = _series([(table, numbers[0]) for table, numbers in found], "seconds")
    return {"lines": lines} if lines else {}


def draw_build(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the seconds of whole builds against documents."""
    _draw_lines(axes, data["lines"])
    _finish(axes, "documents", "seconds")


def read_data(records: Records) -> dict[str, Any]:
    """Return the microseconds of random spans, of the largest corpus."""
    bars: dict[str, float] = {}
    for table, _ in tables_of(records, "bench_read", f"span-{_SIZE}"):
        bars = {row.contender: row.median("span_us") or 0.0 for row in table.rows}
    return {"bars": bars} if bars else {}


def draw_read(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the microseconds of random spans."""
    names = sorted(data["bars"], key=lambda name: data["bars"][name])
    values = [data["bars"][name] for name in names]
    axes.barh(names, values, color=[_colour(name) for name in names], height=0.6)
    axes.bar_label(axes.containers[0], [f" {short_number(value)}" for value in values])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    _log_ticks(axes.xaxis)
    axes.set(xlabel="µs per span", xlim=(min(1.0, min(values) / 2), 4 * max(values)))


FIGURES = (
    Figure(
        "blend-cost",
        "bench_blend",
        "Cost of a blend per sample against the number of datasets",
        blend_data,
        draw_blend,
    ),
    Figure(
        "build-seconds",
        "bench_build",
        "Seconds of a whole index build against the number of documents",
        build_data,
        draw_build,
    ),
    Figure(
        "read-latency",
        "bench_read",
        "Time of one random span of a sample, page cache warm",
        read_data,
        draw_read,
    ),
)
