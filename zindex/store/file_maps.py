"""Maps of the open files of a process, as long as leases protect them.

Kernels copy from a map without a system call, at the speed of memory. A file that cannot be leased,
or whose lease is broken because a process opens it for writing, is read with pread(2).
"""

import time
from functools import cache

from zindex.io.leased_maps import LeasedMap
from zindex.io.machine import usable_memory
from zindex.store.open_array import OpenArray, OpenFile

#: Limit of the maps of a process.
MAX_MAPS = 4096
# Maps take at most this part of the memory: a page that is not in the page cache is read with many
# neighbours, which pays only for files that stay there.
_MEMORY_PART = 2


class FileMaps:
    """The maps of a process, by array and file; the table of open files locks its changes."""

    def __init__(self) -> None:
        self._maps: dict[tuple[OpenArray, int], LeasedMap] = {}
        self._nbytes = 0
        #: When leases were last checked, by `time.monotonic`.
        self.checked = 0.0

    def __len__(self) -> int:
        return len(self._maps)

    def make(self, file: OpenFile, nbytes: int) -> LeasedMap | None:
        """Return a map of an open file of some size; None if there must not be one."""
        if len(self._maps) >= MAX_MAPS or self._nbytes + nbytes > _max_nbytes():
            return None
        try:
            return LeasedMap(file.number, file.where, file)
        except OSError:
            return None

    def add(self, file: OpenFile, made: LeasedMap) -> None:
        """Show a map to kernels."""
        self._maps[file.array, file.shard] = made
        self._nbytes += made.nbytes
        file.array.maps[file.shard] = made.record.ctypes.data

    def remove(self, array: OpenArray, shard: int) -> LeasedMap | None:
        """Hide a map from later kernel calls, and return it."""
        array.maps[shard] = 0
        made = self._maps.pop((array, shard), None)
        if made is not None:
            self._nbytes -= made.nbytes
        return made

    def find_broken(self) -> list[tuple[OpenArray, int]]:
        """Return the files whose leases are broken."""
        self.checked = time.monotonic()
        return [place for place, made in self._maps.items() if not made.is_held()]


@cache
def _max_nbytes() -> int:
    """Return the most bytes that all maps may have together."""
    return usable_memory() // _MEMORY_PART
