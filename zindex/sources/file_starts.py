"""The starts of files in object stores that are read next, requested in advance."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zindex.io.file_chunks import read_start
from zindex.io.file_list import SourceFile
from zindex.io.request_threads import ForkSafePool, wait_for

if TYPE_CHECKING:
    from concurrent.futures import Future

_NUM_THREADS = 16


class FileStarts:
    """The starts of files that a process reads next, and threads; they are not pickled."""

    def __init__(self) -> None:
        self._made: dict[int, Future[tuple[SourceFile, bytes]]] = {}
        self._threads = ForkSafePool(_NUM_THREADS, "zindex-starts")

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStarts, ()

    def begin(self, files: Mapping[int, SourceFile]) -> None:
        """Request the starts of files, by their numbers, and give up those of others."""
        before, self._made = self._made if self._threads.is_own else {}, {}
        threads = self._threads.get()
        for number, file in files.items():
            made = before.pop(number, None)
            self._made[number] = made or threads.submit(read_start, file)
        for made in before.values():
            made.cancel()

    def take(self, number: int) -> tuple[SourceFile, bytes] | None:
        """Return a file with its size, and its start; None if that was not requested here.

        Raises the errors of the request.
        """
        if not self._threads.is_own or number not in self._made:
            return None
        return wait_for(self._made.pop(number))
