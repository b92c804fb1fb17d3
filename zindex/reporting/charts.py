"""Charts as SVG without scripts: shapes stretch to the page, labels are HTML of fixed size."""

from collections.abc import Sequence
from typing import NamedTuple

from zindex.reporting.markup import Html, join, tag

#: Height of charts, in pixels, and of a line of labels.
HEIGHT, _LINE = 200, 15

#: Label of an axis: place from 0 to 1, and text.
Tick = tuple[float, str]


class Band(NamedTuple):
    """One band of a stacked chart."""

    name: str
    #: Number of its color.
    color: int
    #: Values of each window, and those that are intended.
    values: Sequence[float]
    targets: Sequence[float]


def plot(
    *shapes: Html,
    label: str,
    x_ticks: Sequence[Tick],
    y_ticks: Sequence[Tick] = (),
    x_title: str = "",
    y_title: str = "",
    names: Sequence[tuple[float, str, int]] = (),
    height: int = HEIGHT,
) -> Html:
    """Return a chart with axes.

    Parameters
    ----------
    shapes
        Elements of an SVG that is 100 wide and high, y growing downwards.
    label
        What the chart shows, for those who cannot see it.
    x_ticks, y_ticks
        Labels of the axes; the ones of the y axis have grid lines.
    x_title, y_title
        What the axes are.
    names
        Labels to the right: place from the bottom, text, and number of a color.
    height
        Height in pixels.
    """
    lines = [
        tag(
            "line",
            x1=0,
            x2=100,
            y1=_number(100 - 100 * y),
            y2=_number(100 - 100 * y),
            class_="grid",
        )
        for y, _ in y_ticks
    ]
    svg = tag(
        "svg",
        *lines,
        *shapes,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    left = [tag("span", text, class_="y", style=f"bottom:{100 * y:.1f}%") for y, text in y_ticks]
    below = [
        tag("span", text, class_=f"x {_align(x)}", style=f"left:{100 * x:.1f}%")
        for x, text in x_ticks
    ]
    right = [
        tag("span", text, class_=f"n t{color}", title=text, style=f"bottom:{100 * y:.1f}%")
        for y, text, color in _spread(names, _LINE / height)
    ]
    kinds = "plot" + " wide-left" * bool(y_ticks) + " wide-right" * bool(names)
    return tag(
        "figure",
        tag("figcaption", y_title) if y_title else None,
        tag("div", svg, *left, *below, *right, class_=kinds, style=f"height:{height}px"),
        tag("p", x_title, class_="axis") if x_title else None,
    )


def _align(x: float) -> str:
    """Return the alignment of a label on the x axis, so that it stays inside."""
    return "first" if x < 0.1 else "last" if x > 0.9 else "middle"


def _number(value: float) -> str:
    """Format a coordinate shortly."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _spread(names: Sequence[tuple[float, str, int]], gap: float) -> list[tuple[float, str, int]]:
    """Return labels moved apart, so that they are at least ``gap`` from each other."""
    placed: list[tuple[float, str, int]] = []
    for y, text, color in sorted(names):
        lowest = placed[-1][0] + gap if placed else gap / 2
        placed.append((max(y, lowest), text, color))
    highest = 1 - gap / 2
    for number in reversed(range(len(placed))):
        y, text, color = placed[number]
        placed[number] = (min(y, highest), text, color)
        highest = min(y, highest) - gap
    return placed


def _steps(values: Sequence[float], width: float) -> str:
    """Return the path of a line with one step per value."""
    parts = []
    for number, value in enumerate(values):
        y = _number(100 - 100 * value)
        parts.append(f"{'V' if number else 'M0 '}{y}H{_number((number + 1) * width)}")
    return "".join(parts)


def stack(
    bands: Sequence[Band], *, label: str, titles: Sequence[str], x_ticks: Sequence[Tick]
) -> Html:
    """Return a stacked chart of shares, with dashed lines where the bands should end.

    Parameters
    ----------
    bands
        From top to bottom; their values add up to 1.
    label
        What the chart shows.
    titles
        Tooltip of each window.
    x_ticks
        Labels of the x axis.
    """
    num_windows = len(bands[0].values)
    width = 100 / num_windows
    tops, ends = [1.0] * num_windows, [1.0] * num_windows
    shapes, lines, names = [], [], []
    for number, band in enumerate(bands):
        bottoms = [max(0.0, top - value) for top, value in zip(tops, band.values, strict=True)]
        area = _steps(tops, width) + _back(bottoms, width) + "Z"
        shapes.append(tag("path", d=area, class_=f"f{band.color}"))
        names.append(((tops[-1] + bottoms[-1]) / 2, band.name, band.color))
        ends = [end - value for end, value in zip(ends, band.targets, strict=True)]
        if number < len(bands) - 1:
            lines.append(tag("path", d=_steps(ends, width), class_="target"))
        tops = bottoms
    hovers = _hovers(titles)
    ticks = [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")]
    return plot(
        *shapes, *lines, *hovers, label=label, x_ticks=x_ticks, y_ticks=ticks,
        x_title="position in the run", names=names, height=260,
    )  # fmt: skip


def _back(values: Sequence[float], width: float) -> str:
    """Return the path of a line with one step per value, from right to left."""
    return "".join(
        f"V{_number(100 - 100 * values[number])}H{_number(number * width)}"
        for number in reversed(range(len(values)))
    )


def _hovers(titles: Sequence[str]) -> list[Html]:
    """Return invisible columns that show a tooltip."""
    width = 100 / max(1, len(titles))
    return [
        tag("rect", tag("title", title), x=_number(number * width), y=0, width=_number(width),
            height=100, class_="hover")
        for number, title in enumerate(titles)
    ]  # fmt: skip


def columns(
    values: Sequence[float],
    *,
    label: str,
    titles: Sequence[str],
    x_ticks: Sequence[Tick],
    y_ticks: Sequence[Tick] = (),
    x_title: str = "",
    y_title: str = "",
    marker: float | None = None,
    color: int = 0,
    height: int = HEIGHT,
) -> Html:
    """Return columns from 0 to the largest value, with an optional dashed vertical line."""
    largest, width = max([*values, 1e-300]), 100 / max(1, len(values))
    gap = 0.12 * width
    shapes = [
        tag("rect", x=_number(number * width + gap), width=_number(width - 2 * gap),
            y=_number(100 - 100 * value / largest), height=_number(100 * value / largest),
            class_=f"f{color}")
        for number, value in enumerate(values)
        if value > 0
    ]  # fmt: skip
    if marker is not None:
        place = _number(100 * marker)
        shapes.append(tag("line", x1=place, x2=place, y1=0, y2=100, class_="target"))
    return plot(
        *shapes, *_hovers(titles), label=label, x_ticks=x_ticks, y_ticks=y_ticks,
        x_title=x_title, y_title=y_title, height=height,
    )  # fmt: skip


def dots(
    points: Sequence[tuple[float, float]], *, label: str, x_ticks: Sequence[Tick], x_title: str,
    y_title: str,
) -> Html:  # fmt: skip
    """Return a dot for each pair of places from 0 to 1."""
    path = "".join(f"M{_number(100 * x)} {_number(100 - 100 * y)}h0" for x, y in points)
    ticks = [(0.0, "first"), (1.0, "last")]
    return plot(
        tag("path", d=path, class_="dots"), label=label, x_ticks=x_ticks, y_ticks=ticks,
        x_title=x_title, y_title=y_title, height=260,
    )  # fmt: skip


def bars(
    rows: Sequence[tuple[str, float, str]], *, marker: float | None = None, marker_name: str = ""
) -> Html:
    """Return horizontal bars.

    Parameters
    ----------
    rows
        Name, value, and text of the value.
    marker, marker_name
        A value with a vertical line, and its name.
    """
    largest = max([*(value for _, value, _ in rows), marker or 0.0, 1e-300])
    line = None
    if marker is not None:
        line = tag(
            "i", class_="mark", title=marker_name, style=f"left:{100 * marker / largest:.2f}%"
        )
    items = [
        join(
            tag("span", name, class_="name", title=name),
            tag(
                "span",
                tag("i", class_="bar", style=f"width:{100 * value / largest:.2f}%"),
                line,
                class_="track",
            ),
            tag("span", text, class_="value"),
        )
        for name, value, text in rows
    ]
    return tag("div", *items, class_="bars")
