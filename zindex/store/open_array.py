"""The state of one local array in this process: its open files and verified chunks."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import UInt32Array
from zindex.errors import VerificationError
from zindex.formats.bin_reader import check_unchanged
from zindex.io import system_calls
from zindex.io.local import read_into
from zindex.store.codecs import CRC_NBYTES, most_nbytes
from zindex.store.receipts import check_receipt
from zindex.store.shard import ArrayFiles, ShardIndex, read_index

#: Limit in bytes of the decoded chunks that a process caches.
DECODED_NBYTES = 1 << 26
# Kernels decode chunks without that cache if these are small or the array exceeds the cache.
_SMALL_CHUNK_NBYTES, _LARGE_CHUNK_NBYTES = 1 << 15, 1 << 20
# Size of an array's state, without one byte per chunk and 13 per file.
_ARRAY_NBYTES = 2048
# Maximum size of a window of chunks in excess of twice its values.
_SLACK_NBYTES = 512
# Bytes of values that the system is asked to read together, in arrays up to a size, and in larger
# ones, of which a process needs only a few rows; and maximum number of windows of an array.
_WINDOW_NBYTES, _SMALL_ARRAY_NBYTES = 1 << 17, 1 << 30
_SMALL_WINDOW_NBYTES, _MAX_WINDOWS = 1 << 14, 1 << 22
# Bytes kept per file, without its index.
_FILE_NBYTES = 256


class KnownFile(NamedTuple):
    """What is known about a file."""

    #: Device, inode, size and change time: a different file at the same path differs in these.
    identity: tuple[int, ...]
    chunks: ShardIndex | None
    #: Checksums of its chunks, if it has a table of them.
    checksums: UInt32Array | None

    @property
    def file_nbytes(self) -> int:
        """Size of the file."""
        return self.identity[2]

    @property
    def nbytes(self) -> int:
        """Size of this object in memory."""
        table = 0 if self.checksums is None else self.checksums.nbytes
        return _FILE_NBYTES + table + (0 if self.chunks is None else 2 * self.chunks.offsets.nbytes)


class OpenArray:
    """One array's open files and verified chunks, shared by all its readers in this process.

    Kernels read the numeric arrays by address, so they are never replaced.
    """

    __slots__ = (
        "advised",
        "decoder_nbytes",
        "descriptors",
        "files",
        "form",
        "indices",
        "known",
        "maps",
        "nbytes",
        "num_spans",
        "record",
        "records",
        "retired",
        "root",
        "used",
        "verified",
        "verified_values",
        "version",
        "wants_maps",
        "window_length",
        "windows_per_shard",
    )

    def __init__(self, root: str, form: ArrayFiles, version: str) -> None:
        self.root = root
        self.form = form
        self.version = version
        self.files: dict[int, OpenFile] = {}
        self.known: dict[int, KnownFile] = {}
        #: Whether the table has evicted it: readers must get a new one.
        self.retired = False
        #: Whether its files are mapped when they are opened, as far as leases protect them.
        self.wants_maps = False
        #: Spans counted so far.
        self.num_spans = 0
        num_shards = max(1, form.num_shards)
        num_chunks = num_shards * form.chunks_per_shard
        # One block, so that those of a single file are in one cache line.
        block = np.zeros(13 * num_shards, np.uint8)
        #: Address of the address and bytes of the map of each file, 0 where there is none.
        self.maps = block[: 8 * num_shards].view(np.int64)
        self.descriptors = block[8 * num_shards : 12 * num_shards].view(np.int32)
        used = block[12 * num_shards :]
        self.verified_values = np.zeros(num_chunks, np.uint8)
        # Indexing a memoryview takes a third of the time.
        self.used = used.data
        self.verified = self.verified_values.data
        nbytes = form.chunk_nbytes
        is_small = nbytes <= _SMALL_CHUNK_NBYTES or form.nbytes > DECODED_NBYTES
        decodes = is_small and nbytes <= _LARGE_CHUNK_NBYTES and form.chain.kernel_decodes
        #: Bytes that a kernel needs to decode a chunk; 0 if kernels cannot decode its chunks.
        self.decoder_nbytes = nbytes + most_nbytes(nbytes) if decodes else 0
        #: Addresses of offsets, sizes and checksums of each file's chunks, if kernels decode them.
        self.indices = np.zeros((num_shards if decodes else 0, 3), np.int64)
        is_large = form.nbytes > _SMALL_ARRAY_NBYTES
        unit = 1 if form.flat else form.chunk_length
        at_once = (_SMALL_WINDOW_NBYTES if is_large else _WINDOW_NBYTES) // form.row_nbytes
        #: Rows that the system is asked to read together, and the number of such windows per file.
        self.window_length = unit * max(1, at_once // unit)
        self.windows_per_shard = -(-form.shard_length // self.window_length)
        num_windows = num_shards * self.windows_per_shard
        #: One byte per window: whether the system was asked to read it; empty if there are too
        #: many.
        self.advised = np.zeros(num_windows if num_windows <= _MAX_WINDOWS else 0, np.uint8)
        self.nbytes = _ARRAY_NBYTES + num_chunks + 13 * num_shards + self.indices.nbytes
        self.nbytes += self.advised.nbytes
        width = np.dtype(form.dtype)
        # Documented in zindex.kernels.gather.
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
            self.indices.ctypes.data if decodes else 0,
            CRC_NBYTES * form.chain.checked,
            # A chunk that is not verified is not read ahead either.
            0 if form.chain.plain and form.chain.checked else self._advised_address,
            self.window_length,
            self.windows_per_shard,
            self.maps.ctypes.data,
        ]
        trusting = [*record[:9], 0, *record[10:13], self._advised_address, *record[14:]]
        self.records = np.array([record, trusting], np.int64)
        address = self.records.ctypes.data
        #: Addresses of the record that requires verified chunks, and of the one that does not.
        self.record = (address, address + self.records.strides[0])

    @property
    def _advised_address(self) -> int:
        return self.advised.ctypes.data if len(self.advised) else 0

    def path(self, shard: int) -> str:
        """Return the path of a file."""
        return self.root if self.form.flat else f"{self.root}/{self.form.shard_key(shard)}"

    def show(self, file: "OpenFile") -> None:
        """Let kernels read an open file."""
        if file.index is not None:
            if not len(self.indices):
                return
            addresses = file.index.offsets.ctypes.data, file.index.lengths.ctypes.data
            table = 0 if file.checksums is None else file.checksums.ctypes.data
            self.indices[file.shard] = *addresses, table
        self.descriptors[file.shard] = file.number + 1

    def damaged(self, sentence: str) -> VerificationError:
        """Return an error with its remedy."""
        return VerificationError(f"{sentence}; {self.form.remedy}")


class OpenFile:
    """An open file of an array; closed when the table and all its readers have released it."""

    __slots__ = ("array", "checksums", "index", "number", "shard")

    def __init__(self, number: int, array: OpenArray, shard: int) -> None:
        self.number = number
        self.array = array
        self.shard = shard
        #: None if chunk c is at base + c * stride.
        self.index: ShardIndex | None = None
        #: Expected checksums of the chunks, if the file has a table of them.
        self.checksums: UInt32Array | None = None

    def __del__(self, close: Any = os.close) -> None:
        close(self.number)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return self.array.form.where(self.shard)

    def read_index(self, identity: tuple[int, ...], file_nbytes: int) -> KnownFile:
        """Return what is known about it; the index is None if chunk c is at base + c * stride.

        Raises
        ------
        VerificationError
            If the file is too short, its index is damaged, or it differs from the committed one.
        """
        form = self.array.form
        if form.flat:
            is_same = self.array.version in ("", str(identity[-1]))
            check_unchanged(form.name, file_nbytes, form.nbytes, is_same=is_same)
            return KnownFile(identity, None, None)
        if form.index is None:
            if form.chain.plain and file_nbytes == form.stride:
                return KnownFile(identity, None, None)
            zero = np.zeros(1, np.int64)
            return KnownFile(identity, ShardIndex(zero, zero + file_nbytes), None)
        index, proof = read_index(self.number, form, self.shard, file_nbytes)
        root, version = Path(self.array.root), self.array.version
        check_receipt(root, form, version, self.shard, file_nbytes, proof)
        chunks = None if index.is_regular(form, self.shard) else index
        return KnownFile(identity, chunks, index.checksums)

    def span(self, chunk: int) -> tuple[int, int]:
        """Return the offset and size of an inner chunk."""
        form = self.array.form
        if self.index is None:
            return form.base + chunk * form.stride, form.stride
        nbytes = int(self.index.lengths[chunk])
        if nbytes < 0:
            raise self.array.damaged(f"chunk {chunk} of {self.where} is missing")
        return int(self.index.offsets[chunk]), nbytes

    def advise(self, window: int) -> None:
        """Ask the system to read a window of the file ahead, without waiting for it."""
        array, form = self.array, self.array.form
        nbytes = array.window_length * form.row_nbytes
        if form.flat:
            start = window * nbytes
        else:
            num_chunks = array.window_length // form.chunk_length
            first = window * num_chunks
            last = min(first + num_chunks, form.chunks_in(self.shard)) - 1
            (start, _), (end, last_nbytes) = self.span(first), self.span(last)
            most, nbytes = 2 * nbytes + _SLACK_NBYTES, end + last_nbytes - start
            if not 0 < nbytes <= most:
                return  # chunks are in a different order
        system_calls.read_ahead(self.number, start, nbytes)

    def read(self, buffers: list[memoryview], offset: int) -> None:
        """Fill buffers from an offset; a shorter file is an error."""
        wanted = sum(map(len, buffers))
        first = got = system_calls.read_vector(self.number, buffers, offset)
        if got < wanted:  # the end of the file, or more than one call can read
            end = offset
            for buffer in buffers:
                end += len(buffer)
                rest = np.asarray(buffer)[max(0, first) :]
                first -= len(buffer)
                got += read_into(self.number, rest, end - len(rest))
        if got != wanted:
            raise self.array.damaged(
                f"{self.where} must hold {wanted} bytes at {offset}, it ends after {got}"
            )
