"""Local files: durable create-only writes, bounded reads, reads by position and mappings.

Every key has one possible content and is written at most once, so writers need no lock: the loser
of a race finds the winner's equal bytes. Source: design of create-only object stores on POSIX
(write to a temporary file, fsync, rename or link). No descriptor stays open, so forks are safe.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import numpy as np

from zindex.arrays import AnyArray, UInt8Array
from zindex.errors import (
    ConfigError,
    SourceError,
    StoreError,
    StoreNotFoundError,
    StoreUnreadableError,
    VerificationError,
)

_MAX_BUFFERS = 512
# Errors of renameat2(2) and link(2) in file systems without them.
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
# Smaller files gain nothing from having their blocks reserved.
_RESERVED_NBYTES = 1 << 20
# Bytes of one direct write: the pages of a larger block cost as much as the copy to them.
_DIRECT_NBYTES = 1 << 20
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", lambda *names: -1)
_PROT_READ = 1
_MAP_SHARED = 1
_MAP_FAILED = c_void_p(-1).value


def local_path(url: str | os.PathLike[str], what: str = "a store") -> Path:
    """Return the absolute local path of a path or a ``file://`` URL.

    Parameters
    ----------
    url
        The path or URL.
    what
        Noun for the error message.

    Raises
    ------
    ConfigError
        If the URL names another scheme or a host.
    """
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator:
        path = os.path.abspath(os.path.expanduser(text))
        return url if isinstance(url, Path) and path == text else Path(path)
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
    """Write a file atomically and durably; return whether this call created it.

    Parameters
    ----------
    path
        The file; its directory is created when missing.
    buffers
        Contents, in order.
    replace
        Whether to replace an existing, damaged file.
    cached
        Whether the page cache should keep it, for a read that follows soon. Otherwise a large
        build evicts nothing else, and writes with a fifth of the processor time.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    partial = partial_path(path)
    try:
        descriptor = os.open(partial, flags, 0o666)
    except (FileNotFoundError, NotADirectoryError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, flags, 0o666)
    with _removing(partial):
        try:
            _reserve(descriptor, sum(map(len, buffers)))
            (_write_all if cached else _write_direct)(descriptor, buffers)
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


def partial_path(path: str | os.PathLike[str]) -> str:
    """Return a fresh temporary name next to a path, for a file that is renamed when complete."""
    return f"{os.fspath(path)}.{uuid4().hex[:12]}.partial"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a fresh name for a file that replaces ``path`` atomically if the block succeeds."""
    partial = partial_path(path)
    with _removing(partial):
        yield partial
        os.replace(partial, path)


@contextlib.contextmanager
def _removing(partial: str) -> Iterator[None]:
    """Remove the file of a temporary name if the block fails."""
    try:
        yield
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _publish(partial: str, path: Path) -> bool:
    """Give a finished file its final name, unless that exists."""
    for move in (_rename_new, os.link, _rename):
        try:
            move(partial, path)
            is_new = True
        except FileExistsError:
            is_new = False
        except OSError as error:
            if error.errno not in _UNSUPPORTED or move is _rename:
                raise
            continue
        if not is_new or move is os.link:
            os.unlink(partial)
        break
    return is_new


def _rename_new(partial: str, path: Path) -> None:
    """Rename a file by one call that refuses an existing name; Linux has it on most local disks."""
    ctypes.set_errno(errno.ENOSYS)
    names = os.fsencode(partial), os.fsencode(path)
    if _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))


def _rename(partial: str, path: Path) -> None:
    """Rename a file; two writers may both do so at a time, but their bytes are equal."""
    if path.exists():
        raise FileExistsError
    os.rename(partial, path)


def _reserve(descriptor: int, nbytes: int) -> None:
    """Reserve the blocks of a file, if the file system can.

    With reserved blocks ext4 syncs a file of some megabytes 2.5 times as fast. This is fallocate(2)
    itself: ``os.posix_fallocate`` writes every block if the file system has no support.
    """
    if _fallocate is not None and nbytes >= _RESERVED_NBYTES:
        # A failure, such as a full disk, is reported by the following write.
        _fallocate(descriptor, 0, c_int64(0), c_int64(nbytes))


def _write_all(descriptor: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all buffers; the kernel may take them in parts."""
    for first in range(0, len(buffers), _MAX_BUFFERS):
        pending = [memoryview(buffer) for buffer in buffers[first : first + _MAX_BUFFERS]]
        while pending:
            written = os.writev(descriptor, pending)
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]


