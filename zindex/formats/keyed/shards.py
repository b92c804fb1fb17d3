"""What every format of keyed files comes down to: shards, and where the values of each key lie.

A shard is a file or a folder that holds all keys. Of each key it has values in one or several
extents, and it may know where records begin among them. Nothing here opens a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedArray:
    """The values of one key in one shard: a flat array, in one piece or in several."""

    key: str
    #: The file that holds them.
    path: str
    #: Numpy dtype name of the values, as they lie in the file.
    dtype: str
    #: Shape (extents,), int64: first byte of each extent in the file; -1 where HDF5 has it in
    #: chunks, so that only its own library can read it.
    extent_start: Int64Array
    #: Shape (extents,), int64: values of each extent.
    extent_length: Int64Array
    #: Shape (items + 1,), int64, from 0 to the number of values: where items begin; None: unknown.
    item_offset: Int64Array | None = None
    #: Shape (records + 1,), int64, from 0 to the number of items: where records begin, if a record
    #: is a group of items, such as the responses to a prompt; None: every item is a record.
    group_offset: Int64Array | None = None
    #: Names of the extents inside the file; None where a file is one raw extent.
    names: tuple[str, ...] | None = None

    @property
    def length(self) -> int:
        """Values of all extents."""
        return int(self.extent_length.sum())

    @property
    def num_records(self) -> int | None:
        """Records; None where it is not known where they begin."""
        if self.group_offset is not None:
            return len(self.group_offset) - 1
        return None if self.item_offset is None else len(self.item_offset) - 1


@dataclass(frozen=True, slots=True, eq=False)
class KeyedShard:
    """One file or folder: all keys of a run of records."""

    #: Below the folder that was given, with ``/``; for messages, and for the order of shards.
    name: str
    arrays: dict[str, KeyedArray]


def sum_lengths(lengths: Sequence[int]) -> Int64Array:
    """Return where things of these lengths begin, and where the last one ends.

    Examples
    --------
    >>> sum_lengths([2, 0, 3])
    array([0, 2, 2, 5])
    """
    offset = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offset[1:])
    return offset
