"""The figures of the page: each from one kind of table, if that is recorded."""

import re
from collections import Counter
from typing import Any

from matplotlib.axes import Axes

from tests.benchmarks.drawing import (
    IDEAL,
    INK,
    LIMIT,
    OURS,
    REST,
    RIVALS,
    SIZE,
    Figure,
    Records,
    add_legend,
    colour_of,
    draw_lines,
    finish_lines,
    label_ticks,
    make_series,
    tables_of,
)
from tests.benchmarks.record import Table, tables_in
from tests.benchmarks.units import short_number


def blend_data(records: Records) -> dict[str, Any]:
    """Return the cost per sample against the number of datasets, at one size of run."""
    found = tables_of(records, "bench_blend", f"datasets-{SIZE}-samples-{SIZE}")
    if not found:
        return {}
    size = Counter(numbers[1] for _, numbers in found).most_common(1)[0][0]
    tables = [(table, numbers[0]) for table, numbers in found if numbers[1] == size]
    lines = make_series(tables, "sample_ns", ("exhaustive",))
    return {"samples": size, "lines": lines} if lines else {}


def draw_blend(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the cost per sample against the number of datasets."""
    draw_lines(axes, data["lines"])
    finish_lines(axes, "datasets", "ns per sample")


def lines_figure(
    name: str,
    benchmark: str,
    caption: str,
    pattern: str,
    x: str,
    figure: str = "seconds",
    leave_out: tuple[str, ...] = (),
) -> Figure:
    """Return the figure of each contender's seconds against the size in the keys of tables."""

    def data(records: Records) -> dict[str, Any]:
        found = tables_of(records, benchmark, pattern)
        tables = [(table, numbers[0]) for table, numbers in found]
        lines = make_series(tables, figure, leave_out)
        return {"lines": lines} if lines else {}

    def draw(axes: Axes, data: dict[str, Any]) -> None:
        draw_lines(axes, data["lines"])
        finish_lines(axes, x, "seconds")

    return Figure(name, benchmark, caption, data, draw)


def read_data(records: Records) -> dict[str, Any]:
    """Return the microseconds of random spans, of the largest corpus."""
    bars: dict[str, float] = {}
    for table, _ in tables_of(records, "bench_read", f"span-{SIZE}"):
        bars = {row.contender: row.median("span_us") or 0.0 for row in table.rows}
    return {"bars": bars} if bars else {}


def draw_read(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the microseconds of random spans."""
    names = sorted(data["bars"], key=lambda name: data["bars"][name])
    values = [data["bars"][name] for name in names]
    axes.barh(names, values, color=[colour_of(name) for name in names], height=0.6)
    axes.bar_label(axes.containers[0], [f" {short_number(value)}" for value in values])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    label_ticks(axes.xaxis)
    axes.set(xlabel="µs per span", xlim=(min(1.0, min(values) / 2), 4 * max(values)))


def trillions_data(records: Records) -> dict[str, Any]:
    """Return by size and contender: seconds, what the disk alone needs, and the stages' shares."""
    found = tables_in(records, "bench_trillions")
    stages = {table.key: table for table in found if table.key.startswith("stages-")}
    sizes = []
    for table, (tokens,) in tables_of(records, "bench_trillions", SIZE):
        bars = {}
        for row in table.rows:
            words = row.contender.removeprefix("zindex, ").replace(",", "").replace(" ", "-")
            if row.contender.startswith("zindex") and row.median("seconds"):
                bars[row.contender] = {
                    "seconds": row.median("seconds"),
                    "limit": row.median("disk_limit_seconds"),
                    "shares": _stage_shares(stages.get(f"stages-{table.key}-{words}")),
                }
        sizes.append({"tokens": tokens, "bars": bars, "goals": _goals(table)})
    return {"sizes": sizes} if any(size["bars"] for size in sizes) else {}


def _stage_shares(table: Table | None) -> dict[str, float]:
    """Return which part of all busy seconds of threads each stage has."""
    rows = table.rows if table else []
    busy = {row.contender: row.median("thread_seconds") or 0.0 for row in rows}
    total = sum(busy.values())
    return {stage: seconds / total for stage, seconds in busy.items()} if total else {}


def _goals(table: Table) -> dict[str, float]:
    """Return the seconds that were asked of a size, as its notes name them."""
    found = re.search(r"\(bar ([\d.]+) s, goal ([\d.]+) s\)", " ".join(table.notes))
    return {"bar": float(found[1]), "goal": float(found[2])} if found else {}


def draw_trillions(axes: Axes, data: dict[str, Any]) -> None:
    """Draw a bar of stages for each build, in groups by size; each stage is named where it is long.

    Goals are far beyond the bars, so they are words of the headings.
    """
    largest: Counter[str] = Counter()
    widest: dict[str, tuple[float, tuple[float, str]]] = {}
    bars = {
        (size["tokens"], name): bar for size in data["sizes"] for name, bar in size["bars"].items()
    }
    for key, bar in bars.items():
        for stage, share in bar["shares"].items():
            largest[stage] += share * bar["seconds"]
            widest[stage] = max(widest.get(stage, (0.0, key)), (share * bar["seconds"], key))
    colours = dict(zip((name for name, _ in largest.most_common(len(OURS))), OURS, strict=False))
    longest = max(bars, key=lambda key: float(bars[key]["seconds"]))
    place, ticks, labels = 0.0, [], []
    for size in data["sizes"]:
        goals = ", ".join(f"{word} {seconds:g} s" for word, seconds in size["goals"].items())
        heading = f"{size['tokens'] / 1e12:g} trillion tokens" + f" ({goals})" * bool(goals)
        axes.annotate(heading, (0, place - 0.1), weight="bold", va="center")
        for name, bar in size["bars"].items():
            place += 1
            key = (size["tokens"], name)
            named = {stage for stage in colours if widest[stage][1] == key}
            _draw_bar(axes, place, bar, colours, named | {REST, LIMIT} if key == longest else named)
            ticks.append(place)
            labels.append(name.removeprefix("zindex, ").removesuffix(" order"))
        place += 1.2
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.grid(visible=False, axis="y")
    most = 1.15 * bars[longest]["seconds"]
    axes.set(xlabel="seconds", xlim=(0, most), ylim=(place - 0.3, -0.6))


def _draw_bar(
    axes: Axes, place: float, bar: dict[str, Any], colours: dict[str, str], named: set[str]
) -> None:
    """Draw one build: its stages, what the disk alone needs, and its seconds at the end."""
    left, above, below = 0.0, place - 0.31, place + 0.36
    rest = 1 - sum(bar["shares"].get(stage, 0.0) for stage in colours)
    for stage, colour in [*colours.items(), (REST, INK)]:
        width = bar["seconds"] * (rest if stage == REST else bar["shares"].get(stage, 0.0))
        if width > 1e-9 * bar["seconds"]:
            axes.barh(place, width, 0.5, left=left, color=colour)
            if stage in named:
                axes.annotate(stage, (left, above), color=colour, fontsize=8, va="bottom")
            left += width
    if bar["limit"]:
        axes.plot([bar["limit"]] * 2, [place - 0.3, place + 0.3], color=RIVALS[0])
        if LIMIT in named:
            axes.annotate(LIMIT, (bar["limit"], below), color=RIVALS[0], fontsize=8, va="top")
    axes.annotate(f" {short_number(bar['seconds'])}", (bar["seconds"], place), va="center")


def memory_data(records: Records) -> dict[str, Any]:
    """Return the peak memory of builds, mapped files left out, against documents."""
    found = tables_of(records, "bench_memory", f"documents-{SIZE}")
    lines = make_series(
        [(table, numbers[0]) for table, numbers in found], "anonymous_nbytes", ("minimal",)
    )
    return {"lines": lines} if lines else {}


def draw_memory(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the peak memory of builds against documents."""
    lines = {name: [[x, y / 2**20] for x, y in points] for name, points in data["lines"].items()}
    draw_lines(axes, lines)
    finish_lines(axes, "documents", "MiB, pages of files left out", log="x")


def scaling_data(records: Records) -> dict[str, Any]:
    """Return the predicted seconds of builds against nodes, by size."""
    lines = {}
    for table, (tokens,) in tables_of(records, "bench_scaling", f"curve-{SIZE}"):
        points = [
            [float(row.contender.split()[0].replace(",", "")), row.median("seconds")]
            for row in table.rows
            if re.fullmatch(r"[\d,]+ nodes?", row.contender) and row.median("seconds")
        ]
        if points:
            lines[f"{tokens / 1e12:g} trillion tokens"] = sorted(points)
    return {"lines": lines} if lines else {}


def draw_scaling(axes: Axes, data: dict[str, Any]) -> None:
    """Draw the predicted seconds against nodes, and what twice as fast by twice as many were."""
    every = [seconds for points in data["lines"].values() for _, seconds in points]
    for colour, (name, points) in zip(OURS, data["lines"].items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=colour)
        (first, seconds), last = points[0], points[-1][0]
        ends = [seconds, seconds * first / last]
        axes.plot([first, last], ends, color=INK, ls=":", lw=1, label=IDEAL)
    finish_lines(axes, "nodes", "seconds, predicted")
    axes.set_ylim(min(every) / 2, max(every) * 2)


def check_data(records: Records) -> dict[str, Any]:
    """Return measured and predicted seconds of real builds, by workers."""
    points: dict[str, list[list[float]]] = {}
    for table in tables_in(records, "bench_scaling"):
        for row in table.rows if table.key == "check" else []:
            pair = [row.median("seconds"), row.median("predicted_seconds")]
            if all(pair):
                points.setdefault(row.contender.split(",")[0], []).append(pair)
    return {"points": points} if points else {}


def draw_check(axes: Axes, data: dict[str, Any]) -> None:
    """Draw predictions against what was measured: on the diagonal they are right."""
    for colour, (name, points) in zip(OURS, data["points"].items(), strict=False):
        axes.scatter(*zip(*points, strict=True), color=colour, label=name, zorder=2)
    every = [value for points in data["points"].values() for pair in points for value in pair]
    ends = [min(every) / 1.3, max(every) * 1.3]
    axes.plot(ends, ends, color=INK, lw=1, label="predicted as measured")
    axes.set(xscale="log", yscale="log", xlabel="seconds, measured", ylabel="seconds, predicted")
    label_ticks(axes.xaxis)
    label_ticks(axes.yaxis)
    add_legend(axes, 3)


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
    lines_figure(
        "build-seconds",
        "bench_build",
        "Seconds of a whole index build against the number of documents",
        f"documents-{SIZE}",
        "documents",
    ),
    *(
        lines_figure(
            f"fixed-{things}",
            "bench_fixed",
            f"Seconds from {work} to a full pass over its indices, against its {things}: where "
            "lines cross, storing becomes faster than computing, or zindex than Megatron Core",
            f"{things}-{SIZE}(?:-built)?",
            things,
            "pass_seconds",
            # As fast as the second process, and as one of the rows that store or compute.
            ("first process", "zindex, all built"),
        )
        for things, work in (
            ("documents", "the construction of a GPTDataset"),
            ("datasets", "a blend's builder"),
        )
    ),
    Figure(
        "read-latency",
        "bench_read",
        "Time of one random span of a sample, page cache warm",
        read_data,
        draw_read,
    ),
    Figure(
        "scaling",
        "bench_scaling",
        "Forecast seconds of a build, against nodes of 16 threads",
        scaling_data,
        draw_scaling,
    ),
    Figure(
        "scaling-check",
        "bench_scaling",
        "Real builds with one worker and with two, and their forecasts",
        check_data,
        draw_check,
    ),
)
