"""Bytes of one shard: encoding, the shard index, and checks of both.

Source: Zarr v3 specification, ``sharding_indexed`` codec version 1.0.
"""

from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs.zstd import Zstd

from zindex.errors import VerificationError
from zindex.store.layout import ArrayLayout

Buffer = bytes | memoryview
_CRC_NBYTES = 4
_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
#: What cures damaged bytes: a committed store is complete for every build.
REMEDY = "`zindex verify` names all that is damaged, `zindex repair` rebuilds just that"


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


def checksum(buffer: Buffer) -> int:
    """Return the crc32c of a buffer."""
    # The C function refuses memoryviews, but takes an array that looks at the same bytes.
    return int(google_crc32c.value(np.frombuffer(buffer, np.uint8)))


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
        crc = checksum(part).to_bytes(_CRC_NBYTES, "little")
        buffers += (part, crc)
        checksums.append(crc)
        index[chunk] = offset, len(part) + _CRC_NBYTES
        offset += len(part) + _CRC_NBYTES
    footer = index.astype("<u8").tobytes()
    footer += checksum(footer).to_bytes(_CRC_NBYTES, "little")
    buffers.append(footer)
    proof = checksum(b"".join(checksums) + footer)
    return buffers, Receipt(layout.name, shard, offset + len(footer), proof)


def _padding(layout: ArrayLayout, nbytes: int) -> bytes:
    """Return fill values for the part of the last inner chunk beyond the array's end."""
    dtype = np.dtype(layout.dtype)
    return np.full(nbytes // dtype.itemsize, layout.fill_value, dtype).tobytes()


def index_nbytes(layout: ArrayLayout) -> int:
    """Return the size of the shard index with its checksum."""
    return 16 * layout.chunks_per_shard + _CRC_NBYTES


def decode_index(layout: ArrayLayout, shard: int, footer: bytes, shard_nbytes: int) -> ShardIndex:
    """Return where the inner chunks lie, after checking the index against its checksum.

    Raises
    ------
    VerificationError
        If the index fails its checksum, points outside the shard or misses a chunk.
    """
    where = f"shard {layout.shard_key(shard)}"
    if len(footer) != index_nbytes(layout):
        raise VerificationError(
            f"{where} must end with an index of {index_nbytes(layout)} bytes, got {len(footer)}; "
            f"{REMEDY}"
        )
    stored = int.from_bytes(footer[-_CRC_NBYTES:], "little")
    if stored != checksum(footer[:-_CRC_NBYTES]):
        raise VerificationError(f"the index of {where} fails its checksum; {REMEDY}")
    pairs = np.frombuffer(footer[:-_CRC_NBYTES], "<u8").reshape(-1, 2)
    start, stop = layout.shard_bounds(shard)
    num_present = -(-(stop - start) // layout.chunk_length)
    offsets = pairs[:, 0].astype(np.int64)
    lengths = pairs[:, 1].astype(np.int64)
    limit = shard_nbytes - len(footer)
    first, size = offsets[:num_present], lengths[:num_present]
    # In this order no sum can wrap: a size is above the checksum's, then at most the shard's.
    if (size <= _CRC_NBYTES).any() or (first < 0).any() or (first > limit - size).any():
        raise VerificationError(
            f"the index of {where} misses one of its {num_present} chunks or points outside its "
            f"{shard_nbytes} bytes; {REMEDY}"
        )
    return ShardIndex(offsets, lengths)


def decode_chunk(
    layout: ArrayLayout, shard: int, chunk: int, stored: Buffer
) -> npt.NDArray[np.generic]:
    """Return the values of one inner chunk, padding included, after checking its checksum.

    Raises
    ------
    VerificationError
        If the bytes fail their checksum or do not hold a whole chunk.
    """
    where = f"chunk {chunk} of shard {layout.shard_key(shard)}"
    body: Buffer = stored[:-_CRC_NBYTES]
    if int.from_bytes(stored[-_CRC_NBYTES:], "little") != checksum(body):
        raise VerificationError(f"{where} fails its checksum; {REMEDY}")
    chunk_nbytes = layout.chunk_length * layout.row_nbytes
    if layout.codec == "zstd":
        try:
            body = Zstd().decode(bytes(body))
        except (RuntimeError, ValueError) as error:
            raise VerificationError(
                f"{where} must hold {chunk_nbytes} bytes of zstd: {error}; {REMEDY}"
            ) from error
    if len(body) != chunk_nbytes:
        raise VerificationError(
            f"{where} must hold {chunk_nbytes} bytes, got {len(body)}; {REMEDY}"
        )
    values = np.frombuffer(body, layout.dtype)
    return values if layout.num_columns == 1 else values.reshape(-1, layout.num_columns)
