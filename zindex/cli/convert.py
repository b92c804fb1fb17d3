"""``zindex convert`` and ``zindex export``: token files to Zarr, and back."""

import os
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli.options import (
    choice,
    choose_processes,
    count_noun,
    damage_option,
    echo_json,
    json_option,
    one_or_all,
    repeatable,
    scheduler_option,
)
from zindex.errors import ConfigError, StoreNotFoundError, ZindexError

_KINDS = ("corpus", "h5", "bin", "jsonl")
_KEYED_NAME = re.compile(r"\.(h5|hdf5|(jsonl|ndjson)(\.\w+)?)$")


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("store", metavar="STORE")
@choice("--kind", _KINDS, help="Format. [default: from names]")
@click.option("--link", is_flag=True, help="Keep the tokens in their .bin file and link to it.")
@click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True)
@click.option("--chunk-length", type=int, help="Elements of a chunk, the unit of reading.")
@click.option("--shard-length", type=int, help="Elements of a shard file, a multiple of the chunk.")
@click.option("--multimodal", is_flag=True, help="Require a mode for every sequence.")
@click.option("--chunk-nbytes", type=int, help="Keyed files: bytes of a chunk.")
@click.option("--shard-nbytes", type=int, help="Keyed files: bytes of a shard file.")
@click.option("--loose", is_flag=True, help="Accept h5 and bin files whose keys do not match.")
@repeatable(
    "--dtype",
    "dtypes",
    metavar="KEY=DTYPE",
    help="A key of jsonl files to store, and its dtype; repeatable.",
)
@damage_option("damaged lines of jsonl files", "the conversion")
@click.option(
    "--restart", is_flag=True, help="Remove an unfinished conversion of jsonl files first."
)
@click.option(
    "--processes",
    "num_processes",
    type=click.IntRange(1),
    help="Processes of this machine, for keyed files. [default: one per core for jsonl]",
)
@scheduler_option
@json_option
def convert(
    prefixes: tuple[str, ...],
    store: str,
    kind: str | None,
    scheduler: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert files of tokens to Zarr.

    SOURCE is the path of a .bin/.idx pair without its suffix, or a quoted glob of such paths. STORE
    is the store of a single path; for a glob or several paths it is the directory of their stores.

    SOURCE may also be a folder or file of keyed tokens: h5 files, folders of .bin files with their
    meta.json, or jsonl files with lists of numbers. STORE is then one store of all of them.
    Resumes from finished shards.
    """
    start = time.monotonic()
    kind = kind or _find_kind(prefixes)
    if kind == "corpus":
        facts, lines = _convert_corpora(prefixes, store, scheduler, options)
    else:
        facts, lines = _convert_keyed(prefixes, store, kind, scheduler, options)
    if as_json:
        echo_json({"stores": facts, "seconds": time.monotonic() - start})
        return
    click.echo("\n".join(lines))


def _find_kind(sources: Sequence[str]) -> str:
    """Return the format of files by their names."""
    first = sources[0]
    if os.path.exists(f"{first}.idx"):
        return "corpus"
    if os.path.isdir(first):
        from zindex.formats.keyed.shards import detect_format

        try:
            return detect_format(first)
        except StoreNotFoundError:
            return "corpus"
    found = _KEYED_NAME.search(first)
    if found is None:
        return "corpus"
    return "h5" if found[1].startswith("h") else "jsonl"


def _refuse(options: dict[str, Any], names: dict[str, str], kind: str) -> None:
    """Refuse options that do not apply to the files."""
    for name, option in names.items():
        if options[name] not in (None, False, (), "error"):
            raise ConfigError(
                f"{option} must not come with {kind} files, for which it means nothing; leave it "
                "out, or say what the files are with --kind"
            )


def _convert_corpora(
    prefixes: tuple[str, ...], store: str, scheduler: str | None, options: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Convert .bin/.idx pairs; return facts of the stores, and a line for each."""
    keyed = {"chunk_nbytes": "--chunk-nbytes", "shard_nbytes": "--shard-nbytes"}
    keyed |= {"loose": "--loose", "dtypes": "--dtype", "on_damage": "--on-damage"}
    _refuse(options, keyed | {"restart": "--restart", "num_processes": "--processes"}, "corpus")
    from zindex.ingest.convert import convert as run

    stores = run(
        one_or_all(prefixes),
        store,
        client=scheduler,
        link=options["link"],
        grid=_make_grid(options["codec"], options["chunk_length"], options["shard_length"]),
        multimodal=options["multimodal"] or None,
        progress=True,
    )
    counts = ("num_documents", "num_sequences", "num_tokens")
    facts = [
        {"store": str(item.root), "fingerprint": item.fingerprint}
        | {name: item.spec[name] for name in counts}
        for item in stores
    ]
    return facts, [
        f"{fact['store']}: {fact['num_documents']:,} documents, "
        f"{fact['num_sequences']:,} sequences, {fact['num_tokens']:,} tokens"
        for fact in facts
    ]


def _make_grid(codec: str, chunk_length: int | None, shard_length: int | None) -> Any:
    """Return the grid of the options, or None without any."""
    if codec == "none" and chunk_length is None and shard_length is None:
        return None
    from zindex.ingest.convert import TOKEN_GRID
    from zindex.store.layout import ChunkGrid

    return ChunkGrid(
        chunk_length=TOKEN_GRID.chunk_length if chunk_length is None else chunk_length,
        shard_length=TOKEN_GRID.shard_length if shard_length is None else shard_length,
        codec="zstd" if codec == "zstd" else "none",
    )


def _convert_keyed(
    sources: tuple[str, ...],
    target: str,
    kind: str,
    scheduler: str | None,
    options: dict[str, Any],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Convert keyed files; return facts of the store, and a line."""
    corpus = {"link": "--link", "multimodal": "--multimodal"}
    corpus |= {"chunk_length": "--chunk-length", "shard_length": "--shard-length"}
    _refuse(options, corpus, kind)
    from zindex.cli.records import parse_dtype
    from zindex.ingest.keyed.convert_keyed import check_format, convert_keyed
    from zindex.store.layout import ChunkGrid
    from zindex.store.records import BYTE_GRID

    num_processes = options["num_processes"]
    if kind == "jsonl":
        num_processes = choose_processes(scheduler, num_processes)
    store = convert_keyed(
        one_or_all(sources),
        target,
        storage_type=check_format(kind, sources[0]),
        dtypes=dict(map(parse_dtype, options["dtypes"])),
        strict=not options["loose"],
        on_damage=options["on_damage"],
        restart=options["restart"],
        grid=ChunkGrid(
            options["chunk_nbytes"] or BYTE_GRID.chunk_length,
            options["shard_nbytes"] or BYTE_GRID.shard_length,
            "zstd" if options["codec"] == "zstd" else "none",
        ),
        client=scheduler,
        num_processes=num_processes,
        progress=True,
    )
    return _describe(store)


def _describe(store: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return facts of a store of keyed tokens, and a line."""
    from zindex.ingest.keyed.export_keyed import stored_keys

    has_keys = store.spec["num_records"] > 0
    keys = {key.name: key.field for key in stored_keys(store)} if has_keys else {}
    skipped = store.attributes["num_skipped"]
    fact = {
        "store": str(store.root),
        "fingerprint": store.fingerprint,
        "num_records": store.spec["num_records"],
        "num_files": store.spec["num_urls"],
        "num_skipped": skipped,
        "has_records": store.spec.get("has_records", True),
        "keys": {
            name: {"dtype": field.dtype, "num_values": field.num_values}
            for name, field in keys.items()
        },
    }
    shown = ", ".join(
        f"{name} ({field.num_values:,} {field.dtype})" for name, field in keys.items()
    )
    count, num_files = fact["num_records"], fact["num_files"]
    records = count_noun(count, "record", "records") if fact["has_records"] else "values"
    files = count_noun(num_files, "file or folder", "files or folders")
    left_out = count_noun(skipped, "damaged line", "damaged lines")
    return [fact], [
        f"{fact['store']}: {records} of {files}, {shown or 'no values'}"
        + (f"; left out: {left_out}" if skipped else "")
    ]


@click.command()
@click.argument("store")
@click.argument("prefix", metavar="TARGET")
@click.option("--overwrite", is_flag=True, help="Replace the files of an earlier export.")
@click.option(
    "--restart",
    is_flag=True,
    help="A corpus: remove an unfinished export to TARGET first; no other may be running there.",
)
@choice(
    "--to",
    _KINDS[1:],
    "storage_type",
    help="Keyed tokens: the format to write. [default: that of their source]",
)
def export(
    store: str, prefix: str, overwrite: bool, restart: bool, storage_type: str | None
) -> None:
    """Write a Zarr store back as its source files.

    For a corpus TARGET is the path of a .bin/.idx pair without its suffix, which is written byte
    for byte. For keyed tokens it is a folder that receives every source file or folder.
    """
    if storage_type is not None or _is_keyed(store):
        from zindex.ingest.keyed.convert_keyed import check_format
        from zindex.ingest.keyed.export_keyed import export_keyed

        wanted = None if storage_type is None else check_format(storage_type, store)
        paths = export_keyed(store, prefix, storage_type=wanted, overwrite=overwrite, progress=True)
        click.echo(f"{prefix}: {count_noun(len(paths), 'file or folder', 'files or folders')}")
        return
    from zindex.ingest.export import export as run

    run(store, prefix, overwrite=overwrite, restart=restart)
    nbytes = sum(os.path.getsize(f"{prefix}.{suffix}") for suffix in ("bin", "idx"))
    click.echo(f"{prefix}.bin and {prefix}.idx: {nbytes:,} bytes")


def _is_keyed(store: str) -> bool:
    """Return whether a path holds a store of records; the export reports other problems."""
    from zindex.store.open import open_store
    from zindex.store.records import KIND

    try:
        return open_store(store).kind == KIND
    except ZindexError:
        return False
