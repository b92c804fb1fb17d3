"""Format and plot the statistics of a keyed or record store."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zindex.inspection.answers.record_statistics import (
    QUANTILES,
    FieldLengths,
    RecordStatistics,
    RewardStatistics,
)
from zindex.inspection.tables.blend_table import largest_rows
from zindex.inspection.tables.formatting import (
    format_count,
    format_share,
    table_lines,
)
from zindex.inspection.tables.length_picture import (
    draw_histograms,
    finish,
    open_figure,
    save_figure,
)
from zindex.wording import count_noun

if TYPE_CHECKING:
    from zindex.inspection.answers.batch_choices import BatchChoice

_SHOWN = {"shortest": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "longest": 1.0}
# Room for this many bars, so that a few are not wide.
_LEAST_BARS = 5


def record_lines(found: RecordStatistics) -> list[str]:
    """Format statistics as tables."""
    lines = [f"{found.path}: {count_noun(found.num_records, 'record')}", ""]
    lines += table_lines([_length_cells(item) for item in found.lengths], text_columns=_TEXTS)
    if found.targets:
        cells = [
            {
                "target tokens": format_count(item.num_targets),
                "share": format_share(item.num_targets / max(1, item.num_tokens)),
                "records without": format_count(item.num_untrained),
                "field": item.name,
            }
            for item in found.targets
        ]
        lines += ["", *table_lines(cells, text_columns=_TEXTS)]
    if found.rewards is not None:
        lines += ["", *_reward_lines(found.rewards)]
    return [*lines, "", *_source_lines(found)]


_TEXTS = ("unit", "field", "source")


def batch_lines(choices: Sequence["BatchChoice"], num_ranks: int) -> list[str]:
    """Format what batches cost as a table."""
    cells = [
        {
            "max tokens": format_count(item.max_tokens),
            "batches": format_count(item.num_batches),
            "samples": f"{item.num_samples:,.1f}",
            "padding": format_share(item.padding),
            "fill": format_share(item.fill),
            "waiting": format_share(item.waiting),
            "layout": item.layout,
        }
        for item in choices
    ]
    lines = [
        f"batches of {count_noun(num_ranks, 'rank')}:",
        *table_lines(cells, text_columns=("layout",)),
    ]
    if any(item.num_batches < num_ranks for item in choices):
        lines.append(
            "fewer batches than ranks make no full step: choose fewer tokens, or tail='exact'"
        )
    return lines


def _length_cells(item: FieldLengths) -> dict[str, str]:
    """Return the cells of a field by header."""
    histogram = item.histogram
    mean = histogram.num_tokens / max(1, histogram.num_samples)
    quantiles = {name: format_count(histogram.quantile(share)) for name, share in _SHOWN.items()}
    total = {"total": format_count(histogram.num_tokens), "unit": item.unit}
    return {**total, "mean": f"{mean:,.1f}", **quantiles, "field": item.name}


def _reward_lines(rewards: RewardStatistics) -> list[str]:
    """Return the distribution of rewards."""
    share = format_share(rewards.num_constant / max(1, rewards.num_groups))
    lines = [
        f"rewards: {count_noun(rewards.num_answers, 'answer')} in "
        f"{count_noun(rewards.num_groups, 'group')}, of which {rewards.num_constant:,} ({share}) "
        "have one reward for all answers"
    ]
    if rewards.num_not_finite:
        lines.append(f"  {rewards.num_not_finite:,} are NaN or infinite")
    quantiles = dict(zip(QUANTILES, rewards.quantiles, strict=True))
    cells = {"mean": rewards.mean, "std": rewards.std}
    cells |= {name: quantiles[share] for name, share in _SHOWN.items()}
    names = {"shortest": "lowest", "longest": "highest"}
    row = {names.get(name, name): f"{value:.4g}" for name, value in cells.items()}
    return lines + table_lines([row])


def _source_lines(found: RecordStatistics) -> list[str]:
    """Return the largest sources."""
    shown = largest_rows([count for _, count in found.sources])
    cells = [
        {
            "records": f"{count:,}",
            "share": format_share(count / found.num_records),
            "source": name or "(none)",
        }
        for name, count in (found.sources[number] for number in shown)
    ]
    lines = [f"by {found.by}:", *table_lines(cells, text_columns=_TEXTS)]
    left = len(found.sources) - len(shown)
    return lines + [f"  and {left:,} smaller; --json lists all"] * bool(left)


def draw_records(found: RecordStatistics, path: str | os.PathLike[str]) -> None:
    """Plot statistics to a file; the suffix selects the format.

    Parameters
    ----------
    found
        The statistics.
    path
        Output file, with a suffix such as ``.svg``, ``.png`` or ``.pdf``.

    Raises
    ------
    ConfigError
        If matplotlib is missing, or the file cannot be written.
    """
    figure, axes = open_figure(2 + bool(found.targets) + (found.rewards is not None))
    _draw_lengths(axes.pop(0), found)
    if found.targets:
        _draw_targets(axes.pop(0), found)
    if found.rewards is not None:
        _draw_rewards(axes.pop(0), found.rewards)
    _draw_sources(axes.pop(0), found)
    save_figure(figure, path)


def _draw_lengths(axis: Any, found: RecordStatistics) -> None:
    """Plot the distribution of each field's values over its lengths."""
    from matplotlib import colormaps

    filled = [item for item in found.lengths if item.histogram.num_tokens]
    shown = [item for item in filled if item.unit in ("tokens", "bytes")] or filled
    colors = colormaps["tab10"]
    named = [
        (f"{item.name}, {item.unit}", item.histogram, colors(number % 10))
        for number, item in enumerate(shown)
    ]
    draw_histograms(axis, named, "length", "percent of the field's values")
    finish(axis, "Lengths")


def _draw_targets(axis: Any, found: RecordStatistics) -> None:
    """Plot the share of target tokens of each field."""
    names = [item.name for item in found.targets]
    percents = [100 * item.num_targets / max(1, item.num_tokens) for item in found.targets]
    bars = axis.barh(names, percents, color="tab:green", height=0.6)
    axis.bar_label(bars, [f" {percent:.3g}%" for percent in percents], fontsize=8)
    axis.set(xlabel="percent", xlim=(0, 115), ylim=(max(_LEAST_BARS, len(names)) - 0.5, -0.5))
    finish(axis, "Target tokens")


def _draw_rewards(axis: Any, rewards: RewardStatistics) -> None:
    """Plot the distribution of rewards."""
    axis.stairs(np.array(rewards.counts), rewards.edges, fill=True, color="tab:purple")
    axis.set(xlabel="reward", ylabel="answers")
    share = format_share(rewards.num_constant / max(1, rewards.num_groups))
    finish(axis, f"Rewards ({share} of groups constant)")


def _draw_sources(axis: Any, found: RecordStatistics) -> None:
    """Plot the records of the largest sources."""
    shown = [found.sources[i] for i in largest_rows([count for _, count in found.sources])]
    names = [os.path.basename(name) or "(none)" for name, _ in shown]
    places = np.arange(len(shown))  # names may repeat
    bars = axis.barh(places, [count for _, count in shown], color="tab:blue", height=0.6)
    axis.bar_label(bars, [f" {count:,}" for _, count in shown], fontsize=8)
    axis.set_yticks(places, names, fontsize=8)
    axis.set(xlabel="records", xlim=(0, 1.2 * max(count for _, count in shown)))
    axis.set_ylim(max(_LEAST_BARS, len(shown)) - 0.5, -0.5)
    finish(axis, f"Records by {found.by}")
