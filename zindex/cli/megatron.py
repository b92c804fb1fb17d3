"""``zindex prepare``: build every index of a Megatron command line ahead of training."""

import time
from dataclasses import asdict
from typing import Any

import click

from zindex.cli import options
from zindex.cli.cluster import cluster_options, open_client
from zindex.inspection.tables.formatting import count_noun


@click.command(
    "prepare", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@options.choice(
    "--kind", ["gpt", "bert", "t5"], help="Kind of the model. [default: from the script's name]"
)
@options.first_choice(
    "--order", ["megatron", "scalable"], "Order of the samples; the training must use the same."
)
@options.first_choice(
    "--store",
    ["all", "minimal"],
    "minimal omits the arrays that the scalable order computes on read.",
)
@cluster_options
@options.summary()
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGS]...")
def prepare_command(
    command_line: tuple[str, ...], kind: Any, order: Any, store: Any, **settings: Any
) -> tuple[dict[str, Any], str] | None:
    """Build every index of a Megatron training ahead of it.

    Give the command line of the training unchanged, with its script first; arguments that do not
    concern data are ignored. The indices are written to its --data-cache-path.
    """
    from zindex.megatron.arguments import parse_arguments
    from zindex.megatron.prepare import prepare

    start = time.monotonic()
    cache = parse_arguments(command_line, kind).values.data_cache_path
    with open_client(cache or ".", **settings) as (builds, client):
        if not builds:
            return None
        made = prepare(command_line, client=client, kind=kind, order=order, store=store)
    seconds = time.monotonic() - start
    num_phases = len({part.phase for part in made})
    lines = []
    for part in made:
        phase = f"phase {part.phase + 1}, " if num_phases > 1 else ""
        datasets = count_noun(part.num_datasets, "dataset")
        lines.append(f"{phase}{part.split}: {part.num_samples:,} samples of {datasets}")
    lines.append(f"built in {cache} in {seconds:.1f} s")
    facts = {"cache": cache, "splits": [asdict(part) for part in made], "seconds": seconds}
    return facts, "\n".join(lines)