def _write_direct(descriptor: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all buffers, as much as possible past the page cache, if the file system can."""
    flags, direct = fcntl.fcntl(descriptor, fcntl.F_GETFL), os.O_DIRECT
    # Direct writes need aligned memory, which a mapping is.
    block, filled = memoryview(mmap.mmap(-1, _DIRECT_NBYTES)), 0
    for buffer in buffers:
        pending = memoryview(buffer)
        while pending:
            count = min(len(pending), _DIRECT_NBYTES - filled)
            block[filled : filled + count] = pending[:count]
            pending, filled = pending[count:], filled + count
            if filled < _DIRECT_NBYTES:
                continue
            start = os.lseek(descriptor, 0, os.SEEK_CUR)
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct)
                _write_all(descriptor, [block])
            except OSError as error:
                if error.errno != errno.EINVAL or not direct:
                    raise
                direct = 0
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
                os.lseek(descriptor, start, os.SEEK_SET)
                _write_all(descriptor, [block])
            filled = 0
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    _write_all(descriptor, [block[:filled]])


def unreadable(path: str | os.PathLike[str], error: OSError) -> StoreUnreadableError:
    """Return the error of zindex for a system error on reading."""
    reason = error.strerror or str(error)
    return StoreUnreadableError(
        f"{os.fspath(path)} must be readable, the system says: {reason}; check its permissions and "
        "the file system",
        error.errno,
        error.strerror,
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnreadableError for system errors; errors of missing files pass through."""
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
    """Return the free bytes for this user below a directory."""
    while True:
        try:
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize
        except (FileNotFoundError, NotADirectoryError):
            path = path.parent


def open_regular(path: str) -> tuple[int, int]:
    """Open a regular file for reading and return (descriptor, size in bytes).

    Raises
    ------
    SourceError
        If something other than a regular file is at the path (a pipe would block for ever).
    OSError
        If the system cannot open it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    raise SourceError(
        f"a .bin/.idx pair is made of regular files, but {path} is something else "
        f"(mode {stat.S_IFMT(status.st_mode):#o}); give the prefix of two files"
    )


def read_into(descriptor: int, array: AnyArray, offset: int) -> int:
    """Fill a contiguous array from a byte offset; return the bytes read."""
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    done = 0
    # One system call reads at most 2 GiB.
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_from(descriptor: int, array: AnyArray, offset: int) -> None:
    """Write a contiguous array at a byte offset."""
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def read_exactly(path: str, descriptor: int, array: AnyArray, offset: int) -> None:
    """Fill a contiguous array from a byte offset; VerificationError if the file ends before."""
    came = read_into(descriptor, array, offset)
    if came != array.nbytes:
        raise VerificationError(
            f"{path} must hold {array.nbytes:,} bytes from byte {offset:,} but ended after "
            f"{came:,} of them; it was cut after it was opened, so restore and open it again"
        )


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library with the signatures of the two calls used here."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = c_void_p
    library.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_int64)
    library.munmap.argtypes = (c_void_p, c_size_t)
    return library


class _Mapping:
    """A read-only mapping of a whole file, unmapped with the last array that views it."""

    # Python's own mmap keeps a descriptor for each mapping (until 3.13), and a blend of a thousand
    # datasets would use up the usual 1,024.
    def __init__(self, descriptor: int, size: int, path: str) -> None:
        address = _libc().mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if address is None or address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        fields = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__array_interface__ = fields
        weakref.finalize(self, _libc().munmap, address, size).atexit = False


def map_file(path: str, nbytes: int | None = None) -> UInt8Array:
    """Map a file read-only and return its bytes.

    Parameters
    ----------
    path
        A regular file.
    nbytes
        The size that it must have, or None for any.

    Returns
    -------
    content
        Shape (size,), uint8, read-only; the mapping lives as long as any view of it.

    Raises
    ------
    VerificationError
        If the size is another one.
    """
    descriptor, size = open_regular(path)
    try:
        if nbytes is not None and size != nbytes:
            raise VerificationError(
                f"{path} must hold {nbytes:,} bytes, as when it was checked, but now holds "
                f"{size:,}; it was changed since, so open the dataset again"
            )
        if size == 0:
            return np.empty(0, np.uint8)
        return np.asarray(_Mapping(descriptor, size, path))
    finally:
        os.close(descriptor)
