"""Open the files given by a user: tar, jsonl, Parquet or text, detected by names or contents."""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

from zindex.errors import ConfigError, SourceError, StoreNotFoundError, check_choice
from zindex.io.file_list import list_files, named_paths
from zindex.io.objects import mask
from zindex.sources.damage_log import OnDamage
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.parquet_files import ParquetFiles
from zindex.sources.sample_files import WHOLE_FILE, Paths, SampleFiles
from zindex.sources.tar_files import TarFiles
from zindex.sources.text_files import ENDINGS, TextFiles
from zindex.sources.wrapped_files import WrappedFiles

FilesKind = Literal["jsonl", "tar"]
TextKind = Literal["jsonl", "parquet", "text"]

#: Default maximum bytes per part of plain local files, which can be split. To read a later part of
#: a tar, the headers before it are read first, so only very large ones are split.
JSONL_PART_NBYTES, TAR_PART_NBYTES = 1 << 26, 1 << 30
# A source is split into at least this many tasks, so that the last ones end at about the same time.
# But no task gets fewer bytes than this, because each writes its own files.
_NUM_SHARES, _LEAST_NBYTES = 256, 1 << 22
_SIDECAR = ".meta.jsonl"
# For each format, the names of files, and the suffixes by which a folder is searched.
_NAMES: dict[str, tuple[str, Sequence[str]]] = {
    "jsonl": (r"\.(jsonl|ndjson|json)(\.\w+)?$", [".jsonl"]),
    "tar": (r"\.(tar|tgz|tbz2|txz|tzst)(\.\w+)?$", ["tar"]),
    "parquet": (r"\.parquet$", [".parquet"]),
    "text": (rf"({'|'.join(map(re.escape, ENDINGS))})(\.\w+)?$", ENDINGS),
}


def open_files(
    source: Paths | SampleFiles,
    kind: FilesKind | None,
    *,
    meta_names: Sequence[str] = (),
    include_dirs: str | None = None,
    part_nbytes: int | None = None,
    on_damage: OnDamage = "error",
    least_nbytes: int | None = None,
) -> tuple[SampleFiles, dict[str, Any]]:
    """Return the files of an import and their identity, as JSON values, independent of their parts.

    Parameters
    ----------
    source, kind, meta_names, include_dirs, part_nbytes, on_damage
        As of `zindex.ingest.records.import_records.import_records`.
    least_nbytes
        See `share_nbytes`.

    Raises
    ------
    ConfigError
        If a setting does not apply to the format, or the format is unknown.
    """
    if not isinstance(source, str | os.PathLike | Sequence):
        own = source.identity() if isinstance(source, WrappedFiles) else {}
        return source, {"source": source.fingerprint(), "kind": None, "meta_names": []} | own
    kind = kind or find_kind(source, include_dirs)
    check_choice("kind", kind, get_args(FilesKind))
    reopen: Callable[..., SampleFiles] = partial(JsonlFiles, source, on_damage=on_damage)
    if kind == "tar":
        tar: dict[str, Any] = {"meta_names": tuple(meta_names), "include_dirs": include_dirs}
        reopen = partial(TarFiles, source, on_damage=on_damage, **tar)
    elif meta_names or include_dirs:
        raise ConfigError(
            "meta_names (--meta) and include_dirs (--include-dirs) must come with tar files, got "
            "them for jsonl files; leave them out"
        )
    whole = reopen(part_nbytes=WHOLE_FILE)
    if part_nbytes is None and kind == "tar":
        part_nbytes = TAR_PART_NBYTES
    elif part_nbytes is None:
        nbytes = sum(whole.part_nbytes(part) or 0 for part in range(whole.num_parts))
        part_nbytes = share_nbytes(nbytes, JSONL_PART_NBYTES, least_nbytes)
    identity = {"source": whole.fingerprint(), "kind": kind, "meta_names": list(meta_names)}
    return reopen(part_nbytes=part_nbytes), identity


