"""The files of an import, from what a user names: of which kind they are, and what they are."""

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.formats.damage import Damage
from zindex.formats.json_lines import cut_lines, decode_with_json, loads, parse_slowly
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.file_list import list_files, named_paths
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.sample_files import SampleFiles
from zindex.sources.tar_files import TarFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store import files
from zindex.store.objects import mask

FilesKind = Literal["jsonl", "tar"]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: Most bytes of a part by default: of plain local files, which may be cut. Whoever reads a later
#: part of a tar walks over the headers before it, so those are cut only where they are very large.
JSONL_PART_NBYTES, TAR_PART_NBYTES = 1 << 26, 1 << 30
# Tasks that a source is cut into at least, so that the last ones end at about the same time; but
# none is given less than so many bytes, for each writes files of its own.
_NUM_SHARES, _LEAST_NBYTES = 256, 1 << 22
# A part that holds any file: what is in the files does not depend on how they are cut.
_WHOLE = 1 << 62
_JSONL = re.compile(r"\.(jsonl|ndjson|json)(\.\w+)?$")
_SIDECAR = re.compile(r"\.meta\.jsonl$")
_TAR = re.compile(r"\.(tar|tgz|tbz2|txz|tzst)(\.\w+)?$")
_READ_NBYTES = 1 << 22
# Every digit becomes a 0, and all else a blank: so many in a row are found fast.
_MARK_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_NUMBER = b"0" * 19
_MAX_NESTED = 500
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
    """Return the files of an import, and what they are, however they are cut, as JSON values.

    Parameters
    ----------
    source, kind, meta_names, include_dirs, part_nbytes, on_damage
        As of `zindex.building.records.import_records.import_records`.
    least_nbytes
        See `share_nbytes`.

    Raises
    ------
    ConfigError
        If a setting does not fit the kind of files, or there is no such kind.
    """
    if not isinstance(source, str | os.PathLike | Sequence):
        own = source.identity() if isinstance(source, WrappedFiles) else {}
        return source, _identify(source, None, ()) | own
    if kind is None:
        kind = find_kind(source, include_dirs)
    if kind == "tar":
        size = TAR_PART_NBYTES if part_nbytes is None else part_nbytes

        def open_tar(nbytes: int) -> SampleFiles:
            return TarFiles(
                source,
                meta_names=tuple(meta_names),
                include_dirs=include_dirs,
                part_nbytes=nbytes,
                on_damage=on_damage,
            )

        return open_tar(size), _identify(open_tar(_WHOLE), kind, meta_names)
    if kind not in get_args(FilesKind):
        raise ConfigError(f"kind must be 'jsonl' or 'tar', got {kind!r}")
    if meta_names or include_dirs:
        raise ConfigError(
            "meta_names (--meta) and include_dirs (--include-dirs) must come with tar files, got "
            "them for jsonl files; leave them out"
        )
    whole = JsonlFiles(source, part_nbytes=_WHOLE, on_damage=on_damage)
    nbytes = sum(whole.part_nbytes(part) or 0 for part in range(whole.num_parts))
    shared = share_nbytes(nbytes, JSONL_PART_NBYTES, least_nbytes)
    size = shared if part_nbytes is None else part_nbytes
    opened = JsonlFiles(source, part_nbytes=size, on_damage=on_damage)
    return opened, _identify(whole, kind, ())


