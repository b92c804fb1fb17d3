"""The command ``zindex import``: tar and jsonl files to a store in which any record is found."""

import json
import os
import time

import click

from zindex.cli.options import json_option, record_store_options
from zindex.errors import ConfigError


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@click.option("--kind", type=click.Choice(["jsonl", "tar"]), help="What the files are.")
@click.option("--field", "fields", multiple=True, metavar="NAME", help="Keep it; repeatable.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="NAME=DTYPE",
    help="A field of flat lists of numbers, and their dtype; repeatable.",
)
@click.option(
    "--meta", multiple=True, metavar="NAME", help="Join it from the .meta.jsonl; repeatable."
)
@click.option("--include-dirs", metavar="DIR,...", help="Folders of tar files to read besides.")
@click.option("--part-nbytes", type=int, help="Bytes of a file that one task reads.")
@click.option(
    "--on-damage",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Whether damaged records stop the import, or are left out and counted.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Remove an unfinished import of TARGET first; no other may be running there.",
)
@record_store_options
@json_option
def import_command(
    sources: tuple[str, ...],
    target: str,
    kind: str | None,
    fields: tuple[str, ...],
    dtypes: tuple[str, ...],
    meta: tuple[str, ...],
    include_dirs: str | None,
    part_nbytes: int | None,
    on_damage: str,
    restart: bool,
    codec: str,
    chunk_nbytes: int,
    shard_nbytes: int,
    scheduler: str | None,
    num_processes: int | None,
    as_json: bool,
) -> None:
    """Import tar or jsonl files into Zarr, once.

    SOURCE is a file, a folder or a brace pattern, here or in an object store. TARGET is the store,
    from which any record is read at once. What is finished already is kept.
    """
    from zindex.building.records.import_records import import_records
    from zindex.store.layout import ChunkGrid
    from zindex.store.records import KEY

    if scheduler is None and num_processes is None:
        num_processes = len(os.sched_getaffinity(0))
    start = time.monotonic()
    store = import_records(
        sources[0] if len(sources) == 1 else sources,
        target,
        kind="tar" if kind == "tar" else "jsonl" if kind == "jsonl" else None,
        fields=fields or None,
        dtypes=dict(map(parse_dtype, dtypes)),
        meta_names=meta,
        include_dirs=include_dirs,
        part_nbytes=part_nbytes,
        on_damage="skip" if on_damage == "skip" else "error",
        restart=restart,
        grid=ChunkGrid(chunk_nbytes, shard_nbytes, "zstd" if codec == "zstd" else "none"),
        client=scheduler,
        num_processes=num_processes,
        progress=True,
    )
    names = [field["name"] for field in store.spec["fields"] if field["name"] != KEY]
    facts = {
        "store": str(store.root),
        "fingerprint": store.fingerprint,
        "num_records": store.spec["num_records"],
        "num_files": store.spec["num_urls"],
        "num_skipped": store.attributes["num_skipped"],
        "nbytes": sum(layout.nbytes for layout in store.layouts.values()),
        "fields": names,
    }
    if as_json:
        click.echo(json.dumps(facts | {"seconds": time.monotonic() - start}, indent=2))
        return
    skipped, num_files = facts["num_skipped"], facts["num_files"]
    click.echo(
        f"{facts['store']}: {facts['num_records']:,} records of "
        f"{num_files:,} {'file' if num_files == 1 else 'files'}, "
        f"{facts['nbytes']:,} bytes, fields {', '.join(names) or 'none'}"
        + (f"; {skipped:,} damaged records or files were left out" if skipped else "")
    )


def parse_dtype(text: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=DTYPE``."""
    name, separator, dtype = text.rpartition("=")
    if not separator or not name or not dtype:
        raise ConfigError(f"--dtype must be NAME=DTYPE, such as input_ids=int32, got {text!r}")
    return name, dtype
