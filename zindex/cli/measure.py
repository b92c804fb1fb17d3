"""``zindex bench`` and ``zindex lengths``: measure machines and sources, forecast and advise."""

import json
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import yaml

from zindex.cli import options
from zindex.errors import ConfigError
from zindex.io.system_errors import reason_of
from zindex.plan.settings import parse_number


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@options.value(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    help="Approximate duration of the measurement, not counting kernel compilation.",
)
@options.parsed(
    "--tokens",
    "num_tokens",
    parse=lambda text, flag: parse_number(text, "tokens", flag),
    default="5T",
    help="Total tokens, such as 300B, 1.5T or 2e12.",
)
@options.value(
    "--datasets", "num_datasets", type=click.IntRange(1), default=1000, help="Number of datasets."
)
@options.value(
    "--document-length",
    type=click.FloatRange(min=1),
    default=800.0,
    help="Average tokens per document.",
)
@options.parsed(
    "--nodes",
    parse=partial(options.parse_lengths, example="1,10,100"),
    default="1,10,100",
    metavar="N,N",
    help="Numbers of nodes to forecast for.",
)
@options.value(
    "--run",
    metavar="RUN.yaml",
    help="Use the datasets of this run, and read its batches if it is built.",
)
@options.value("--json", "json_file", metavar="FILE", help="Write the figures; - prints them.")
def bench(folder: str, json_file: str | None, **settings: Any) -> None:
    """Measure this machine and forecast build times.

    FOLDER is the planned folder of the indices: a path, or the URL of an object store. Temporary
    files in it are removed afterwards. Also measures loading.
    """
    from zindex.inspection.bench.bench import measure
    from zindex.inspection.tables.bench_table import bench_lines

    result = measure(folder, **settings)
    text = json.dumps(result.to_json(), indent=2)
    if json_file == "-":
        click.echo(text)
        return
    click.echo("\n".join(bench_lines(result)))
    if json_file is not None:
        try:
            Path(json_file).write_text(text + "\n")
        except OSError as error:
            raise ConfigError(
                f"--json must be a file to write, got {json_file}: {reason_of(error)}"
            ) from error


def _parse_count(text: str, flag: str) -> int:
    """Return a whole number."""
    count = parse_number(text, "tokens", flag)
    if count != int(count):
        raise ConfigError(f"{flag} must be a whole number, got {text}")
    return int(count)


_count = partial(options.parsed, parse=_parse_count, metavar="N")


def _load_object(text: str) -> Any:
    """Return the Python object of a name such as ``package.module.NAME``."""
    module, _, name = text.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{error}; set PYTHONPATH to the folder of its package") from error


