"""``zindex merge`` and ``zindex count``: many corpora to one, and their sizes."""

import json
from dataclasses import asdict
from typing import Any

import click

from zindex.cli import options
from zindex.inspection.tables.formatting import count_noun


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.choice(
    "--to",
    ["bin", "zarr"],
    help="Write a .bin/.idx pair or a Zarr store. [default: the format of the sources]",
)
@options.value(
    "--multimodal/--no-multimodal",
    default=None,
    help="Require a mode for every sequence, or drop modes. [default: keep them]",
)
@options.flag("--overwrite", "Replace an existing pair.")
@options.restart("Remove an unfinished merge to TARGET")
@options.scheduler
@options.summary(timed=True)
def merge(sources: tuple[str, ...], target: str, **settings: Any) -> tuple[dict[str, Any], str]:
    """Write several corpora as one.

    SOURCE is the path of a .bin/.idx pair without its suffix, a quoted glob of such paths, a Zarr
    token store, or a folder of pairs or stores, in the order of their names. TARGET is the path of
    the new pair without suffix, or of the new store. Resumes from finished shards.
    """
    from zindex.ingest.merge import merge as run

    merged = run(sources, target, progress=True, **settings)
    return asdict(merged), (
        f"{merged.path}: {merged.num_documents:,} documents, {merged.num_sequences:,} sequences, "
        f"{merged.num_tokens:,} tokens of {count_noun(merged.num_sources, 'corpus', 'corpora')}"
    )


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@options.value(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write the counts to a file."
)
@options.scheduler
def count(prefixes: tuple[str, ...], output: str | None, client: str | None) -> None:
    """Count sequences and documents in Megatron's format.

    PREFIX is the path or URL of a .bin/.idx pair without its suffix, or of a Zarr token store, as
    the training job names it; a quoted glob of pairs, or a folder of pairs or stores. The JSON
    object has for each PREFIX the number of sequences and the number of entries of its document
    index, which is the number of documents plus one.
    """
    from zindex.ingest.count import count_sequences
    from zindex.io.local import local_path, write_once

    counts = count_sequences(prefixes, client=client)
    text = json.dumps(counts, indent=2)
    if output is None:
        click.echo(text)
        return
    path = local_path(output, "a file of counts")
    write_once(path, [f"{text}\n".encode()], replace=True)
    num_sequences = sum(sequences for sequences, _ in counts.values())
    click.echo(
        f"{path}: {num_sequences:,} sequences of {count_noun(len(counts), 'corpus', 'corpora')}"
    )
