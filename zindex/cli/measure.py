"""``zindex bench``: measure this machine and the disk of the indices, and forecast builds."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from zindex.cli import options
from zindex.errors import ConfigError
from zindex.plan.settings import parse_number


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@options.value(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    help="Approximate time to measure, without the compilation of kernels.",
)
@options.parsed(
    "--tokens",
    "num_tokens",
    parse=lambda text, flag: parse_number(text, "tokens", flag),
    default="5T",
    help="Tokens to forecast for: 300B, 1.5T, 2e12.",
)
@options.value(
    "--datasets", "num_datasets", type=click.IntRange(1), default=1000, help="Datasets of it."
)
@options.value(
    "--document-length",
    type=click.FloatRange(min=1),
    default=800.0,
    help="Tokens of a document on average.",
)
@options.parsed(
    "--nodes",
    parse=partial(options.parse_lengths, example="1,10,100"),
    default="1,10,100",
    metavar="N,N",
    help="Numbers of nodes like this one to forecast for.",
)
@options.value(
    "--run",
    metavar="RUN.yaml",
    help="Take tokens, datasets and documents from this run; read its batches if it is built.",
)
@options.value("--json", "json_file", metavar="FILE", help="Write the figures; - prints them.")
def bench(folder: str, json_file: str | None, **settings: Any) -> None:
    """Measure this machine, and forecast builds.

    FOLDER is the planned folder of the indices: a path, or the URL of an object store. Temporary
    files in it are removed. Loading is measured too.
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
                f"--json must be a file to write, got {json_file}: {error}"
            ) from error
