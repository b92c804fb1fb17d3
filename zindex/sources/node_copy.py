"""Copies of objects in this node's file system, for files that are mapped, such as an ``.idx``.

All processes of a node share a copy. Whoever comes first fetches it while the others wait for a
lock of the file system, which ends with its holder; no process waits for another node.
"""

import contextlib
import fcntl
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from zindex.errors import SourceError, StoreNotFoundError
from zindex.sources.chunks import REMOTE_NBYTES, read_ahead
from zindex.store.object_client import Head
from zindex.store.remote_files import UNKNOWN, RemoteFile, open_remote

_NUM_TRIES = 3
#: Behind the name of a copy: the file that is locked, and says which version the copy is of.
VERSION_SUFFIX = ".version"


def keep_copy(url: str, path: str | os.PathLike[str]) -> None:
    """Make a file hold what an object holds, fetched only if it is not there or has changed.

    Parameters
    ----------
    url
        The object, of any scheme of `open_remote`.
    path
        The file; its directory is created when missing. It appears whole or not at all, and what
        has mapped an older copy keeps that.

    Raises
    ------
    StoreNotFoundError
        If there is no such object.
    SourceError
        If the object is written while it is fetched, again and again.
    StoreUnavailableError
        If the store does not answer.
    OSError
        If the file cannot be written.

    Notes
    -----
    One request finds out whether a copy is current, by the size and version that the store tells.
    An object of which it tells neither is fetched by every call.
    """
    copy, file = Path(path), open_remote(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _lock(copy.with_name(copy.name + VERSION_SUFFIX)) as (record, is_locked):
        for _ in range(_NUM_TRIES):
            found = _look_up(file)
            if _is_current(record, url, found, copy):
                return
            _write(record, "")  # a copy never stands under the version of another
            _replace(file, found, copy, is_alone=is_locked)
            _write(record, _describe(url, found))
            if found is UNKNOWN or _is_current(record, url, _look_up(file), copy):
                return
    raise SourceError(
        f"{url} must stay as it is while it is copied to {copy}, it was written meanwhile; "
        "wait until its writer is done"
    )


def _look_up(file: RemoteFile) -> Head:
    """Return what the store says of an object."""
    found = file.look_up()
    if found is None:
        raise StoreNotFoundError(f"no object {file.url}; check the URL")
    return found


def _is_current(record: TextIO, url: str, found: Head, copy: Path) -> bool:
    """Return whether a copy is there, whole, and of the version that the store has."""
    record.seek(0)
    if found is UNKNOWN or record.read() != _describe(url, found):
        return False
    return copy.exists() and copy.stat().st_size == found.nbytes


def _describe(url: str, found: Head) -> str:
    """Return what is kept of the version of a copy."""
    return f"{url}\n{found.nbytes}\n{found.version}\n"


def _replace(file: RemoteFile, found: Head, copy: Path, *, is_alone: bool) -> None:
    """Fetch an object, and put it in the place of a copy."""
    if is_alone:
        for left in copy.parent.glob(f"{glob.escape(copy.name)}.*.partial"):
            left.unlink(missing_ok=True)  # of one that was killed
    partial = copy.with_name(f"{copy.name}.{uuid4().hex[:12]}.partial")
    try:
        if not file.download(str(partial)):
            _fetch(file, found.nbytes, partial)
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, copy)
    finally:
        partial.unlink(missing_ok=True)


def _fetch(file: RemoteFile, nbytes: int, partial: Path) -> None:
    """Write an object to a new file, some requests ahead."""

    def read(start: int) -> bytes:
        return bytes(file.read_ranges([start], [min(start + REMOTE_NBYTES, nbytes)])[0])

    with open(partial, "xb") as stream:
        for chunk in read_ahead(read, range(0, nbytes, REMOTE_NBYTES)):
            stream.write(chunk)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[tuple[TextIO, bool]]:
    """Open a file that one process of the node has at a time; tell whether it is really so."""
    with open(path, "a+", encoding="utf-8") as record:
        is_locked = False
        with contextlib.suppress(OSError):  # some file systems have no locks: all of them fetch it
            fcntl.flock(record, fcntl.LOCK_EX)
            is_locked = True
        yield record, is_locked


def _write(record: TextIO, text: str) -> None:
    """Replace what is kept of a version."""
    record.truncate(0)
    record.write(text)
    record.flush()
