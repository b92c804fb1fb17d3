"""Options, parsers and output that several commands share."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from zindex.errors import ConfigError

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def choice(
    flag: str, values: Sequence[str], *names: str, default: str | None = None, help: str
) -> Decorator:
    """Return an option with one of a few values."""
    kind = click.Choice(values)
    show = default is not None
    return click.option(flag, *names, type=kind, default=default, show_default=show, help=help)


def repeatable(flag: str, *names: str, metavar: str, help: str) -> Decorator:
    """Return an option that may be given several times."""
    return click.option(flag, *names, multiple=True, metavar=metavar, help=help)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, such as tcp://10.0.0.1:8786; by default this machine does the work.",
)


def join_options(*options: Decorator) -> Decorator:
    """Return several options as one decorator, in their order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Of commands that write records: chunks, shards and where the work runs.
record_store_options = join_options(
    click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True),
    click.option(
        "--chunk-nbytes",
        type=int,
        default=1 << 16,
        show_default=True,
        help="Bytes read at once.",
    ),
    click.option(
        "--shard-nbytes",
        type=int,
        default=1 << 26,
        show_default=True,
        help="Bytes per file.",
    ),
    scheduler_option,
    click.option(
        "--processes",
        "num_processes",
        type=click.IntRange(1),
        help="Processes of this machine. [default: one per core]",
    ),
)


def damage_option(what: str, effect: str) -> Decorator:
    """Return the option ``--on-damage`` of a command."""
    return choice(
        "--on-damage",
        ["error", "skip"],
        default="error",
        help=f"Whether {what} stop {effect}, or are left out and counted.",
    )


def choose_processes(scheduler: str | None, num_processes: int | None) -> int | None:
    """Return the number of local processes: one per core unless the user chose otherwise."""
    if scheduler is None and num_processes is None:
        return len(os.sched_getaffinity(0))
    return num_processes


def one_or_all(sources: Sequence[str]) -> str | Sequence[str]:
    """Return a single source as a text, several as they are."""
    return sources[0] if len(sources) == 1 else sources


def parse_pairs(texts: Sequence[str], option: str, example: str) -> list[tuple[str, str]]:
    """Return the two sides of each ``NAME=VALUE``."""
    pairs = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise ConfigError(f"{option} must be like {example}, got {text!r}")
        pairs.append((name, value))
    return pairs


def parse_lengths(text: str, option: str, example: str) -> list[int]:
    """Return the numbers of ``N,N``."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} must be numbers such as {example}, got {text}")
    return [int(part) for part in parts]


def count_noun(number: int, one: str, many: str) -> str:
    """Return a number and its noun."""
    return f"{number:,} {one if number == 1 else many}"


def echo_json(value: Any) -> None:
    """Print a summary for programs."""
    click.echo(json.dumps(value, indent=2))
