"""Plot the lengths of samples, the epochs of sources, and candidate sequence lengths."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from zindex.errors import ConfigError
from zindex.io.system_errors import reason_of
from zindex.lazy import need
from zindex.streaming.lengths.advice import MAX_EPOCHS, RunAdvice
from zindex.streaming.lengths.draws import SourceDraws
from zindex.streaming.lengths.statistics import Lengths, SourceLengths
from zindex.text.length_histogram import LengthHistogram, bin_bounds
from zindex.wording import count_noun

# Maximum number of sources with a color; those with the most tokens are chosen.
_MAX_SHOWN = 8
# Bins per doubling of the length, as far as the histogram resolves them.
_STEPS = 4
# Names of histograms that are closer to each other, as a share of the panel, are stacked.
_LABEL_WIDTH = 0.5


def draw_lengths(lengths: Lengths, advice: RunAdvice, path: str | os.PathLike[str]) -> None:
    """Plot lengths and advice to a file.

    Parameters
    ----------
    lengths, advice
        Content of the figure.
    path
        Output file, with a suffix such as ``.svg``, ``.png`` or ``.pdf``.

    Raises
    ------
    ConfigError
        If matplotlib is missing, or the file cannot be written.
    """
    figure, axes = open_figure(1 + bool(advice.draws) + bool(advice.sequence_lengths))
    from matplotlib import colormaps

    sources = sorted(lengths, key=lambda source: -source.num_tokens)[:_MAX_SHOWN]
    colors = {source.name: colormaps["tab10"](i) for i, source in enumerate(sources)}
    _draw_histograms(axes.pop(0), sources, colors, len(lengths))
    if advice.draws:
        _draw_epochs(axes.pop(0), advice.draws, colors)
    if advice.sequence_lengths:
        _draw_sequence_lengths(axes.pop(0), advice)
    save_figure(figure, path)


def open_figure(num_panels: int) -> tuple[Any, list[Any]]:
    """Return a figure with panels side by side, and their axes.

    Raises
    ------
    ConfigError
        If matplotlib is missing.
    """
    remedy = "zindex[quickstart], or take the text or the JSON"
    need("matplotlib", "a picture", remedy)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * num_panels, 4.4), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, num_panels)))


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file.

    Raises
    ------
    ConfigError
        If it cannot be written, or its suffix is no format.
    """
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a picture must be a file to write with a suffix such as .svg or .png, got {path}: "
            f"{reason_of(error)}"
        ) from error


def _draw_histograms(
    axis: Any, sources: Sequence[SourceLengths], colors: dict[str, Any], num_sources: int
) -> None:
    """Plot the distribution of each source's tokens over the lengths of samples."""
    named = []
    for source in sources:
        sample_state = "~" if source.is_estimate else ""
        label = f"{source.name}: {sample_state}{count_noun(source.num_samples, 'sample')}"
        named.append((label, source.histogram, colors[source.name]))
    units = sorted({source.unit for source in sources if source.unit})
    unit = " or ".join(units) or "tokens"
    more = num_sources - len(sources)
    note = f"and {count_noun(more, 'smaller source')}" if more else ""
    draw_histograms(axis, named, f"length of a sample, {unit}", f"percent of the {unit}", note)
    finish(axis, "Lengths")


