"""The command ``zindex prepare``: all that a Megatron command line will ask for, built ahead."""

import json
import time
from dataclasses import asdict
from typing import Any

import click

from zindex.cli.cluster import cluster_options, open_build_cluster
from zindex.cli.options import json_option, scheduler_option
from zindex.errors import ConfigError


@click.command(
    "prepare", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@click.option(
    "--kind",
    type=click.Choice(["gpt", "bert", "t5"]),
    help="What is trained; without it the script's name says it.",
)
@click.option(
    "--order",
    type=click.Choice(["megatron", "scalable"]),
    default="megatron",
    show_default=True,
    help="The order of samples; the training must be run with the same.",
)
@click.option(
    "--store",
    type=click.Choice(["all", "minimal"]),
    default="all",
    show_default=True,
    help="Whether what the scalable order can compute on read is stored too.",
)
@scheduler_option
@cluster_options
@json_option
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGS]...")
def prepare_command(
    command_line: tuple[str, ...],
    kind: Any,
    order: str,
    store: str,
    scheduler: str | None,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build ahead all that a Megatron training will ask for.

    Give the command line of the training as it is, its script first; what does not concern data is
    passed over. Everything goes to its --data-cache-path.
    """
    from zindex.megatron.arguments import parse_arguments
    from zindex.megatron.prepare import prepare

    start = time.monotonic()
    settings = {"kind": kind, "order": order, "store": store}
    cache = parse_arguments(command_line, kind).values.data_cache_path
    if cluster is None:
        made = prepare(command_line, client=scheduler, **settings)
    else:
        if scheduler is not None:
            raise ConfigError("--scheduler and --cluster both say where to build; give one of them")
        with open_build_cluster(cluster, cache or ".", **options) as client:
            if client is None:  # another process of the launcher builds
                return
            made = prepare(command_line, client=client, **settings)
    seconds = time.monotonic() - start
    if as_json:
        splits = [asdict(part) for part in made]
        click.echo(json.dumps({"cache": cache, "splits": splits, "seconds": seconds}, indent=2))
        return
    num_phases = len({part.phase for part in made})
    for part in made:
        phase = f"phase {part.phase + 1}, " if num_phases > 1 else ""
        datasets = "1 dataset" if part.num_datasets == 1 else f"{part.num_datasets:,} datasets"
        click.echo(f"{phase}{part.split}: {part.num_samples:,} samples of {datasets}")
    click.echo(f"built in {cache} in {seconds:.1f} s")
