"""Files of texts by their kind: JSON lines, Parquet, or text that is a document each."""

import re
from collections.abc import Sequence
from typing import Literal, get_args

from zindex.building.records.record_files import Paths, open_files
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.sources.damage_log import OnDamage
from zindex.sources.file_list import list_files, named_paths
from zindex.sources.parquet_files import ParquetFiles
from zindex.sources.sample_files import SampleFiles
from zindex.sources.text_files import ENDINGS, TextFiles

TextKind = Literal["jsonl", "parquet", "text"]

_TEXT = re.compile(rf"({'|'.join(map(re.escape, ENDINGS))})(\.\w+)?$")
_PARQUET = ".parquet"


def open_texts(
    source: Paths,
    kind: TextKind | None,
    part_nbytes: int | None,
    on_damage: OnDamage,
    columns: Sequence[str] | None = None,
    *,
    least_nbytes: int | None = None,
) -> tuple[SampleFiles, str]:
    """Return the files, and what identifies them however they are cut.

    Parameters
    ----------
    source
        Files, folders or brace patterns, as of `zindex.building.records.import_records`.
    kind
        What they are; None tells it from their names.
    part_nbytes
        Bytes of a part of a jsonl file.
    on_damage
        Whether damage is an error, or left out.
    columns
        Columns of Parquet files to read; None: all.
    least_nbytes
        See `zindex.building.records.record_files.share_nbytes`.

    Raises
    ------
    ConfigError
        If there is no such kind.
    """
    if kind is None:
        kind = find_text_kind(source)
    if kind == "text":
        files = TextFiles(source, on_damage=on_damage)
        return files, files.fingerprint()
    if kind == "parquet":
        tables = ParquetFiles(source, columns=columns, on_damage=on_damage)
        return tables, tables.fingerprint()
    if kind not in get_args(TextKind):
        raise ConfigError(
            f"kind (--kind) must be 'jsonl', 'parquet' or 'text', got {kind!r}; name one of these"
        )
    opened, identity = open_files(
        source, kind, part_nbytes=part_nbytes, on_damage=on_damage, least_nbytes=least_nbytes
    )
    return opened, identity["source"]


def find_text_kind(source: Paths) -> TextKind:
    """Return the kind of files that are named: by their endings, or by what a folder holds."""
    names = named_paths(source)
    if all(map(_is_text, names)):
        return "text"
    return "parquet" if all(map(_is_parquet, names)) else "jsonl"


def _is_text(name: str) -> bool:
    """Return whether a name is of text files: by its ending, or by what the folder holds."""
    return bool(_TEXT.search(name)) or _held_endings(name) == [True, False, False]


def _is_parquet(name: str) -> bool:
    """Return whether a name is of Parquet files, likewise."""
    return name.endswith(_PARQUET) or _held_endings(name)[1:] == [True, False]


def _held_endings(name: str) -> list[bool]:
    """Return whether a folder holds texts, Parquet, and JSON lines."""
    found = []
    for endings in (ENDINGS, [_PARQUET], [".jsonl"]):
        try:
            found.append(bool(list_files([name], endings)))
        except (ConfigError, SourceError, StoreNotFoundError):
            found.append(False)
    return found
