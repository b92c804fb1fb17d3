"""Table of the measurements and forecasts of ``zindex bench``."""

from zindex.inspection.bench.bench import BenchResult, name_bound
from zindex.inspection.tables.formatting import (
    fit_columns,
    format_count,
    format_nbytes,
    table_lines,
)
from zindex.wording import count_noun


def bench_lines(result: BenchResult) -> list[str]:
    """Format measurements and forecasts."""
    return [
        *_machine_lines(result),
        "",
        *_build_lines(result),
        "",
        *_loading_lines(result),
        "",
        *_forecast_lines(result),
        *result.notes,
    ]


def _machine_lines(result: BenchResult) -> list[str]:
    """Format the machine and the folder."""
    machine, found = result.machine, result.bandwidths
    cached = {True: ", out of this machine's memory", None: ", perhaps out of memory"}
    return [
        f"{machine['processor']}, {machine['num_processors']} processors, "
        f"{format_nbytes(machine['memory_nbytes'])}; indices at {result.folder}",
        f"memory: {_rate(found.copy)} copied, {format_count(int(found.gathers_per_second))} random "
        f"reads/s; crc32c {_rate(found.checksum)}",
        f"place: {_rate(found.write)} written and synced, {_rate(found.read)} read"
        f"{cached.get(found.is_read_cached, '')}; {1e3 * found.file_seconds:.3g} ms for a small "
        "file",
        f"Dask and Python: {1e3 * result.task_seconds:.3g} ms for a task",
    ]


def _rate(nbytes_per_second: float) -> str:
    return f"{format_nbytes(int(nbytes_per_second))}/s"


def _build_lines(result: BenchResult) -> list[str]:
    """Format the builds on this machine."""
    job = result.job
    rows = [
        {
            "what is built": each.kind,
            "s per trillion tokens": _seconds(each.seconds_per_trillion),
            "bytes per sample": f"{each.bytes_per_sample:.1f}",
            "samples/s": format_count(int(each.samples_per_second)),
            "bound by": each.bound,
            "error": f"{100 * each.error:.0f}%",
        }
        for each in result.builds
    ]
    largest = max(build.job.num_tokens for build in result.builds[0].builds)
    return [
        f"this machine, {count_noun(job.num_datasets, 'dataset')}, documents of "
        f"{job.document_length:,.0f} tokens, samples of {job.sequence_length:,}:",
        *table_lines(rows, text_columns=("what is built", "bound by")),
        f"from builds of up to {format_count(int(largest))} tokens; error: of the cost model, for "
        "these builds",
    ]


def _loading_lines(result: BenchResult) -> list[str]:
    """Format the loading rate."""
    rate = result.loading
    if rate is None:
        return []
    return [
        f"loading {rate.source} data: {format_count(int(rate.samples_per_second))} samples/s, "
        f"{format_count(int(rate.tokens_per_second))} tokens/s, in batches of {rate.batch_size}, "
        "one process",
    ]


def _forecast_lines(result: BenchResult) -> list[str]:
    """Format the forecasts of the requested build."""
    kinds = result.builds
    headers = ["nodes", *(text for each in kinds for text in (f"{each.kind} s", "bound by"))]
    rows = []
    for number in kinds[0].forecasts:
        row = [f"{number:,}"]
        for each in kinds:
            forecast = each.forecasts[number]
            row += [_seconds(forecast.seconds), name_bound(forecast)]
        rows.append(row)
    return [
        f"forecast for {format_count(int(result.job.num_tokens))} tokens on nodes like this one:",
        *fit_columns([headers, *rows], text_columns=("bound by",)),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
