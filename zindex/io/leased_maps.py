"""Memory maps of files that no process can truncate while they are read.

Reading a truncated part of a memory map ends the process with SIGBUS. A read lease of Linux, see
``fcntl(2)``, makes a process that opens the file for writing, or truncates it, wait for the holder
of the lease, or for the ``lease-break-time`` of the system. Leases are checked before reads, and a
thread gives them up within a second once they are asked for.
"""

import fcntl
import os
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from zindex.arrays import UInt8Array
from zindex.errors import ZindexError
from zindex.io.local import map_descriptor
from zindex.io.regular_files import open_regular

# File systems whose leases hold for all processes that can write to them: network file systems and
# overlays also have other writers.
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "tmpfs", "f2fs"))
# Seconds between checks, and that the system must give a holder at least.
_CHECK_SECONDS, _LEAST_SECONDS = 0.25, 10
# Share of the descriptors of a process that leases may take.
_SHARE = 4

_watched: "weakref.WeakSet[LeasedMaps]" = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_num_leased = 0


class LeasedMaps:
    """Maps of some files, as long as none of their leases is asked for.

    Parameters
    ----------
    on_break
        Refers to a method that another thread calls once a lease is asked for. It drops the maps:
        leases are given up when the last reference to this object is deleted.
    """

    def __init__(self, on_break: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._on_break = on_break
        self._process = os.getpid()
        self._descriptors: list[int] = []
        self._checked = 0.0
        self._is_broken = False
        weakref.finalize(self, _release, self._descriptors, self._process)

    def map(self, path: str, nbytes: int, modified: int | None = None) -> UInt8Array | None:
        """Return the content of a file, or None if it cannot be leased.

        Parameters
        ----------
        path
            A regular file.
        nbytes
            Least bytes that it must have.
        modified
            Time of its last change in nanoseconds, as it must be; None for any.
        """
        global _num_leased
        if not _may_lease(path):
            return None
        try:
            descriptor, _ = open_regular(path)
        except (OSError, ZindexError):  # reads say what is wrong
            return None
        try:
            # Being asked is no reason to end: the default of SIGIO, which the system sends.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            status = os.fstat(descriptor)
            is_same = status.st_size >= nbytes and modified in (None, status.st_mtime_ns)
            content = map_descriptor(descriptor, status.st_size, path) if is_same else None
        except OSError:  # of another user, open for writing, or without leases
            content = None
        if content is None:
            os.close(descriptor)
            return None
        _num_leased += 1
        self._descriptors.append(descriptor)
        _watch(self)
        return content

    def is_held(self) -> bool:
        """Return whether the maps may be read for some seconds from now on."""
        if self._is_broken or self._process != os.getpid():
            return False
        now = time.monotonic()
        if now - self._checked > _CHECK_SECONDS:
            leases = (fcntl.fcntl(number, fcntl.F_GETLEASE) for number in self._descriptors)
            self._is_broken = any(lease != fcntl.F_RDLCK for lease in leases)
            self._checked = now
        return not self._is_broken

    def give_up_if_broken(self) -> None:
        """Call ``on_break`` if a lease is asked for."""
        if not self.is_held():
            _watched.discard(self)
            if (drop := self._on_break()) is not None:
                drop()


def _may_lease(path: str) -> bool:
    """Return whether leases of a file protect its maps, and descriptors are left."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < _SHARE * (_num_leased + 1):
        return False
    try:
        seconds = int(Path("/proc/sys/fs/lease-break-time").read_text())
        device = os.stat(path).st_dev
        kinds = _file_systems()
    except (OSError, ValueError):
        return False
    name = f"{os.major(device)}:{os.minor(device)}"
    return seconds >= _LEAST_SECONDS and kinds.get(name, "") in _LOCAL


def _file_systems() -> dict[str, str]:
    """Return the kind of each mounted file system by its device."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        found[before.split()[2]] = after.split()[0]
    return found


def _release(descriptors: list[int], process: int) -> None:
    """Give leases up. A forked child shares those of its parent, and only closes them."""
    global _num_leased
    for descriptor in descriptors:
        if process == os.getpid():
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(descriptor)
    _num_leased -= len(descriptors)


def _watch(maps: LeasedMaps) -> None:
    """Have leases given up when they are asked for."""
    global _thread
    with _lock:
        _watched.add(maps)
        if _thread is None:
            _thread = threading.Thread(target=_give_up, name="zindex-leases", daemon=True)
            _thread.start()


def _give_up() -> None:
    """Check the leases until there are none."""
    global _thread
    while True:
        time.sleep(_CHECK_SECONDS)
        with _lock:
            watched = list(_watched)
            if not watched:
                _thread = None
                return
        while watched:  # this thread keeps no maps
            watched.pop().give_up_if_broken()


def _begin_child() -> None:
    """Reset in a forked child, which has no such thread."""
    global _thread, _lock, _num_leased
    _thread, _lock, _num_leased = None, threading.Lock(), 0
    _watched.clear()


os.register_at_fork(after_in_child=_begin_child)
