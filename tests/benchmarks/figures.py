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

from tests.benchmarks.record import Record, Row, Table
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
_INCHES = (7.2, 4.2)
_REST, _LIMIT = "all other stages", "what the disk alone would need"
#: Of a legend.
_LAST = (_REST, _LIMIT)
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
    """Name and scale the axes of lines."""
    axes.set(xlabel=x, ylabel=y)
    if "x" in log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xticks(sorted({float(at) for line in axes.lines for at in line.get_xdata()}))
        _log_ticks(axes.xaxis)
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    _log_ticks(axes.yaxis)
    _add_legend(axes, 2)


def _add_legend(axes: Axes, num_columns: int) -> None:
    """Put the legend below all, each name once."""
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    for name in _LAST:
        if name in once:
            once[name] = once.pop(name)
    axes.figure.legend(once.values(), once, loc="outside lower center", ncols=num_columns)


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


def trillions_data(records: Records) -> dict[str, Any]:
    """Return by size and contender: seconds, what the disk alone needs, and the stages' shares."""
    sizes = []
    for table, (tokens,) in tables_of(records, "bench_trillions", _SIZE):
        stages = next(
            (
                found
                for found, (size,) in tables_of(records, "bench_trillions", f"stages-{_SIZE}")
                if size == tokens
            ),
            None,
        )
        bars = {
            row.contender: {
                "seconds": row.median("seconds"),
                "limit": row.median("disk_limit_seconds"),
                "shares": _stage_shares(stages and stages.row(row.contender)),
            }
            for row in table.rows
            if row.contender.startswith("zindex") and row.median("seconds")
        }
        sizes.append({"tokens": tokens, "bars": bars, "goals": _goals(table)})
    return {"sizes": sizes} if any(size["bars"] for size in sizes) else {}


def _stage_shares(row: Row | None) -> dict[str, float]:
    """Return which part of all busy seconds of threads each stage has."""
    if row is None:
        return {}
    busy = {
        figure.removesuffix("_seconds").replace("_", " "): row.median(figure) or 0.0
        for figure in row.figures
        if figure.endswith("_seconds")
    }
    total = sum(busy.values())
    return {stage: seconds / total for stage, seconds in busy.items()} if total else {}


def _goals(table: Table) -> dict[str, float]:
    """Return the seconds that were asked of a size, as its notes name them."""
    found = re.search(r"\(bar ([\d.]+) s, goal ([\d.]+) s\)", " ".join(table.notes))
    return {"bar": float(found[1]), "goal": float(found[2])} if found else {}


def draw_trillions(axes: Axes, data: dict[str, Any]) -> None:
    """Draw a stack of stages for each build, in groups by size."""
    largest: Counter[str] = Counter()
    for size in data["sizes"]:
        for bar in size["bars"].values():
            largest.update({name: share * bar["seconds"] for name, share in bar["shares"].items()})
    stages = [name for name, _ in largest.most_common(len(_OURS))]
    colours = dict(zip(stages, _OURS, strict=False))
    place, ticks, labels = 0.0, [], []
    for size in data["sizes"]:
        first = place
        for name, bar in size["bars"].items():
            _draw_stack(axes, place, bar, colours)
            ticks.append(place)
            labels.append(name.removeprefix("zindex, ").removesuffix(" order").replace(", ", ",\n"))
            place += 1
        middle = (first + place - 1) / 2
        axes.annotate(
            f"{size['tokens'] / 1e12:g} trillion tokens",
            (middle, 0),
            (0, -40),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
        )
        for word, seconds in size["goals"].items():
            axes.plot([first - 0.5, place - 0.4], [seconds, seconds], color=_INK, ls="--")
            axes.annotate(f" {word}: {seconds:g} s", (place - 0.4, seconds), va="center")
        place += 0.6 + 0.8 * bool(size["goals"])
    axes.set_xticks(ticks, labels)
    axes.tick_params(axis="x", length=0, labelsize=8)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="seconds", xlim=(-0.7, place - 0.9))
    _add_legend(axes, 3)


def _draw_stack(axes: Axes, place: float, bar: dict[str, Any], colours: dict[str, str]) -> None:
    """Draw one build: its stages, what the disk alone needs, and its seconds above."""
    bottom = 0.0
    rest = 1 - sum(bar["shares"].get(stage, 0.0) for stage in colours)
    for stage, colour in [*colours.items(), (_REST, _INK)]:
        height = bar["seconds"] * (rest if stage == _REST else bar["shares"].get(stage, 0.0))
        if height > 1e-9 * bar["seconds"]:
            axes.bar(place, height, 0.8, bottom, color=colour, label=stage)
            bottom += height
    if bar["limit"]:
        ends = [place - 0.45, place + 0.45]
        axes.plot(ends, [bar["limit"]] * 2, color=_RIVALS[0], label=_LIMIT)
    axes.annotate(
        short_number(bar["seconds"]),
        (place, bar["seconds"]),
        (0, 3),
        ha="center",
        textcoords="offset points",
    )


def memory_data(records: Records) -> dict[str, Any]:
    """Return the peak memory of builds against documents."""
    found = tables_of(records, "bench_memory", f"documents-{_SIZE}")
    lines = _series([(table, numbers[0]) for table, numbers in found], "peak_nbytes", ("minimal",))
    return {"lines": lines} if lines else {}


def draw_memory(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the peak memory of builds against documents."""
    lines = {name: [[x, y / 2**20] for x, y in points] for name, points in data["lines"].items()}
    _draw_lines(axes, lines)
    _finish(axes, "documents", "MiB", log="x")


FIGURES = (
    Figure(
        "trillions",
        "bench_trillions",
        "Seconds of whole builds, divided as their stages kept threads busy, and the disk's limit",
        trillions_data,
        draw_trillions,
    ),
    Figure(
        "memory",
        "bench_memory",
        "Peak memory of a build's process against the number of documents",
        memory_data,
        draw_memory,
    ),
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
