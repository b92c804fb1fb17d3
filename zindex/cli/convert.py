"""The commands ``zindex convert`` and ``zindex export``: files of tokens to Zarr, and back."""

import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli.options import json_option, scheduler_option
from zindex.errors import ConfigError, StoreNotFoundError, ZindexError

_KINDS = ("corpus", "h5", "bin", "jsonl")
_KEYED_NAME = re.compile(r"\.(h5|hdf5|(jsonl|ndjson)(\.\w+)?)$")


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("store", metavar="STORE")
@click.option("--kind", type=click.Choice(_KINDS), help="What the files are, if names do not tell.")
@click.option("--link", is_flag=True, help="Leave the tokens in their .bin and link to it.")
@click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True)
@click.option("--chunk-length", type=int, help="Elements that a reader fetches at once.")
@click.option("--shard-length", type=int, help="Elements per file, a multiple of the chunk.")
@click.option("--multimodal", is_flag=True, help="Demand a mode for every sequence.")
@click.option("--chunk-nbytes", type=int, help="Of keyed files, what is read at once.")
@click.option("--shard-nbytes", type=int, help="Of keyed files, a multiple, per file.")
@click.option("--loose", is_flag=True, help="Take h5 and bin files whose keys do not match.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="KEY=DTYPE",
    help="A key of jsonl files to keep, and its dtype; repeatable.",
)
@click.option(
    "--on-damage",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Whether damaged lines of jsonl files stop it, or are left out and counted.",
)
@click.option(
    "--restart", is_flag=True, help="Remove an unfinished conversion of jsonl files first."
)
@click.option(
    "--processes",
    "num_processes",
    type=click.IntRange(1),
    help="Of this machine, for keyed files; jsonl files get one for each core if left out.",
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
    is the store of a single path; of a glob or several paths, the directory of their stores.

    SOURCE may also be a folder or file of keyed tokens: h5 files, folders of .bin files with their
    meta.json, or jsonl files with lists of numbers. STORE is then one store of all of them. What is
    finished already is kept.
    """
    start = time.monotonic()
    kind = kind or _find_kind(prefixes)
    if kind == "corpus":
        facts, lines = _convert_corpora(prefixes, store, scheduler, options)
    else:
        facts, lines = _convert_keyed(prefixes, store, kind, scheduler, options)
    if as_json:
        click.echo(json.dumps({"stores": facts, "seconds": time.monotonic() - start}, indent=2))
        return
    click.echo("\n".join(lines))


def _find_kind(sources: Sequence[str]) -> str:
    """Return what files are, by their names."""
    first = sources[0]
    if os.path.exists(f"{first}.idx"):
        return "corpus"
    if os.path.isdir(first):
        from zindex.formats.keyed.detect import detect_format

        try:
            return detect_format(first)
        except StoreNotFoundError:
            return "corpus"
    found = _KEYED_NAME.search(first)
    if found is None:
        return "corpus"
    return "h5" if found[1].startswith("h") else "jsonl"


def _refuse(options: dict[str, Any], names: dict[str, str], kind: str) -> None:
    """Refuse options that mean nothing for the files."""
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
    from zindex.building.convert import convert as run

    stores = run(
        prefixes[0] if len(prefixes) == 1 else prefixes,
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
    """Return the grid that options ask for, or None where none of them was given."""
    if codec == "none" and chunk_length is None and shard_length is None:
        return None
    from zindex.building.convert import TOKEN_GRID
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
    from zindex.building.keyed.convert_keyed import check_format, convert_keyed
    from zindex.cli.records import parse_dtype
    from zindex.store.layout import ChunkGrid
    from zindex.store.records import BYTE_GRID

    num_processes = options["num_processes"]
    if kind == "jsonl" and scheduler is None and num_processes is None:
        num_processes = len(os.sched_getaffinity(0))
    store = convert_keyed(
        sources[0] if len(sources) == 1 else sources,
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
    from zindex.building.keyed.export_keyed import stored_keys

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
    records = _count(count, "record", "records") if fact["has_records"] else "values"
    files = _count(num_files, "file or folder", "files or folders")
    left_out = _count(skipped, "damaged line", "damaged lines")
    return [fact], [
        f"{fact['store']}: {records} of {files}, {shown or 'no values'}"
        + (f"; left out: {left_out}" if skipped else "")
    ]


def _count(number: int, one: str, many: str) -> str:
    """Return a number and its noun."""
    return f"{number:,} {one if number == 1 else many}"


@click.command()
@click.argument("store")
@click.argument("prefix", metavar="TARGET")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier export wrote.")
@click.option(
    "--to",
    "storage_type",
    type=click.Choice(_KINDS[1:]),
    help="Of keyed tokens, what to write; what they were made of if left out.",
)
def export(store: str, prefix: str, overwrite: bool, storage_type: str | None) -> None:
    """Write a Zarr store back as the files that it was made of.

    Of a corpus TARGET is the path of a .bin/.idx pair without its suffix, which is written byte for
    byte. Of keyed tokens it is a folder, in which each file or folder that they came from is
    written again.
    """
    if storage_type is not None or _is_keyed(store):
        from zindex.building.keyed.convert_keyed import check_format
        from zindex.building.keyed.export_keyed import export_keyed

        wanted = None if storage_type is None else check_format(storage_type, store)
        paths = export_keyed(store, prefix, storage_type=wanted, overwrite=overwrite, progress=True)
        click.echo(f"{prefix}: {_count(len(paths), 'file or folder', 'files or folders')}")
        return
    from zindex.building.export import export as run

    run(store, prefix, overwrite=overwrite)
    nbytes = sum(os.path.getsize(f"{prefix}.{suffix}") for suffix in ("bin", "idx"))
    click.echo(f"{prefix}.bin and {prefix}.idx: {nbytes:,} bytes")


def _is_keyed(store: str) -> bool:
    """Return whether a place holds a store of records; what is wrong with it is said later."""
    from zindex.store.open import open_store
    from zindex.store.records import KIND

    try:
        return open_store(store).kind == KIND
    except ZindexError:
        return False
