"""Sections of a report: the order of a run, and what it draws of its datasets."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from zindex.inspection.tables.formatting import (
    format_count,
    format_epochs,
    format_share,
)
from zindex.reporting.charts import Band, Tick, bars, columns, dots, stack
from zindex.reporting.document_lengths import EDGES
from zindex.reporting.drawn_datasets import DatasetFigures
from zindex.reporting.elements import (
    Cell,
    facts,
    format_p,
    note,
    panel,
    shorten,
    soft,
    table,
    tiles,
)
from zindex.reporting.figures import RunFigures
from zindex.reporting.markup import Html, join, tag
from zindex.reporting.mix import MAX_BANDS
from zindex.reporting.shuffle_quality import BAD, UNUSUAL, ShuffleTest
from zindex.wording import count_noun

#: Datasets in tables and bars before those that are added up.
MAX_SHOWN = 20
# Datasets whose lengths have a chart.
_MAX_CHARTS = 5

_VERDICTS = {
    "good": "random",
    "even": "even",
    "unusual": "unusual",
    "bad": "not random",
    "unknown": "not tested",
}


def overview(run: RunFigures) -> Html:
    """Return the key figures and the limits of a run."""
    drawn = [item.num_epochs for item in run.datasets if item.num_epochs is not None]
    verdicts = [test.verdict for test in run.tests]
    worst = next((each for each in ("bad", "unusual") if each in verdicts), "good")
    num_samples = run.num_samples
    rows = [
        (format_count(num_samples), "samples") if num_samples else None,
        (format_count(run.num_tokens), "tokens") if run.num_tokens else None,
        (count_noun(len(run.datasets), "dataset"), f"of {run.split}"),
        (format_epochs(max(drawn)), "most epochs of a dataset") if drawn else None,
        (_VERDICTS[worst] if verdicts else "not read", "order of the samples"),
        (format_share(1 - run.fill.filled_share), "padding") if run.fill else None,
    ]
    limits = [
        (f"{limit.name} {limit.setting}".strip(), shorten(limit.holds)) for limit in run.limits
    ]
    return join(
        tiles([row for row in rows if row is not None]),
        note(f"The order was not read: {run.problem}.", "warn") if not run.tests else None,
        note(f"Note: {run.problem}.") if run.problem and run.tests else None,
        note(_describe_sampling(run)) if run.num_observed and not run.is_exact else None,
        panel("What each limit holds", facts(limits)),
    )


def _describe_sampling(run: RunFigures) -> str:
    """Return how many samples were read."""
    if run.num_samples is None:
        return f"Read: {run.num_observed:,} samples of the largest datasets."
    return (
        f"Read: {run.num_observed:,} of {run.num_samples:,} samples, in blocks that are evenly "
        "spread over the run. Figures of the mix, fill and order are estimates from these."
    )


def choose_colors(runs: Sequence[RunFigures]) -> dict[str, int]:
    """Return the colors of datasets, the same one for the same dataset of two runs."""
    colors: dict[str, int] = {}
    for run in runs:
        names = [] if run.mix is None else [run.datasets[k].path for k in run.mix.datasets]
        used = {colors[name] for name in names if name in colors}
        free = (color for color in range(MAX_BANDS) if color not in used)
        colors |= {name: next(free) for name in names if name not in colors}
    return colors


def mix(run: RunFigures, colors: Mapping[str, int]) -> Html | None:
    """Return the mix of a run over its positions, and the epochs of its datasets."""
    shown = sorted(run.datasets, key=lambda item: -item.num_samples)[:MAX_SHOWN]
    repeats = [
        (item.name, item.num_epochs, format_epochs(item.num_epochs))
        for item in shown
        if item.num_epochs is not None
    ]
    more = len(run.datasets) - len(shown)
    epochs = panel(
        "Epochs of each dataset",
        soft("How often its tokens are drawn; the dashed line is one epoch."),
        bars(repeats, marker=1.0, marker_name="one epoch"),
        soft(f"and {count_noun(more, 'smaller dataset')}, in the table") if more else None,
    )
    if run.mix is None:
        return epochs
    found, names = run.mix, [run.datasets[number].name for number in run.mix.datasets]
    numbers = [colors[run.datasets[number].path] for number in found.datasets]
    if found.has_rest:
        numbers.append(MAX_BANDS)
        names.append(count_noun(len(run.datasets) - len(names), "other"))
    bands = [
        Band(shorten(name), color, shares, targets)
        for name, color, shares, targets in zip(
            names,
            numbers,
            zip(*found.shares, strict=True),
            zip(*found.targets, strict=True),
            strict=True,
        )
    ]
    titles = [
        f"about position {position:,}\n"
        + "\n".join(
            f"{shorten(name)}: {format_share(share)} (intended {format_share(aim)})"
            for name, share, aim in zip(names, shares, aims, strict=True)
        )
        for position, shares, aims in zip(found.positions, found.shares, found.targets, strict=True)
    ]
    chart = stack(
        bands, label="Shares of the datasets over the run", titles=titles,
        x_ticks=_position_ticks(run.num_samples or 0),
    )  # fmt: skip
    words = (
        f"Bands are shares of the samples, dashed lines where the weights put their borders. The "
        f"largest difference in any of {len(found.positions)} windows is "
        f"{100 * found.largest_deviation:.2g} percentage points."
    )
    return tag("div", panel("Mix over the run", soft(words), chart), epochs, class_="grid-2")


def _position_ticks(num_samples: int) -> list[Tick]:
    """Return the labels of an axis of positions."""
    return [(place, format_count(int(place * num_samples))) for place in (0.0, 0.5, 1.0)]


def datasets(run: RunFigures, max_rows: int) -> Html:
    """Return the table of datasets, the most drawn ones first."""
    ordered = sorted(run.datasets, key=lambda item: -item.num_samples)
    rows = [_dataset_row(item) for item in ordered[:max_rows]]
    kept = [k for k in range(len(_HEADERS)) if any(row[k].text for row in rows)]
    rest = _sum_row(ordered[MAX_SHOWN:])
    hidden = len(ordered) - len(rows)
    return panel(
        None,
        table(
            [_HEADERS[k] for k in kept],
            [[row[k] for k in kept] for row in rows],
            num_shown=MAX_SHOWN,
            rest=[rest[k] for k in kept],
        ),
        soft(f"{hidden:,} more datasets are in the JSON.") if hidden else None,
    )


def _dataset_row(item: DatasetFigures) -> list[Cell]:
    """Return the cells of a dataset."""
    mark, epochs = "~" * item.is_estimate, item.num_epochs
    repeated, length = item.repeated_share, item.num_tokens / max(1, item.num_documents)
    return [
        Cell(tag("span", shorten(item.name), title=shorten(item.path))),
        Cell("" if item.target is None else format_share(item.target), item.target or 0.0),
        Cell(mark + format_share(item.share), item.share),
        Cell(mark + format_count(item.num_samples), item.num_samples),
        Cell("" if epochs is None else mark + format_epochs(epochs), epochs or 0.0),
        Cell("" if repeated is None else format_share(repeated), repeated or 0.0),
        Cell(format_count(item.num_documents), item.num_documents),
        Cell(format_count(item.num_tokens), item.num_tokens),
        Cell(f"{length:,.0f}", length),
        Cell("max_epochs" if item.is_capped else ""),
    ]


def _sum_row(items: Sequence[DatasetFigures]) -> list[object]:
    """Return the cells of all datasets that are not shown."""
    targets = [item.target for item in items if item.target is not None]
    sums = [sum(getattr(item, name) for item in items) for name in _SUMMED]
    return [
        count_noun(len(items), "other dataset"),
        format_share(sum(targets)) if targets else "",
        format_share(sum(item.share for item in items)),
        format_count(sums[0]),
        "",
        "",
        format_count(sums[1]),
        format_count(sums[2]),
        f"{sums[2] / max(1, sums[1]):,.0f}",
        "",
    ]


_HEADERS = (
    *("dataset", "weight", "share", "samples", "epochs", "repeated", "documents", "tokens"),
    *("mean length", "limit"),
)
_SUMMED = ("num_samples", "num_documents", "num_tokens")


def lengths(run: RunFigures) -> Html | None:
    """Return the lengths of documents, and how they fill samples."""
    found = [item for item in run.datasets if item.lengths is not None and item.lengths.bins]
    found = sorted(found, key=lambda item: -item.num_samples)[:_MAX_CHARTS]
    if not found:
        return None
    low = min(item.lengths.bins[0][0] for item in found if item.lengths)
    high = max(item.lengths.bins[-1][1] for item in found if item.lengths)
    charts = [_length_panel(item, low, high, run.sequence_length) for item in found]
    words = (
        "Lengths of documents in tokens, by their share of the dataset's tokens; the dashed line "
        f"is the length of a sample, {run.sequence_length:,}."
    )
    return join(soft(words), tag("div", *charts, _fill_panel(run), class_="grid-3"))


def _length_panel(item: DatasetFigures, low: int, high: int, sequence_length: int) -> Html:
    """Return the chart of the lengths of one dataset, on an axis common to all."""
    own = item.lengths
    assert own is not None
    steps = EDGES[EDGES.index(low) : EDGES.index(high) + 1]
    shares = {first: share for first, _, share in own.bins}
    values = [shares.get(first, 0.0) for first in steps[:-1]]
    titles = [
        f"{first:,} to {stop - 1:,} tokens: {format_share(share)}"
        for first, stop, share in zip(steps, steps[1:], values, strict=False)
    ]
    place = _place(steps, sequence_length)
    powers = [edge - 1 for edge in steps[1:] if (edge - 1).bit_count() == 1]
    step = max(1, -(-len(powers) // 4))
    ticks = [(_place(steps, power) or 0.0, format_count(power)) for power in powers[::step]]
    about = "" if own.is_exact else "about "
    words = (
        f"median {about}{own.median:,}, 95% up to {about}{own.percentile_95:,}, "
        f"longest {own.longest:,}"
    )
    chart = columns(
        values, label=f"Lengths of the documents of {shorten(item.name)}", titles=titles,
        x_ticks=ticks, y_title=words, x_title="tokens of a document", marker=place, height=130,
        y_ticks=[(1.0, format_share(max(values)))],
    )  # fmt: skip
    return panel(shorten(item.name), chart)


def _place(steps: Sequence[int], length: int) -> float | None:
    """Return the place of a length on an axis of bins, None outside."""
    if not steps[0] <= length <= steps[-1]:
        return None
    number = min(bisect_right(steps, length), len(steps) - 1) - 1
    low, high = steps[number], steps[number + 1]
    return (number + math.log(length / low) / math.log(high / low)) / (len(steps) - 1)


def _fill_panel(run: RunFigures) -> Html | None:
    """Return the chart of the documents of a sample."""
    fill = run.fill
    if fill is None:
        return None
    counts = fill.document_counts
    names = [str(number) for number in range(1, len(counts) + 1)]
    if len(names) > 12:
        names[-1] = "more"
    total = max(1, sum(counts))
    ticks = [((number + 0.5) / len(names), name) for number, name in enumerate(names)]
    step = 1 if len(names) <= 7 else 3
    words = (
        f"{fill.mean_documents:.2f} documents on average; {format_share(fill.cut_share)} of "
        f"samples begin within a document; {format_share(1 - fill.filled_share)} padding"
        + (f", {count_noun(fill.num_short, 'sample')} not full" if fill.num_short else "")
    )
    chart = columns(
        [count / total for count in counts], label="Documents per sample",
        titles=[
            f"documents: {name}, {format_share(count / total)} of samples"
            for name, count in zip(names, counts, strict=True)
        ],
        x_ticks=ticks[::step], y_title=words, x_title="documents of a sample", color=2, height=130,
        y_ticks=[(1.0, format_share(max(counts) / total))],
    )  # fmt: skip
    return panel("Fill of samples", chart)


def shuffle(run: RunFigures) -> Html | None:
    """Return the tests of the order, and a picture of it."""
    if not run.tests:
        return None
    last = max(1, (run.num_samples or 1) - 1)
    points = [(position / last, place) for position, place in run.points]
    name = shorten(run.points_dataset)
    picture = dots(
        points, label=f"Places in {name} by position", x_title="position in the run",
        x_ticks=_position_ticks(run.num_samples or 0), y_title=f"place in {name}",
    )  # fmt: skip
    return join(
        soft(
            "The null hypothesis is that the samples of each dataset are in random order. A "
            f"p-value below {UNUSUAL:.3f} is called unusual, one below {BAD:.6f} not random."
        ),
        panel(None, *map(_show_test, run.tests)),
        panel(
            "Where the run reads",
            soft(
                f"Each dot is a sample of {name}: even noise is a good shuffle; lines, steps and "
                "gaps are not."
            ),
            picture,
        )
        if run.num_samples
        else None,
    )


def _show_test(test: ShuffleTest) -> Html:
    """Return the result of one test."""
    numbers = ""
    if test.p_value is not None:
        unit = "pairs" if test.statistic_name == "z" else "degrees of freedom"
        numbers = (
            f"{test.statistic_name} {test.statistic:,.1f}, {test.degrees:,} {unit}, "
            f"p {format_p(test.p_value)}"
        )
    verdict = tag("span", _VERDICTS[test.verdict], class_=f"badge {test.verdict}")
    words = tag("div", tag("b", test.name), tag("br"), test.question, " ", tag("b", test.words))
    return tag("div", tag("div", verdict), words, tag("div", numbers, class_="soft"), class_="test")
