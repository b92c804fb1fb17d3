"""The open files of local arrays in this process, and which parts of them are verified.

The number of descriptors is bounded by eviction; which indices and chunks are verified is
remembered longer. Descriptors never cross ``fork``: a child opens its own.
"""

import errno
import os
import resource
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeAlias

from zindex.arrays import AnyArray
from zindex.io.create_only import open_descriptor
from zindex.io.leased_maps import CHECK_SECONDS
from zindex.store.file_maps import FileMaps
from zindex.store.open_array import DECODED_NBYTES, OpenArray, OpenFile
from zindex.store.shard import ArrayFiles

#: Root, version and form of an array.
_Key: TypeAlias = tuple[str, str, ArrayFiles]

#: Limit in bytes of what a process remembers about files, without decoded chunks.
KNOWN_NBYTES = 1 << 28
#: Spans that a process reads of an array before its files are mapped, which takes as long as some
#: hundreds.
SPANS_BEFORE_MAPS = 4096
_MAX_DESCRIPTORS = 1 << 15
# Files that kernel calls may keep open beyond the budget: a fraction of it, or this number.
_RETIRED_PART, _MIN_RETIRED = 8, 8


def num_descriptors() -> int:
    """Return the limit of open files: half of the process's own limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_DESCRIPTORS
    return max(8, min(soft // 2, _MAX_DESCRIPTORS))


def identify(status: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file; see `KnownFile`."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileTable:
    """All open arrays of a process."""

    # A fork may happen between any two statements of another thread that holds the lock. The order
    # of changes ensures that a child never finds a descriptor that is not in ``files``, nor a
    # verified chunk of a file that is not in ``known``.

    def __init__(self) -> None:
        self.arrays: OrderedDict[_Key, OpenArray] = OrderedDict()
        self.start()

    def start(self) -> None:
        """Start without open files, but keep what is known about ``arrays``."""
        for key in [key for key, array in self.arrays.items() if array.retired]:
            del self.arrays[key]
        self.keys_of_root: dict[str, set[_Key]] = {}
        for key in self.arrays:
            self.keys_of_root.setdefault(key[0], set()).add(key)
        self.lock = threading.Lock()
        self.kernel_ended = threading.Condition(self.lock)
        self.budget = num_descriptors()
        #: Open files in the order of the clock algorithm that evicts them; by number, so that no
        #: frame of a thread that is lost in a fork keeps a file open.
        self.ring: deque[tuple[OpenArray, int]] = deque()
        self.clock = 0
        #: Running kernel calls, and closed files and maps that they may still be reading.
        self.active: dict[int, None] = {}
        self.retired: deque[tuple[int, object]] = deque()
        self.nbytes = sum(array.nbytes for array in self.arrays.values())
        self.decoded: OrderedDict[tuple[int, int], AnyArray] = OrderedDict()
        self.decoded_nbytes = 0
        self.maps = FileMaps()
        self.watcher: threading.Thread | None = None

    def array(self, root: str, version: str, form: ArrayFiles) -> OpenArray:
        """Return the open array of a place; one object per version and form."""
        key = (root, version, form)
        with self.lock:
            array = self.arrays.get(key)
            if array is not None:
                self.arrays.move_to_end(key)
                return array
        fresh = OpenArray(root, form, version)
        with self.lock:
            array = self.arrays.setdefault(key, fresh)
            if array is fresh:
                self.keys_of_root.setdefault(root, set()).add(key)
                self.nbytes += array.nbytes
                while self.nbytes > KNOWN_NBYTES and len(self.arrays) > 1:
                    self._drop(next(iter(self.arrays)))
        return array

    def _evict_state(self, array: OpenArray) -> None:
        """Evict state of other arrays, then of this array's closed files, down to the limit."""
        for key in list(self.arrays) if self.nbytes > KNOWN_NBYTES else ():
            if self.arrays[key] is not array and self.nbytes > KNOWN_NBYTES:
                self._drop(key)
        if self.nbytes > KNOWN_NBYTES:
            closed = [shard for shard in array.known if shard not in array.files]
            # Evict half of them, or every opened file would scan all others.
            for shard in closed[: len(closed) // 2]:
                self._forget_known(array, shard)

    def _drop(self, key: _Key) -> None:
        """Evict an array."""
        array = self.arrays[key]
        array.retired = True
        self.nbytes -= array.nbytes
        self._forget_array(array)
        del self.arrays[key]
        keys = self.keys_of_root[key[0]]
        keys.discard(key)
        if not keys:
            del self.keys_of_root[key[0]]

    def open(self, array: OpenArray, shard: int) -> OpenFile:
        """Return an open file; open it and check its index first if necessary."""
        file = array.files.get(shard)
        if file is not None:
            array.used[shard] = 1
            return file
        file = OpenFile(self._descriptor(array, shard), array, shard)
        status = os.fstat(file.number)
        identity = identify(status)
        known = array.known.get(shard)
        found = known is None or known.identity != identity
        if known is None or found:
            if not stat.S_ISREG(status.st_mode):
                raise array.damaged(f"{array.path(shard)} must be a regular file")
            known = file.read_index(identity, status.st_size)
        file.index, file.checksums = known.chunks, known.checksums
        with self.lock:
            other = array.files.get(shard)
            if other is not None:
                return other
            if array.retired:
                return file
            if found:
                self._forget_known(array, shard)
                array.nbytes += known.nbytes
                self.nbytes += known.nbytes
                array.known[shard] = known
                self._evict_state(array)
            array.files[shard] = file
            array.used[shard] = 0
            array.show(file)
            self.ring.append((array, shard))
            self._close_some(self.budget)
            # Nothing is closed during a kernel call, so others may only open a limited number of
            # files.
            most = max(_MIN_RETIRED, self.budget // _RETIRED_PART)
            while self.active and len(self.retired) > most:
                self.kernel_ended.wait()
            # Files that do not stay open are not worth a map.
            is_kept = len(self.ring) < self.budget
        if array.wants_maps and is_kept:
            self._map(file)
        return file

    def count_spans(self, array: OpenArray, count: int) -> None:
        """Count spans that are read of an array, whose files are mapped once there are many."""
        before, array.num_spans = array.num_spans, array.num_spans + count
        if before < SPANS_BEFORE_MAPS <= array.num_spans:
            self.map_files(array)

    def map_files(self, array: OpenArray) -> None:
        """Map the open files of an array, and those that are opened later."""
        array.wants_maps = True
        for file in list(array.files.values()):
            self._map(file)

    def _map(self, file: OpenFile) -> None:
        """Map an open file, if a lease protects the map and there is space."""
        array, shard = file.array, file.shard
        known = array.known.get(shard)
        if known is None or array.maps[shard]:
            return
        made = self.maps.make(file, known.file_nbytes)
        if made is None or known.identity != identify(made.status):
            return
        with self.lock:
            if array.maps[shard] or array.files.get(shard) is not file:
                return
            self.maps.add(file, made)
            if self.watcher is None:
                self.watcher = threading.Thread(
                    target=self._watch, name="zindex-leases", daemon=True
                )
                self.watcher.start()

    def _watch(self) -> None:
        """Drop maps whose leases are broken, until there are none."""
        while True:
            time.sleep(CHECK_SECONDS)
            with self.lock:
                self._drop_broken()
                if not self.maps:
                    self.watcher = None
                    return

    def _drop_broken(self) -> None:
        """Drop maps whose leases are broken; kernels then read these files with pread."""
        for array, shard in self.maps.find_broken():
            array.wants_maps = False
            self._unmap(array, shard)

    def _unmap(self, array: OpenArray, shard: int) -> None:
        """Release a map; it stays as long as a kernel may read it."""
        made = self.maps.remove(array, shard)
        if made is not None and self.active:
            self.retired.append((self.clock, made))

    def _descriptor(self, array: OpenArray, shard: int) -> int:
        """Open a file; if the process is out of descriptors, close others first."""
        path = array.path(shard)
        flags = os.O_RDONLY | os.O_NONBLOCK
        try:
            try:
                return open_descriptor(path, flags)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
            with self.lock:
                self._close_some(len(self.ring) // 2)
            return open_descriptor(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            what = "shard " if array.form.ours else "file "
            raise array.damaged(f"{what}{path} is missing") from None

    def _close_some(self, budget: int) -> None:
        """Close files that were not read recently, down to a budget."""
        while len(self.ring) > budget:
            array, shard = self.ring.popleft()
            if array.used[shard]:
                array.used[shard] = 0
                self.ring.append((array, shard))
            else:
                self._close(array, shard)

    def _close(self, array: OpenArray, shard: int) -> None:
        """Release an open file; it stays open while a kernel may read it."""
        self._unmap(array, shard)
        array.descriptors[shard] = 0
        file = array.files.pop(shard)
        if self.active:
            self.retired.append((self.clock, file))

    def begin_read(self) -> int:
        """Keep all descriptors and maps open for a kernel, until `end_read`."""
        with self.lock:
            if self.watcher is not None and self.maps.is_due():
                self._drop_broken()
            self.clock += 1
            self.active[self.clock] = None
            return self.clock

    def end_read(self, ticket: int) -> None:
        """End a kernel call, and close the files and maps that it kept open."""
        with self.lock:
            self.active.pop(ticket, None)
            oldest = next(iter(self.active), self.clock + 1)
            while self.retired and self.retired[0][0] < oldest:
                self.retired.popleft()
            self.kernel_ended.notify_all()

    def mark_verified(self, file: OpenFile, chunks: Iterable[int]) -> None:
        """Mark chunks of an open file as verified."""
        array = file.array
        first = file.shard * array.form.chunks_per_shard
        with self.lock:
            if array.files.get(file.shard) is file:
                for chunk in chunks:
                    array.verified[first + chunk] = 1

    def get_decoded(self, array: OpenArray, number: int) -> AnyArray | None:
        """Return the cached values of a compressed chunk, or None."""
        key = (id(array), number)
        with self.lock:
            values = self.decoded.get(key)
            if values is not None:
                self.decoded.move_to_end(key)
        return values

    def keep_decoded(self, array: OpenArray, number: int, values: AnyArray) -> None:
        """Cache the values of a compressed chunk."""
        with self.lock:
            if array.retired:
                return
            old = self.decoded.pop((id(array), number), None)
            if old is not None:
                self.decoded_nbytes -= old.nbytes
            self.decoded[id(array), number] = values
            self.decoded_nbytes += values.nbytes
            while self.decoded_nbytes > DECODED_NBYTES and len(self.decoded) > 1:
                self.decoded_nbytes -= self.decoded.popitem(last=False)[1].nbytes

    def forget(self, root: str | os.PathLike[str]) -> None:
        """Forget the files of a store, which may have been removed and rebuilt."""
        with self.lock:
            for key in self.keys_of_root.get(os.fspath(root), ()):
                self._forget_array(self.arrays[key])

    def forget_array(self, array: OpenArray) -> None:
        """Forget an array's files."""
        with self.lock:
            self._forget_array(array)

    def forget_all(self) -> None:
        """Forget everything, as in a new process."""
        with self.lock:
            for key in list(self.arrays):
                self._drop(key)

    def _forget_array(self, array: OpenArray) -> None:
        if array.files:
            self.ring = deque(entry for entry in self.ring if entry[0] is not array)
            for shard in list(array.files):
                self._close(array, shard)
        for shard in list(array.known):
            self._forget_known(array, shard)
        if not array.form.chain.plain:
            for key in [key for key in self.decoded if key[0] == id(array)]:
                self.decoded_nbytes -= self.decoded.pop(key).nbytes

    def _forget_known(self, array: OpenArray, shard: int) -> None:
        form = array.form
        if form.chain.checked or not form.chain.plain:
            first = shard * form.chunks_per_shard
            array.verified_values[first : first + form.chunks_per_shard] = 0
        known = array.known.pop(shard, None)
        if known is None:
            return
        array.nbytes -= known.nbytes
        if not array.retired:
            self.nbytes -= known.nbytes

    def leave_parent(self) -> None:
        """Close everything in a forked child: threads that no longer exist may hold the locks."""
        for array in self.arrays.values():
            for shard in array.files:
                array.descriptors[shard] = 0
            array.files = {}
            array.maps.fill(0)
        self.start()


_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


table = FileTable()
os.register_at_fork(after_in_child=table.leave_parent)
