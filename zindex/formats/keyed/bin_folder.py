"""Read and write folders of raw arrays: ``<key>.bin`` for every key, described by ``meta.json``.

``meta.json`` is an object ``{"<key>": {"shape": [n], "dtype": "int64"}}``. A key may also have
``"offsets"``, the offsets of its records among the values. If a record is a group of items, these
are the offsets of the items, and ``"group_offsets"`` those of the records among the items. Values
are little-endian.
"""

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed.keyed_array import (
    KeyedArray,
    KeyedShard,
    check_key,
    parse_dtype,
    parse_offsets,
)
from zindex.formats.keyed.natural_order import list_below
from zindex.io.local import make_folder, replacing, sync_directory
from zindex.io.system_errors import unreadable

#: The file that describes a shard.
META = "meta.json"
_MAX_VALUES = 2**62


def read_bin_shards(path: str | os.PathLike[str]) -> list[KeyedShard]:
    """Read all folders with a ``meta.json`` below a path, in natural order of paths.

    A key without offsets uses those of the keys of its folder with the same number of values, if
    these agree: a mask has the records of its sequence. If they disagree, ``<key>_mask`` uses those
    of ``<key>``.

    Parameters
    ----------
    path
        A folder, which may itself be a shard with the name ``.``.

    Raises
    ------
    StoreNotFoundError
        If there is no such folder, or it contains no folder with a ``meta.json``.
    SourceError
        If a ``meta.json`` is not valid, or a file has a different size than it says.
    StoreUnreadableError
        If the system denies access to a folder or a ``meta.json``.
    """
    root = os.path.abspath(path)
    if not os.path.isdir(root):
        raise StoreNotFoundError(
            f"the folder {root} must be there, to have a {META} in it or below it; check the path"
        )
    metas = [name for name in list_below(root) if os.path.basename(name) == META]
    if not metas:
        raise StoreNotFoundError(
            f"a folder of .bin files must have a {META}, there is none in {root} or below it; "
            "check the path"
        )
    return [_read_shard(root, os.path.dirname(name) or ".") for name in metas]


def _read_shard(root: str, name: str) -> KeyedShard:
    """Read one folder."""
    folder = root if name == "." else os.path.join(root, name)
    meta = _read_meta(os.path.join(folder, META))
    arrays = {key: _read_array(folder, key, entry) for key, entry in meta.items()}
    shared = {key: _with_offsets(array, arrays.values()) for key, array in arrays.items()}
    return KeyedShard(name, shared)


