"""Small arrays that are read again and again, kept in memory once that pays.

The arrays of an index, and the bounds of documents, are a hundredth of the tokens; where they are
small enough, looking rows up in memory saves a system call for each. Tokens are never kept, nor
arrays in object storage, which have a cache of their own, nor what is still being built.
"""

from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from zindex.building.arrays import ComputedArray
from zindex.errors import VerificationError
from zindex.store.reader import ArrayReader
from zindex.store.rows import RowReader

AnyArray: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

#: Bytes that a process keeps at most: the arrays of some 10 billion tokens.
MAX_NBYTES = 1 << 26
# An array is read whole after one request for so many of its rows, for then that costs no more
# than what was read before; the first batches of many datasets read only what they need.
_ROWS_PER_REQUEST = 64


class _Known:
    """How often an array was asked, and its rows once they are in memory."""

    __slots__ = ("__weakref__", "num_requests", "rows")

    def __init__(self) -> None:
        self.num_requests = 0
        self.rows: AnyArray | None = None


# Forgotten with the readers.
_known: "WeakKeyDictionary[RowReader, _Known]" = WeakKeyDictionary()
# Those of them whose rows are in memory. A list can be copied while other threads add to it, and
# needs no lock that a fork could leave held.
_kept: "list[ref[_Known]]" = []


def find_held(reader: RowReader | AnyArray, num_requests: int) -> AnyArray | None:
    """Return an array if it is in memory, or is now; None if it is to be read.

    Parameters
    ----------
    reader
        The array's reader, the same one each time.
    num_requests
        Spans that are about to be read.
    """
    if not isinstance(reader, RowReader):
        return reader
    known = _known.get(reader)
    if known is None:
        if not _may_be_held(reader):
            return None
        known = _known[reader] = _Known()
    if known.rows is None:
        known.num_requests += num_requests
        if known.num_requests * _ROWS_PER_REQUEST < len(reader):
            return None
        if _count_bytes() + reader.nbytes > MAX_NBYTES:
            known.num_requests = 0  # there may be room after as many requests again
            return None
        try:
            known.rows = np.asarray(reader)
        except VerificationError:  # which is for those who ask for the damaged rows
            known.num_requests = -(1 << 62)
            return None
        _kept.append(ref(known, _kept.remove))
    return known.rows


def _count_bytes() -> int:
    """Return the bytes of all rows that are in memory."""
    found = [known() for known in list(_kept)]
    return sum(item.rows.nbytes for item in found if item is not None and item.rows is not None)


def _may_be_held(reader: RowReader) -> bool:
    """Return whether an array is finished, on this machine, small, and verified but once."""
    if reader.nbytes > MAX_NBYTES:
        return False
    return type(reader) is ComputedArray or (
        type(reader) is ArrayReader and reader.verify != "always"
    )


def take_spans(rows: AnyArray, starts: Int64Array, stops: Int64Array) -> AnyArray:
    """Return spans of an array in memory, one after the other.

    Raises
    ------
    IndexError
        If a span is outside the array.
    """
    if len(starts) == 1:
        start, stop = int(starts[0]), int(stops[0])
        if not 0 <= start <= stop <= len(rows):
            raise IndexError(f"rows [{start}, {stop}) are outside an array of length {len(rows)}")
        return rows[start:stop]
    if (starts | (stops - starts) | (len(rows) - stops)).min() < 0:
        i = int(np.argmax((starts < 0) | (stops < starts) | (stops > len(rows))))
        return take_spans(rows, starts[i : i + 1], stops[i : i + 1])
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    taken: AnyArray = rows[
        np.repeat(starts - before, lengths) + np.arange(before[-1] + lengths[-1])
    ]
    return taken
