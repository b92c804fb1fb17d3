"""Files to stores and back: ``zindex convert``, ``import``, ``export``, ``merge`` and ``count``.

Also ``zindex convert-cache``.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from zindex.cli import options
from zindex.errors import StoreNotFoundError, ZindexError
from zindex.wording import count_noun

if TYPE_CHECKING:
    from zindex.store.layout import ChunkGrid

_KINDS = ("corpus", "h5", "bin", "jsonl")
_KEYED_NAME = re.compile(r"\.(h5|hdf5|(jsonl|ndjson)(\.\w+)?)$")
# Options of corpora alone, and of keyed files alone.
_CORPUS_NAMES = (
    *("link", "multimodal", "chunk_length", "shard_length", "tokenizer", "keep_tokenizer"),
)
_KEYED_NAMES = (
    *("chunk_nbytes", "shard_nbytes", "loose", "dtypes", "on_damage", "restart", "num_processes"),
)


@click.command(cls=options.SourcesCommand)
@click.argument("prefixes", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("store", metavar="STORE")
@options.choice("--kind", _KINDS, help="Input format. [default: from file names]")
@options.flag("--link", "Leave the tokens in the .bin file and link to it.")
@options.codec
@options.value("--chunk-length", type=int, help="Elements per chunk, the unit of reading.")
@options.value("--shard-length", type=int, help="Elements per shard file, a multiple of the chunk.")
@options.flag("--multimodal", "Require a mode for every sequence.")
@options.value(
    "--tokenizer",
    metavar="PATH",
    help="Tokenizer of the corpora, to keep in the stores, including those that already exist: "
    "a tokenizer.json, a SentencePiece .model, a .tiktoken file, a vocab.txt, or a "
    "folder with one.",
)
@options.keep_tokenizer
@options.value("--chunk-nbytes", type=int, help="Keyed files: bytes per chunk.")
@options.value("--shard-nbytes", type=int, help="Keyed files: bytes per shard file.")
@options.flag("--loose", "Accept h5 and bin files whose keys do not match.")
@options.mapping(
    "--dtype",
    "dtypes",
    metavar="KEY=DTYPE",
    example="input_ids=int32",
    last=True,
    help="Key of a jsonl file to store, with its dtype; repeatable.",
)
@options.damage("damaged lines of jsonl files", "the conversion")
@options.flag("--restart", "Remove an unfinished conversion of jsonl files first.")
@options.processes("Processes on this machine, for keyed files. [default: one per core for jsonl]")
@options.scheduler
@options.summary(timed=True)
@click.pass_context
def convert(
    context: click.Context,
    /,
    prefixes: tuple[str, ...],
    store: str,
    kind: str | None,
    **settings: Any,
) -> tuple[dict[str, Any], str]:
    """Convert token files to Zarr.

    SOURCE is the path of a .bin/.idx pair without suffix, or a quoted glob of such paths. For a
    single path STORE is the new store; otherwise it is the directory of the new stores.

    SOURCE may also be a file or folder of keyed tokens: h5 files, folders of .bin files with a
    meta.json, or jsonl files with lists of numbers. They are combined into one STORE.
    Resumes from finished shards.
    """
    kind = kind or _find_kind(prefixes)
    options.refuse(
        context,
        _KEYED_NAMES if kind == "corpus" else _CORPUS_NAMES,
        f"must not come with {kind} files, for which it means nothing; leave it out, or say what "
        "the files are with --kind",
    )
    if kind == "corpus":
        facts, lines = _convert_corpora(prefixes, store, settings)
    else:
        facts, lines = _convert_keyed(prefixes, store, kind, settings)
    return {"stores": facts}, "\n".join(lines)


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


def _convert_corpora(
    prefixes: tuple[str, ...], store: str, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Convert .bin/.idx pairs; return facts of the stores, and a line for each."""
    from zindex.ingest.convert import TOKEN_GRID
    from zindex.ingest.convert import convert as run

    stores = run(
        options.one_or_all(prefixes),
        store,
        client=settings["client"],
        link=settings["link"],
        grid=_make_grid(TOKEN_GRID, settings, "length"),
        multimodal=settings["multimodal"] or None,
        tokenizer=settings["tokenizer"],
        keep_tokenizer=settings["keep_tokenizer"],
        progress=True,
    )
    counts = ("num_documents", "num_sequences", "num_tokens")
    facts = [
        {"store": str(item.root), "fingerprint": item.fingerprint}
        | {name: item.spec[name] for name in counts}
        for item in stores
    ]
    return facts, [
        f"{fact['store']}: {_describe_tokens(**{name: fact[name] for name in counts})}"
        for fact in facts
    ]


