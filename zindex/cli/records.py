"""``zindex import``: tar and jsonl files to a Zarr store with random access."""

import time

import click

from zindex.cli.options import (
    choice,
    choose_processes,
    count_noun,
    damage_option,
    echo_json,
    json_option,
    one_or_all,
    record_store_options,
    repeatable,
)
from zindex.errors import ConfigError


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@choice("--kind", ["jsonl", "tar"], help="Format. [default: from names]")
@repeatable("--field", "fields", metavar="NAME", help="A field to keep; repeatable.")
@repeatable(
    "--dtype",
    "dtypes",
    metavar="NAME=DTYPE",
    help="A field of flat lists of numbers, and their dtype; repeatable.",
)
@repeatable("--meta", metavar="NAME", help="A field of .meta.jsonl to join; repeatable.")
@click.option("--include-dirs", metavar="DIR,...", help="Further folders of tar files to read.")
@click.option("--part-nbytes", type=int, help="Bytes of a file that one task reads.")
@damage_option("damaged records", "the import")
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
    """Import tar or jsonl files for random access.

    SOURCE is a file, a folder or a brace pattern, on a file system or in an object store. TARGET is
    the store. Resumes from finished shards.
    """
    from zindex.ingest.records.import_records import import_records
    from zindex.store.layout import ChunkGrid
    from zindex.store.records import KEY

    start = time.monotonic()
    store = import_records(
        one_or_all(sources),
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
        num_processes=choose_processes(scheduler, num_processes),
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
        echo_json(facts | {"seconds": time.monotonic() - start})
        return
    skipped = facts["num_skipped"]
    click.echo(
        f"{facts['store']}: {facts['num_records']:,} records of "
        f"{count_noun(facts['num_files'], 'file', 'files')}, "
        f"{facts['nbytes']:,} bytes, fields {', '.join(names) or 'none'}"
        + (f"; {skipped:,} damaged records or files were left out" if skipped else "")
    )


def parse_dtype(text: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=DTYPE``."""
    name, separator, dtype = text.rpartition("=")
    if not separator or not name or not dtype:
        raise ConfigError(f"--dtype must be NAME=DTYPE, such as input_ids=int32, got {text!r}")
    return name, dtype