def _read_meta(path: str) -> dict[str, Any]:
    """Return the object in a ``meta.json``."""
    _regular_file(path)
    try:
        with open(path, "rb") as file:
            meta = json.loads(file.read(), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SourceError(
            f"{path} must be a JSON object of keys, but {reason[:200]}; write the file again"
        ) from error
    if not isinstance(meta, dict) or not meta:
        raise SourceError(
            f"{path} must be a JSON object with one or more keys, it is {str(meta)[:40]!r}; "
            "write the file again"
        )
    return meta


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; ValueError for repeated names, which are ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is in it twice")
    return found


def _read_array(folder: str, key: str, entry: Any) -> KeyedArray:
    """Read one key of a folder, checked against its file."""
    meta = os.path.join(folder, META)
    check_key(key, where=meta)
    where = f"{meta}, key {key!r},"
    match entry:
        case {"shape": [int(length)]} if type(length) is int and 0 <= length < _MAX_VALUES:
            pass
        case _:
            shown = entry.get("shape") if isinstance(entry, dict) else entry
            raise SourceError(
                f'{where} must have a "shape" of one number of values, from 0, got '
                f"{str(shown)[:40]!r}; store flat arrays"
            )
    dtype = parse_dtype(entry.get("dtype"), where=where.rstrip(","))
    path = os.path.join(folder, f"{key}.bin")
    nbytes, status = length * np.dtype(dtype).itemsize, _regular_file(path)
    if status.st_size != nbytes:
        raise SourceError(
            f"{path} must hold {nbytes:,} bytes, for {META} says {length:,} values of {dtype}, "
            f"but it holds {status.st_size:,}; restore the file"
        )
    item_offset = group_offset = None
    if entry.get("offsets") is not None:
        item_offset = parse_offsets(entry["offsets"], stop=length, where=where.rstrip(","))
    if entry.get("group_offsets") is not None:
        if item_offset is None:
            raise SourceError(
                f'{where} must have "offsets" where it has "group_offsets", there are none; '
                "write the file again"
            )
        group_offset = parse_offsets(
            entry["group_offsets"], stop=len(item_offset) - 1, where=f"{where} group_offsets,"
        )
    whole_file = np.zeros(1, np.int64), np.array([0, length], np.int64)
    offsets = item_offset, group_offset
    return KeyedArray(key, path, dtype, *whole_file, *offsets, modified=status.st_mtime_ns)


def _regular_file(path: str) -> os.stat_result:
    """Return the status of a file; SourceError if it is missing or not a regular file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(
            f"{path} must be there as its folder has a {META}, but the system says: "
            f"{error.strerror}; restore the file"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path} must be a regular file, it is something else; restore the file")
    return status


def _with_offsets(array: KeyedArray, others: Collection[KeyedArray]) -> KeyedArray:
    """Return a key with its own offsets, or those on which all keys of its length agree."""
    if array.item_offset is not None:
        return array
    donors = [
        other for other in others if other.item_offset is not None and other.length == array.length
    ]
    if not _agree(donors):
        donors = [other for other in donors if array.key == f"{other.key}_mask"]
    if donors:
        first = donors[0]
        return replace(array, item_offset=first.item_offset, group_offset=first.group_offset)
    # A key with one value per item of a group, such as rewards, is split at the groups.
    groups = [
        replace(other, item_offset=other.group_offset, group_offset=None)
        for other in others
        if other.group_offset is not None and int(other.group_offset[-1]) == array.length
    ]
    return replace(array, item_offset=groups[0].item_offset) if groups and _agree(groups) else array


def _agree(arrays: Iterable[KeyedArray]) -> bool:
    """Return whether some keys have the same items and records."""
    offsets = ((array.item_offset, array.group_offset) for array in arrays)
    cuts = {tuple(None if cut is None else cut.tobytes() for cut in pair) for pair in offsets}
    return len(cuts) <= 1


def write_bin_folder(
    folder: str | os.PathLike[str],
    values: Mapping[str, Iterable[AnyArray]],
    *,
    dtypes: Mapping[str, str],
    item_offset: Mapping[str, Int64Array] | None = None,
    group_offset: Mapping[str, Int64Array] | None = None,
) -> None:
    """Write a folder of raw arrays, ``meta.json`` last.

    An existing shard is replaced; it is unreadable while its files are exchanged.

    Parameters
    ----------
    folder
        The folder, created if missing.
    values
        For each key flat arrays, which are concatenated and may be lazy.
    dtypes
        Numpy dtype name of each key; the arrays must have it, in any byte order.
    item_offset, group_offset
        See `KeyedArray`; missing for keys whose offsets are not written.

    Raises
    ------
    SourceError
        If a key, a dtype or offsets are not valid.
    """
    target = os.fspath(folder)
    make_folder(Path(target))
    meta: dict[str, dict[str, Any]] = {}
    meta_path = os.path.join(target, META)
    with ExitStack() as stack:
        # Renamed in the opposite order, meta.json last.
        meta_partial = stack.enter_context(replacing(meta_path))
        for key, blocks in values.items():
            check_key(key, where=target)
            path = os.path.join(target, f"{key}.bin")
            partial = stack.enter_context(replacing(path))
            meta[key] = _write_values(partial, blocks, parse_dtype(dtypes[key], where=path))
            offsets = (cuts.get(key) for cuts in (item_offset or {}, group_offset or {}))
            meta[key] |= _write_offsets(meta[key]["shape"][0], *offsets, where=path)
        with open(meta_partial, "w", encoding="utf-8") as file:
            json.dump(meta, file)
        if os.path.lexists(meta_path):
            os.unlink(meta_path)
            sync_directory(Path(target))  # new values must never be combined with old offsets


def _write_values(path: str, blocks: Iterable[AnyArray], dtype: str) -> dict[str, Any]:
    """Write the values of a key and return their entry of ``meta.json``."""
    length = 0
    stored = np.dtype(dtype).newbyteorder("<")
    with open(path, "wb") as file:
        for block in blocks:
            if block.ndim != 1 or block.dtype.name != dtype:
                raise SourceError(
                    f"values must be flat arrays of {dtype}, got shape {block.shape} of "
                    f"{block.dtype.name} for {path}; convert them"
                )
            file.write(np.ascontiguousarray(block, stored).view(np.uint8).data)
            length += len(block)
    return {"shape": [length], "dtype": dtype}


def _write_offsets(
    length: int, item_offset: Int64Array | None, group_offset: Int64Array | None, *, where: str
) -> dict[str, list[int]]:
    """Return the offsets of a key for ``meta.json``."""
    found: dict[str, list[int]] = {}
    if item_offset is not None:
        found["offsets"] = item_offset.tolist()
        parse_offsets(found["offsets"], stop=length, where=where)
        if group_offset is not None:
            found["group_offsets"] = group_offset.tolist()
            stop = len(item_offset) - 1
            parse_offsets(found["group_offsets"], stop=stop, where=f"{where}, group_offsets,")
    return found
