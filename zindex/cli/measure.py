"""The command ``zindex bench``: what to expect of this machine and of the place of the indices."""

import json
from pathlib import Path

import click

from zindex.errors import ConfigError
from zindex.plan.number import parse_number


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="How long to measure, about; kernels are compiled before.",
)
@click.option(
    "--tokens", default="5T", show_default=True, help="Of the build to forecast: 300B, 1.5T, 2e12."
)
@click.option(
    "--datasets", type=click.IntRange(1), default=1000, show_default=True, help="Its datasets."
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
    help="Nodes like this one to forecast for.",
)
@click.option(
    "--run",
    "run_file",
    metavar="RUN.yaml",
    help="Take tokens, datasets and documents from this run, and read its batches if it is built.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the figures there too; - prints.")
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

    FOLDER is where the indices will lie, a path or the URL of an object store. What is written
    there is removed again. Loaders are measured too.
    """
    from zindex.measuring.bench import measure
    from zindex.report.bench_table import bench_lines

    num_tokens = parse_number(tokens, "tokens", "--tokens")
    result = measure(
        folder,
        seconds=seconds,
        num_tokens=num_tokens,
        num_datasets=datasets,
        document_length=document_length,
        nodes=_parse_nodes(nodes),
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


def _parse_nodes(text: str) -> list[int]:
    """Return the numbers of ``N,N``."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--nodes must be numbers such as 1,10,100, got {text}")
    return [int(part) for part in parts]
