"""The commands ``zindex merge`` and ``zindex count``: many corpora to one, and what they hold."""

import json
import time
from dataclasses import asdict
from typing import Any

import click

from zindex.cli.options import json_option, scheduler_option


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@click.option(
    "--to",
    type=click.Choice(["bin", "zarr"]),
    help="Write a .bin/.idx pair or a Zarr store; what all the sources are if left out.",
)
@click.option(
    "--multimodal/--no-multimodal",
    default=None,
    help="Demand a mode for every sequence, or leave modes out; kept if left out.",
)
@click.option("--overwrite", is_flag=True, help="Replace a pair that is there.")
@click.option(
    "--restart",
    is_flag=True,
    help="Remove an unfinished merge to TARGET first; no other may be running there.",
)
@scheduler_option
@json_option
def merge(
    sources: tuple[str, ...],
    target: str,
    to: Any,
    multimodal: bool | None,
    overwrite: bool,
    restart: bool,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Write several corpora as one.

    SOURCE is the path of a .bin/.idx pair without its suffix, a quoted glob of such paths, a Zarr
    token store, or a folder of pairs or stores, which are taken by name. TARGET is the path of the
    new pair without suffix, or of the new store. What is written already is kept.
    """
    from zindex.building.merge import merge as run

    start = time.monotonic()
    merged = run(
        sources,
        target,
        to=to,
        multimodal=multimodal,
        overwrite=overwrite,
        restart=restart,
        client=scheduler,
        progress=True,
    )
    if as_json:
        click.echo(json.dumps(asdict(merged) | {"seconds": time.monotonic() - start}, indent=2))
        return
    click.echo(
        f"{merged.path}: {merged.num_documents:,} documents, {merged.num_sequences:,} sequences, "
        f"{merged.num_tokens:,} tokens of {merged.num_sources:,} "
        f"{'corpus' if merged.num_sources == 1 else 'corpora'}"
    )


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write them to a file."
)
@scheduler_option
def count(prefixes: tuple[str, ...], output: str | None, scheduler: str | None) -> None:
    """Count sequences and documents, as Megatron wants them.

    PREFIX is the path or URL of a .bin/.idx pair without its suffix, or of a Zarr token store, as
    the training job is given it; a quoted glob of pairs, or a folder of pairs or stores. The JSON
    object has for each the numbers of its sequences and of the entries of its document indices,
    which are one more than its documents.
    """
    from zindex.building.count import count_sequences
    from zindex.store.local import local_path, write_once

    counts = count_sequences(prefixes, client=scheduler)
    text = json.dumps(counts, indent=2)
    if output is None:
        click.echo(text)
        return
    path = local_path(output, "a file of counts")
    write_once(path, [f"{text}\n".encode()], replace=True)
    num_sequences = sum(sequences for sequences, _ in counts.values())
    click.echo(
        f"{path}: {num_sequences:,} sequences of {len(counts):,} "
        f"{'corpus' if len(counts) == 1 else 'corpora'}"
    )