def share_nbytes(nbytes: int, most: int, least: int | None = None) -> int:
    """Return the bytes that a task reads of so many: it depends on nothing else.

    An import that died may go on with another number of processes. Tasks that take long for each
    byte may be given fewer at the least.
    """
    share = 1 << max(0, -(-nbytes // _NUM_SHARES) - 1).bit_length()
    return min(most, max(_LEAST_NBYTES if least is None else least, share))


def _identify(
    source: SampleFiles, kind: FilesKind | None, meta_names: Sequence[str]
) -> dict[str, Any]:
    """Return what files are: enough to open them again, but where they lie."""
    return {"source": source.fingerprint(), "kind": kind, "meta_names": list(meta_names)}


def find_kind(source: Paths, include_dirs: str | None = None) -> FilesKind:
    """Return the kind of files that are named: by their endings, or by what a folder holds.

    Raises
    ------
    ConfigError
        If neither tells it, or they tell both.
    """
    if include_dirs:
        return "tar"
    firsts: dict[FilesKind, str] = {}
    for name in named_paths(source):
        for kind, path in _kinds_of(name):
            firsts.setdefault(kind, path)
    if len(firsts) == 2:
        raise ConfigError(
            f"the files of an import must be of one kind, got tar ({firsts['tar']}) and jsonl "
            f"({firsts['jsonl']}); import each kind by itself, or name the one that a folder is "
            "read for with kind (--kind)"
        )
    for kind in firsts:
        return kind
    raise ConfigError(
        f"a source must name tar or jsonl files, or a folder of them, got {source!r}; name files "
        "that are there, and say their kind if their names do not"
    )


def _kinds_of(name: str) -> Iterator[tuple[FilesKind, str]]:
    """Yield each kind of files that a name stands for, with one of them."""
    if _JSONL.search(name):
        yield "jsonl", mask(name)
    elif _TAR.search(name):
        yield "tar", mask(name)
    else:
        tars = _files_below(name, "tar")
        if tars:
            yield "tar", tars[0]
        lines = _files_below(name, ".jsonl")
        # Beside tars they are their metadata.
        lines = [url for url in lines if not (tars and _SIDECAR.search(url))]
        if lines:
            yield "jsonl", lines[0]


def _files_below(name: str, ending: str) -> list[str]:
    """Return the files of a folder that end so; none of what is no folder, or not there."""
    try:
        urls = [file.url for file in list_files([name], [ending])]
    except (SourceError, StoreNotFoundError):
        return []
    return [] if urls == [name] else urls


def own_copy(source: SampleFiles) -> SampleFiles:
    """Return the same files with counts of their own of damage, and of what else they keep.

    The threads of a worker share what they are given.
    """
    if isinstance(source, WrappedFiles):
        return source.over(own_copy(source.files))
    own = copy.copy(source)
    for name, value in vars(source).items():
        if isinstance(value, DamageLog):
            setattr(own, name, copy.copy(value))
        elif isinstance(value, dict):
            setattr(own, name, {key: copy.copy(kept) for key, kept in value.items()})
    return own


@dataclass(frozen=True, slots=True)
class LineRange:
    """Bytes of a file whose line breaks a task counts."""

    path: Path
    start: int
    stop: int


class ExactJsonlFiles(JsonlFiles):
    """Jsonl files as an import reads them: by one parser, and with their lines counted before.

    What is stored must not depend on which parser is installed, and whole numbers keep all their
    digits. By themselves jsonl files count the lines before a part in every process that reads one,
    which for many parts takes longer than all the rest.

    Parameters
    ----------
    source
        The files.
    counts
        Of each file that is cut, the line breaks before each part: of part k those before byte
        ``k * part_nbytes - 1``.
    """

    def __init__(self, source: JsonlFiles, counts: Mapping[int, Sequence[int]]) -> None:
        vars(self).update(vars(source))
        self.counts = counts

    def _count_breaks(self, number: int, inner: int) -> int:
        return self.counts[number][inner] if inner else 0

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the objects of a part; see `JsonlFiles.read_part`."""
        url = self.part_url(part)
        try:
            start, stop, line = self._find_lines(part)
            with closing(self._chunks(part, start)) as chunks:
                for first, lines in cut_lines(chunks, start, stop):
                    at = first
                    for number, text in enumerate(lines, line):
                        plain = text
                        if at == 0 and text.startswith(_BYTE_ORDER_MARK):
                            plain = text[len(_BYTE_ORDER_MARK) :]
                        try:
                            record = _parse_exactly(plain)
                        except SourceError as error:
                            damage = Damage(f"(line {number + 1:,}) {error}", at)
                            self.damage.report(url, damage, "such lines")
                        else:
                            record["__url__"] = url
                            record["__key__"] = str(number)
                            yield record
                        at += len(text) + 1
                    line += len(lines)
        except Damage as damage:
            self.damage.report(url, damage, "the rest of this part")


def _parse_exactly(line: bytes) -> dict[str, Any]:
    """Return the object of a line, in which a null is an empty text, as for the streams.

    What a fast parser accepts, the standard library reads alike, but for whole numbers of more than
    64 bits, and for what is nested so deeply that one of them gives up.
    """
    record = None
    if loads is not decode_with_json and _LONG_NUMBER not in line.translate(_MARK_DIGITS):
        with suppress(ValueError, RecursionError):
            record = loads(line)
    if record is None or (_may_be_deep(line) and _is_deep(record)):
        record = parse_slowly(line)
    if not isinstance(record, dict):
        raise SourceError(f"there must be a JSON object, it is of type {type(record).__name__}")
    if None in record.values():
        return {name: "" if value is None else value for name, value in record.items()}
    return record


def _may_be_deep(line: bytes) -> bool:
    """Return whether a line has enough brackets for that, be they in texts or not."""
    return line.count(b"[") + line.count(b"{") > _MAX_NESTED


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested so deeply that parsers may not agree on it."""
    level, depth = [value], 0
    while level and depth <= _MAX_NESTED:
        inner = (item.values() if type(item) is dict else item for item in level)
        level = [item for items in inner for item in items if type(item) in (dict, list)]
        depth += 1
    return depth > _MAX_NESTED


def line_ranges(source: JsonlFiles) -> dict[int, list[LineRange]]:
    """Return of each file of several parts the ranges before, between and behind their starts."""
    ranges = {}
    for number in range(len(source.urls)):
        parts = source.url_parts(number)
        if len(parts) > 1:
            path = source._grid.files[number].place
            assert isinstance(path, Path)  # others are not cut
            nbytes = source._grid.part_nbytes
            edges = [0, *(inner * nbytes - 1 for inner in range(1, len(parts)))]
            ranges[number] = [LineRange(path, start, stop) for start, stop in pairwise(edges)]
    return ranges


def count_lines(ranges: Sequence[LineRange]) -> list[int]:
    """Task: the line breaks in each of some ranges."""
    return [sum(_count_breaks(item)) for item in ranges]


def _count_breaks(item: LineRange) -> Iterator[int]:
    """Yield the line breaks of one range, piece by piece."""
    for start in range(item.start, item.stop, _READ_NBYTES):
        stop = min(start + _READ_NBYTES, item.stop)
        yield bytes(files.read_range(item.path, start, stop)).count(b"\n")


def join_counts(counts: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return the line breaks before each part of files from those of their ranges."""
    joined = {}
    for number, found in counts.items():
        before = [0]
        for count in found:
            before.append(before[-1] + count)
        joined[number] = before
    return joined
