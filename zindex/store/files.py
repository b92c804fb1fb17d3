"""Files of a store, wherever it lies: in a file system or in an object store.

Both kinds promise the same: a file is written whole or not at all, once, and is seen at once by
whoever looks after that. The POSIX half is in ``local``, the other in ``object_client``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from zindex.errors import StoreNotFoundError
from zindex.store import local
from zindex.store.objects import Place


def write_once(
    path: Place,
    buffers: Sequence[bytes | bytearray | memoryview],
    *,
    replace: bool = False,
    cached: bool = True,
    facts: Mapping[str, str] | None = None,
) -> bool:
    """Write a file whole or not at all, durably; return whether this call created it.

    Parameters
    ----------
    path
        The file.
    buffers
        Contents, in order.
    replace
        Whether to put this content in place of an existing, damaged file.
    cached
        As of `local.write_once`; object stores keep nothing in memory.
    facts
        What an object store is to keep beside the content; file systems do not.
    """
    if isinstance(path, Path):
        return local.write_once(path, buffers, replace=replace, cached=cached)
    from zindex.store import object_client

    return object_client.put(path, buffers, replace=replace, facts=facts)


def read_file(path: Place, *, limit: int = 1 << 26) -> bytes:
    """Return the content of a small file.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StoreError
        If it is larger than ``limit`` bytes.
    StoreUnavailableError, StoreUnreadableError
        If an object store does not answer, or a file system refuses.
    """
    if isinstance(path, Path):
        return local.read_file(path, limit=limit)
    from zindex.store import object_client

    try:
        return object_client.get(path, limit=limit)
    except StoreNotFoundError:
        raise
    except FileNotFoundError:
        raise StoreNotFoundError(f"no object {path}; check the URL") from None


def read_range(path: Place, start: int, stop: int) -> bytes | memoryview:
    """Return bytes ``[start, stop)`` of a file, fewer where it ends before.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    """
    try:
        if isinstance(path, Path):
            with local.reading(path), open(path, "rb") as stream:
                return os.pread(stream.fileno(), stop - start, start)
        from zindex.store import object_client

        return object_client.get_range(path, start, stop)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no file {path}; check the path") from None


def exists(path: Place) -> bool:
    """Return whether there is a file, not a directory, of this name."""
    return file_nbytes(path) is not None


def file_nbytes(path: Place) -> int | None:
    """Return the size of a file, or None if there is none."""
    if isinstance(path, Path):
        with local.reading(path):
            return path.stat().st_size if path.is_file() else None
    from zindex.store import object_client

    found = object_client.head(path)
    return None if found is None else found.nbytes


def file_version(path: Place) -> str | None:
    """Return what changes whenever a file is written or touched, or None if there is no file."""
    if isinstance(path, Path):
        with suppress(FileNotFoundError, NotADirectoryError), local.reading(path):
            return str(path.stat().st_mtime_ns)
        return None
    from zindex.store import object_client

    found = object_client.head(path)
    return None if found is None else found.version


def list_names(path: Place) -> set[str]:
    """Return the names directly below a place: none if nothing is there."""
    if isinstance(path, Path):
        with local.reading(path):
            return set(os.listdir(path)) if path.is_dir() else set()
    from zindex.store import object_client

    return object_client.list_names(path)


def list_keys(path: Place, *, depth: int = 1) -> Iterator[str]:
    """Yield the keys of the files exactly ``depth`` names below a place, taken from there."""
    if isinstance(path, Path):
        with local.reading(path):
            entries = list(os.scandir(path)) if path.is_dir() else []
        with local.reading(path):
            for entry in entries:
                if depth > 1:
                    for key in list_keys(path / entry.name, depth=depth - 1):
                        yield f"{entry.name}/{key}"
                elif entry.is_file():
                    yield entry.name
        return
    from zindex.store import object_client

    for key in object_client.iterate_keys(path):
        if key.count("/") == depth - 1:
            yield key


def remove_file(path: Place) -> None:
    """Remove a file; one that is not there is no error."""
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
        return
    from zindex.store import object_client

    object_client.delete(path)


def sync_directory(path: Place) -> None:
    """Make the names in a directory durable; in object stores they are."""
    if isinstance(path, Path):
        local.sync_directory(path)


def free_nbytes(path: Place) -> int | None:
    """Return the bytes that may still be written below a place; None: as many as one likes."""
    return local.free_nbytes(path) if isinstance(path, Path) else None
