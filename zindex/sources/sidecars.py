"""Read the metadata of tar archives: a jsonl file beside each, its sidecar."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, SourceError, StoreNotFoundError, check_list, suggest
from zindex.formats.json_lines import parse_object
from zindex.io.decompression import DamageError
from zindex.io.file_list import SourceFile
from zindex.io.files import file_nbytes
from zindex.sources.damage_log import DamageLog
from zindex.sources.jsonl_files import read_lines

#: By the key of a sample: the values of its metadata, in the order of the requested names.
Metadata = dict[str, tuple[Any, ...]]
# Suffixes of metadata files, in the order in which they are looked for.
_SIDECARS = (".meta.jsonl", ".jsonl")
# Names of fields that are compared with a misspelled one.
_MAX_KNOWN = 1000
_WHAT = "metadata of samples, a JSON object with a key on each line"


def check_meta_names(meta_names: Sequence[str]) -> dict[str, str]:
    """Return the names of metadata with the lower-case names of their fields in samples.

    Raises
    ------
    ConfigError
        If two names give one field, or one is reserved.
    """
    check_list("meta_names", meta_names)
    fields: dict[str, str] = {}
    for name in meta_names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"meta_names (--meta) must be names of fields, got {name!r}")
        field = name.lower()
        if field.startswith("__"):
            raise ConfigError(f"a name of metadata must not begin with __, got {name!r}")
        if field in fields.values():
            raise ConfigError(f"each name of metadata must be given once, got {name!r} again")
        fields[name] = field
    return fields


def sidecar_of(file: SourceFile, suffix: str = _SIDECARS[0]) -> SourceFile:
    """Return a metadata file of a tar: its name up to the first dot, and a suffix."""
    name = file.place.name.partition(".")[0] + suffix
    folder, slash, _ = file.url.rpartition("/")
    return SourceFile(f"{folder}{slash}{name}", file.place.parent / name, None)


def read_sidecar(file: SourceFile, names: Sequence[str], damage: DamageLog) -> Metadata:
    """Return the metadata of a tar's samples by their keys, empty without a sidecar.

    Parameters
    ----------
    file
        The tar.
    names
        The requested fields; a field that a line lacks is None.
    damage
        Where lines without an object or a key are reported.

    Raises
    ------
    StoreNotFoundError
        If a required sidecar is missing.
    SourceError
        If a line is damaged, unless damage is skipped.
    """
    sidecar, nbytes = find_sidecar(file)
    found: dict[str, dict[str, Any]] = {}
    if nbytes is not None:
        for key, wanted, _, _ in parse_sidecar(sidecar, names, damage):
            # Several lines of one sample are merged; later values win.
            found.setdefault(key, {}).update(wanted)
    return {key: tuple(map(fields.get, names)) for key, fields in found.items()}


def find_sidecar(file: SourceFile) -> tuple[SourceFile, int | None]:
    """Return the metadata file of a tar, and its size, None without one.

    It is the first that exists of ``NAME.meta.jsonl`` and ``NAME.jsonl``.

    Raises
    ------
    StoreNotFoundError
        If it is required and missing.
    """
    for suffix in _SIDECARS:
        sidecar = sidecar_of(file, suffix)
        nbytes = file_nbytes(sidecar.place)
        if nbytes is not None:
            break
    else:
        sidecar = sidecar_of(file)
    if nbytes is None and file.needs_sidecar:
        raise StoreNotFoundError(
            f"{file.url} must have its metadata in {sidecar.url}, there is no file"
        )
    return (replace(sidecar, nbytes=nbytes) if isinstance(sidecar.place, Path) else sidecar), nbytes


def parse_sidecar(
    sidecar: SourceFile, names: Sequence[str], damage: DamageLog
) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """Yield the key, the requested fields and the bytes [start, stop) of each line of metadata."""
    try:
        for offset, line in read_lines(sidecar):
            try:
                key, wanted = parse_metadata(line, names)
            except SourceError as error:
                bad_line = DamageError(str(error), offset)
                damage.report(sidecar.url, bad_line, "such lines", what=_WHAT)
            else:
                yield key, wanted, offset, offset + len(line)
    except DamageError as error:
        damage.report(sidecar.url, error, "the rest of it", what=_WHAT)


def parse_metadata(line: bytes, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the key of a line and some of its fields; SourceError if it has no key."""
    fields = parse_object(line)
    key = fields.get("key")
    if not isinstance(key, str):
        raise SourceError(f"there must be an object with a key, a text, the key is {key!r}")
    return key, {name: fields[name] for name in names if name in fields}


def watch_joins(
    samples: Iterator[dict[str, Any]], field: str, metadata: Mapping[str, Any], sidecar: str
) -> Generator[dict[str, Any], None, str | None]:
    """Yield the samples of a tar; return the reason if none of them got metadata.

    Parameters
    ----------
    samples
        The samples of one part of the tar.
    field
        A requested field, which samples with a member ``.id`` have.
    metadata, sidecar
        The metadata by key, and their file, which may be missing.
    """
    num_samples = num_ids = num_joined = 0
    last = ""
    for sample in samples:
        num_samples += 1
        if field in sample:
            num_ids += 1
            last = sample["__key__"]
            num_joined += last in metadata
        yield sample
    if not num_samples or num_joined:
        return None
    return explain_joins(num_samples, num_ids, last, bool(metadata), sidecar)


def explain_names(sidecar: SourceFile, names: Sequence[str]) -> str | None:
    """Return which requested fields no line of a metadata file has; None if there is none."""
    missing, known = dict.fromkeys(names), set[str]()
    with suppress(DamageError):
        for _, line in read_lines(sidecar):
            with suppress(SourceError):
                fields = parse_object(line)
                if len(known) < _MAX_KNOWN:
                    known |= fields.keys()
                for name in fields.keys() & missing.keys():
                    del missing[name]
            if not missing:
                return None
    hints = (f"{name!r}{suggest(name, known)}" for name in missing)
    return f"no line of {sidecar.url} has {' or '.join(hints)}" if known else None


def explain_values(metadata: Metadata, names: Sequence[str]) -> str | None:
    """Return which requested fields have no value in a metadata file; None if all have."""
    columns = zip(*metadata.values(), strict=True)
    empty = [
        name
        for name, column in zip(names, columns, strict=False)
        if not any(value is not None for value in column)
    ]
    return f"its metadata have no value of {empty}" if empty else None


def explain_joins(
    num_samples: int, num_ids: int, last: str, has_metadata: bool, sidecar: str
) -> str:
    """Return why no sample of a tar got metadata.

    Parameters
    ----------
    num_samples
        Samples of the tar, or of a part of it.
    num_ids, last
        How many have a member ``.id``, and the key of the last of these.
    has_metadata
        Whether the metadata file has lines.
    sidecar
        The metadata file.
    """
    if not has_metadata:
        return f"there is no line of metadata in {sidecar} beside it"
    if not num_ids:
        return (
            f"none of {num_samples:,} samples has a member .id, and only samples with one get "
            f"metadata, from the line with their key in {sidecar}"
        )
    return (
        f"no line of {sidecar} has the key of one of {num_ids:,} samples with a member .id, such "
        f"as {last!r}: its name, with its folder, up to the first dot"
    )
