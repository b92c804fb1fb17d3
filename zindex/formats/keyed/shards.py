"""Shards of keyed files: detect their format, read them, and check their consistency."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.formats.keyed.bin_folder import META, read_bin_shards
from zindex.formats.keyed.h5_file import SUFFIXES, read_h5_shards
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard
from zindex.formats.keyed.natural_order import list_below
from zindex.io.local import local_path

#: Key of the description of a growing store; see `zindex.growing`.
GROWING_KEY = "_zindex/growing.json"

FileFormat = Literal["bin", "h5"]
KeyedFormat = Literal["bin", "h5", "jsonl"]

logger = logging.getLogger(__name__)

_ENDING = {**dict.fromkeys(SUFFIXES, "h5"), ".jsonl": "jsonl"}
_NUMBERED = re.compile("(.*_)([0-9]{1,18})")
_MISMATCH = (
    "keys do not match in %s of %s shards: %s; they are cut to the shortest, and values after that "
    "place may belong to other records"
)
_MISSING = "records are missing in %s of %s shards: %s"


def detect_format(path: object) -> str:
    """Detect the format at a path: ``"h5"``, ``"bin"``, ``"zarr"``, ``"growing"`` or ``"jsonl"``.

    A folder is ``"growing"`` if it has the description of a growing store; ``"zarr"`` if it has a
    ``zarr.json`` itself, or is an unfinished store; ``"h5"`` if it contains any ``.h5`` or
    ``.hdf5`` file; ``"bin"`` if it contains ``.bin`` files and a ``meta.json``; and ``"jsonl"`` if
    it contains none of these but a ``.jsonl`` file. An object store is ``"zarr"``, because it is
    not looked at, and other formats of files are read from file systems only.

    Parameters
    ----------
    path
        A file, a folder, or the location of a store in an object store.

    Raises
    ------
    StoreNotFoundError
        If the path does not exist, or contains no such file.
    ConfigError
        If a file has another suffix, or a folder has two formats.
    """
    # A location in an object store is a URL, or an object of a higher layer.
    place = os.fspath(path) if isinstance(path, str | os.PathLike) else "://"
    if "://" in place and not place.startswith("file://"):
        return "zarr"
    place = str(local_path(place))
    if os.path.exists(os.path.join(place, GROWING_KEY)):
        return "growing"
    if os.path.isfile(place):
        name = _ENDING.get(os.path.splitext(place)[1])
        if name is None:
            raise ConfigError(
                f"Unsupported file format: a file must end in {', '.join(_ENDING)}, got {place!r}; "
                "give such a file, or the folder of a store"
            )
        return name
    found = _formats_below(place) if os.path.isdir(place) else []
    if not found:
        raise StoreNotFoundError(
            f"No supported data files found: {place!r} must be a folder with zarr.json, "
            f"{' or '.join(SUFFIXES)} files, or .bin files and {META}; check the path"
        )
    if len(found) > 1:
        raise ConfigError(
            f"a folder must have files of one format, {place!r} has {' and '.join(found)}; give "
            f"storage_type={found[0]!r} (--kind {found[0]}) or another of them"
        )
    return found[0]


def _formats_below(folder: str) -> list[str]:
    """Return the formats of the files in a folder, by priority; JSON lines only alone."""
    names = list_below(folder)
    endings = {os.path.splitext(name)[1] for name in names}
    found = ["zarr"] if "zarr.json" in names else []
    if endings & set(SUFFIXES):
        found.append("h5")
    if ".bin" in endings and any(os.path.basename(name) == META for name in names):
        found.append("bin")
    if not found and any(name.startswith("_zindex/") for name in names):
        return ["zarr"]  # unfinished: opening it raises an error that says so
    return found or (["jsonl"] if ".jsonl" in endings else [])


def read_shards(path: str | os.PathLike[str], kind: FileFormat, strict: bool) -> list[KeyedShard]:
    """Read the shards below a path and check them; errors as of the reader and `check_shards`."""
    return check_shards(read_h5_shards(path) if kind == "h5" else read_bin_shards(path), strict)


def check_shards(shards: Sequence[KeyedShard], strict: bool = True) -> list[KeyedShard]:
    """Check that shards are consistent, and return them with one dtype per key.

    A key without values takes its dtype from other shards. If the records of a shard's keys do not
    match, the shard is returned without records: only its values can be read.

    Parameters
    ----------
    shards
        From `read_bin_shards` or `read_h5_shards`.
    strict
        Whether all shards must have the same keys, and the keys of a shard the same number of
        values or of records, numbered without a gap if they are numbered from 0. If not, problems
        are only logged: each key has the values of the shards that have it, so values after a gap
        no longer match those of other keys.

    Raises
    ------
    SourceError
        If they are inconsistent; the message gives the shard, the key and the numbers.
    """
    if not shards:
        return []
    faults = [fault for fault in (_find_fault(shard, shards[0]) for shard in shards) if fault]
    gaps = [gap for gap in map(_find_gap, shards) if gap]
    for found, warning, advice in (
        (faults, _MISMATCH, "give strict=False (--loose) to cut all keys to the shortest instead"),
        (gaps, _MISSING, "give strict=False (--loose) to take what is there"),
    ):
        if found and strict:
            raise SourceError(f"{found[0]}; restore the shard, or {advice}")
        if found:
            logger.warning(warning, f"{len(found):,}", f"{len(shards):,}", found[0])
    dtypes = _find_dtypes(shards)
    return [_fit(shard, dtypes, has_faults=bool(faults)) for shard in shards]


def _find_fault(shard: KeyedShard, first: KeyedShard) -> str:
    """Return the problem of the keys of a shard, or an empty text."""
    if shard.arrays.keys() != first.arrays.keys():
        missing = sorted(first.arrays.keys() - shard.arrays.keys())
        surplus = sorted(shard.arrays.keys() - first.arrays.keys())
        parts = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, surplus))}"] if surplus else []
        return (
            f"all shards must have the same keys, but shard {shard.name!r} "
            f"{' and '.join(parts)} unlike shard {first.name!r}"
        )
    arrays = list(shard.arrays.values())
    counts = {array.num_records for array in arrays}
    if len(counts) == 1 and None not in counts:
        return _find_other_record(shard.name, arrays)
    if len({array.length for array in arrays}) == 1:
        return ""
    return (
        "all keys of a shard must have the same number of values, or of records, but shard "
        f"{shard.name!r} has {_count(arrays)}"
    )


def _count(arrays: Sequence[KeyedArray]) -> str:
    """Return values and records of the keys for a message."""
    return ", ".join(
        f"{array.key!r} with {array.length:,} values"
        + ("" if array.num_records is None else f" in {array.num_records:,} records")
        for array in arrays
    )


def _find_other_record(shard: str, arrays: Sequence[KeyedArray]) -> str:
    """Return the first record whose name differs between two keys, or an empty text."""
    named = [(array.key, _record_names(array)) for array in arrays if array.names is not None]
    for (first_key, first_names), (key, names) in pairwise(named):
        for i, (one, other) in enumerate(zip(first_names, names, strict=True)):
            if one and other and one != other:
                return (
                    f"all keys of a shard must have the same records, but record {i:,} of shard "
                    f"{shard!r} is {one!r} in {first_key!r} and {other!r} in {key!r}"
                )
    return ""


def _find_gap(shard: KeyedShard) -> str:
    """Return the first gap in the numbers of a key's records, or an empty text."""
    for array in shard.arrays.values():
        names = [] if array.names is None else _record_names(array)
        first, last = (_NUMBERED.fullmatch(names[i]) if names else None for i in (0, -1))
        # In natural order, so the first and the last number usually suffice.
        if first is None or last is None or int(first[2]) or int(last[2]) < len(names):
            continue
        found = [_NUMBERED.fullmatch(name) for name in names]
        if any(match is None or match[1] != first[1] for match in found):
            continue
        numbers = [int(match[2]) for match in found if match]
        if len(set(numbers)) < len(numbers):
            continue
        missing = next(i for i, number in enumerate(numbers) if i != number)
        return (
            f"the records of a key must be numbered without a gap, but {array.key!r} of shard "
            f"{shard.name!r} has {names[missing - 1]!r} and {names[missing]!r} next to each other"
        )
    return ""


