"""Read the tokens of a ``.bin`` by position, with ``pread`` or through a memory map."""

import os
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, UInt8Array
from zindex.errors import SourceError, VerificationError
from zindex.io.files import modified_at
from zindex.io.local import map_file, read_exactly
from zindex.io.regular_files import open_regular
from zindex.io.system_errors import reading

# Open descriptors per process; the usual limit is 1,024, and training also needs some.
_MAX_OPEN = 256
_opened: "deque[weakref.ref[BinFile]]" = deque()


class _Descriptor:
    """An open file that is closed with its last reader."""

    __slots__ = ("modified", "number", "process", "size")

    def __init__(self, path: str) -> None:
        self.number, self.size = open_regular(path)
        self.modified = str(os.fstat(self.number).st_mtime_ns)
        self.process = os.getpid()

    def __del__(self, system: Any = os) -> None:
        if hasattr(self, "number"):
            system.close(self.number)


class BinFile:
    """A ``.bin`` file read by ``pread`` into new arrays.

    It opens lazily in each process, takes no lock, pickles as its arguments, and shares 256 open
    descriptors with all others in its process. Threads may read concurrently.

    Parameters
    ----------
    path
        The ``.bin`` file.
    nbytes
        Expected size, as ``IdxFile.bin_nbytes``; None accepts any.
    """

    __slots__ = ("__weakref__", "_descriptor", "_modified", "nbytes", "path")

    def __init__(self, path: str, nbytes: int | None = None) -> None:
        self.path = path
        self.nbytes = nbytes
        self._descriptor: _Descriptor | None = None
        self._modified = modified_at(path)

    def __reduce__(self) -> tuple[type["BinFile"], tuple[str, int | None]]:
        return type(self), (self.path, self.nbytes)

    def read(self, dtype: DTypeLike, count: int, offset: int) -> AnyArray:
        """Return ``count`` items from byte ``offset``.

        Raises
        ------
        SourceError
            If the span is not within the file.
        VerificationError
            If the file was truncated after validation.
        OSError
            If the system cannot open or read it.
        """
        descriptor = self._descriptor
        if descriptor is None or descriptor.process != os.getpid():
            descriptor = self._open()
        itemsize = np.dtype(dtype).itemsize
        size = descriptor.size if self.nbytes is None else self.nbytes
        check_span(self.path, size, int(offset), int(count), itemsize)
        array: AnyArray = np.empty(int(count), dtype)
        read_exactly(self.path, descriptor.number, array, int(offset))
        return array

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the last read, or None if the file is closed."""
        return None if self._descriptor is None else self._descriptor.number

    def close(self) -> None:
        """Close the file in this process; the next read reopens it."""
        self._descriptor = None

    def _open(self) -> _Descriptor:
        """Open the file in this process, and close the oldest one if there are too many."""
        with reading(Path(self.path)):
            descriptor = _Descriptor(self.path)
        is_same = self._modified in ("", descriptor.modified)
        check_unchanged(self.path, descriptor.size, self.nbytes or 0, is_same=is_same)
        self._modified, self._descriptor = descriptor.modified, descriptor
        _opened.append(weakref.ref(self))
        while len(_opened) > _MAX_OPEN:
            oldest = _opened.popleft()()
            if oldest is not None and oldest is not self:
                oldest.close()
        return descriptor


def check_unchanged(path: str, size: int, nbytes: int, *, is_same: bool) -> None:
    """Raise if a flat file is shorter than when it was checked, or was modified since.

    Raises
    ------
    VerificationError
        If it is.
    """
    if size < nbytes:
        raise VerificationError(
            f"{path} must hold {nbytes:,} bytes, as when it was checked, but now holds {size:,}; "
            "restore the file and open it again"
        )
    if not is_same:
        raise VerificationError(
            f"{path} must be as it was when it was opened, it was changed since; open it again"
        )


class MappedBinFile:
    """A ``.bin`` file read through a memory map, as read-only views without copying.

    Faster than ``BinFile`` for spans in the page cache, but truncating a mapped file kills the
    process with SIGBUS. It pickles as its arguments; a forked child shares its parent's map.

    Parameters
    ----------
    path
        The ``.bin`` file.
    nbytes
        Expected size, as ``IdxFile.bin_nbytes``; None accepts any.
    """

    __slots__ = ("_content", "nbytes", "path")

    def __init__(self, path: str, nbytes: int | None = None) -> None:
        self.path = path
        self.nbytes = nbytes
        self._content: UInt8Array | None = None

    def __reduce__(self) -> tuple[type["MappedBinFile"], tuple[str, int | None]]:
        return type(self), (self.path, self.nbytes)

    @property
    def content(self) -> UInt8Array:
        """The bytes of the file, mapped at first use."""
        if self._content is None:
            self._content = map_file(self.path, self.nbytes)
        return self._content

    def read(self, dtype: DTypeLike, count: int, offset: int) -> AnyArray:
        """Return ``count`` items from byte ``offset`` as a view; SourceError outside the file."""
        content = self.content
        itemsize = np.dtype(dtype).itemsize
        start, count = int(offset), int(count)
        check_span(self.path, content.size, start, count, itemsize)
        return content[start : start + count * itemsize].view(dtype)

    def close(self) -> None:
        """Release the map; it is unmapped with its last view."""
        self._content = None


def check_span(path: str, size: int, offset: int, count: int, itemsize: int) -> None:
    """Raise if a span is outside the file, before memory is allocated for it."""
    if count < 0 or offset < 0 or offset + count * itemsize > size:
        raise SourceError(
            f"a read must lie within the {size:,} bytes of {path}, but {count} items of "
            f"{itemsize} bytes from byte {offset} do not; check the offset and the length"
        )
