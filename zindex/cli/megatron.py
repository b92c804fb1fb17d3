"""``zindex prepare``: build every index of a Megatron command line ahead of training."""

import time
from dataclasses import asdict
from typing import Any

import click

from zindex.cli.cluster import cluster_options, open_client
from zindex.cli.options import choice, count_noun, echo_json, json_option, scheduler_option


@click.command(
    "prepare", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@choice(
    "--kind", ["gpt", "bert", "t5"], help="Kind of the model. [default: from the script's name]"
)
@choice(
    "--order",
    ["megatron", "scalable"],
    default="megatron",
    help="Order of the samples; the training must use the same.",
)
@choice(
    "--store",
    ["all", "minimal"],
    default="all",
    help="minimal omits the arrays that the scalable order computes on read.",
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
    """Build every index of a Megatron training ahead of it.

    Give the command line of the training unchanged, with its script first; arguments that do not
    concern data are ignored. The indices are written to its --data-cache-path.
    """
    from zindex.megatron.arguments import parse_arguments
    from zindex.megatron.prepare import prepare

    start = time.monotonic()
    settings = {"kind": kind, "order": order, "store": store}
    cache = parse_arguments(command_line, kind).values.data_cache_path
    with open_client(scheduler, cluster, cache or ".", options) as (builds, client):
        if not builds:
            return
        made = prepare(command_line, client=client, **settings)
    seconds = time.monotonic() - start
    if as_json:
        splits = [asdict(part) for part in made]
        echo_json({"cache": cache, "splits": splits, "seconds": seconds})
        return
    num_phases = len({part.phase for part in made})
    for part in made:
        phase = f"phase {part.phase + 1}, " if num_phases > 1 else ""
        datasets = count_noun(part.num_datasets, "dataset", "datasets")
        click.echo(f"{phase}{part.split}: {part.num_samples:,} samples of {datasets}")
    click.echo(f"built in {cache} in {seconds:.1f} s")
