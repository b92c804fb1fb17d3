"""The jsonl of metadata beside a tar: which fields of which line go to which sample."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.formats.damage import Damage
from zindex.formats.json_lines import cut_lines, parse_object
from zindex.sources.chunks import read_chunks
from zindex.sources.damage_log import DamageLog
from zindex.sources.file_list import SourceFile
from zindex.store.files import file_nbytes

#: Key of a sample -> the values of its metadata, in the order of their names.
Metadata = dict[str, tuple[Any, ...]]
_WHAT = "metadata of samples, a JSON object with a key on each line"


def check_meta_names(meta_names: Sequence[str]) -> dict[str, str]:
    """Return the names of metadata, each with that of the sample's field: in small letters.

    Raises
    ------
    ConfigError
        If two would be one field, or one is reserved.
    """
    if isinstance(meta_names, str):
        raise ConfigError(f"meta_names must be a list of names, got the text {meta_names!r}")
    fields: dict[str, str] = {}
    for name in meta_names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"meta_names must be names of fields, got {name!r}")
        field = name.lower()
        if field.startswith("__"):
            raise ConfigError(f"a name of metadata must not begin with __, got {name!r}")
        if field in fields.values():
            raise ConfigError(f"each name of metadata must be given once, got {name!r} again")
        fields[name] = field
    return fields


def sidecar_url(file: SourceFile) -> str:
    """Return where the metadata of a tar is: beside it, its name cut at the first dot."""
    return file.url[: len(file.url) - len(file.url.rpartition("/")[2])] + _name_of(file)


def _name_of(file: SourceFile) -> str:
    return file.place.name.partition(".")[0] + ".meta.jsonl"


def sidecar_of(file: SourceFile) -> SourceFile:
    """Return the file of metadata of a tar; StoreNotFoundError if there is none."""
    place, url = file.place.parent / _name_of(file), sidecar_url(file)
    nbytes = file_nbytes(place)
    if nbytes is None:
        raise StoreNotFoundError(f"{file.url} must have its metadata in {url}, there is no file")
    return SourceFile(url, place, nbytes if isinstance(place, Path) else None)


def read_sidecar(file: SourceFile, names: Sequence[str], damage: DamageLog) -> Metadata:
    """Return the metadata of a tar's samples by their keys; none where there is no sidecar.

    Parameters
    ----------
    file
        The tar.
    names
        The fields that are wanted; one that a line does not have is None.
    damage
        Where a line without a key, or without an object, is reported.

    Raises
    ------
    StoreNotFoundError
        If there is none though there must be.
    SourceError
        If a line is bad, unless such lines are skipped.
    """
    try:
        sidecar = sidecar_of(file)
    except StoreNotFoundError:
        if file.needs_sidecar:
            raise
        return {}
    found: dict[str, dict[str, Any]] = {}
    try:
        for offset, line in _lines(sidecar):
            try:
                key, wanted = _parse(line, names)
            except SourceError as error:
                damage.report(sidecar.url, Damage(str(error), offset), "such lines", what=_WHAT)
            else:
                # Several lines of one sample are one; the later wins.
                found.setdefault(key, {}).update(wanted)
    except Damage as error:
        damage.report(sidecar.url, error, "the rest of it", what=_WHAT)
    return {key: tuple(map(fields.get, names)) for key, fields in found.items()}


def _parse(line: bytes, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the key of a line and what it says of some names; SourceError if it has no key."""
    fields = parse_object(line)
    key = fields.get("key")
    if not isinstance(key, str):
        raise SourceError(f"there must be an object with a key, a text, the key is {key!r}")
    return key, {name: fields[name] for name in names if name in fields}


def _lines(sidecar: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their offsets."""
    with closing(read_chunks(sidecar)) as chunks:
        for offset, lines in cut_lines(chunks):
            for line in lines:
                yield offset, line
                offset += len(line) + 1
