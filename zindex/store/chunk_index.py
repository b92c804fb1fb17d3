"""Where the chunks of an open file lie."""

import os

import numpy as np

from zindex.errors import VerificationError
from zindex.store.array_files import ArrayFiles
from zindex.store.shard import ShardIndex, decode_index


def read_index(
    form: ArrayFiles, shard: int, descriptor: int, file_nbytes: int
) -> ShardIndex | None:
    """Return where the chunks of a file lie; None where chunk c lies at base + c * stride.

    Raises
    ------
    VerificationError
        If the file is too short or its index is damaged.
    """
    if form.flat:
        if file_nbytes < form.nbytes:
            raise VerificationError(
                f"{form.name} must hold {form.nbytes:,} bytes, as when it was checked, but now "
                f"holds {file_nbytes:,}; restore the file and open it again"
            )
        return None
    if form.index is None:
        if form.chain.plain and file_nbytes == form.stride:
            return None
        zero = np.zeros(1, np.int64)
        return ShardIndex(zero, zero + file_nbytes)
    offset = 0 if form.index.at_start else max(0, file_nbytes - form.index_nbytes)
    # Metadata may ask for an index that is larger than any file.
    stored = os.pread(descriptor, min(form.index_nbytes, file_nbytes), offset)
    index = decode_index(form, shard, stored, file_nbytes)
    start, stop = form.shard_bounds(shard)
    present = np.arange(-(-(stop - start) // form.chunk_length), dtype=np.int64)
    regular = form.chain.plain and bool(
        (index.offsets[present] == form.base + present * form.stride).all()
        and (index.lengths[present] == form.stride).all()
    )
    return None if regular else index
