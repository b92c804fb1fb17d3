"""Offsets of the samples of a file in a file next to it, for nodes that have not searched it.

It begins with a line of JSON. The columns of its tables follow, as differences in the fewest bytes.
"""

import json
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import StoreError
from zindex.io import object_client
from zindex.io.file_list import SourceFile
from zindex.io.files import read_file, write_once
from zindex.io.objects import Place
from zindex.sources.file_scan import MAX_WIDTH, FileScan, fits_file

logger = logging.getLogger(__name__)

#: Added to the name of the file of samples.
SUFFIX = ".offsets"
_FORMAT, _VERSION = "zindex offsets", 1
_TYPES = ("<i1", "<i2", "<i4", "<i8")
_MAX_HEAD_NBYTES, _MAX_NBYTES = 1 << 16, 1 << 32
#: Identity of the table of frames, after which that of samples is read.
FRAMES = "frames"
# By file: the content of a file of offsets of which another table is needed, and its time.
_held: dict[Place, tuple[bytes, float] | None] = {}


def offset_file(place: Place) -> Place:
    """Return the file that has the offsets of another one."""
    return place.parent / f"{place.name}{SUFFIX}"


def write_offsets(file: SourceFile, scans: Mapping[str, FileScan]) -> None:
    """Write what was found in a file next to it.

    Parameters
    ----------
    file
        A file of known size that can be read at any offset.
    scans
        What was found, by its identity; see `find_kept`.

    Raises
    ------
    ConfigError
        If the store is only read.
    StoreUnwritableError, StoreUnavailableError
        If it cannot be written.
    """
    tables, content = list[dict[str, Any]](), list[bytes]()
    for identity, scan in scans.items():
        columns = []
        for column in np.ascontiguousarray(scan.table.T):
            steps = np.diff(column)
            low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
            kind = next(one for one in _TYPES if min(low, ~high) >= np.iinfo(one).min)
            columns.append([int(column[0]), kind])
            content.append(steps.astype(kind).tobytes())
        rows = len(scan.table)
        tables.append({"of": identity, "rows": rows, "columns": columns, "digest": scan.digest})
    payload = b"".join(content)
    head = {"format": _FORMAT, "version": _VERSION, "nbytes": file.size, "file": file.version}
    head |= {"tables": tables, "checksum": zlib.crc32(payload)}
    write_once(offset_file(file.place), [f"{json.dumps(head)}\n".encode(), payload], replace=True)


def read_offsets(file: SourceFile, identity: str) -> FileScan | None:
    """Return what was found in a file by its writer; None without it, or if the file has changed.

    Parameters
    ----------
    file, identity
        As of `write_offsets`.
    """
    offsets = offset_file(file.place)
    try:
        content, modified = _held.pop(file.place, None) or _fetch(offsets)
    except (OSError, StoreError):  # some stores deny what does not exist
        return None
    if identity == FRAMES:
        _held[file.place] = content, modified
    try:
        head = json.loads(content[: content.index(b"\n", 0, _MAX_HEAD_NBYTES)])
        if (head["format"], head["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it is of version {head['version']}")
        payload = content[content.index(b"\n") + 1 :]
        is_of_version = file.version and head["file"] == file.version
        if head["nbytes"] != file.size or not (is_of_version or modified >= file.modified):
            raise ValueError("the file was written after it")
        if zlib.crc32(payload) != head["checksum"]:
            raise ValueError("its checksum is wrong")
        found = _read_table(head["tables"], payload, identity)
    except (ValueError, KeyError, TypeError, LookupError) as error:
        logger.warning("%s is not used, %s; write the offsets again", offsets, error)
        return None
    return found if found is None or fits_file(found.table, file) else None


def _fetch(place: Place) -> tuple[bytes, float]:
    """Return the content of a file, and its time of modification."""
    if isinstance(place, Path):
        return read_file(place, limit=_MAX_NBYTES), place.stat().st_mtime
    content, found = object_client.get_whole(place, limit=_MAX_NBYTES)
    return content, found.modified


def _read_table(tables: Any, payload: bytes, identity: str) -> FileScan | None:
    """Return a table from the content of a file of offsets."""
    at = 0
    for one in tables:
        rows, columns = int(one["rows"]), list[Int64Array]()
        if rows < 1 or not 1 <= len(one["columns"]) <= MAX_WIDTH:
            raise ValueError("it is damaged")
        for first, kind in one["columns"]:
            if kind not in _TYPES:
                raise ValueError("it is damaged")
            steps = np.frombuffer(payload, kind, rows - 1, at)
            at += steps.nbytes
            if one["of"] == identity:
                columns.append(np.cumsum(np.concatenate([[first], steps.astype(np.int64)])))
        if columns:
            return FileScan(np.stack(columns, axis=1), int(one["digest"]))
    return None
