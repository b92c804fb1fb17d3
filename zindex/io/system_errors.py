"""Convert system errors on files into sentences that name the file and a fix."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from zindex.errors import StoreError, StoreUnreadableError, StoreUnwritableError, ZindexError

_ROOM = "make room, raise the quota or choose another place"
_ACCESS = "check the permissions of the file and its folders"
_LIMIT = "raise the limit of open files (ulimit -n) or close some"
_WAYS_OUT = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) or choose another place",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "mount the file system for writing or choose another place",
    errno.EMFILE: _LIMIT,
    errno.ENFILE: _LIMIT,
}
_CHECK = "check its permissions and the file system"


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], nbytes: int | None = None) -> Iterator[None]:
    """Raise StoreUnwritableError if the system denies or fails to write a file.

    Errors about missing or existing files, and about other files, pass through.

    Parameters
    ----------
    path
        The file.
    nbytes
        Its size, if known.
    """
    try:
        yield
    except (ZindexError, FileNotFoundError, NotADirectoryError, FileExistsError):
        raise
    except OSError as error:
        name, others = os.fspath(path), [error.filename or "", error.filename2 or error.filename]
        if not any(str(o).startswith(name) or name.startswith(str(o or "")) for o in others):
            raise
        raise unwritable(name, error, nbytes) from error


def unwritable(path: str, error: OSError, nbytes: int | None = None) -> StoreUnwritableError:
    """Return the error of zindex for a system error on writing."""
    size = "" if nbytes is None else f" with {nbytes:,} bytes"
    with contextlib.suppress(OSError):
        if error.errno == errno.ENOSPC:
            status = os.statvfs(next(filter(os.path.exists, Path(path).parents)))
            size += f", where {status.f_bavail * status.f_frsize:,} are free"
    return StoreUnwritableError(
        f"{path} must be written{size}, the system says: {reason_of(error)}; {remedy_of(error)}",
        error.errno,
        error.strerror,
    )


def reason_of(error: Exception) -> str:
    """Return the reason of a system error, without its number and the path."""
    return getattr(error, "strerror", None) or str(error)


def remedy_of(error: OSError) -> str:
    """Return the suggested fix for a system error."""
    return _WAYS_OUT.get(error.errno or 0, _CHECK)


def unreadable(path: str | os.PathLike[str], error: OSError) -> StoreUnreadableError:
    """Return the error of zindex for a system error on reading."""
    return StoreUnreadableError(
        f"{os.fspath(path)} must be readable, the system says: {reason_of(error)}; "
        f"{remedy_of(error)}",
        error.errno,
        error.strerror,
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnreadableError for system errors; errors about missing files pass through."""
    try:
        yield
    except (StoreError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error
