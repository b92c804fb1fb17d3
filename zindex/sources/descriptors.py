"""Keep local files open between reads."""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic

from zindex.io.file_chunks import open_local, read_local, shortened
from zindex.io.file_list import SourceFile
from zindex.io.frames import ReportBroken

_MAX_OPEN = 128
_CHECK_SECONDS = 1.0


class Descriptors:
    """Local files that stay open between reads, the last opened ones.

    Parameters
    ----------
    files
        The files.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._opened: OrderedDict[int, int] = OrderedDict()
        self._next_check = 0.0

    def modified(self) -> Sequence[tuple[int, int]]:
        """Return the open files and their times of modification.

        None, if no file was opened since the last call and that is not a second ago.
        """
        now = monotonic()
        if now < self._next_check:
            return ()
        self._next_check = now + _CHECK_SECONDS
        return [(number, os.fstat(file).st_mtime_ns) for number, file in self._opened.items()]

    def read(self, number: int, offset: int, nbytes: int) -> bytes:
        """Return bytes of a file; errors are those of `read_into`."""
        content = bytearray(nbytes)
        self.read_into(number, offset, memoryview(content))
        return bytes(content)

    def read_into(
        self,
        number: int,
        offset: int,
        view: memoryview,
        report_to: Callable[[int], ReportBroken] | None = None,
    ) -> None:
        """Read bytes of a file into a view, which they fill.

        Parameters
        ----------
        number, offset, view
            The file, the first byte, and the view.
        report_to
            Returns, for the number of a file, what is called for its broken frames; see
            `Frames.read_into`.

        Raises
        ------
        SourceError
            If its size has changed.
        StoreNotFoundError, StoreUnreadableError
            If it cannot be read.
        """
        file = self._files[number]
        if file.growing is not None and file.growing.read_first(offset, view):
            return
        descriptor = self._opened.get(number)
        if descriptor is None:
            descriptor = self._open(number)
        if file.frames is not None:
            report = None if report_to is None else report_to(number)
            file.frames.read_into(
                offset, view, lambda a, b: read_local(file, descriptor, a, b - a), report
            )
            return
        try:  # without the cost of `read_local`
            found = os.preadv(descriptor, [view], offset)
        except OSError:
            found = 0  # `read_local` raises an error of zindex
        while found < len(view):
            rest = read_local(file, descriptor, offset + found, len(view) - found)
            if not rest:
                raise shortened(file, offset + found)
            view[found : found + len(rest)] = rest
            found += len(rest)

    def _open(self, number: int) -> int:
        with open_local(self._files[number]) as descriptor:
            self._opened[number] = os.dup(descriptor)
            self._next_check = 0.0
        if len(self._opened) > _MAX_OPEN:
            os.close(self._opened.popitem(last=False)[1])
        return self._opened[number]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone
        while self._opened:
            close(self._opened.popitem()[1])