def _describe_tokens(num_documents: int, num_sequences: int, num_tokens: int) -> str:
    """Return the size of a corpus."""
    documents, sequences = (
        count_noun(num_documents, "document"),
        count_noun(num_sequences, "sequence"),
    )
    return f"{documents}, {sequences}, {count_noun(num_tokens, 'token')}"


def _make_grid(default: "ChunkGrid", settings: dict[str, Any], unit: str) -> "ChunkGrid | None":
    """Return the grid of the options, or None without any."""
    sizes = {f"{name}_length": settings[f"{name}_{unit}"] for name in ("chunk", "shard")}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    if settings["codec"] != "none":
        given["codec"] = settings["codec"]
    return replace(default, **given) if given else None


def _convert_keyed(
    sources: tuple[str, ...], target: str, kind: str, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Convert keyed files; return facts of the store, and a line."""
    from zindex.ingest.keyed.convert_keyed import check_format, convert_keyed
    from zindex.store.records import BYTE_GRID

    client, num_processes = settings["client"], settings["num_processes"]
    if kind == "jsonl":
        num_processes = options.choose_processes(client, num_processes)
    store = convert_keyed(
        options.one_or_all(sources),
        target,
        storage_type=check_format(kind, sources[0]),
        strict=not settings["loose"],
        **{name: settings[name] for name in ("dtypes", "on_damage", "restart")},
        grid=_make_grid(BYTE_GRID, settings, "nbytes") or BYTE_GRID,
        client=client,
        num_processes=num_processes,
        progress=True,
    )
    return _describe(store)


def _describe(store: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return facts of a store of keyed tokens, and a line."""
    from zindex.ingest.keyed.export_keyed import stored_keys

    has_keys = store.spec["num_records"] > 0
    keys = {key.name: key.field for key in stored_keys(store)} if has_keys else {}
    fact = {
        **options.describe_records(store),
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
    records = count_noun(count, "record") if fact["has_records"] else "values"
    files = count_noun(num_files, "file or folder", "files or folders")
    skipped = count_noun(fact["num_skipped"], "damaged line")
    return [fact], [
        f"{fact['store']}: {records} of {files}, {shown or 'no values'}"
        + (f"; skipped: {skipped}" if fact["num_skipped"] else "")
    ]


@click.command()
@click.argument("store")
@click.argument("prefix", metavar="TARGET")
@options.flag("--overwrite", "Replace the files of an earlier export.")
@options.restart("For a corpus: remove an unfinished export to TARGET")
@options.choice(
    "--to",
    _KINDS[1:],
    "storage_type",
    help="For records: output format; those with texts become jsonl. [default: format of the "
    "source]",
)
@options.generation
def export(
    store: str,
    prefix: str,
    overwrite: bool,
    restart: bool,
    storage_type: str | None,
    generation: int | None,
) -> None:
    """Export a store to the format of its source.

    For a corpus, TARGET is the path of a .bin/.idx pair without suffix; the pair is byte-identical
    to the source. For keyed tokens, other records and growing stores, TARGET is the folder of the
    exported files and folders.
    """
    if storage_type is not None or generation is not None or _is_keyed(store):
        from zindex.ingest.keyed.convert_keyed import check_format
        from zindex.ingest.keyed.export_keyed import export_keyed
        from zindex.inspection.answers.growing_records import open_records

        wanted = None if storage_type is None else check_format(storage_type, store)
        opened = open_records(store, generation)
        paths = export_keyed(
            opened, prefix, storage_type=wanted, overwrite=overwrite, progress=True
        )
        click.echo(f"{prefix}: {count_noun(len(paths), 'file or folder', 'files or folders')}")
        return
    from zindex.ingest.merge import export as run

    run(store, prefix, overwrite=overwrite, restart=restart)
    nbytes = sum(os.path.getsize(f"{prefix}.{suffix}") for suffix in ("bin", "idx"))
    click.echo(f"{prefix}.bin and {prefix}.idx: {nbytes:,} bytes")


def _is_keyed(store: str) -> bool:
    """Return whether a path holds a store of records; the export reports other problems."""
    from zindex.growing.growing_log import is_growing
    from zindex.store.open import open_store
    from zindex.store.records import KIND

    try:
        return is_growing(store) or open_store(store).kind == KIND
    except ZindexError:
        return False


@click.command("import", cls=options.SourcesCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.choice("--kind", ["jsonl", "tar"], help="Input format. [default: from file names]")
@options.repeatable("--field", "fields", metavar="NAME", help="Field to import; repeatable.")
@options.mapping(
    "--dtype",
    "dtypes",
    metavar="NAME=DTYPE",
    example="input_ids=int32",
    last=True,
    help="Field of flat lists of numbers, with their dtype; repeatable.",
)
@options.repeatable(
    "--meta", "meta_names", metavar="NAME", help="Field of .meta.jsonl to add; repeatable."
)
@options.value("--include-dirs", metavar="DIR,...", help="Additional folders of tar files.")
@options.value("--part-nbytes", type=int, help="Bytes per task.")
@options.damage("damaged records", "the import")
@options.restart("Remove an unfinished import of TARGET")
@options.record_store
@options.summary(timed=True)
def import_command(
    sources: tuple[str, ...], target: str, fields: tuple[str, ...], **settings: Any
) -> tuple[dict[str, Any], str]:
    """Import tar or jsonl files for random access.

    SOURCE is a file, a folder or a brace pattern, on a file system or in an object store. TARGET is
    the store. Resumes from finished shards.
    """
    from zindex.ingest.records.import_records import import_records
    from zindex.store.records import KEY

    store = import_records(
        options.one_or_all(sources),
        target,
        fields=fields or None,
        progress=True,
        **options.use_record_store(**settings),
    )
    names = [field["name"] for field in store.spec["fields"] if field["name"] != KEY]
    facts = {
        **options.describe_records(store),
        "nbytes": sum(layout.nbytes for layout in store.layouts.values()),
        "fields": names,
    }
    return facts, (
        f"{facts['store']}: {count_noun(facts['num_records'], 'record')} of "
        f"{count_noun(facts['num_files'], 'file')}, {facts['nbytes']:,} bytes, fields "
        f"{', '.join(names) or 'none'}{options.describe_skipped(facts['num_skipped'])}"
    )


@click.command(cls=options.SourcesCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.choice(
    "--to",
    ["bin", "zarr"],
    help="Write a .bin/.idx pair or a Zarr store. [default: the format of the sources, or a store "
    "if TARGET ends with .zarr]",
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
    """Merge several corpora into one.

    SOURCE is the path of a .bin/.idx pair without suffix, a quoted glob of such paths, a Zarr token
    store, or a folder of pairs or stores, merged in order of their names. TARGET is the path of
    the new pair without suffix, or of the new store. Resumes from finished shards.
    """
    from zindex.ingest.merge import merge as run

    merged = run(sources, target, progress=True, **settings)
    return asdict(merged), (
        f"{merged.path}: "
        f"{_describe_tokens(merged.num_documents, merged.num_sequences, merged.num_tokens)} of "
        f"{count_noun(merged.num_sources, 'corpus', 'corpora')}"
    )


@click.command()
@click.argument("prefixes", nargs=-1, required=True, metavar="PREFIX...")
@options.value(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write to this file."
)
@options.scheduler
def count(prefixes: tuple[str, ...], output: str | None, client: str | None) -> None:
    """Count sequences and documents in Megatron's format.

    PREFIX is the path or URL of a .bin/.idx pair without suffix or of a Zarr token store, as given
    to the training job; a quoted glob of pairs; or a folder of pairs or stores. Prints a JSON
    object with the number of sequences and the number of entries of the document index (the number
    of documents plus one) for each PREFIX.
    """
    from zindex.ingest.corpora.pairs import count_sequences
    from zindex.io.local import local_path, write_once

    counts = count_sequences(prefixes, client=client)
    text = json.dumps(counts, indent=2)
    if output is None:
        click.echo(text)
        return
    path = local_path(output, "a file of counts")
    write_once(path, [f"{text}\n".encode()], replace=True)
    num_sequences = sum(sequences for sequences, _ in counts.values())
    corpora = count_noun(len(counts), "corpus", "corpora")
    click.echo(f"{path}: {count_noun(num_sequences, 'sequence')} of {corpora}")


@click.command("convert-cache")
@click.argument("folder", metavar="CACHE")
@click.argument("index", metavar="INDEX")
@options.mapping(
    "--dataset-path",
    "dataset_paths",
    metavar="THERE=HERE",
    example="THERE=HERE",
    help="Path of a dataset in the Megatron job and on this machine; repeatable.",
)
@options.flag("--remove", "Remove the files of each cache that was converted.")
@options.summary(timed=True)
def convert_cache(folder: str, index: str, **settings: Any) -> tuple[dict[str, Any], str]:
    """Convert Megatron Core's .npy caches to indices.

    CACHE is Megatron's data cache path, INDEX the folder of the indices, such as the same one. Each
    index is computed again and compared with the cache.
    """
    from zindex.maintenance.convert_cache import convert_cache as run

    caches = run(folder, index, **settings)
    lines = [f"{each.name}: {', '.join(each.stores) or each.problem}" for each in caches]
    num_converted = sum(bool(each.stores) for each in caches)
    lines.append(f"{num_converted} of {len(caches)} caches are in {index}")
    return {"caches": list(map(asdict, caches))}, "\n".join(lines)
