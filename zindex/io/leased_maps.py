"""Memory maps of files that no process can truncate while they are read.

Reading a truncated part of a memory map ends the process with SIGBUS. A read lease of Linux, see
``fcntl(2)``, makes a process that opens the file for writing, or truncates it, wait for the holder
of the lease, or for the ``lease-break-time`` of the system. The holder of maps must check them
before it reads, and release those that are broken within seconds.
"""

import ctypes
import fcntl
import os
import signal
import weakref
from functools import cache
from pathlib import Path

import numpy as np

from zindex.arrays import UInt8Array
from zindex.io.local import map_descriptor

#: Seconds between checks of maps, and that the system must give a holder at least.
CHECK_SECONDS, _LEAST_SECONDS = 0.25, 10
# ``f_type`` of the file systems whose leases hold for all processes that can write to them: ext2 to
# ext4, xfs, tmpfs and f2fs. Network file systems and overlays also have other writers.
_LOCAL = frozenset((0xEF53, 0x58465342, 0x01021994, 0xF2F52010))
# More than the system writes.
_STATFS_NBYTES = 512


class LeasedMap:
    """A map of an open file under a read lease, which is released with this object.

    Parameters
    ----------
    descriptor
        The file; open for writing in no process.
    path
        Its path, for messages.
    owner
        Keeps the descriptor open; referenced as long as the lease is held.

    Raises
    ------
    OSError
        If leases do not protect its maps, or the system refuses the lease or the map.
    """

    def __init__(self, descriptor: int, path: str, owner: object = None) -> None:
        if _break_seconds() < _LEAST_SECONDS or _file_system(descriptor) not in _LOCAL:
            raise OSError(f"no lease protects maps of {path}")
        # Ignored by default, unlike SIGIO.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        self._maps: list[UInt8Array] = []
        held = self._maps, descriptor, os.getpid(), owner
        weakref.finalize(self, _release, *held).atexit = False
        self.descriptor = descriptor
        self.status = os.fstat(descriptor)
        self.nbytes = self.status.st_size
        self._maps.append(map_descriptor(descriptor, self.nbytes, path))
        #: Shape (2,), int64: address and bytes of the map.
        self.record = np.array([self.content.ctypes.data, self.nbytes])

    @property
    def content(self) -> UInt8Array:
        """The map, shape (nbytes,): not to be referenced longer than this object."""
        return self._maps[0]

    def is_held(self) -> bool:
        """Return whether the map may be read for some seconds from now on."""
        return fcntl.fcntl(self.descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK


def _release(maps: list[UInt8Array], descriptor: int, process: int, _owner: object) -> None:
    """Unmap a file and release its lease, except in a forked child: that is its parent's."""
    maps.clear()
    if process == os.getpid():
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


@cache
def _break_seconds() -> int:
    """Return how long the system waits for the holder of a broken lease; 0 without leases."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return 0
    try:
        return int(Path("/proc/sys/fs/lease-break-time").read_text())
    except (OSError, ValueError):
        return 0


def _file_system(descriptor: int) -> int:
    """Return ``f_type`` of fstatfs(2), the first word that it writes; 0 if it fails."""
    buffer = ctypes.create_string_buffer(_STATFS_NBYTES)
    ctypes.CDLL(None).fstatfs(descriptor, buffer)
    return ctypes.c_long.from_buffer(buffer).value
