"""Per-process cache of sequence lengths, shared by tasks.

It does not affect correctness: lengths that are not cached are read or computed again, for example
in another process, after a restart, or when there is no room.
"""

import errno
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from zindex.arrays import Int32Array, IntegerArray
from zindex.errors import StoreError
from zindex.ingest.length_source import LengthSource
from zindex.io.objects import Place
from zindex.kernels.samples import gather_lengths
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan

Lengths = Int32Array
#: Rows of a document index, half-open.
Rows = tuple[int, int]

# Bytes of lengths in file order: random access needs those of a whole split, 4 bytes per document,
# once per process for all threads. Larger splits spill to a scratch file.
_LENGTHS_NBYTES = 1 << 30
# Bytes of lengths in document order, kept between counting tokens and finding boundaries.
_ORDERED_NBYTES = 1 << 29


def _nbytes(arrays: Iterable[Lengths]) -> int:
    return sum(values.nbytes for values in arrays)


class _Cache:
    """Lengths by dataset or store, and by rows, of at most so many bytes."""

    def __init__(self, most_nbytes: int) -> None:
        self.most_nbytes = most_nbytes
        self.reset()

    def reset(self) -> None:
        """Start with an empty cache, as in a new process."""
        self.lock = threading.Lock()
        #: Locks that let one thread read cached lengths on behalf of all.
        self.locks: dict[tuple[Any, ...], threading.Lock] = {}
        self.arrays: OrderedDict[tuple[Any, ...], Lengths] = OrderedDict()

    def evict(self, owner: str | Place) -> None:
        """Evict a dataset, by its digest, or a store whose build has ended."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] == owner]:
                del self.arrays[key]
                self.locks.pop(key, None)


class _SplitCache(_Cache):
    """Cache of lengths of splits in file order; evicts the least recently used first."""

    def get(self, source: LengthSource, start: int, stop: int) -> Lengths:
        """Return the lengths of sequences ``[start, stop)``, read at most once."""
        key = (source.facts.length_digest, start, stop)
        with self.lock:
            reading = self.locks.setdefault(key, threading.Lock())
        with reading:
            with self.lock:
                found = self.arrays.get(key)
                if found is not None:
                    self.arrays.move_to_end(key)
                    return found
            values = _read_lengths(source, start, stop, self.most_nbytes)
            with self.lock:
                self.arrays[key] = values
                while len(self.arrays) > 1 and _nbytes(self.arrays.values()) > self.most_nbytes:
                    evicted, _ = self.arrays.popitem(last=False)
                    self.locks.pop(evicted, None)
        return values


def _read_lengths(source: LengthSource, start: int, stop: int, most_nbytes: int) -> Lengths:
    """Return the lengths of sequences ``[start, stop)``, in memory or mapped from a scratch file.

    The kernel can reclaim the pages of a mapped file. The file is unlinked and disappears with the
    array.
    """
    nbytes = 4 * (stop - start)
    if nbytes <= most_nbytes:
        return source.lengths(start, stop)
    with tempfile.TemporaryFile(prefix="zindex-lengths-", buffering=0) as scratch:
        step = most_nbytes // 256 + 1
        for first in range(start, stop, step):
            part = source.lengths(first, min(first + step, stop))
            try:
                if scratch.write(part.data) != part.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise StoreError(
                    f"the lengths of {stop - start:,} documents of {source.path} need {nbytes:,} "
                    f"bytes of scratch in {tempfile.gettempdir()}, the system says: "
                    f"{error.strerror}; let TMPDIR name a folder with room on a disk of the node"
                ) from error
        return np.memmap(scratch, np.int32, "r", shape=(stop - start,))


class _ShardCache(_Cache):
    """Cache of lengths of document shards, in document order; without room, a shard is not cached.

    A root identifies the content of an index but not its grid, so shards are identified by their
    rows. They are read in the order in which they were cached, so evicting the oldest would evict
    each of them just before its use.
    """

    def put(self, root: Place, rows: Rows, lengths: Lengths) -> None:
        """Cache the lengths of a shard if there is room, evicting other builds."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] != root]:
                if _nbytes(self.arrays.values()) + lengths.nbytes <= self.most_nbytes:
                    break
                del self.arrays[key]
            if _nbytes(self.arrays.values()) + lengths.nbytes <= self.most_nbytes:
                self.arrays[root, rows] = lengths

    def get(self, root: Place, rows: Rows) -> Lengths | None:
        """Return the lengths of a shard, or None if they are not cached."""
        with self.lock:
            return self.arrays.get((root, rows))


_splits = _SplitCache(_LENGTHS_NBYTES)
_shards = _ShardCache(_ORDERED_NBYTES)
os.register_at_fork(after_in_child=_splits.reset)
os.register_at_fork(after_in_child=_shards.reset)


def order_lengths(
    plan: IndexPlan | PackingPlan, source: LengthSource, documents: IntegerArray
) -> Lengths:
    """Return the lengths of documents in the given order: shape (documents,), int32."""
    lengths = _splits.get(source, plan.start, plan.stop)
    ordered = np.empty(len(documents), np.int32)
    gather_lengths(lengths, documents, plan.start, ordered)
    return ordered


cache_shard = _shards.put
find_shard = _shards.get


def evict_lengths(source: LengthSource, root: Place) -> None:
    """Evict the lengths of one build from this process's cache."""
    _splits.evict(source.facts.length_digest)
    _shards.evict(root)
