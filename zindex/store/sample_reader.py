"""Samples of local tokens whose index is in memory: one call from positions to tensors."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zindex.store.open_files import table
from zindex.store.reader import LocalReader
from zindex.store.round_reader import kernel_pays
from zindex.store.rows import RowReader

AnyArray: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

_WIDTHS = {
    np.dtype(np.int32): -4,
    np.dtype(np.uint32): 4,
    np.dtype(np.int64): -8,
}
_TOKENS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")))


def can_read_samples(reader: RowReader | AnyArray) -> bool:
    """Return whether an array's samples are read here: local tokens, once a kernel is worth it."""
    return isinstance(reader, LocalReader) and reader.dtype in _TOKENS and kernel_pays()


def read_samples(
    reader: RowReader,
    index: Sequence[AnyArray],
    positions: Int64Array,
    rows: Int64Array,
    tensors: tuple[AnyArray, AnyArray, AnyArray],
    *,
    extra: int,
    pad: int,
) -> bool:
    """Fill in samples, if all of them are full and need nothing but reading.

    Parameters
    ----------
    reader
        An array for which `can_read_samples` holds.
    index
        Shuffle index, sample index, document index and bounds of documents, in C order.
    positions
        Shape (samples,), int64: positions in the dataset.
    rows
        Shape (samples,), int64: where each goes in the tensors.
    tensors
        Tokens, labels and loss mask, each of shape (..., length), C order: int64, int64, float32.
    extra
        Tokens that a sample draws beyond its length: 0 or 1.
    pad
        The token that counts as padding.

    Returns
    -------
    done
        False leaves all of them to the caller, whose way of reading opens files, verifies chunks,
        pads, and says what is wrong.
    """
    from zindex.kernels.batches import read_samples as fill

    assert isinstance(reader, LocalReader)
    columns = np.empty((len(index), 3), np.int64)
    for column, values in zip(columns, index, strict=True):
        width = _WIDTHS.get(values.dtype)
        if width is None or not values.flags.c_contiguous:
            return False
        column[:] = values.__array_interface__["data"][0], values.size, width
    array = reader.bind()
    record = reader.record(array)
    if not record:
        return False
    tokens, labels, loss_mask = tensors
    nbytes = (tokens.shape[1] + extra) * reader.dtype.itemsize
    scratch = np.empty(8 * (nbytes // 8 + 2), np.uint8)
    ticket = table.begin_read()
    try:
        count = fill(
            columns, record, positions, rows, extra, pad, scratch, tokens, labels, loss_mask
        )
    finally:
        table.end_read(ticket)
    return count == len(positions)
