"""Natural order of files and datasets: numbers in names compare by value."""

import os
import re
from collections.abc import Iterator

from zindex.io.system_errors import unreadable

_NUMBERS = re.compile("([0-9]+)")

NaturalKey = tuple[tuple[tuple[str | tuple[int, str], ...], ...], str]


def natural_key(name: str) -> NaturalKey:
    """Return the sort key of a name: its components, with numbers by value.

    Keys are unique: numbers that differ in leading zeros compare as text.

    Examples
    --------
    >>> sorted(["data_10", "data_2", "data_02"], key=natural_key)
    ['data_02', 'data_2', 'data_10']
    >>> sorted(["b/1", "a/10", "a/9", "a"], key=natural_key)
    ['a', 'a/9', 'a/10', 'b/1']
    """
    return tuple(_part_key(part) for part in name.split("/")), name


def _part_key(part: str) -> tuple[str | tuple[int, str], ...]:
    """Return text and numbers alternately, so that values of one type are compared."""
    pieces = _NUMBERS.split(part)
    # Python refuses to parse numbers of thousands of digits, which HDF5 names may have.
    numbers = [piece.lstrip("0") for piece in pieces[1::2]]
    key: list[str | tuple[int, str]] = list(pieces)
    key[1::2] = [(len(digits), digits) for digits in numbers]
    return tuple(key)


def list_below(folder: str) -> list[str]:
    """Return all files below a folder as relative paths with ``/``, in natural order.

    Links are followed, except to an enclosing folder. Folders of Zarr stores are skipped.

    Raises
    ------
    StoreUnreadableError
        If the system denies access to a folder.
    """
    return sorted(_files_below(folder, "", ()), key=natural_key)


def _files_below(folder: str, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder; ``above`` are the real paths of the enclosing folders."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError as error:
        raise unreadable(folder, error) from error
    # A store may have many shards and has no other files.
    if above and any(entry.name == "zarr.json" for entry in entries):
        return
    for entry in entries:
        # Unlike Path.is_dir, this treats a link to itself as a file.
        if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
            yield from _files_below(entry.path, f"{prefix}{entry.name}/", (*above, real))
        else:
            yield prefix + entry.name
