"""Node-local copies of objects that are memory-mapped, such as an ``.idx``.

All processes of a node share a copy. The first one fetches it while the others wait for a file
lock, which the system releases when its holder exits; no process waits for another node.
"""

import contextlib
import fcntl
import glob
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
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
        The file; its directory is created if missing, and other users must not be able to write to
        it. The file is replaced atomically: mappings of an older copy stay valid.

    Raises
    ------
    ConfigError
        If other users can write to the directory, or a link replaces one of its files.
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
    One request checks whether a copy is current, by the size and version that the store reports. A
    copy that was modified after its SHA-256 was recorded is reread and compared. An object without
    size or version is fetched by every call.
    """
    copy, file = Path(path), open_remote(url)
    with _private(copy.parent) as folder, _lock(folder, copy) as (record, is_locked):
        for _ in range(_NUM_TRIES):
            found = _look_up(file)
            if _is_current(record, url, found, folder, copy):
                return
            _write(record, "")  # never combine a copy with the version of another one
            _replace(file, found, copy, is_alone=is_locked)
            _write(record, _describe(url, found, *_inspect(folder, copy, digests=True)))
            if found is UNKNOWN or _is_current(record, url, _look_up(file), folder, copy):
                return
    raise SourceError(
        f"{url} must stay as it is while it is copied to {copy}, it was written meanwhile; "
        "wait until its writer is done"
    )


@contextlib.contextmanager
def _private(folder: Path) -> Iterator[int]:
    """Open a directory that no other user can write to, and yield its descriptor."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _untrusted(folder, f"the system says: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        others = status.st_mode & 0o022
        if status.st_uid == os.geteuid() and others:  # created with a permissive umask
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~0o022)
        elif status.st_uid not in (0, os.geteuid()) or (
            others and not status.st_mode & stat.S_ISVTX
        ):
            raise _untrusted(
                folder, f"it is one of user {status.st_uid}, or others may write to it"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _untrusted(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} must belong to this user, for others could replace the copies in it, but "
        f"{reason}; name a directory of your own for copies of .idx files"
    )


def _look_up(file: RemoteFile) -> Head:
    """Return the metadata of an object."""
    found = file.look_up()
    if found is None:
        raise StoreNotFoundError(f"no object {file.url}; check the URL")
    return found


def _is_current(record: TextIO, url: str, found: Head, folder: int, copy: Path) -> bool:
    """Return whether a copy exists, complete and of the current version."""
    record.seek(0)
    known = record.read()
    digest = (known.splitlines() or [""])[-1]
    identity, _ = _inspect(folder, copy, digests=False)
    if found is UNKNOWN or identity is None:
        return False
    if known == _describe(url, found, identity, digest):
        return True
    # A copy that was modified since it was checked is reread.
    same, now = known.splitlines()[:3], _inspect(folder, copy, digests=True)
    if same != _describe(url, found, None, "").splitlines()[:3] or now[1] != digest:
        return False
    _write(record, _describe(url, found, *now))
    return True


def _inspect(folder: int, copy: Path, *, digests: bool) -> tuple[str | None, str]:
    """Return the identity of our copy, None if there is none, and its SHA-256 if wanted."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(copy.name, flags, dir_fd=folder)
    except OSError:
        return None, ""
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None, ""
        # The change time cannot be set, unlike the modification time.
        identity = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"
        return identity, hashlib.file_digest(stream, "sha256").hexdigest() if digests else ""


def _describe(url: str, found: Head, identity: str | None, digest: str) -> str:
    """Return the recorded version of a copy."""
    return f"{url}\n{found.nbytes}\n{found.version}\n{identity}\n{digest}\n"


def _replace(file: RemoteFile, found: Head, copy: Path, *, is_alone: bool) -> None:
    """Fetch an object and replace the copy."""
    if is_alone:
        for left in copy.parent.glob(f"{glob.escape(copy.name)}.*.partial"):
            left.unlink(missing_ok=True)  # left behind by a killed process
    with replacing(copy) as partial:
        if not file.download(partial):
            with open(partial, "xb") as stream:
                for chunk in read_ahead(file.read_range, found.nbytes):
                    stream.write(chunk)
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())


@contextlib.contextmanager
def _lock(folder: int, copy: Path) -> Iterator[tuple[TextIO, bool]]:
    """Open and lock the version file of a copy; also yield whether the lock was acquired."""
    path, flags = copy.with_name(copy.name + VERSION_SUFFIX), os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        record = open(  # noqa: SIM115
            path.name,
            "a+",
            encoding="utf-8",
            opener=lambda name, mode: os.open(name, mode | flags, 0o600, dir_fd=folder),
        )
    except OSError as error:
        raise _untrusted(path, f"the system says: {error.strerror}") from error
    with record:
        status = os.fstat(record.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _untrusted(path, f"it is one of user {status.st_uid}, or no regular file")
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
