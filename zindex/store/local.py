"""Files below one directory: create-only writes that survive a crash, bounded reads.

Every key has one possible content and is written at most once, so writers need no lock: the loser
of a race finds the winner's equal bytes. Source: design of create-only object stores on POSIX
(write aside, fsync, link).
"""

import contextlib
import ctypes
import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zindex.errors import ConfigError, StoreError, StoreNotFoundError, StoreUnreadableError

_MAX_BUFFERS = 512
# What file systems without hard links answer to link(2).
_NO_LINK = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL)
# Smaller files gain nothing from having their blocks reserved.
_RESERVED_NBYTES = 1 << 20
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)


def local_path(url: str | os.PathLike[str], what: str = "a store") -> Path:
    """Return the absolute path of what must lie in a file system: a path or a ``file://`` URL.

    Parameters
    ----------
    url
        The path or URL.
    what
        What lies there, for the message.

    Raises
    ------
    ConfigError
        If the URL names another scheme or a host.
    """
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(os.path.abspath(os.path.expanduser(text)))
    if scheme != "file":
        raise ConfigError(
            f"{what} must be a path or a file:// URL, got scheme {scheme!r}; "
            "copy the data to a shared file system"
        )
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"a file:// URL must have a path of this machine, {text} names the host "
            f"{parts.netloc!r}; write file:///{parts.netloc}{parts.path} for an absolute path"
        )
    return Path(os.path.abspath(unquote(parts.path)))


def write_once(
    path: Path,
    buffers: Sequence[bytes | bytearray | memoryview],
    *,
    replace: bool = False,
    cached: bool = True,
) -> bool:
    """Write a file whole or not at all, durably; return whether this call created it.

    Parameters
    ----------
    path
        The file; its directory is created when missing.
    buffers
        Contents, in order.
    replace
        Whether to put this content in place of an existing, damaged file.
    cached
        Whether the system is to keep it in memory, because it is read again soon. Where it is not,
        a large build pushes nothing else out, and writes faster by a fifth.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o666)
    try:
        try:
            _reserve(descriptor, sum(map(len, buffers)))
            _write_all(descriptor, buffers)
            os.fsync(descriptor)
            if not cached:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        if replace:
            os.replace(partial, path)
            return True
        return _publish(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _publish(partial: Path, path: Path) -> bool:
    """Give a finished file its final name unless that name is taken."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        # No hard links here: two writers may both rename, and both bring the same bytes.
        if path.exists():
            return False
        os.rename(partial, path)
    return True


def _reserve(descriptor: int, nbytes: int) -> None:
    """Reserve the blocks of a file, where the file system can.

    With its blocks known beforehand ext4 syncs a file of some megabytes 2.5 times as fast. This is
    fallocate(2) itself, for ``os.posix_fallocate`` writes every block where there is no support.
    """
    if _fallocate is not None and nbytes >= _RESERVED_NBYTES:
        # A failure, also for want of room, is the business of the write that follows.
        _fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(nbytes))


def _write_all(descriptor: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all buffers; the kernel may take them in parts."""
    pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
    pending.reverse()
    while pending:
        batch = pending[: -_MAX_BUFFERS - 1 : -1]
        written = os.writev(descriptor, batch)
        while written:
            head = pending.pop()
            if written < len(head):
                pending.append(head[written:])
                break
            written -= len(head)


def unreadable(path: str | os.PathLike[str], error: OSError) -> StoreUnreadableError:
    """Return the error to raise, from the system's own, for what cannot be read."""
    reason = error.strerror or str(error)
    return StoreUnreadableError(
        f"{os.fspath(path)} must be readable, the system says: {reason}; check its permissions and "
        "the file system",
        error.errno,
        error.strerror,
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system says of a place into an error of ours; what is missing stays so."""
    try:
        yield
    except (StoreError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def read_file(path: Path, *, limit: int = 1 << 26) -> bytes:
    """Return the content of a small file.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StoreError
        If it is larger than ``limit`` bytes.
    StoreUnreadableError
        If the system refuses it, or fails to read it.
    """
    try:
        with reading(path), open(path, "rb") as stream:
            content = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFoundError(f"no file {path}; check the path") from error
    if len(content) > limit:
        raise StoreError(f"{path} must hold at most {limit} bytes, it is larger; it is not ours")
    return content


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_nbytes(path: Path) -> int:
    """Return the bytes that this user may still write below a directory."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
