"""Node-local copies of objects that are memory-mapped, such as an ``.idx``.

All processes of a node share a copy. The first one fetches it while the others wait for a file
lock, which the system releases when its holder exits; no process waits for another node.
"""

import contextlib
import fcntl
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from zindex.errors import SourceError, StoreNotFoundError
from zindex.io.file_chunks import read_ahead
from zindex.io.local import replacing
from zindex.io.object_client import Head
from zindex.io.remote_files import UNKNOWN, RemoteFile, open_remote

_NUM_TRIES = 3
#: Suffix of the lock file, which also holds the version of the copy.
VERSION_SUFFIX = ".version"


def keep_copy(url: str, path: str | os.PathLike[str]) -> None:
    """Fetch an object into a file, unless the file is already the current version.

    Parameters
    ----------
    url
        The object, of any scheme of `open_remote`.
    path
        The file; its directory is created when missing. It is replaced atomically: mappings of an
        older copy stay valid.

    Raises
    ------
    StoreNotFoundError
        If there is no such object.
    SourceError
        If the object changes during every attempt to fetch it.
    StoreUnavailableError
        If the store does not answer.
    OSError
        If the file cannot be written.

    Notes
    -----
    One request checks whether a copy is current, by the size and version that the store reports.
    An object without either is fetched by every call.
    """
    copy, file = Path(path), open_remote(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _lock(copy.with_name(copy.name + VERSION_SUFFIX)) as (record, is_locked):
        for _ in range(_NUM_TRIES):
            found = _look_up(file)
            if _is_current(record, url, found, copy):
                return
            _write(record, "")  # never a copy with the version of another
            _replace(file, found, copy, is_alone=is_locked)
            _write(record, _describe(url, found))
            if found is UNKNOWN or _is_current(record, url, _look_up(file), copy):
                return
    raise SourceError(
        f"{url} must stay as it is while it is copied to {copy}, it was written meanwhile; "
        "wait until its writer is done"
    )


def _look_up(file: RemoteFile) -> Head:
    """Return the metadata of an object."""
    found = file.look_up()
    if found is None:
        raise StoreNotFoundError(f"no object {file.url}; check the URL")
    return found


def _is_current(record: TextIO, url: str, found: Head, copy: Path) -> bool:
    """Return whether a copy exists, complete and of the current version."""
    record.seek(0)
    if found is UNKNOWN or record.read() != _describe(url, found):
        return False
    return copy.exists() and copy.stat().st_size == found.nbytes


def _describe(url: str, found: Head) -> str:
    """Return the recorded version of a copy."""
    return f"{url}\n{found.nbytes}\n{found.version}\n"


def _replace(file: RemoteFile, found: Head, copy: Path, *, is_alone: bool) -> None:
    """Fetch an object and replace the copy."""
    if is_alone:
        for left in copy.parent.glob(f"{glob.escape(copy.name)}.*.partial"):
            left.unlink(missing_ok=True)  # of a killed process
    with replacing(copy) as partial:
        if not file.download(partial):
            with open(partial, "xb") as stream:
                for chunk in read_ahead(file.read_range, found.nbytes):
                    stream.write(chunk)
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[tuple[TextIO, bool]]:
    """Open and lock a file; also give whether the lock was acquired."""
    with open(path, "a+", encoding="utf-8") as record:
        is_locked = False
        with contextlib.suppress(OSError):  # a file system without locks: every process fetches
            fcntl.flock(record, fcntl.LOCK_EX)
            is_locked = True
        yield record, is_locked


def _write(record: TextIO, text: str) -> None:
    """Replace the recorded version."""
    record.truncate(0)
    record.write(text)
    record.flush()
