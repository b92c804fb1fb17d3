"""Lengths that a process keeps between tasks, so that the next task need not read them again.

Nothing here is needed for a right result: whatever is not held is read or computed again, in
another process, after a restart, or when there is no room.
"""

import errno
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from zindex.building.source import LengthSource
from zindex.errors import StoreError
from zindex.kernels.samples import gather_lengths
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.store.objects import Place

Lengths = npt.NDArray[np.int32]
#: Rows of a document index, half-open.
Rows = tuple[int, int]

# Bytes of lengths in file order: random access needs those of a whole split, 4 bytes a document,
# once per process whatever the number of its threads. A split of more lies in a scratch file.
_LENGTHS_NBYTES = 1 << 30
# Documents whose lengths are copied to a scratch file at a time.
_COPIED_ROWS = 1 << 22
# Bytes of lengths in document order, kept from the count of tokens for the search of boundaries.
_ORDERED_NBYTES = 1 << 28


def _nbytes(arrays: Iterable[Lengths]) -> int:
    return sum(values.nbytes for values in arrays)


class _HeldLengths:
    """Lengths of splits in file order; the least used go first."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as in a new process."""
        self.lock = threading.Lock()
        self.locks: dict[tuple[str, int, int], threading.Lock] = {}
        self.arrays: OrderedDict[tuple[str, int, int], Lengths] = OrderedDict()

    def get(self, source: LengthSource, start: int, stop: int) -> Lengths:
        """Return the lengths of sequences ``[start, stop)``, reading them at most once."""
        key = (source.facts.length_digest, start, stop)
        with self.lock:
            own_lock = self.locks.setdefault(key, threading.Lock())
        with own_lock:
            with self.lock:
                found = self.arrays.get(key)
                if found is not None:
                    self.arrays.move_to_end(key)
                    return found
            values = _read_lengths(source, start, stop)
            with self.lock:
                self.arrays[key] = values
                while len(self.arrays) > 1 and _nbytes(self.arrays.values()) > _LENGTHS_NBYTES:
                    dropped, _ = self.arrays.popitem(last=False)
                    self.locks.pop(dropped, None)
        return values

    def drop(self, source: LengthSource) -> None:
        """Forget a dataset whose build is over."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] == source.facts.length_digest]:
                del self.arrays[key]
                self.locks.pop(key, None)


def _read_lengths(source: LengthSource, start: int, stop: int) -> Lengths:
    """Return the lengths of sequences ``[start, stop)``, in memory or mapped from a scratch file.

    The system takes back the pages of a mapped file when it needs them. The file has no name, and
    is gone with the array.
    """
    nbytes = 4 * (stop - start)
    if nbytes <= _LENGTHS_NBYTES:
        return source.lengths(start, stop)
    with tempfile.TemporaryFile(prefix="zindex-lengths-", buffering=0) as scratch:
        for first in range(start, stop, _COPIED_ROWS):
            part = source.lengths(first, min(first + _COPIED_ROWS, stop))
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


class _OrderedLengths:
    """Lengths of runs of documents, in order; what comes when there is no room is not kept.

    A root names the content of an index but not its cut, so runs are known by their rows.

    Runs are read in the order in which they came, so throwing out the oldest would throw out each
    just before its use.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as in a new process."""
        self.lock = threading.Lock()
        self.arrays: OrderedDict[tuple[Place, Rows], Lengths] = OrderedDict()

    def keep(self, root: Place, rows: Rows, lengths: Lengths) -> None:
        """Keep the lengths of a run of documents if there is room; other builds' make room."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] != root]:
                if _nbytes(self.arrays.values()) + lengths.nbytes <= _ORDERED_NBYTES:
                    break
                del self.arrays[key]
            if _nbytes(self.arrays.values()) + lengths.nbytes <= _ORDERED_NBYTES:
                self.arrays[root, rows] = lengths

    def get(self, root: Place, rows: Rows) -> Lengths | None:
        """Return the lengths of a run of documents, or None if they are not held."""
        with self.lock:
            return self.arrays.get((root, rows))

    def drop(self, root: Place) -> None:
        """Forget a build that is over."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] == root]:
                del self.arrays[key]


_held = _HeldLengths()
_ordered = _OrderedLengths()
os.register_at_fork(after_in_child=_held.reset)
os.register_at_fork(after_in_child=_ordered.reset)


def order_lengths(
    plan: IndexPlan | PackingPlan, source: LengthSource, documents: npt.NDArray[np.signedinteger]
) -> Lengths:
    """Return the lengths of documents in the given order: shape (documents,), int32."""
    lengths = _held.get(source, plan.start, plan.stop)
    ordered = np.empty(len(documents), np.int32)
    gather_lengths(lengths, documents, plan.start, ordered)
    return ordered


keep_ordered = _ordered.keep
find_ordered = _ordered.get


def drop_held(source: LengthSource, root: Place) -> None:
    """Forget what this process holds of one build."""
    _held.drop(source)
    _ordered.drop(root)
