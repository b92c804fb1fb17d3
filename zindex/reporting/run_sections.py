"""Sections of a report: simulated reads, the build, samples, and the comparison of two runs."""

from collections.abc import Sequence
from statistics import median

from zindex.inspection.answers.diff import RunDifference
from zindex.inspection.tables.formatting import (
    format_count,
    format_nbytes,
    format_share,
)
from zindex.reporting.charts import bars, columns
from zindex.reporting.elements import (
    Cell,
    facts,
    format_seconds,
    note,
    panel,
    shorten,
    soft,
    table,
    tiles,
)
from zindex.reporting.figures import RunFigures
from zindex.reporting.markup import Html, join, tag
from zindex.reporting.read_simulator import ReadFigures
from zindex.reporting.shown_samples import ShownPart, ShownSample
from zindex.wording import count_noun

# Nodes that have a row, windows of the chart of steps, and colors of documents.
_MAX_NODES, _MAX_COLUMNS, _NUM_COLORS = 16, 60, 6
# Maximum number of columns that each have a label.
_MAX_TICKS = 10

_ARRAYS = {
    "blend": "blend",
    "shuffle": "shuffle index",
    "sample": "sample index",
    "document": "document index",
    "offset": "offsets of documents",
    "tokens": "tokens",
}


def reads(run: RunFigures) -> Html | None:
    """Return the simulated reads of a run."""
    found = run.reads
    if found is None:
        return note(f"Not simulated: {run.reads_problem}.") if run.reads_problem else None
    per_node = found.num_steps * len(found.nodes)
    rows = [
        (format_seconds(found.first_batch_seconds), "to the first batch"),
        (format_seconds(found.ahead_seconds), "until all batches ahead are read"),
        (format_seconds(found.step_seconds), f"reading per step, limited by {found.limited_by}"),
        (format_nbytes(round(found.nbytes / per_node)), "per step and node"),
        (f"{found.num_requests / per_node:,.1f}", "requests per step and node"),
        (format_share(found.hit_share), "of chunks found in the cache"),
        (f"{found.nbytes / max(1, found.useful_nbytes):,.1f} x", "bytes read per byte of tokens"),
    ]
    by_array = [
        (_ARRAYS[name], float(nbytes), format_nbytes(nbytes))
        for name, nbytes in found.array_nbytes.items()
        if nbytes
    ]
    return join(
        soft(_describe_settings(found)),
        tiles(rows),
        tag(
            "div",
            panel("Bytes of each step", _draw_steps(found)),
            panel("Bytes by array, all nodes", bars(by_array)),
            panel("Other cache limits", _list_caches(found)),
            panel("Nodes and workers", _list_nodes(found), _describe_workers(found)),
            class_="grid-2",
        ),
        soft(
            "Simulated from the order of this run and the chunks and shards of its stores, as "
            "zindex.loader reads them from object storage: whole chunks, neighboring ones in one "
            "request, and a cache per worker that is empty at first. Small indices are computed, "
            "not read. Time is that of reading only."
            + (" Compressed chunks count with their size in memory." * found.is_compressed)
        ),
    )


def _describe_settings(found: ReadFigures) -> str:
    """Return the settings of a simulation in words."""
    own = found.settings
    first = f"The first {found.num_steps:,} of "
    return (
        f"{first if found.num_steps < found.num_run_steps else ''}"
        f"{count_noun(found.num_run_steps, 'step')} of {own.global_batch_size:,} samples: "
        f"{count_noun(own.num_ranks, 'rank')} on {count_noun(own.num_nodes, 'node')}, "
        f"{count_noun(own.num_workers, 'loader worker')} per rank, each with "
        f"{count_noun(own.prefetch, 'batch', 'batches')} ahead and a cache of "
        f"{format_nbytes(own.cache_nbytes)}, {own.bandwidth / 1e9:g} GB/s per node and "
        f"{format_seconds(own.latency)} per request."
    )


