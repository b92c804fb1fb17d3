"""Samples of local tokens whose index is in memory: one call from positions to tensors."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zindex.store.helper_threads import run_with_helpers
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
# Less takes no longer than it takes to wake a thread.
_TOKENS_PER_THREAD = 1 << 15
_TOKENS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")))


def can_read_samples(reader: RowReader | AnyArray) -> bool:
    """Return whether an array's samples are read here: local tokens, once a kernel is worth it."""
    return isinstance(reader, LocalReader) and reader.dtype in _TOKENS and kernel_pays()


class SampleIndex:
    """The arrays in memory that lead from positions to tokens, as the kernel asks for them.

    Parameters
    ----------
    arrays
        Shuffle index, sample index, document index and bounds of documents.
    """

    def __init__(self, arrays: Sequence[AnyArray]) -> None:
        self.arrays = arrays
        self.columns = np.empty((len(arrays), 3), np.int64)
        #: Whether the kernel can read them.
        self.readable = True
        for column, values in zip(self.columns, arrays, strict=True):
            width = _WIDTHS.get(values.dtype)
            if width is None or not values.flags.c_contiguous:
                self.readable = False
            else:
                column[:] = values.ctypes.data, values.size, width


def read_samples(
    reader: RowReader,
    index: SampleIndex,
    positions: Int64Array,
    rows: Int64Array,
    tensors: tuple[AnyArray, AnyArray, AnyArray],
    *,
    extra: int,
    pad: int,
    num_threads: int = 1,
) -> bool:
    """Fill in samples, if all of them are full and need nothing but reading.

    Parameters
    ----------
    reader
        An array for which `can_read_samples` holds.
    index
        The way from positions to tokens; readable.
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
    num_threads
        Threads that may share large batches.

    Returns
    -------
    done
        False leaves all of them to the caller, whose way of reading opens files, verifies chunks,
        pads, and says what is wrong.
    """
    from zindex.kernels.batches import read_samples as fill

    assert isinstance(reader, LocalReader)
    array = reader.bind()
    record = reader.record(array)
    if not record:
        return False
    tokens, labels, loss_mask = tensors
    width = tokens.shape[1] + extra
    nbytes = width * reader.dtype.itemsize
    next_sample = np.zeros(1, np.int64)

    def work() -> int:
        scratch = np.empty(8 * (nbytes // 8 + 2), np.uint8)
        count: int = fill(
            index.columns,
            record,
            positions,
            rows,
            extra,
            pad,
            scratch,
            tokens,
            labels,
            loss_mask,
            next_sample,
        )
        return count

    shares = min(num_threads, len(positions) * width // _TOKENS_PER_THREAD, len(positions))
    ticket = table.begin_read()
    try:
        count = run_with_helpers(work, shares) if shares > 1 else work()
    finally:
        table.end_read(ticket)
    return count == len(positions)
