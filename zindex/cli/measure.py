"""``zindex bench``: measure this machine and the disk of the indices, and forecast builds."""

import json
from pathlib import Path

import click

from zindex.cli.options import parse_lengths
from zindex.errors import ConfigError
from zindex.plan.settings import parse_number


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Approximate time to measure, without the compilation of kernels.",
)
@click.option(
    "--tokens",
    default="5T",
    show_default=True,
    help="Tokens to forecast for: 300B, 1.5T, 2e12.",
)
@click.option(
    "--datasets",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Datasets of it.",
)
@click.option(
    "--document-length",
    type=click.FloatRange(min=1),
    default=800.0,
    show_default=True,
    help="Tokens of a document on average.",
)
@click.option(
    "--nodes",
    default="1,10,100",
    show_default=True,
    metavar="N,N",
    help="Numbers of nodes like this one to forecast for.",
)
@click.option(
    "--run",
    "run_file",
    metavar="RUN.yaml",
    help="Take tokens, datasets and documents from this run; read its batches if it is built.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the figures; - prints them.")
def bench(
    folder: str,
    seconds: float,
    tokens: str,
    datasets: int,
    document_length: float,
    nodes: str,
    run_file: str | None,
    json_file: str | None,
) -> None:
    """Measure this machine, and forecast builds.

    FOLDER is the planned folder of the indices: a path, or the URL of an object store. Temporary
    files in it are removed. Loading is measured too.
    """
    from zindex.inspection.bench.bench import measure
    from zindex.inspection.tables.bench_table import bench_lines

    num_tokens = parse_number(tokens, "tokens", "--tokens")
    result = measure(
        folder,
        seconds=seconds,
        num_tokens=num_tokens,
        num_datasets=datasets,
        document_length=document_length,
        nodes=parse_lengths(nodes, "--nodes", "1,10,100"),
        run=run_file,
    )
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
