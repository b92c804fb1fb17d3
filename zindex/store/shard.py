"""Bytes of one shard: encoding, the shard index, and checks of both.

Source: Zarr v3 specification, ``sharding_indexed`` codec version 1.0.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numcodecs.zstd import Zstd

from zindex.errors import VerificationError
from zindex.store.array_files import ArrayFiles, IndexForm
from zindex.store.codecs import CRC_NBYTES
from zindex.store.codecs import Buffer as Buffer
from zindex.store.codecs import checksum as checksum
from zindex.store.layout import ArrayLayout

_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
#: What cures damaged bytes: a committed store is complete for every build.
REMEDY = "`zindex verify` names all that is damaged, `zindex repair` rebuilds just that"
#: What cures damage in an array that zindex did not write.
FOREIGN_REMEDY = "restore its files"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of one finished shard, small enough to travel between processes."""

    array: str
    shard: int
    nbytes: int
    #: crc32c over the checksums of all inner chunks and the shard index.
    crc32c: int


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Where the inner chunks of one shard lie."""

    #: Shape (chunks,), int64, bytes from the start of the shard.
    offsets: npt.NDArray[np.int64]
    #: Shape (chunks,), int64, bytes of the chunk with its checksum; -1 where it is missing.
    lengths: npt.NDArray[np.int64]


def encode_shard(
    layout: ArrayLayout, shard: int, values: npt.NDArray[np.generic]
) -> tuple[list[Buffer], Receipt]:
    """Return the buffers of one shard, in file order, and its receipt.

    Parameters
    ----------
    layout
        The array's layout.
    shard
        Number of the shard.
    values
        Shape (elements of this shard,) or (elements, columns), in the layout's dtype, C order.
        Uncompressed buffers are views of it: it must not change before they are written.
    """
    start, stop = layout.shard_bounds(shard)
    expected = (stop - start, *layout.shape[1:])
    if values.shape != expected or values.dtype != np.dtype(layout.dtype):
        raise AssertionError(f"{layout.name} shard {shard}: {values.shape} {values.dtype}")
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    chunk_nbytes = layout.chunk_length * layout.row_nbytes
    compress = Zstd(level=0).encode if layout.codec == "zstd" else None
    index = np.full((layout.chunks_per_shard, 2), _MISSING, np.uint64)
    buffers: list[Buffer] = []
    checksums: list[bytes] = []
    offset = 0
    for chunk in range(-(-len(raw) // chunk_nbytes)):
        part: Buffer = raw[chunk * chunk_nbytes : (chunk + 1) * chunk_nbytes]
        if len(part) < chunk_nbytes:
            part = bytes(part) + _padding(layout, chunk_nbytes - len(part))
        if compress is not None:
            part = compress(bytes(part))
        crc = checksum(part).to_bytes(CRC_NBYTES, "little")
        buffers += (part, crc)
        checksums.append(crc)
        index[chunk] = offset, len(part) + CRC_NBYTES
        offset += len(part) + CRC_NBYTES
    footer = index.astype("<u8").tobytes()
    footer += checksum(footer).to_bytes(CRC_NBYTES, "little")
    buffers.append(footer)
    proof = checksum(b"".join(checksums) + footer)
    return buffers, Receipt(layout.name, shard, offset + len(footer), proof)


def _padding(layout: ArrayLayout, nbytes: int) -> bytes:
    """Return fill values for the part of the last inner chunk beyond the array's end."""
    dtype = np.dtype(layout.dtype)
    return np.full(nbytes // dtype.itemsize, layout.fill_value, dtype).tobytes()


def index_nbytes(layout: ArrayLayout) -> int:
    """Return the size of the shard index with its checksum."""
    return 16 * layout.chunks_per_shard + CRC_NBYTES


def decode_index(
    array: ArrayLayout | ArrayFiles, shard: int, stored: bytes, shard_nbytes: int
) -> ShardIndex:
    """Return where the inner chunks lie, after checking the index against its checksum.

    Raises
    ------
    VerificationError
        If the index fails its checksum, points outside the shard or, in a store of zindex, misses
        a chunk.
    """
    files = array if isinstance(array, ArrayFiles) else ArrayFiles.of(array)
    form = files.index or IndexForm()
    where = files.where(shard)
    remedy = REMEDY if files.ours else FOREIGN_REMEDY
    if len(stored) != files.index_nbytes:
        edge = "start" if form.at_start else "end"
        raise VerificationError(
            f"{where} must {edge} with an index of {files.index_nbytes} bytes, got {len(stored)}; "
            f"{remedy}"
        )
    body = stored
    if form.checked:
        body = stored[:-CRC_NBYTES]
        if int.from_bytes(stored[-CRC_NBYTES:], "little") != checksum(body):
            raise VerificationError(f"the index of {where} fails its checksum; {remedy}")
    pairs = np.frombuffer(body, "<u8").reshape(-1, 2)
    start, stop = files.shard_bounds(shard)
    num_present = -(-(stop - start) // files.chunk_length)
    offsets = pairs[:, 0].astype(np.int64)
    lengths = pairs[:, 1].astype(np.int64)
    limit = shard_nbytes - (0 if form.at_start else len(stored))
    first, size = offsets[:num_present], lengths[:num_present]
    # In this order no sum can wrap: a size is above the checksum's, then at most the shard's.
    least = CRC_NBYTES if files.chain.checked else 0
    wrong = (size <= least) | (first < 0) | (first > limit - size)
    if not files.ours:
        wrong &= (pairs[:num_present] != _MISSING).any(axis=1)
    if wrong.any():
        raise VerificationError(
            f"the index of {where} misses one of its {num_present} chunks or points outside its "
            f"{shard_nbytes} bytes; {remedy}"
        )
    return ShardIndex(offsets, lengths)


def decode_chunk(
    array: ArrayLayout | ArrayFiles, shard: int, chunk: int, stored: Buffer, *, check: bool = True
) -> npt.NDArray[np.generic]:
    """Return the values of one inner chunk, padding included, after checking its checksum.

    Raises
    ------
    VerificationError
        If the bytes fail their checksum or do not hold a whole chunk.
    """
    files = array if isinstance(array, ArrayFiles) else ArrayFiles.of(array)
    where = f"chunk {chunk} of {files.where(shard)}"
    try:
        body = files.chain.decode(stored, files.chunk_nbytes, where, check=check)
    except VerificationError as error:
        remedy = REMEDY if files.ours else FOREIGN_REMEDY
        raise VerificationError(f"{error}; {remedy}") from error.__cause__
    values = np.frombuffer(body, files.dtype)
    return values.reshape(-1, files.num_columns) if files.has_columns else values
