"""Intermediate files of an import, kept in the store until the commit.

::

    STORE/_zindex/import.json          identity of the import; equal for concurrent importers
    STORE/_zindex/scratch/<name>       values of many records, field after field
    STORE/_zindex/scratch/<name>.json  summary of a partition, written when it is read

A file of values is a sequence of streams. Each consists of blocks followed by their crc32c, so that
any range of a stream can be read and verified alone.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import UInt8Array
from zindex.errors import (
    FingerprintMismatchError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.io import files
from zindex.io.create_only import complete
from zindex.io.objects import Place
from zindex.store.check_place import check_place
from zindex.store.codecs import CRC_NBYTES, Buffer, checksum
from zindex.store.commit import canonical_json, read_sealed, seal

IMPORT_KEY = "_zindex/import.json"
SCRATCH_KEY = "_zindex/scratch"

#: Bytes of a stream per checksum.
BLOCK_NBYTES = 1 << 20
# Blocks per read, which bounds the extra memory.
_MAX_BLOCKS = 16


def begin_import(root: Place, identity: dict[str, Any]) -> None:
    """Record the identity of an import at a place, or check an existing record.

    Parameters
    ----------
    root
        Location of the store.
    identity
        Everything that determines the records.

    Raises
    ------
    FingerprintMismatchError
        If something else is being imported there, or the location holds other files.
    """
    check_place(root)
    files.make_folder(root.parent)
    path = root / IMPORT_KEY
    content = canonical_json(identity).encode()
    if not files.write_once(path, [content]) and files.read_file(path) != content:
        raise FingerprintMismatchError(
            f"{root} holds an unfinished import of another source, or with other settings; choose "
            "another place or remove it"
        )


def end_import(root: Place) -> None:
    """Remove the files of an import; a concurrent importer may have removed some."""
    folder = root / SCRATCH_KEY
    for key in sorted(files.list_keys(folder)):
        files.remove_file(folder / key)
    files.remove_file(root / IMPORT_KEY)
    if isinstance(folder, Path):
        with suppress(OSError):  # a slower importer may just have written a file
            os.rmdir(folder)


def write_note(root: Place, name: str, content: dict[str, Any]) -> None:
    """Write the summary of a partition, after its values; an existing one is kept."""
    files.write_once(root / SCRATCH_KEY / f"{name}.json", [seal(content, "sha256")])


def read_note(root: Place, name: str) -> dict[str, Any] | None:
    """Return the summary of a partition, or None if it is missing or damaged."""
    path = root / SCRATCH_KEY / f"{name}.json"
    try:
        return read_sealed(path, "sha256")
    except StoreNotFoundError:
        return None
    except OSError:  # it may be intact
        raise
    except (StoreError, VerificationError):
        # A file system without links shows a marker while its name is claimed.
        with suppress(StoreError, VerificationError):
            if isinstance(path, Path) and complete(path):
                return read_sealed(path, "sha256")
        files.remove_file(path)
        return None


def has_notes(root: Place) -> bool:
    """Return whether any partition of a source has been read."""
    return any(name.endswith(".json") for name in files.list_names(root / SCRATCH_KEY))


def stored_nbytes(nbytes: int) -> int:
    """Return the bytes of a stream with its checksums."""
    return nbytes + CRC_NBYTES * -(-nbytes // BLOCK_NBYTES)


def write_streams(root: Place, name: str, streams: Sequence[Buffer]) -> None:
    """Write a file of streams; an existing file has the same content and is kept."""
    buffers: list[Buffer] = []
    for stream in streams:
        if not len(stream):
            continue
        view = memoryview(stream).cast("B")
        for start in range(0, len(view), BLOCK_NBYTES):
            block = view[start : start + BLOCK_NBYTES]
            buffers += (block, checksum(block).to_bytes(CRC_NBYTES, "little"))
    files.write_once(root / SCRATCH_KEY / name, buffers)


def is_whole(root: Place, name: str, sizes: Sequence[int]) -> bool:
    """Return whether a file of streams of these sizes exists."""
    nbytes = sum(map(stored_nbytes, sizes))
    return files.file_nbytes(root / SCRATCH_KEY / name) == nbytes


def read_stream(
    root: Place, name: str, base: int, nbytes: int, start: int, out: UInt8Array
) -> None:
    """Fill an array with bytes of a stream.

    Parameters
    ----------
    root
        Location of the store.
    name, base, nbytes
        The file, the stream's first byte in it, and its bytes without checksums.
    start
        First byte to read.
    out
        Shape (bytes,), uint8.

    Raises
    ------
    StoreNotFoundError
        If the file is missing.
    VerificationError
        If a block fails its checksum.
    """
    path = root / SCRATCH_KEY / name
    stop, step = start + len(out), BLOCK_NBYTES + CRC_NBYTES
    last = -(-stop // BLOCK_NBYTES) if len(out) else 0
    for first in range(start // BLOCK_NBYTES, last, _MAX_BLOCKS):
        blocks = range(first, min(first + _MAX_BLOCKS, last))
        size = stored_nbytes(min(blocks.stop * BLOCK_NBYTES, nbytes) - first * BLOCK_NBYTES)
        where = base + first * step
        stored = memoryview(files.read_range(path, where, where + size))
        if len(stored) != size:
            raise _damaged(path)
        for block in blocks:
            part, begin = stored[(block - first) * step :][:step], block * BLOCK_NBYTES
            content, crc = part[:-CRC_NBYTES], part[-CRC_NBYTES:]
            if checksum(content) != int.from_bytes(crc, "little"):
                raise _damaged(path)
            low, high = max(begin, start), min(begin + len(content), stop)
            out[low - start : high - start] = np.asarray(content)[low - begin : high - begin]


def _damaged(path: Place) -> VerificationError:
    """Return the error for a damaged file."""
    return VerificationError(
        f"{path} must hold what was imported, its bytes fail their checksum; remove its "
        "folder, and import again"
    )
