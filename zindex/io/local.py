"""Local files: durable create-only writes, bounded reads, reads by position and mappings.

Every key has one possible content and is written at most once, so writers need no lock: the loser
of a race finds equal bytes of the winner. Source: design of create-only object stores on POSIX
(write to a temporary file, fsync, rename or link). No descriptor stays open, so forks are safe.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

from zindex.arrays import AnyArray, UInt8Array
from zindex.errors import (
    ConfigError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.io import create_only
from zindex.io.create_only import CLAIM, NEW_FILE, exchange, open_descriptor, partial_path
from zindex.io.regular_files import open_file, open_regular
from zindex.io.system_calls import DIRECT, drop_cached, read_vector
from zindex.io.system_errors import reading, writing

_MAX_BUFFERS = 512
# Smaller files do not benefit from preallocation.
_RESERVED_NBYTES = 1 << 20
# Bytes per direct write: faulting in a larger buffer costs as much as copying to it.
_DIRECT_NBYTES = 1 << 20
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
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
        Whether to keep it in the page cache, because it is read soon. Otherwise a large build
        evicts nothing else from the cache, and writes with a fifth of the CPU time.
    """
    partial, nbytes = partial_path(path), sum(map(len, buffers))
    with writing(path, nbytes):
        try:
            descriptor = os.open(partial, NEW_FILE, 0o666)
        except (FileNotFoundError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(partial, NEW_FILE, 0o666)
        with removing(partial):
            try:
                _reserve(descriptor, nbytes)
                (_write_all if cached else _write_direct)(descriptor, buffers)
                os.fsync(descriptor)
                if not cached:
                    with contextlib.suppress(OSError):
                        drop_cached(descriptor)
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if replace:
                try:
                    exchange(partial, path, status)
                except IsADirectoryError:  # not written by zindex; moved aside
                    os.replace(path, partial_path(path))
                    exchange(partial, path, status)
                return True
            return create_only.publish(partial, path, status)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[str]:
    """Yield a temporary name for a file that replaces ``path`` if the block succeeds.

    The replacement is atomic. Unless ``durable`` is False, it is durable when the block ends.
    """
    partial = partial_path(path)
    with writing(path), removing(partial):
        yield partial
        exchange(partial, path, sync_file(partial) if durable else os.stat(partial))
        if durable:
            sync_directory(Path(path).parent)


@contextlib.contextmanager
def removing(partial: str) -> Iterator[None]:
    """Remove the temporary file if the block fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _reserve(descriptor: int, nbytes: int) -> None:
    """Preallocate a file, if the file system supports it.

    On ext4, preallocated files of some megabytes sync 2.5 times as fast. Calls fallocate(2)
    directly: ``os.posix_fallocate`` writes every block if the file system lacks support.
    """
    if _fallocate is not None and nbytes >= _RESERVED_NBYTES:
        # A failure, such as a full disk, is reported by the following write.
        _fallocate(descriptor, 0, c_int64(0), c_int64(nbytes))


def _write_all(descriptor: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all buffers; the kernel may accept them in parts."""
    for first in range(0, len(buffers), _MAX_BUFFERS):
        pending = [memoryview(buffer) for buffer in buffers[first : first + _MAX_BUFFERS]]
        while pending:
            written = os.writev(descriptor, pending)
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]


def _write_direct(descriptor: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all buffers, bypassing the page cache as far as the file system supports it."""
    flags, direct = fcntl.fcntl(descriptor, fcntl.F_GETFL), DIRECT
    # Direct writes need aligned memory, such as an anonymous mapping.
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


def read_file(path: Path, *, limit: int = 1 << 26) -> bytes:
    """Return the content of a small file.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StoreError
        If it is larger than ``limit`` bytes.
    StoreUnreadableError
        If the system denies or fails the read.
    """
    try:
        with reading(path), open_file(path, buffering=0) as stream:
            nbytes = os.fstat(stream.fileno()).st_size
            content = stream.read() if nbytes <= limit else b""
        if content.startswith(CLAIM):  # its writer or the next one will complete it
            raise FileNotFoundError
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFoundError(f"no file {path}; check the path") from error
    if nbytes > limit:
        raise StoreError(f"{path} must hold at most {limit} bytes, it is larger; it is not ours")
    return content


def sync_file(path: str | os.PathLike[str]) -> os.stat_result:
    """Make the content of a file durable and return its status."""
    descriptor = open_descriptor(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder, and its parents, with durable names."""
    with writing(path):
        if not path.exists():
            make_folder(path.parent)
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with writing(path):
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # on a file system whose names need no sync
                raise
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


def read_into(descriptor: int, array: AnyArray, offset: int) -> int:
    """Fill a contiguous array from a byte offset; return the number of bytes read."""
    # Usually a single system call; one call reads at most 2 GiB.
    done = read_vector(descriptor, [array.data], offset) if array.size else 0
    if done in (0, array.nbytes):
        return done
    view = array.view(np.uint8).data
    while done < len(view):
        count = read_vector(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_bytes(descriptor: int, nbytes: int, offset: int) -> memoryview:
    """Return bytes of a file from an offset, fewer only at its end; repeats partial reads."""
    content = np.empty(nbytes, np.uint8)
    return content[: read_into(descriptor, content, offset)].data


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

    # Python's own mmap keeps a descriptor per mapping (until 3.13), and a blend of a thousand
    # datasets would exceed the usual limit of 1,024.
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
        Expected size, or None for any.

    Returns
    -------
    content
        Shape (size,), uint8, read-only; the mapping lives as long as any view of it.

    Raises
    ------
    VerificationError
        If the size differs.
    """
    descriptor, size = open_regular(path)
    try:
        if nbytes is not None and size != nbytes:
            raise VerificationError(
                f"{path} must hold {nbytes:,} bytes, as when it was checked, but now holds "
                f"{size:,}; it was changed since, so open the dataset again"
            )
        return map_descriptor(descriptor, size, path)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, size: int, path: str) -> UInt8Array:
    """Map the first bytes of an open file; see `map_file`. The descriptor may be closed."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_Mapping(descriptor, size, path))