def _draw_steps(found: ReadFigures) -> Html:
    """Return the chart of the bytes of each step, or of groups of steps."""
    size = -(-found.num_steps // _MAX_COLUMNS)
    groups = [found.step_nbytes[at : at + size] for at in range(0, found.num_steps, size)]
    values = [sum(group) / len(group) for group in groups]
    titles = [
        f"from step {number * size:,}: {format_nbytes(round(value))} per node"
        for number, value in enumerate(values)
    ]
    ticks = [(0.0, "0"), (1.0, f"{found.num_steps - 1:,}")]
    if len(values) <= _MAX_TICKS:
        ticks = [((at + 0.5) / len(values), f"{at * size:,}") for at in range(len(values))]
    return columns(
        values, label="Bytes of each step", titles=titles, x_ticks=ticks, x_title="step",
        y_ticks=[(1.0, format_nbytes(round(max(values))))], color=6, height=150,
        y_title="mean of the nodes" if len(found.nodes) > 1 else "",
    )  # fmt: skip


def _list_caches(found: ReadFigures) -> Html:
    """Return the table of cache limits."""
    caches = dict(found.other_caches)
    caches[found.settings.cache_nbytes] = found.nbytes, found.hit_share
    rows = [
        (
            format_nbytes(limit) + (" (set)" if limit == found.settings.cache_nbytes else ""),
            format_nbytes(nbytes),
            format_share(share),
        )
        for limit, (nbytes, share) in sorted(caches.items())
    ]
    return table(("cache per worker", "bytes read", "hits"), rows)


def _list_nodes(found: ReadFigures) -> Html:
    """Return the table of nodes."""
    rows = [
        (
            f"node {node.node}",
            f"{node.num_requests:,}",
            format_nbytes(node.nbytes),
            format_share(node.num_hits / max(1, node.num_hits + node.num_misses)),
            format_nbytes(node.cache_nbytes),
            format_seconds(node.first_batch_seconds),
        )
        for node in found.nodes[:_MAX_NODES]
    ]
    more = len(found.nodes) - _MAX_NODES
    headers = ("", "requests", "bytes", "hits", "caches", "first batch")
    return join(table(headers, rows), soft(f"and {more:,} more nodes") if more > 0 else None)


def _describe_workers(found: ReadFigures) -> Html:
    """Return the spread of the workers in words."""
    sizes = [worker.nbytes for worker in found.workers]
    caches = [worker.cache_nbytes for worker in found.workers]
    ends = f"{format_nbytes(min(sizes))} to {format_nbytes(max(sizes))}"
    return soft(
        f"{count_noun(len(sizes), 'worker')} read {ends} each, median "
        f"{format_nbytes(round(median(sizes)))}; the largest cache holds "
        f"{format_nbytes(max(caches))}."
    )


def build(run: RunFigures) -> Html:
    """Return what is built of a run, and the forecast of the rest."""
    plan = run.plan
    num_built = sum(item.committed for item in plan.items)
    total = sum(item.nbytes for item in plan.items)
    free = "any amount" if plan.free_nbytes is None else format_nbytes(plan.free_nbytes)
    rows = [
        ("index folder", shorten(plan.index)),
        ("built", f"{num_built:,} of {count_noun(len(plan.items), 'store')}"),
        ("size", format_nbytes(total)),
        ("to write", f"{format_nbytes(plan.missing_nbytes)}; {free} free"),
    ]  # fmt: skip
    if plan.forecast is None:
        words = "Nothing is left to build."
    else:
        forecast = plan.forecast
        words = f"{format_seconds(forecast.seconds_alone)} on a machine like this one"
        if forecast.num_nodes > 1:
            words += (
                f", {format_seconds(forecast.seconds)} on {forecast.num_nodes:,}; more do not help"
            )
        words += ". Measure with zindex bench."
    rows.append(("forecast", words))
    rows += [("order", plan.order), ("seed", str(plan.seed)), ("split", plan.split)]
    if run.num_edits:
        rows.append(("edits", f"{run.num_edits:,}"))
    return panel(None, facts(rows))


def samples(run: RunFigures) -> Html | None:
    """Return samples with the borders of their documents."""
    if not run.samples:
        return None
    problem = run.samples_problem
    return join(
        soft(f"Shown as token numbers: {problem}.") if problem else None,
        *(_show_sample(sample) for sample in run.samples),
    )


def _show_sample(sample: ShownSample) -> Html:
    """Return one sample."""
    title = tag(
        "h3",
        f"position {sample.position:,} ",
        tag("span", f"{shorten(sample.dataset)}, epoch {sample.epoch}, sample {sample.sample:,}, "),
        tag("span", f"{sample.num_tokens:,} tokens"),
    )
    parts = [_show_part(number, part) for number, part in enumerate(sample.parts)]
    if sample.num_hidden:
        parts.append(tag("em", f" and {count_noun(sample.num_hidden, 'more document')}"))
    return tag("article", title, tag("div", *parts, class_="sample"), class_="panel")


def _show_part(number: int, part: ShownPart) -> Html:
    """Return a span of a document in its color."""
    hidden = tag("em", f"… {part.num_hidden:,} tokens …") if part.num_hidden else None
    return tag(
        "span",
        tag("small", f"document {part.document:,}, tokens {part.start:,} to {part.stop:,}"),
        tag("span", part.text, class_="text"),
        hidden,
        tag("span", part.tail, class_="text") if part.tail else None,
        class_=f"doc d{number % _NUM_COLORS}",
    )


def differences(runs: Sequence[RunFigures], found: RunDifference | str) -> Html:
    """Return the differences between two runs, or why their orders are not compared."""
    settings = [
        ("samples", *(_count(run.num_samples) for run in runs)),
        ("tokens per sample", *(f"{run.sequence_length:,}" for run in runs)),
        ("order", *(run.plan.order for run in runs)),
        ("seed", *(str(run.plan.seed) for run in runs)),
        ("split", *(run.plan.split for run in runs)),
        ("datasets", *(f"{len(run.datasets):,}" for run in runs)),
        ("edits", *(f"{run.num_edits:,}" for run in runs)),
    ]
    rows = [
        (name, left, right, "" if left == right else "differs") for name, left, right in settings
    ]
    comparison = panel("Settings", table(("", "A", "B", ""), rows, text_columns=(0, 3)))
    if isinstance(found, str):
        return join(note(f"The orders are not compared: {found}.", "warn"), comparison)
    if found.is_same:
        words = "No difference was found: both runs have the same samples at the same positions."
    else:
        about = "" if found.is_exact else "about "
        words = (
            f"The first difference is at position {found.first_difference:,}; {about}"
            f"{format_share(found.share_changed)} of the common positions have another sample."
        )
    by_change = sorted(found.datasets, key=lambda item: -abs(item.num_second - item.num_first))
    counts = [
        (
            shorten(item.dataset),
            Cell(format_count(item.num_first), item.num_first),
            Cell(format_count(item.num_second), item.num_second),
            Cell(f"{item.num_second - item.num_first:+,}", item.num_second - item.num_first),
        )
        for item in by_change[:_MAX_CHANGED]
    ]
    more = len(by_change) - _MAX_CHANGED
    return join(
        note(words),
        tag(
            "div",
            comparison,
            panel(
                "Samples of each dataset",
                table(("dataset", "A", "B", "change"), counts),
                soft(f"and {count_noun(more, 'dataset')} that change less") if more > 0 else None,
            ),
            class_="grid-2",
        ),
    )


_MAX_CHANGED = 20


def _count(number: int | None) -> str:
    """Format a number of samples."""
    return "none in common" if number is None else f"{number:,}"
