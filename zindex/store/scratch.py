"""What an import has read of its source, kept beside the store until the store is committed.

::

    STORE/_zindex/import.json          what is being imported; a second importer must want the same
    STORE/_zindex/scratch/<name>       values of many records, field after field
    STORE/_zindex/scratch/<name>.json  that a part of the source is read, and what was found

A file of values is a number of streams, one after the other. Each is cut into blocks, and behind
each block is its crc32c, so that any range of a stream can be read and checked by itself.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import (
    FingerprintMismatchError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.store import files
from zindex.store.codecs import CRC_NBYTES, Buffer, checksum
from zindex.store.commit import PLAN_KEY
from zindex.store.identity import canonical_json, fingerprint, parse_json
from zindex.store.objects import Place

IMPORT_KEY = "_zindex/import.json"
SCRATCH_KEY = "_zindex/scratch"

#: Bytes of a stream that have one checksum.
BLOCK_NBYTES = 1 << 20
# Blocks that are read at a time: memory beside what is asked for.
_MAX_BLOCKS = 16


def begin_import(root: Place, identity: dict[str, Any]) -> None:
    """Say what is being imported to a place, unless that is said already.

    Parameters
    ----------
    root
        Place of the store.
    identity
        Everything that decides the records.

    Raises
    ------
    FingerprintMismatchError
        If something else is being imported there, or the place holds other files.
    """
    if isinstance(root, Path) and root.exists() and not root.is_dir():
        raise FingerprintMismatchError(
            f"{root} must be a directory, it is a file; choose another place"
        )
    path = root / IMPORT_KEY
    # Listed before looking: another importer writes this file before all others.
    names = files.list_names(root)
    if names - {path.parent.name} and not files.exists(root / PLAN_KEY):
        raise FingerprintMismatchError(
            f"{root} must be empty or a zindex store, it holds other files; choose another place"
        )
    content = canonical_json(identity).encode()
    if not files.write_once(path, [content]) and files.read_file(path) != content:
        raise FingerprintMismatchError(
            f"{root} holds an unfinished import of another source, or with other settings; choose "
            "another place or remove it"
        )


def end_import(root: Place) -> None:
    """Remove all that an import keeps; what another importer has removed is no error."""
    folder = root / SCRATCH_KEY
    for key in sorted(files.list_keys(folder)):
        files.remove_file(folder / key)
    files.remove_file(root / IMPORT_KEY)
    if isinstance(folder, Path):
        with suppress(OSError):  # a slower importer may just have written something
            os.rmdir(folder)


def write_note(root: Place, name: str, content: dict[str, Any]) -> None:
    """Write that a part of the source is read, after its values; the first to say so is right."""
    text = canonical_json(content | {"sha256": fingerprint(content)})
    files.write_once(root / SCRATCH_KEY / f"{name}.json", [text.encode()])


def read_note(root: Place, name: str) -> dict[str, Any] | None:
    """Return what `write_note` wrote, or None if it did not, or the file is damaged."""
    path = root / SCRATCH_KEY / f"{name}.json"
    try:
        content = parse_json(files.read_file(path), str(path))
    except StoreNotFoundError:
        return None
    except StoreError:
        content = {}
    digest = content.pop("sha256", None)
    if digest != fingerprint(content):
        files.remove_file(path)
        return None
    return content


def has_notes(root: Place) -> bool:
    """Return whether any part of a source is read."""
    return any(name.endswith(".json") for name in files.list_names(root / SCRATCH_KEY))


def stored_nbytes(nbytes: int) -> int:
    """Return the bytes that a stream takes with its checksums."""
    return nbytes + CRC_NBYTES * -(-nbytes // BLOCK_NBYTES)


def write_streams(root: Place, name: str, streams: Sequence[Buffer]) -> None:
    """Write a file of streams; one of this name that is there holds the same and stays."""
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
    """Return whether a file of streams of these sizes is there; a file of another size is not."""
    nbytes = sum(map(stored_nbytes, sizes))
    return files.file_nbytes(root / SCRATCH_KEY / name) == nbytes


def read_stream(
    root: Place, name: str, base: int, nbytes: int, start: int, out: npt.NDArray[np.uint8]
) -> None:
    """Fill an array with bytes of a stream.

    Parameters
    ----------
    root
        Place of the store.
    name, base, nbytes
        The file, and where in it the stream lies: its first byte, and its bytes without checksums.
    start
        First byte of the stream that is wanted.
    out
        Shape (bytes,), uint8.

    Raises
    ------
    StoreNotFoundError
        If the file is gone.
    VerificationError
        If a block fails its checksum.
    """
    path = root / SCRATCH_KEY / name
    stop = start + len(out)
    block = start // BLOCK_NBYTES
    while start < stop:
        last = min(block + _MAX_BLOCKS, -(-stop // BLOCK_NBYTES))
        first_byte, stop_byte = block * BLOCK_NBYTES, min(last * BLOCK_NBYTES, nbytes)
        size = stored_nbytes(stop_byte - first_byte)
        where = base + block * (BLOCK_NBYTES + CRC_NBYTES)
        stored = memoryview(files.read_range(path, where, where + size))
        if len(stored) != size:
            raise _damaged(path)
        while block < last:
            length = min(BLOCK_NBYTES, nbytes - first_byte)
            part, crc = stored[:length], stored[length : length + CRC_NBYTES]
            if checksum(part) != int.from_bytes(crc, "little"):
                raise _damaged(path)
            end = min(stop, first_byte + length)
            skipped = start - first_byte
            out[len(out) - (stop - start) :][: end - start] = np.frombuffer(
                part, np.uint8, end - start, skipped
            )
            stored = stored[length + CRC_NBYTES :]
            start, first_byte, block = end, first_byte + length, block + 1


def _damaged(path: Place) -> VerificationError:
    """Return the error for a file that is not what was written."""
    return VerificationError(
        f"{path} must hold what was imported, its bytes fail their checksum; remove it and what "
        "lies beside it, and import again"
    )
