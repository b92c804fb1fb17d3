"""A log of small sealed files with consecutive numbers, which any number of processes append to.

A number is created once, after all smaller ones. So a reader that knows some number finds new
entries by looking for the next one, and never lists the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zindex.errors import StoreNotFoundError, VerificationError
from zindex.io import files
from zindex.io.objects import Place
from zindex.io.request_threads import map_in_threads
from zindex.store.commit import read_sealed, seal

_DIGEST = "sha256"
_REMEDY = "restore the file as it was written, for what follows depends on it"
# Entries of one folder: large folders are slow on parallel file systems.
_FAN_OUT = 1000
# Entries that are read one after the other.
_FEW = 4


@dataclass(frozen=True, slots=True)
class NumberedLog:
    """A folder of numbered entries."""

    folder: Place

    def path(self, number: int) -> Place:
        """Return the location of an entry."""
        return self.folder / f"{number // _FAN_OUT:06d}/{number % _FAN_OUT:03d}.json"

    def read(self, number: int) -> dict[str, Any] | None:
        """Return an entry, or None if it does not exist yet.

        Raises
        ------
        StoreError, VerificationError
            If it is damaged.
        """
        path = self.path(number)
        for _ in range(2):
            try:
                return read_sealed(path, _DIGEST, _REMEDY)
            except StoreNotFoundError:
                # A client of a network file system may remember that it was missing, until it
                # lists the folder.
                if not isinstance(path, Path) or path.name not in self._list(path.parent):
                    return None
        return None

    def _list(self, folder: Place) -> set[str]:
        """List a folder of entries; if there is none, the log, which may have a new one."""
        names = files.list_names(folder)
        if not names:
            files.list_names(self.folder)
        return names

    def read_after(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the entries after a number, up to the last one.

        Raises
        ------
        VerificationError
            If an entry is missing although a later one exists.
        """
        num_found = 0
        while (entry := self.read(number + 1)) is not None:
            yield entry
            number += 1
            num_found += 1
            if num_found % _FEW:
                continue
            # Far behind: find the end with a few lookups, and read concurrently.
            numbers = range(number + 1, self.find_last(number) + 1)
            found = map_in_threads(files.num_writers(self.folder), self.read, numbers)
            for number, each in zip(numbers, found, strict=True):
                if each is None:
                    raise VerificationError(
                        f"{self.path(number)} must exist, as entry {numbers[-1]} does; {_REMEDY}"
                    )
                yield each

    def find_last(self, known: int) -> int:
        """Return the last number, given one that exists or precedes the first."""
        low, step = known, 1
        while files.exists(self.path(low + step)):
            low, step = low + step, 2 * step
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if files.exists(self.path(middle)):
                low = middle
            else:
                high = middle
        return low

    def create(self, number: int, content: dict[str, Any]) -> bool:
        """Create an entry; return False if another one has the number.

        An entry of the same content counts as this one: its reply may have been lost.
        """
        path, sealed = self.path(number), seal(content, _DIGEST)
        files.make_folder(path.parent)
        is_created = files.write_once(path, [sealed]) or files.read_file(path) == sealed
        files.sync_directory(path.parent)
        return is_created