def _record_names(array: KeyedArray) -> list[str]:
    """Return the names of the records of a key; groups without items have an empty name."""
    names = array.names or ()
    if array.group_offset is None:
        return [name.split("/")[1] for name in names]
    return [
        names[start].split("/")[1] if start < stop else ""
        for start, stop in pairwise(array.group_offset.tolist())
    ]


def _find_dtypes(shards: Sequence[KeyedShard]) -> dict[str, str]:
    """Return the dtype of each key; SourceError if it has two."""
    found: dict[str, tuple[str, str]] = {}
    for shard in shards:
        for key, array in shard.arrays.items():
            if array.length == 0:
                continue
            dtype, elsewhere = found.setdefault(key, (array.dtype, shard.name))
            if array.dtype != dtype:
                raise SourceError(
                    f"a key must have one dtype in all shards, but {key!r} has {array.dtype} in "
                    f"shard {shard.name!r} and {dtype} in shard {elsewhere!r}; convert one of them"
                )
    return {key: dtype for key, (dtype, _) in found.items()}


def _fit(shard: KeyedShard, dtypes: Mapping[str, str], *, has_faults: bool) -> KeyedShard:
    """Return a shard with these dtypes, and without records if they do not match."""
    counts = {array.num_records for array in shard.arrays.values()}
    is_matched = not has_faults and len(counts) == 1
    if not is_matched and not has_faults and counts != {None}:
        logger.warning(
            "the keys of shard %r have different record bounds (%s), so only its values can be "
            "read, not its records",
            shard.name,
            _count(list(shard.arrays.values())),
        )
    cuts: dict[str, Any] = {} if is_matched else {"item_offset": None, "group_offset": None}
    arrays = {
        key: replace(array, dtype=dtypes.get(key, array.dtype), **cuts)
        for key, array in shard.arrays.items()
    }
    return KeyedShard(shard.name, arrays)
