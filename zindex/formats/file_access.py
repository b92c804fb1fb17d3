"""Local files by position: regular files, whole reads and writes, mappings without descriptors.

Nothing here keeps an open descriptor, so nothing here minds a fork.
"""

import ctypes
import os
import stat
import weakref
from functools import cache
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError, VerificationError

_PROT_READ = 1
_MAP_SHARED = 1
_MAP_FAILED = ctypes.c_void_p(-1).value


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


def read_into(descriptor: int, array: npt.NDArray[Any], offset: int) -> int:
    """Fill a contiguous array from a byte offset; return the bytes read, fewer at the end."""
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    done = 0
    # One system call moves at most 2 GiB, so that a long span takes several.
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def write_from(descriptor: int, array: npt.NDArray[Any], offset: int) -> None:
    """Write a contiguous array at a byte offset."""
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def partial_path(path: str) -> str:
    """Return a fresh name beside the path, for a file that is renamed when it is complete."""
    return f"{path}.{uuid4().hex[:12]}.partial"


def short_read(path: str, *, offset: int, wanted: int, came: int) -> VerificationError:
    """Return the error for a file that ended before the span that was asked for."""
    return VerificationError(
        f"{path} must hold {wanted:,} bytes from byte {offset:,} but ended after {came:,} of them; "
        "it was cut after it was opened, so restore the file and open it again"
    )


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library with the two calls used here declared."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


class _Mapping:
    """A read-only mapping of a whole file that ends with the last array made of it."""

    # Python's own mmap keeps a descriptor for each mapping (until 3.13), and a blend of a thousand
    # datasets would use up the usual 1,024.
    def __init__(self, descriptor: int, size: int, path: str) -> None:
        address = _libc().mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if address is None or address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        weakref.finalize(self, _libc().munmap, address, size).atexit = False


def map_file(path: str, nbytes: int | None = None) -> npt.NDArray[np.uint8]:
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
