"""One local array as this process has it open: its files, and which of its chunks are sound."""

import os
from typing import Any, NamedTuple

import numpy as np

from zindex.errors import VerificationError
from zindex.store.array_files import ArrayFiles
from zindex.store.shard import FOREIGN_REMEDY, REMEDY, ShardIndex

# What an array takes beside one byte per chunk and five per file.
_ARRAY_NBYTES = 2048


class OpenFile:
    """An open file: it closes when the table and all who read from it have let go of it."""

    __slots__ = ("index", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        #: None where chunk c lies at base + c * stride.
        self.index: ShardIndex | None = None

    def __del__(self, close: Any = os.close) -> None:
        close(self.number)


class KnownFile(NamedTuple):
    """What was found out about a file."""

    #: Device, inode, size and time of change: another file at the path has others.
    identity: tuple[int, ...]
    chunks: ShardIndex | None


class OpenArray:
    """One array's open files and verified chunks, shared by all its readers in this process.

    The arrays of numbers are read by a kernel through their addresses, so they are never replaced.
    """

    __slots__ = (
        "descriptors",
        "files",
        "form",
        "known",
        "nbytes",
        "record",
        "records",
        "retired",
        "root",
        "used",
        "verified",
        "verified_values",
    )

    def __init__(self, root: str, form: ArrayFiles) -> None:
        self.root = root
        self.form = form
        self.files: dict[int, OpenFile] = {}
        self.known: dict[int, KnownFile] = {}
        #: Whether the table no longer knows it: readers must ask for a new one.
        self.retired = False
        num_shards = max(1, form.num_shards)
        num_chunks = num_shards * form.chunks_per_shard
        self.descriptors = np.zeros(num_shards, np.int32)
        used = np.zeros(num_shards, np.uint8)
        self.verified_values = np.zeros(num_chunks, np.uint8)
        # Single values are got from a memoryview in a third of the time.
        self.used = used.data
        self.verified = self.verified_values.data
        self.nbytes = _ARRAY_NBYTES + num_chunks + 5 * num_shards
        width = np.dtype(form.dtype)
        # What zindex.kernels.gather says of records.
        record = [
            form.length,
            form.shard_length,
            form.chunk_length,
            form.chunks_per_shard,
            form.row_nbytes,
            form.stride,
            form.base,
            self.descriptors.ctypes.data,
            used.ctypes.data,
            self.verified_values.ctypes.data,
            -width.itemsize if width.kind == "i" else width.itemsize,
        ]
        trusting = [*record[:9], 0, record[10]]
        self.records = np.array([record, trusting], np.int64)
        address = self.records.ctypes.data
        #: Addresses of the record that has chunks verified, and of the one that trusts them.
        self.record = (address, address + self.records.strides[0])

    def path(self, shard: int) -> str:
        """Return the path of a file."""
        return self.root if self.form.flat else f"{self.root}/{self.form.shard_key(shard)}"

    @property
    def remedy(self) -> str:
        """What cures damage."""
        return REMEDY if self.form.ours else FOREIGN_REMEDY

    def damaged(self, sentence: str) -> VerificationError:
        """Return an error that says what to do."""
        return VerificationError(f"{sentence}; {self.remedy}")

    def read_exactly(
        self, file: OpenFile, shard: int, buffers: list[memoryview], offset: int
    ) -> None:
        """Fill buffers from an offset; fewer bytes than they hold is an error."""
        wanted = sum(map(len, buffers))
        got = os.preadv(file.number, buffers, offset)
        while 0 < got < wanted:
            more = _read_rest(file.number, buffers, offset, got)
            if not more:
                break
            got += more
        if got != wanted:
            where = self.form.where(shard)
            raise self.damaged(f"{where} must hold {wanted} bytes at {offset}, it ends after {got}")


def _read_rest(descriptor: int, buffers: list[memoryview], offset: int, got: int) -> int:
    """Go on with a read that the system cut short."""
    rest = []
    skip = got
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
        else:
            rest.append(buffer[skip:])
            skip = 0
    return os.preadv(descriptor, rest, offset + got)
