"""Shards as files: each written whole by one task, and found again as its own receipt."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zindex.errors import VerificationError
from zindex.store import files
from zindex.store.check_shard import check_shard
from zindex.store.layout import ArrayLayout
from zindex.store.local import reading
from zindex.store.objects import ObjectPath, Place
from zindex.store.shard import (
    Buffer,
    Receipt,
    ShardIndex,
    checksum,
    decode_index,
    encode_shard,
    index_nbytes,
)

# Name under which an object store keeps a receipt's checksum beside the shard.
_CHECKSUM = "zindexcrc32c"
# Threads that write the shards of one array: enough to keep a disk busy.
_NUM_WRITERS = 4


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a task returns for one shard."""

    receipt: Receipt
    #: False if a valid shard was found and nothing was written.
    written: bool


def store_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    compute: Callable[[], npt.NDArray[np.generic]],
    *,
    cached: bool = True,
    whole: bool = False,
) -> ShardResult:
    """Return the receipt of a shard, computing and writing it only if no valid one is there.

    A shard that is there but damaged is replaced by its one right content. ``cached`` is as of
    `files.write_once`, ``whole`` as of `find_receipt`.
    """
    found = find_receipt(root, layout, shard, whole=whole)
    if found is not None:
        return ShardResult(found, written=False)
    return write_shard(root, layout, shard, compute(), cached=cached, whole=whole)


def write_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    values: npt.NDArray[np.generic],
    *,
    cached: bool = True,
    whole: bool = False,
) -> ShardResult:
    """Write one shard, or put right what is there; see ``encode_shard`` for ``values``."""
    buffers, receipt = encode_shard(layout, shard, values)
    path = root / layout.shard_key(shard)
    facts = {_CHECKSUM: str(receipt.crc32c)}
    if files.write_once(path, buffers, cached=cached, facts=facts):
        return ShardResult(receipt, written=True)
    found = find_receipt(root, layout, shard, whole=whole)
    # Another version of a compressor makes other bytes of the same values: those of the writer who
    # came first stay, for their receipt may be on its way into a commit.
    if found is not None and (found == receipt or layout.codec != "none"):
        return ShardResult(found, written=False)
    files.write_once(path, buffers, replace=True, cached=cached, facts=facts)
    return ShardResult(receipt, written=True)


def replace_shard(
    root: Place, layout: ArrayLayout, receipt: Receipt, buffers: list[Buffer]
) -> None:
    """Put an encoded shard in place of whatever is there."""
    path = root / layout.shard_key(receipt.shard)
    files.write_once(path, buffers, replace=True, facts={_CHECKSUM: str(receipt.crc32c)})


def store_all_shards(
    root: Place, layout: ArrayLayout, values: npt.NDArray[np.generic], *, whole: bool = False
) -> list[ShardResult]:
    """Store every shard of an array that is in memory; several are written at a time."""

    def store(shard: int) -> ShardResult:
        start, stop = layout.shard_bounds(shard)
        return store_shard(root, layout, shard, lambda: values[start:stop], whole=whole)

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return list(pool.map(store, range(layout.num_shards)))


def find_receipt(
    root: Place, layout: ArrayLayout, shard: int, *, whole: bool = False
) -> Receipt | None:
    """Return the receipt of a shard on disk, or None if it is missing or damaged.

    The shard index and its checksum are verified; inner chunks are verified when they are read, or
    now with ``whole``: a build reads some of its shards again, and must not stumble over them.
    """
    if whole:
        return check_shard(root, layout, shard)[0]
    path = root / layout.shard_key(shard)
    if isinstance(path, ObjectPath):
        return _find_object(path, layout, shard)
    try:
        with reading(path):
            return _find_file(path, layout, shard)
    except FileNotFoundError:
        return None


def _find_file(path: Path, layout: ArrayLayout, shard: int) -> Receipt | None:
    """Return the receipt of a shard in a file system."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        nbytes = os.fstat(descriptor).st_size
        footer_nbytes = index_nbytes(layout)
        footer = os.pread(descriptor, footer_nbytes, max(0, nbytes - footer_nbytes))
        index = decode_index(layout, shard, footer, nbytes)
        ends = _chunk_ends(index, nbytes - footer_nbytes)
        if ends is None:
            return None
        proof = b"".join(os.pread(descriptor, 4, end - 4) for end in ends)
    except VerificationError:
        return None
    finally:
        os.close(descriptor)
    return Receipt(layout.name, shard, nbytes, checksum(proof + footer))


def _chunk_ends(index: ShardIndex, nbytes: int) -> list[int] | None:
    """Return where the chunks of a shard end, or None if they do not fill its bytes."""
    present = index.lengths > 0
    if int(index.lengths[present].sum()) != nbytes:
        return None
    ends: list[int] = (index.offsets[present] + index.lengths[present]).tolist()
    return ends


def _find_object(path: ObjectPath, layout: ArrayLayout, shard: int) -> Receipt | None:
    """Return the receipt of a shard in an object store, as a rule by one request.

    The checksums of its chunks are spread over the object, so their checksum lies beside it. A copy
    may have lost that; then the object is read whole.
    """
    from zindex.store import object_client

    footer_nbytes = index_nbytes(layout)
    try:
        tail = object_client.get_tail(path, footer_nbytes)
        index = decode_index(layout, shard, tail.content, tail.nbytes)
    except (FileNotFoundError, VerificationError):
        return None
    ends = _chunk_ends(index, tail.nbytes - footer_nbytes)
    if ends is None:
        return None
    noted = tail.facts.get(_CHECKSUM, "")
    if noted.isdecimal():
        return Receipt(layout.name, shard, tail.nbytes, int(noted))
    content = object_client.get_range(path, 0, tail.nbytes)
    proof = b"".join(bytes(content[end - 4 : end]) for end in ends)
    return Receipt(layout.name, shard, tail.nbytes, checksum(proof + tail.content))
