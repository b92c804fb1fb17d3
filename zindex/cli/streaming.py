"""``zindex lengths``: samples, tokens and epochs of streamed sources, with advice."""

from importlib.util import find_spec
from typing import Any

import click
import yaml

from zindex.cli.options import echo_json, json_option, parse_lengths, scheduler_option
from zindex.errors import ConfigError
from zindex.plan.settings import parse_number


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False), metavar="CONFIG.yaml")
@click.option("--samples", metavar="N", help="Samples that the run draws: 5M, 2e6.")
@click.option("--tokens", metavar="N", help="Or tokens that it draws: 300B.")
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of ${variables:NAME}, written as in YAML.",
)
@click.option(
    "--allow-import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="A module whose classes and functions the file may name.",
)
@click.option(
    "--read",
    "read_samples",
    metavar="N",
    help="Read only N random samples of each source, and estimate the rest.",
)
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="A tokenizer.json for texts that CONFIG.yaml does not tokenise.",
)
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Loader workers of each rank.",
)
@click.option(
    "--sequence-lengths",
    metavar="N,N",
    help="Candidates to compare. [default: powers of two]",
)
@scheduler_option
@click.option(
    "--processes",
    "num_processes",
    type=click.IntRange(1),
    help="Processes of this machine. [default: one per core, one for little data]",
)
@click.option("--figure", metavar="FILE", help="Draw the report as .svg, .png or .pdf.")
@json_option
def lengths(
    config: str,
    samples: str | None,
    tokens: str | None,
    variables: tuple[str, ...],
    imports: tuple[str, ...],
    read_samples: str | None,
    tokenizer: str | None,
    ranks: int,
    workers: int,
    sequence_lengths: str | None,
    scheduler: str | None,
    num_processes: int | None,
    figure: str | None,
    as_json: bool,
) -> None:
    """Count the samples of streamed sources, with advice.

    CONFIG.yaml describes a MergedDataset, or one dataset. Writes nothing but the figure.
    """
    if find_spec("torch") is None:
        raise ConfigError("streams need torch, which is not installed; install zindex[streaming]")
    from zindex.inspection.tables.length_report import report_lengths
    from zindex.streaming.configuration.from_yaml import instantiate_from_yaml
    from zindex.streaming.lengths.sample_length import TextLength
    from zindex.streaming.lengths.statistics import choose_processes

    dataset = instantiate_from_yaml(config, _parse_variables(variables), allow_imports=imports)
    num_read = _parse_count(read_samples, "--read")
    if scheduler is None and num_processes is None:
        num_processes = choose_processes(dataset, num_read)
    report = report_lengths(
        dataset,
        num_samples=_parse_count(samples, "--samples"),
        num_tokens=_parse_count(tokens, "--tokens"),
        read_samples=num_read,
        length_of=None if tokenizer is None else TextLength(tokenizer),
        client=scheduler,
        num_processes=num_processes,
        num_ranks=ranks,
        num_workers=max(1, workers),
        sequence_lengths=None
        if sequence_lengths is None
        else parse_lengths(sequence_lengths, "--sequence-lengths", "2048,4096"),
    )
    if figure is not None:
        report.draw(figure)
    if as_json:
        echo_json(report.to_json())
    else:
        click.echo(report.to_text())


def _parse_variables(given: tuple[str, ...]) -> dict[str, Any]:
    """Return the variables of ``NAME=VALUE``."""
    variables = {}
    for text in given:
        name, sign, value = text.partition("=")
        try:
            variables[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            sign = ""
        if not name or not sign:
            raise ConfigError(f"--set must be NAME=VALUE with a value of YAML, got {text!r}")
    return variables


def _parse_count(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    count = parse_number(text, "tokens", option)
    if count != int(count):
        raise ConfigError(f"{option} must be a whole number, got {text}")
    return int(count)
