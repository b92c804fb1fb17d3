"""Shards as files: each written whole by one task, and found again as its own receipt."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zindex.errors import VerificationError
from zindex.store import local
from zindex.store.layout import ArrayLayout
from zindex.store.shard import Receipt, checksum, decode_index, encode_shard, index_nbytes

# Threads that write the shards of one array: enough to keep a disk busy.
_NUM_WRITERS = 4


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a task returns for one shard."""

    receipt: Receipt
    #: False if a valid shard was found and nothing was written.
    written: bool


def store_shard(
    root: Path,
    layout: ArrayLayout,
    shard: int,
    compute: Callable[[], npt.NDArray[np.generic]],
    *,
    cached: bool = True,
) -> ShardResult:
    """Return the receipt of a shard, computing and writing it only if no valid one is there.

    A shard that is there but damaged is replaced by its one right content. ``cached`` is as of
    `local.write_once`.
    """
    found = find_receipt(root, layout, shard)
    if found is not None:
        return ShardResult(found, written=False)
    return write_shard(root, layout, shard, compute(), cached=cached)


def write_shard(
    root: Path,
    layout: ArrayLayout,
    shard: int,
    values: npt.NDArray[np.generic],
    *,
    cached: bool = True,
) -> ShardResult:
    """Write one shard, or put right what is there; see ``encode_shard`` for ``values``."""
    buffers, receipt = encode_shard(layout, shard, values)
    path = root / layout.shard_key(shard)
    if local.write_once(path, buffers, cached=cached):
        return ShardResult(receipt, written=True)
    found = find_receipt(root, layout, shard)
    # Another version of a compressor makes other bytes of the same values: those of the writer who
    # came first stay, for their receipt may be on its way into a commit.
    if found is not None and (found == receipt or layout.codec != "none"):
        return ShardResult(found, written=False)
    local.write_once(path, buffers, replace=True, cached=cached)
    return ShardResult(receipt, written=True)


def store_all_shards(
    root: Path, layout: ArrayLayout, values: npt.NDArray[np.generic]
) -> list[ShardResult]:
    """Store every shard of an array that is in memory; several are written at a time."""

    def store(shard: int) -> ShardResult:
        start, stop = layout.shard_bounds(shard)
        return store_shard(root, layout, shard, lambda: values[start:stop])

    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        return list(pool.map(store, range(layout.num_shards)))


def find_receipt(root: Path, layout: ArrayLayout, shard: int) -> Receipt | None:
    """Return the receipt of a shard on disk, or None if it is missing or damaged.

    The shard index and its checksum are verified; inner chunks are verified when they are read.
    """
    path = root / layout.shard_key(shard)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        nbytes = os.fstat(descriptor).st_size
        footer_nbytes = index_nbytes(layout)
        footer = os.pread(descriptor, footer_nbytes, max(0, nbytes - footer_nbytes))
        index = decode_index(layout, shard, footer, nbytes)
        present = index.lengths > 0
        if int(index.lengths[present].sum()) + footer_nbytes != nbytes:
            return None
        ends = index.offsets[present] + index.lengths[present]
        proof = b"".join(os.pread(descriptor, 4, int(end) - 4) for end in ends)
    except VerificationError:
        return None
    finally:
        os.close(descriptor)
    return Receipt(layout.name, shard, nbytes, checksum(proof + footer))