@click.command()
@click.argument("config", metavar="CONFIG.yaml|STORE")
@options.value("--by", metavar="NAME", help="For a store: field to count records by, not the file.")
@_count("--samples", "num_samples", help="Samples of the run, such as 5M or 2e6.")
@_count("--tokens", "num_tokens", help="Tokens of the run, such as 300B, instead of samples.")
@options.mapping(
    "--set",
    "variables",
    metavar="NAME=VALUE",
    example="share=0.5, with a value of YAML",
    parse=yaml.safe_load,
    help="Value of ${variables:NAME}, written as in YAML.",
)
@options.mapping(
    "--object",
    "objects",
    metavar="NAME=MODULE.NAME",
    example="encoder=mypackage.data.encoder",
    parse=_load_object,
    help="Python object of ${dynamic_objs:NAME}, from an importable module.",
)
@options.repeatable(
    "--allow-import",
    "imports",
    metavar="MODULE",
    help="Module whose classes and functions the file may use; repeatable.",
)
@_count(
    "--read",
    "read_samples",
    help="Read only N random samples of each source, and estimate the rest.",
)
@options.value(
    "--tokenizer",
    metavar="FILE",
    help="tokenizer.json for text that CONFIG.yaml does not tokenise.",
)
@options.parsed(
    "--max-tokens",
    parse=partial(options.parse_lengths, example="8192,16384"),
    metavar="N,N",
    help="For a store: token budgets of batches whose padding to compare, with --ranks.",
)
@options.generation
@options.value("--ranks", "num_ranks", type=click.IntRange(1), default=1)
@options.value("--workers", type=click.IntRange(0), default=1, help="Loader workers of each rank.")
@options.parsed(
    "--sequence-lengths",
    parse=partial(options.parse_lengths, example="2048,4096"),
    metavar="N,N",
    help="Sequence lengths to compare. [default: powers of two]",
)
@options.scheduler
@options.processes("Processes on this machine. [default: one per core, one for small inputs]")
@options.value("--figure", metavar="FILE", help="Plot the report to a .svg, .png or .pdf file.")
@options.summary()
@click.pass_context
def lengths(
    context: click.Context,
    /,
    config: str,
    by: str | None,
    max_tokens: list[int] | None,
    generation: int | None,
    num_ranks: int,
    variables: dict[str, Any],
    objects: dict[str, Any],
    imports: tuple[str, ...],
    read_samples: int | None,
    tokenizer: str | None,
    workers: int,
    client: str | None,
    num_processes: int | None,
    figure: str | None,
    **settings: Any,
) -> tuple[dict[str, Any], str]:
    """Measure lengths of streams, or of stored records.

    CONFIG.yaml describes a MergedDataset or a single dataset, whose samples are counted to
    recommend settings. Of a keyed, record or growing STORE, prints the lengths of each field, the
    shares of target tokens, the rewards, and the records of each source; with --max-tokens also the
    batches of each budget, their padding, and the share of time that ranks wait. Only the figure is
    written.
    """
    from zindex.inspection.answers.growing_records import holds_records

    if holds_records(config):
        own = ["config", "by", "figure", "as_json", "max_tokens", "generation"]
        own += ["num_ranks"] * bool(max_tokens)
        others = [each.name or "" for each in context.command.params if each.name not in own]
        options.refuse(context, others, f"must come with a CONFIG.yaml, {config} is a store")
        return _measure_store(config, by, figure, max_tokens, num_ranks, generation)
    given_options = {"--by": by, "--max-tokens": max_tokens, "--generation": generation}
    for flag, given in given_options.items():
        if given is not None:
            raise ConfigError(f"{flag} must come with a store of records, {config} is none")
    if not Path(config).is_file():
        raise ConfigError(
            f"lengths are those of a CONFIG.yaml or of a store, {config} is neither; check the path"
        )
    if find_spec("torch") is None:
        raise ConfigError("streams need torch, which is not installed; install zindex[streaming]")
    from zindex.inspection.tables.length_report import report_lengths
    from zindex.processing.sample_length import TextLength
    from zindex.streaming.configuration.from_yaml import instantiate_from_yaml
    from zindex.streaming.lengths.statistics import choose_processes

    dataset = instantiate_from_yaml(config, variables, objects, allow_imports=imports)
    if client is None and num_processes is None:
        num_processes = choose_processes(dataset, read_samples)
    report = report_lengths(
        dataset,
        read_samples=read_samples,
        length_of=None if tokenizer is None else TextLength(tokenizer),
        client=client,
        num_processes=num_processes,
        num_workers=max(1, workers),
        num_ranks=num_ranks,
        **settings,
    )
    if figure is not None:
        report.draw(figure)
    return report.to_json(), report.to_text()


def _measure_store(
    path: str,
    by: str | None,
    figure: str | None,
    max_tokens: list[int] | None,
    num_ranks: int,
    generation: int | None,
) -> tuple[dict[str, Any], str]:
    """Return the statistics of a store of records, and plot them."""
    from zindex.inspection.answers.record_statistics import measure_records
    from zindex.inspection.tables.record_report import batch_lines, draw_records, record_lines

    found = measure_records(path, by=by, generation=generation)
    facts, lines = found.to_json(), record_lines(found)
    if max_tokens is not None:
        if find_spec("torch") is None:
            raise ConfigError("--max-tokens needs torch, which is not installed; install it")
        from zindex.inspection.answers.batch_choices import measure_batches

        choices = measure_batches(path, max_tokens, num_ranks=num_ranks, generation=generation)
        facts["batches"] = [item.to_json() for item in choices]
        lines += ["", *batch_lines(choices, num_ranks)]
    if figure is not None:
        draw_records(found, figure)
    return facts, "\n".join(lines)