def draw_histograms(
    axis: Any, named: Sequence[tuple[str, LengthHistogram, Any]], x: str, y: str, note: str = ""
) -> None:
    """Plot the distribution of values over lengths, each with its name at its highest bin.

    Parameters
    ----------
    axis
        The axes of a panel.
    named
        Name, histogram and color of each distribution. One without values is only named.
    x, y, note
        Labels of the axes, and a remark.
    """
    filled = [item for item in named if item[1].num_tokens]
    low = max(1, min((own.shortest for _, own, _ in filled), default=1)) / 1.2
    high = max(2, *(own.longest for _, own, _ in filled), 2) * 1.2
    peaks: list[tuple[float, float, str, Any]] = []
    for label, histogram, color in filled:
        edges, shares = group_bins(histogram)
        axis.stairs(100 * shares, edges, color=color, lw=1.4)
        axis.stairs(100 * shares, edges, fill=True, color=color, alpha=0.45 / len(filled))
        top = int(np.argmax(shares))
        place = np.log(np.sqrt(edges[top] * edges[top + 1]) / low) / np.log(high / low)
        peaks.append((100 * float(shares[top]), float(np.clip(place, 0, 1)), label, color))
    step = 0.06 * max((peak for peak, *_ in peaks), default=1.0)
    placed: list[tuple[float, float]] = []
    for peak, place, label, color in sorted(peaks, key=lambda item: item[:2]):
        height = peak + step / 3
        for other, at in sorted(placed):
            if abs(at - place) < _LABEL_WIDTH and abs(other - height) < step:
                height = other + step
        placed.append((height, place))
        axis.annotate(
            label,
            (place, height),
            xycoords=axis.get_yaxis_transform(),
            annotation_clip=False,
            color=color,
            fontsize=8,
            va="bottom",
            ha="left" if place < 1 / 3 else "right" if place > 2 / 3 else "center",
            in_layout=False,
        )
    empty = [label for label, own, _ in named if not own.num_tokens]
    remark = "\n".join([*empty, note]).strip()
    axis.text(
        0.01, 0.99, remark, transform=axis.transAxes, va="top", fontsize=8, color="0.4",
        in_layout=False,
    )  # fmt: skip
    axis.set(xscale="log", xlabel=x, ylabel=y, xlim=(low, high))
    axis.set_ylim(0, max((height for height, _ in placed), default=1.0) + 2 * step)
    ticks = [1 << power for power in range(53) if low <= 1 << power <= high]
    ticks = ticks[:: -(-len(ticks) // 7)] if len(ticks) > 1 else [max(1, round(low * 1.2))]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()


def group_bins(histogram: LengthHistogram) -> tuple[Any, Any]:
    """Return the edges of wide bins from 1 on, and the share of tokens in each."""
    last = max(1, histogram.longest)
    powers = np.arange(0, np.log2(last) + 2 / _STEPS + 1e-9, 1 / _STEPS)
    # Powers of two end a bin, as those of the histogram.
    edges = np.unique([1, *(np.floor(2**powers) + 1)])
    starts = np.array([bin_bounds(number)[0] for number, _, _ in histogram.bins])
    sums = np.array([total for _, _, total in histogram.bins], float)
    places = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, len(edges) - 2)
    shares = np.bincount(places, sums, minlength=len(edges) - 1) / sums.sum()
    return edges, shares


def _draw_epochs(axis: Any, draws: Sequence[SourceDraws], colors: dict[str, Any]) -> None:
    """Plot the epochs of each source, with lines at one epoch and at the advised maximum."""
    shown = [drawn for drawn in draws if drawn.name in colors]
    names = [drawn.name for drawn in shown]
    epochs = [drawn.num_epochs for drawn in shown]
    bars = axis.barh(names, epochs, color=[colors[name] for name in names])
    axis.bar_label(bars, [f" {number:,.2f}" for number in epochs], fontsize=8)
    marks = (
        (1, ":", "1 ", "right"),
        (MAX_EPOCHS, "--", f" {MAX_EPOCHS:g}, the advised most", "left"),
    )
    for number, style, name, side in marks:
        axis.axvline(number, color="0.4", lw=1, ls=style)
        axis.annotate(
            name, (number, 1), xycoords=axis.get_xaxis_transform(), fontsize=8, color="0.4",
            ha=side, va="bottom",
        )  # fmt: skip
    axis.set_xlim(0, 1.15 * max([*epochs, MAX_EPOCHS]))
    axis.invert_yaxis()
    axis.set_xlabel("epochs")
    total = sum(drawn.num_samples for drawn in draws)
    finish(axis, f"Epochs in {total:,} samples\n")


def _draw_sequence_lengths(axis: Any, advice: RunAdvice) -> None:
    """Plot padding and truncation by sequence length: lines, or bars of a single one."""
    rows = advice.sequence_lengths
    lengths = [row.sequence_length for row in rows]
    kinds = (
        ("padding", "tab:purple", "o-", [row.padding for row in rows]),
        ("cut off", "tab:red", "s-", [row.truncated for row in rows]),
        ("padding if packed", "tab:purple", "o--", [row.packed_padding for row in rows]),
        ("samples split if packed", "tab:red", "s--", [row.split for row in rows]),
    )
    if len(rows) == 1:
        names = [name for name, *_ in kinds]
        percents = [100 * values[0] for *_, values in kinds]
        bars = axis.barh(names, percents, color=[color for _, color, *_ in kinds], height=0.6)
        axis.bar_label(bars, [f" {percent:.3g}%" for percent in percents], fontsize=8)
        axis.set(xlabel="percent", xlim=(0, max(1.0, 1.2 * max(percents))))
        axis.invert_yaxis()
        finish(axis, f"Sequences of {lengths[0]:,} tokens")
        return
    ends = []
    for name, color, style, values in kinds:
        axis.plot(lengths, [100 * value for value in values], style, color=color, ms=4)
        ends.append((100 * values[-1], name, color))
    # Names at the ends of the lines, apart from one another.
    place = -100.0
    for end, name, color in sorted(ends):
        place = max(end, place + 6)
        axis.annotate(
            name,
            (lengths[-1], end),
            (8, (place - end) * 2.6),
            textcoords="offset points",
            color=color,
            fontsize=8,
            va="center",
        )
    axis.set(xlabel="sequence length", ylabel="percent", ylim=(-2, 102))
    axis.set_xscale("log", base=2)
    axis.set_xlim(lengths[0] / 1.1, lengths[-1] * (lengths[-1] / lengths[0]) ** 0.5)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    finish(axis, "Choice of a sequence length")


def finish(axis: Any, title: str) -> None:
    """Add the title of a panel and remove its frame."""
    axis.set_title(title, loc="left", weight="bold")
    axis.spines[["top", "right"]].set_visible(False)
