"""Decompressed frames of a file on this node, in a sparse file that its processes share."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from zindex.io.local import free_nbytes, read_into
from zindex.io.system_errors import reading

#: Bytes that caches and copies leave free, also those of a decompression bomb, and bytes between
#: checks.
FREE_NBYTES, STEP_NBYTES = 1 << 30, 1 << 26
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FrameCache:
    """The frames of a file that processes of this node have decompressed, in a sparse file.

    Parameters
    ----------
    path
        The file, in a folder that only this user can write to. A second file has a byte for each
        frame, 1 if it is there, which is written last.
    num_frames, nbytes
        Frames, and bytes of the content.
    """

    def __init__(self, path: Path, num_frames: int, nbytes: int) -> None:
        self._descriptors: list[int] = []
        for name, size in ((path, nbytes), (path.with_suffix(".frames"), num_frames)):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptors.append(os.open(name, flags, 0o600))
            os.ftruncate(self._descriptors[-1], size)
        self._path, self._left, self._is_full = path, 0, False

    def find_missing(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of frames that has all missing ones of a range; an empty one if none."""
        with reading(self._path):
            marks = os.pread(self._descriptors[1], last - first, first)
        marks = marks.ljust(last - first, b"\0")
        start = marks.find(0)
        return (last, last) if start < 0 else (first + start, first + marks.rfind(0) + 1)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Read content of frames that are there."""
        with reading(self._path):
            if read_into(self._descriptors[0], np.asarray(view), offset) < len(view):
                raise OSError("it was cut off")

    def put(self, number: int, offset: int, content: bytes) -> None:
        """Add a frame; after the first failure, such as of a full disk, none is added."""
        if self._left <= 0 and not self._is_full:
            self._is_full = free_nbytes(self._path.parent) < FREE_NBYTES
            self._left = STEP_NBYTES
        if self._is_full:
            return
        self._left -= len(content)
        try:
            if os.pwrite(self._descriptors[0], content, offset) == len(content):
                os.pwrite(self._descriptors[1], b"\1", number)
        except OSError:
            self._is_full = True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone
        while self._descriptors:
            close(self._descriptors.pop())


def boot_id() -> str:
    """Return what differs after a restart of this node, which may lose unsynced data; or ``""``."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""
