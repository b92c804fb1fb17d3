"""Every byte of one shard against its checksums."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from zindex.errors import StoreUnavailableError, VerificationError
from zindex.store import files
from zindex.store.codecs import CRC_NBYTES
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place
from zindex.store.shard import (
    REMEDY,
    Receipt,
    ShardIndex,
    checksum,
    decode_chunk,
    decode_index,
    index_nbytes,
)

# Bytes that are read at a time; a longer inner chunk is read whole.
_WINDOW = 1 << 22


def check_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    committed: Receipt | None = None,
) -> tuple[Receipt | None, str | None]:
    """Return the receipt of a shard after reading all of it, or what is wrong with it.

    Parameters
    ----------
    root, layout, shard
        Which one.
    committed
        Its receipt in the manifest, if there is one: a file of another size is not read.

    Returns
    -------
    receipt, problem
        One of them, the other is None. Whether the receipt is the committed one is not checked.
    """
    path = root / layout.shard_key(shard)
    try:
        nbytes = files.file_nbytes(path)
        if nbytes is None:
            return None, "is missing"
        if committed is not None and nbytes != committed.nbytes:
            return None, f"has {nbytes:,} bytes, {committed.nbytes:,} were committed"
        return _check_bytes(path, nbytes, layout, shard), None
    except VerificationError as error:
        return None, str(error).removesuffix(f"; {REMEDY}")
    except StoreUnavailableError:
        raise
    except OSError as error:
        return None, f"cannot be read: {error.strerror or error}"


def _check_bytes(path: Place, nbytes: int, layout: ArrayLayout, shard: int) -> Receipt:
    """Return the receipt of a shard of so many bytes."""
    footer = _read_exactly(path, max(0, nbytes - index_nbytes(layout)), nbytes)
    index = decode_index(layout, shard, footer, nbytes)
    _check_lengths(index, layout, shard, nbytes)
    checksums: list[bytes] = []
    damaged: list[tuple[int, str]] = []
    for first, last in _windows(index.offsets, index.lengths):
        start = int(index.offsets[first])
        stop = int(index.offsets[last - 1] + index.lengths[last - 1])
        window = memoryview(_read_exactly(path, start, stop))
        for chunk in range(first, last):
            begin = int(index.offsets[chunk]) - start
            stored = window[begin : begin + int(index.lengths[chunk])]
            checksums.append(bytes(stored[-CRC_NBYTES:]))
            problem = _check_chunk(layout, shard, chunk, stored)
            if problem is not None:
                damaged.append((chunk, problem))
    if damaged:
        others = f", as do {len(damaged) - 1} others" if len(damaged) > 1 else ""
        raise VerificationError(f"{damaged[0][1]}{others}")
    return Receipt(layout.name, shard, nbytes, checksum(b"".join(checksums) + footer))


def _check_lengths(index: ShardIndex, layout: ArrayLayout, shard: int, nbytes: int) -> None:
    """Check that the chunks fill the shard, and that none is longer than it can be."""
    lengths = index.lengths[index.lengths > 0]
    if int(lengths.sum()) + index_nbytes(layout) != nbytes:
        raise VerificationError(
            f"the index of shard {layout.shard_key(shard)} does not account for all of its "
            f"{nbytes:,} bytes"
        )
    whole = layout.chunk_length * layout.row_nbytes
    # zstd makes incompressible data a little longer.
    most = whole if layout.codec == "none" else whole + whole // 128 + 1024
    wrong = np.flatnonzero(lengths > most + CRC_NBYTES)
    if wrong.size:
        raise VerificationError(
            f"chunk {wrong[0]} of shard {layout.shard_key(shard)} must have at most {most:,} bytes"
        )


def _windows(
    offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Give runs of chunks that lie one after another, each as long as is read at a time."""
    num_chunks = int(np.count_nonzero(lengths > 0))
    first = 0
    for chunk in range(1, num_chunks + 1):
        is_over = (
            chunk == num_chunks
            or offsets[chunk] != offsets[chunk - 1] + lengths[chunk - 1]
            or offsets[chunk] + lengths[chunk] - offsets[first] > _WINDOW
        )
        if is_over:
            yield first, chunk
            first = chunk


def _read_exactly(path: Place, start: int, stop: int) -> bytes:
    """Return bytes ``[start, stop)`` of a file; the system may give them in parts."""
    parts: list[bytes | memoryview] = []
    while start < stop and (part := files.read_range(path, start, stop)):
        parts.append(part)
        start += len(part)
    if start < stop:
        raise VerificationError(f"it ends {stop - start:,} bytes early")
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def _check_chunk(layout: ArrayLayout, shard: int, chunk: int, stored: memoryview) -> str | None:
    """Return what is wrong with one inner chunk, if anything is."""
    whole = layout.chunk_length * layout.row_nbytes
    if layout.codec == "none" and len(stored) == whole + CRC_NBYTES:
        if int.from_bytes(stored[-CRC_NBYTES:], "little") == checksum(stored[:-CRC_NBYTES]):
            return None
        return f"chunk {chunk} of shard {layout.shard_key(shard)} fails its checksum"
    try:
        decode_chunk(layout, shard, chunk, bytes(stored))
    except VerificationError as error:
        return str(error).removesuffix(f"; {REMEDY}")
    return None