def share_nbytes(nbytes: int, most: int, least: int | None = None) -> int:
    """Return the bytes of the source that one task reads, given the total.

    Depends only on the total, so that an import can be resumed with another number of processes.
    Tasks that are slow per byte may use a lower ``least``.
    """
    share = 1 << max(0, -(-nbytes // _NUM_SHARES) - 1).bit_length()
    return min(most, max(_LEAST_NBYTES if least is None else least, share))


def find_kind(source: Paths, include_dirs: str | None = None) -> FilesKind:
    """Return the format of the given files, by their suffixes or the contents of a folder.

    Raises
    ------
    ConfigError
        If there are files of neither format, or of both.
    """
    if include_dirs:
        return "tar"
    firsts: dict[Any, str] = {}
    for name in named_paths(source):
        firsts = _kinds_of(name, get_args(FilesKind)) | firsts
    if len(firsts) == 2:
        raise ConfigError(
            f"the files of an import must be of one kind, got tar ({firsts['tar']}) and jsonl "
            f"({firsts['jsonl']}); import each kind by itself, or name the one that a folder is "
            "read for with kind (--kind)"
        )
    if firsts:
        return next(iter(firsts))
    raise ConfigError(
        f"a source must name tar or jsonl files, or a folder of them, got {source!r}; name files "
        "that are there, and say their kind if their names do not"
    )


def _kinds_of(name: str, kinds: Sequence[str]) -> dict[Any, str]:
    """Return which formats match a name, with a matching file for each."""
    for kind in kinds:
        if re.search(_NAMES[kind][0], name):
            return {kind: mask(name)}
    found = {kind: _files_below(name, _NAMES[kind][1]) for kind in kinds}
    if found.get("tar"):  # in a folder of tars these are their metadata
        found["jsonl"] = [url for url in found["jsonl"] if not url.endswith(_SIDECAR)]
    return {kind: urls[0] for kind, urls in found.items() if urls}


def _files_below(name: str, endings: Sequence[str]) -> list[str]:
    """Return the files below a folder with these suffixes; [] for files and missing folders."""
    try:
        urls = [file.url for file in list_files([name], endings)]
    except (ConfigError, SourceError, StoreNotFoundError):
        return []
    return [] if urls == [name] else urls


def open_texts(
    source: Paths,
    kind: TextKind | None,
    part_nbytes: int | None,
    on_damage: OnDamage,
    columns: Sequence[str] | None = None,
    *,
    optional_columns: Sequence[str] = (),
    least_nbytes: int | None = None,
) -> tuple[SampleFiles, str]:
    """Return text files and their fingerprint, independent of their parts.

    Parameters
    ----------
    source
        Files, folders or brace patterns, as of `zindex.ingest.records.import_records`.
    kind
        Format of the files; None detects it from their names.
    part_nbytes
        Bytes of a part of a jsonl file.
    on_damage
        Whether damage is an error, or is skipped.
    columns
        Columns of Parquet files to read; None reads all.
    optional_columns
        Columns to read where they exist.
    least_nbytes
        See `share_nbytes`.

    Raises
    ------
    ConfigError
        If the format is unknown.
    """
    kind = kind or find_text_kind(source)
    check_choice("kind (--kind)", kind, get_args(TextKind))
    if kind == "jsonl":
        opened, identity = open_files(
            source, kind, part_nbytes=part_nbytes, on_damage=on_damage, least_nbytes=least_nbytes
        )
        return opened, identity["source"]
    files: SampleFiles
    if kind == "parquet":
        files = ParquetFiles(
            source, columns=columns, optional_columns=optional_columns, on_damage=on_damage
        )
    else:
        files = TextFiles(source, on_damage=on_damage)
    return files, files.fingerprint()


def find_text_kind(source: Paths) -> TextKind:
    """Return the format of the given files, by their suffixes or the contents of a folder."""
    kinds = get_args(TextKind)  # if a folder has several, the first one counts
    found: set[TextKind] = {
        next(iter(_kinds_of(name, kinds)), "jsonl") for name in named_paths(source)
    }
    return found.pop() if len(found) == 1 else "jsonl"
