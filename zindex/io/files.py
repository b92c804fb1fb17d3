"""Files of a store in a file system or an object store, with the same guarantees.

Writes are atomic and create-only, and visible to every reader as soon as they return. Module
``local`` has the POSIX half, ``object_client`` the other.
"""

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from zindex.errors import SourceError, StoreNotFoundError, StoreUnwritableError
from zindex.io import local, object_client
from zindex.io.create_only import partial_path
from zindex.io.objects import Place
from zindex.io.regular_files import open_file
from zindex.io.system_errors import reading, writing

_NUM_REQUESTS = 8
# Errors of paths without a file.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def write_once(
    path: Place,
    buffers: Sequence[bytes | bytearray | memoryview],
    *,
    replace: bool = False,
    cached: bool = True,
    facts: Mapping[str, str] | None = None,
) -> bool:
    """Write a file atomically and durably; return whether this call created it.

    Parameters
    ----------
    path
        The file.
    buffers
        Contents, in order.
    replace
        Whether to replace an existing, damaged file.
    cached
        As of `local.write_once`; ignored in object stores.
    facts
        Attributes of an object; ignored in file systems.
    """
    if isinstance(path, Path):
        return local.write_once(path, buffers, replace=replace, cached=cached)
    return object_client.put(path, buffers, replace=replace, facts=facts)


def num_writers(place: Place) -> int:
    """Return how many threads write the few small files of one store.

    In an object store each write is a round trip. In a file system starting a thread costs more
    than a file, and the builds of many stores already run in threads.
    """
    return 1 if isinstance(place, Path) else _NUM_REQUESTS


def read_file(path: Place, *, limit: int = 1 << 26) -> bytes:
    """Return the content of a small file.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StoreError
        If it is larger than ``limit`` bytes.
    StoreUnavailableError, StoreUnreadableError
        If an object store does not respond, or a file system reports an error.
    """
    if isinstance(path, Path):
        return local.read_file(path, limit=limit)
    try:
        return object_client.get(path, limit=limit)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no object {path}; check the URL") from None


def read_text(path: Place, *, limit: int = 1 << 26) -> str:
    """Return the text of a small file, with Python's line breaks.

    Raises
    ------
    SourceError
        If it is not UTF-8.
    StoreNotFoundError, StoreError, StoreUnavailableError, StoreUnreadableError
        As of `read_file`.
    """
    content = read_file(path, limit=limit)
    try:
        return io.TextIOWrapper(io.BytesIO(content), "utf-8").read()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} must be text in UTF-8, byte {error.start:,} is not: {error.reason}; save it "
            "in UTF-8"
        ) from error


def read_range(path: Place, start: int, stop: int) -> bytes | memoryview:
    """Return bytes ``[start, stop)`` of a file, fewer at its end.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    """
    try:
        if isinstance(path, Path):
            with reading(path), open_file(path, buffering=0) as stream:
                return local.read_bytes(stream.fileno(), stop - start, start)
        return object_client.get_range(path, start, stop)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no file {path}; check the path") from None


def exists(path: Place) -> bool:
    """Return whether a file, not a directory, has this name."""
    return file_nbytes(path) is not None


def file_nbytes(path: Place) -> int | None:
    """Return the size of a file, or None if it does not exist or is none."""
    if isinstance(path, Path):
        with reading(path):
            try:  # Python 3.14's is_file() takes any error for a missing file
                facts = path.stat()
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                return None
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None
    found = object_client.head(path)
    return None if found is None else found.nbytes


def file_version(path: Place) -> str | None:
    """Return a text that changes with every write or touch of a file; None if it does not exist."""
    if isinstance(path, Path):
        with suppress(FileNotFoundError, NotADirectoryError), reading(path):
            facts = path.stat()
            return f"{facts.st_mtime_ns}-{facts.st_ino}"  # file system clocks are coarse
        return None
    found = object_client.head(path)
    return None if found is None else found.version


def modified_at(path: str) -> str:
    """Return the modification time of a local file, or "" if it is missing."""
    with suppress(OSError):
        return str(os.stat(path).st_mtime_ns)
    return ""


def list_names(path: Place) -> set[str]:
    """Return the names directly below a location; empty if it is missing or a file."""
    if isinstance(path, Path):
        with suppress(FileNotFoundError, NotADirectoryError), reading(path):
            return set(os.listdir(path))
        return set()
    return object_client.list_names(path)


def list_keys(path: Place, *, depth: int | None = 1) -> Iterator[str]:
    """Yield the keys of the files below a location, relative to it.

    Parameters
    ----------
    path
        The place, which may be missing.
    depth
        Number of names in each key; None for any number.
    """
    keys = _walk(path) if isinstance(path, Path) else object_client.iterate_keys(path)
    return (key for key in keys if depth is None or key.count("/") == depth - 1)


def _walk(path: Path) -> Iterator[str]:
    """Yield the keys of the files below a directory."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    with reading(path):
        for folder, _, names in os.walk(path, onerror=fail):
            yield from (os.path.join(folder, name)[len(str(path)) + 1 :] for name in names)


def remove_file(path: Place) -> None:
    """Remove a file, if it exists."""
    if isinstance(path, Path):
        with writing(path):
            path.unlink(missing_ok=True)
        return
    object_client.delete(path)


def remove_tree(path: Place) -> None:
    """Remove everything below a location, if it exists."""
    if isinstance(path, Path):
        with suppress(OSError):  # some errors are raised in spite of ignore_errors
            shutil.rmtree(path, ignore_errors=True)
        return
    for key in object_client.iterate_keys(path):
        object_client.delete(path / key)


def remove_version(path: Path, version: str | None) -> bool:
    """Move a file or tree aside, and remove it if it has this `file_version`; else move it back."""
    aside = Path(partial_path(path))
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    if file_version(aside) != version:
        os.rename(aside, path)
        return False
    if aside.is_dir():
        remove_tree(aside)
    else:
        remove_file(aside)
    return True


def link_file(path: Place, link: Place) -> None:
    """Link a file under a second name: a symbolic link, or in object stores a server-side copy."""
    if isinstance(path, Path):
        assert isinstance(link, Path)
        local.make_folder(link.parent)
        with writing(link):
            link.symlink_to(path.absolute())
        return
    assert not isinstance(link, Path)
    object_client.copy(path, link)


def make_folder(path: Place) -> None:
    """Create a folder, and its parents, with durable names; does nothing in object stores."""
    if isinstance(path, Path):
        local.make_folder(path)


def sync_directory(path: Place) -> None:
    """Make the names in a directory durable; does nothing in object stores."""
    if isinstance(path, Path):
        local.sync_directory(path)


def free_nbytes(path: Place) -> int | None:
    """Return the free bytes below a location; None if unlimited."""
    return local.free_nbytes(path) if isinstance(path, Path) else None


def check_room(path: Place, needed: int) -> None:
    """Check that a file system has room for a number of bytes.

    Raises
    ------
    StoreUnwritableError
        If it has less.
    """
    free = free_nbytes(path)
    if free is not None and needed > free:
        raise StoreUnwritableError(
            f"{path} needs {needed:,} bytes more but its file system has {free:,} free; "
            "make room or choose another place",
            errno.ENOSPC,
            os.strerror(errno.ENOSPC),
        )


def modified_seconds(path: Place) -> float | None:
    """Return the modification time of a file in seconds since 1970; None if it does not exist."""
    if isinstance(path, Path):
        with suppress(FileNotFoundError, NotADirectoryError), reading(path):
            return path.stat().st_mtime
        return None
    return object_client.modified_seconds(path)
