"""The bytes of a shard: file layout, encoding, shard index and checksums.

Source: Zarr v3 specification, ``sharding_indexed`` codec version 1.0.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int64Array, UInt32Array
from zindex.errors import VerificationError
from zindex.io.local import read_bytes
from zindex.store.codecs import CRC_NBYTES, Buffer, CodecChain, checksum, compress_chunks
from zindex.store.layout import ArrayLayout, ArrayShape, name_dtype

MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
#: The fix for damaged bytes: repeating a build has no effect on a committed store.
REMEDY = "`zindex verify` names all that is damaged, `zindex repair` rebuilds just that"
# Chunk size, for two-byte tokens of ordinary text, at which frames of this level are 0.5 % larger
# than those of the default level, which metadata name, and take two thirds of its time.
_FAST_NBYTES, _FAST_LEVEL = 1 << 13, 2
#: The fix for damage in an array that zindex did not write.
FOREIGN_REMEDY = "restore its files"


@dataclass(frozen=True, slots=True)
class IndexForm:
    """Position of the index in a shard, and whether it has a checksum."""

    at_start: bool = False
    checked: bool = True


@dataclass(frozen=True, slots=True)
class ArrayFiles(ArrayShape):
    """An array in shard files, in the terms that a positional reader needs."""

    chain: CodecChain
    #: None if a file is one chunk and nothing else.
    index: IndexForm | None
    #: A file's path below the root is prefix, number, suffix.
    prefix: str
    suffix: str = ""
    #: Whether there is a column axis, even for a single column.
    has_columns: bool = False
    #: Whether zindex wrote it: then every chunk must exist, and it can be repaired.
    ours: bool = False
    #: Whether the root is a single file, which may be longer than the array.
    flat: bool = False
    #: Whether the checksums of a shard's chunks precede its index.
    table: bool = False
    #: Whether checksums are collected from the chunks if a shard has no table.
    gathered: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return (self.length, self.num_columns) if self.has_columns else (self.length,)

    @property
    def num_chunks(self) -> int:
        """Inner chunks of the array."""
        return -(-self.length // self.chunk_length)

    @property
    def stride(self) -> int:
        """Bytes of a stored inner chunk that is not compressed."""
        return self.chunk_nbytes + CRC_NBYTES * self.chain.checked

    @property
    def base(self) -> int:
        """Byte of a file at which the first inner chunk usually starts."""
        return self.index_nbytes if self.index is not None and self.index.at_start else 0

    @property
    def index_nbytes(self) -> int:
        """Bytes of a shard's index with its checksum."""
        if self.index is None:
            return 0
        return 16 * self.chunks_per_shard + CRC_NBYTES * self.index.checked

    def tail_nbytes(self, shard: int) -> int:
        """Return the bytes of a shard's index and the table before it."""
        return self.index_nbytes + CRC_NBYTES * self.table * self.chunks_in(shard)

    @property
    def remedy(self) -> str:
        """The fix for damage."""
        return REMEDY if self.ours else FOREIGN_REMEDY

    def chunks_in(self, shard: int) -> int:
        """Return how many inner chunks of a shard contain rows."""
        start, stop = self.shard_bounds(shard)
        return -(-(stop - start) // self.chunk_length)

    def shard_key(self, shard: int) -> str:
        """Return the path of a file below the root."""
        return self.prefix if self.flat else f"{self.prefix}{shard}{self.suffix}"

    def where(self, shard: int) -> str:
        """Name a file in messages."""
        if self.flat:
            return self.name
        key = self.shard_key(shard)
        return f"shard {key}" if self.ours else f"{self.name}/{key}"

    @staticmethod
    @lru_cache(maxsize=256)
    def of(layout: ArrayLayout) -> "ArrayFiles":
        """Return the files of an array of a zindex store; equal layouts share one object."""
        shape = {field.name: getattr(layout, field.name) for field in fields(ArrayShape)}
        return ArrayFiles(
            **shape,
            chain=CodecChain(("crc32c",) if layout.codec == "none" else (layout.codec, "crc32c")),
            index=IndexForm(),
            prefix=f"{layout.name}/c/",
            suffix="/0" if layout.num_columns > 1 else "",
            has_columns=layout.num_columns > 1,
            ours=True,
            table=layout.table,
        )

    @classmethod
    def flat_file(cls, path: str, nbytes: int, dtype: DTypeLike) -> "ArrayFiles":
        """Return a file or object of a given size that contains only values."""
        values = np.dtype(dtype)
        length = nbytes // values.itemsize
        shape = path, length, 1, name_dtype(values), max(1, length), max(1, length)
        return cls(*shape, CodecChain(), index=None, prefix=path, flat=True)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of a finished shard, small enough to send between processes."""

    array: str
    shard: int
    nbytes: int
    #: crc32c over the checksums of all inner chunks and the shard index.
    crc32c: int


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Positions of the inner chunks of one shard."""

    #: Shape (chunks,), int64, bytes from the start of the shard.
    offsets: Int64Array
    #: Shape (chunks,), int64, bytes of the chunk with its checksum; -1 if it is missing.
    lengths: Int64Array
    #: Shape (present chunks,), uint32; None if the shard has no table of checksums.
    checksums: UInt32Array | None = None

    def is_regular(self, form: ArrayFiles, shard: int) -> bool:
        """Return whether chunk c is uncompressed at ``base + c * stride``."""
        present = np.arange(form.chunks_in(shard), dtype=np.int64)
        return bool(
            form.chain.plain
            and (self.offsets[present] == form.base + present * form.stride).all()
            and (self.lengths[present] == form.stride).all()
        )

    def chunk_ends(self, form: ArrayFiles, shard: int, nbytes: int) -> list[int]:
        """Return the end of every chunk in a shard; VerificationError if they do not fill it."""
        present = self.lengths > 0
        if int(self.lengths[present].sum()) != nbytes - form.tail_nbytes(shard):
            raise VerificationError(
                f"the index of {form.where(shard)} does not account for all of its {nbytes:,} bytes"
            )
        ends: list[int] = (self.offsets[present] + self.lengths[present]).tolist()
        return ends


def encode_shard(layout: ArrayLayout, shard: int, values: AnyArray) -> tuple[list[Buffer], Receipt]:
    """Return the buffers of one shard, in file order, and its receipt.

    Parameters
    ----------
    layout
        The array's layout.
    shard
        Number of the shard.
    values
        Shape (elements of this shard,) or (elements, columns), in the layout's dtype, C order.
        Uncompressed buffers are views of it, so it must not change before they are written.
    """
    start, stop = layout.shard_bounds(shard)
    expected = (stop - start, *layout.shape[1:])
    if values.shape != expected or values.dtype != np.dtype(layout.dtype):
        raise AssertionError(f"{layout.name} shard {shard}: {values.shape} {values.dtype}")
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    chunk_nbytes = layout.chunk_nbytes
    chunks = [raw[first : first + chunk_nbytes] for first in range(0, len(raw), chunk_nbytes)]
    if num_missing := -len(raw) % chunk_nbytes // values.itemsize:
        filler = np.full(num_missing, layout.fill_value, values.dtype).view(np.uint8)
        chunks[-1] = np.concatenate([chunks[-1], filler])
    parts: Any = chunks
    if layout.codec == "zstd":
        is_fast = values.itemsize == 2 and chunk_nbytes <= _FAST_NBYTES
        parts = compress_chunks(chunks, chunk_nbytes, _FAST_LEVEL if is_fast else 0)
    index = np.full((layout.chunks_per_shard, 2), MISSING, np.uint64)
    buffers: list[Buffer] = []
    checksums: list[bytes] = []
    offset = 0
    for chunk, part in enumerate(parts):
        crc = checksum(part).to_bytes(CRC_NBYTES, "little")
        buffers += (memoryview(part), crc)
        checksums.append(crc)
        index[chunk] = offset, len(part) + CRC_NBYTES
        offset += len(part) + CRC_NBYTES
    footer = index.astype("<u8").tobytes()
    footer += checksum(footer).to_bytes(CRC_NBYTES, "little")
    proof = b"".join(checksums) + footer
    buffers.append(proof if layout.table else footer)
    return buffers, Receipt(layout.name, shard, offset + len(buffers[-1]), checksum(proof))


def decode_index(form: ArrayFiles, shard: int, stored: bytes, shard_nbytes: int) -> ShardIndex:
    """Return the positions of the inner chunks, after verifying the index's checksum.

    Parameters
    ----------
    form, shard
        The shard.
    stored
        Its index, after the table of checksums if it has one.
    shard_nbytes
        Bytes of the shard.

    Raises
    ------
    VerificationError
        If the index fails its checksum, points outside the shard or, in a store of zindex, misses
        a chunk.
    """
    index, index_nbytes = form.index or IndexForm(), form.tail_nbytes(shard)
    where = form.where(shard)
    if len(stored) != index_nbytes:
        edge = "start" if index.at_start else "end"
        raise VerificationError(
            f"{where} must {edge} with an index of {index_nbytes} bytes, got {len(stored)}; "
            f"{form.remedy}"
        )
    body = stored[index_nbytes - form.index_nbytes :]
    if index.checked:
        body = body[:-CRC_NBYTES]
        if int.from_bytes(stored[-CRC_NBYTES:], "little") != checksum(body):
            raise VerificationError(f"the index of {where} fails its checksum; {form.remedy}")
    pairs = np.frombuffer(body, "<u8").reshape(-1, 2)
    num_present = form.chunks_in(shard)
    offsets = pairs[:, 0].astype(np.int64)
    lengths = pairs[:, 1].astype(np.int64)
    limit = shard_nbytes - (0 if index.at_start else len(stored))
    first, size = offsets[:num_present], lengths[:num_present]
    # In this order no sum can overflow: each size is above the checksum's and below the shard's.
    least = CRC_NBYTES if form.chain.checked else 0
    wrong = (size <= least) | (first < 0) | (first > limit - size)
    if not form.ours:
        wrong &= (pairs[:num_present] != MISSING).any(axis=1)
    if wrong.any():
        raise VerificationError(
            f"the index of {where} misses one of its {num_present} chunks or points outside its "
            f"{shard_nbytes} bytes; {form.remedy}"
        )
    checksums = np.frombuffer(stored, "<u4", num_present).copy() if form.table else None
    return ShardIndex(offsets, lengths, checksums)


def read_index(
    number: int, form: ArrayFiles, shard: int, nbytes: int
) -> tuple[ShardIndex, bytes | None]:
    """Return the index of a file of a given size, and what its receipt hashes.

    That is the checksums of its chunks and the index; None if checksums are not available.

    Raises
    ------
    VerificationError
        As of `decode_index`, or if collected chunks do not fill the shard.
    """
    tail_nbytes = form.tail_nbytes(shard)
    offset = 0 if form.base else max(0, nbytes - tail_nbytes)
    # Metadata may describe an index larger than any file.
    stored = bytes(read_bytes(number, min(tail_nbytes, nbytes), offset))
    index = decode_index(form, shard, stored, nbytes)
    if not form.gathered or form.table:
        return index, stored if form.table else None
    ends = index.chunk_ends(form, shard, nbytes)
    crcs = b"".join(read_bytes(number, CRC_NBYTES, end - CRC_NBYTES) for end in ends)
    return replace(index, checksums=np.frombuffer(crcs, "<u4")), crcs + stored


def decode_chunk(
    form: ArrayFiles,
    shard: int,
    chunk: int,
    stored: Buffer,
    *,
    check: bool = True,
    checksums: UInt32Array | None = None,
) -> AnyArray:
    """Return the values of one inner chunk, padding included, after verifying its checksum.

    If given, ``checksums`` are the expected checksums of the shard's chunks.

    Raises
    ------
    VerificationError
        If the bytes fail their checksum or do not hold a whole chunk.
    """
    where = f"chunk {chunk} of {form.where(shard)}"
    try:
        if check and checksums is not None and stored[-CRC_NBYTES:] != checksums[chunk].tobytes():
            raise VerificationError(f"{where} is not the one that was committed")
        body = form.chain.decode(stored, form.chunk_nbytes, where, check=check)
    except VerificationError as error:
        raise VerificationError(f"{error}; {form.remedy}") from error.__cause__
    values = np.frombuffer(body, form.dtype)
    return values.reshape(-1, form.num_columns) if form.has_columns else values
