"""Open regular files only, since a read of a pipe would block forever."""

import errno
import os
import stat
from typing import BinaryIO

from zindex.errors import SourceError
from zindex.io.create_only import open_descriptor


def regular(path: str, flags: int) -> int:
    """Return a descriptor of a regular file: an opener for Python's `open`.

    Raises
    ------
    OSError
        If the system cannot open it, or it is not a regular file.
    """
    return _open(path, flags)[0]


def open_file(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading; errors as of `regular`."""
    return open(path, "rb", buffering, opener=regular)


def open_regular(path: str) -> tuple[int, int]:
    """Open a file of a .bin/.idx pair for reading and return (descriptor, size in bytes).

    Raises
    ------
    SourceError
        If the path is not a regular file.
    OSError
        If the system cannot open it.
    """
    try:
        return _open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EINVAL):
            raise
        raise SourceError(
            f"a .bin/.idx pair is made of regular files, but {path} is something else: "
            f"{error.strerror}; give the prefix of two files"
        ) from None


def _open(path: str, flags: int) -> tuple[int, int]:
    """Return a descriptor of a regular file and its size."""
    descriptor = open_descriptor(path, flags | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            kind = stat.S_IFMT(status.st_mode)
            raise OSError(errno.EINVAL, f"Not a regular file (mode {kind:#o})", path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size
