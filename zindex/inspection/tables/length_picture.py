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

# Maximum number of sources with a color; those with the most tokens are chosen.
_MAX_SHOWN = 8
# Bins per doubling of the length, as far as the histogram resolves them.
_STEPS = 4


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
    for source in sources:
        sample_state = "~" if source.is_estimate else ""
        label = f"{source.name}: {sample_state}{source.num_samples:,} samples"
        if not source.histogram.num_tokens:
            axis.plot([], [], color=colors[source.name], label=label)
            continue
        edges, shares = group_bins(source.histogram)
        color = colors[source.name]
        axis.stairs(shares, edges, color=color, lw=1.4)
        axis.stairs(shares, edges, fill=True, color=color, alpha=0.15, label=label)
    units = sorted({source.unit for source in sources if source.unit})
    axis.set(xscale="log", xlabel=f"length of a sample, {' or '.join(units) or 'tokens'}")
    axis.set_xlim(
        max(1, min(source.histogram.shortest for source in sources)) / 1.2,
        max(2, *(source.histogram.longest for source in sources)) * 1.2,
    )
    axis.set_ylabel("share of the source's length")
    if num_sources > len(sources):
        axis.plot([], [], " ", label=f"and {num_sources - len(sources):,} smaller sources")
    axis.legend(frameon=False, fontsize=8)
    finish(axis, "Lengths")


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
    for number, style in ((1, ":"), (MAX_EPOCHS, "--")):
        axis.axvline(number, color="0.4", lw=1, ls=style)
    axis.set_xlim(0, 1.15 * max([*epochs, MAX_EPOCHS]))
    axis.invert_yaxis()
    axis.set_xlabel(f"epochs (dotted: 1, dashed: {MAX_EPOCHS:g})")
    total = sum(drawn.num_samples for drawn in draws)
    finish(axis, f"Epochs in {total:,} samples")


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
