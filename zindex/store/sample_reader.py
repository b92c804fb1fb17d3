"""Read samples of local tokens: one kernel call from positions to tensors."""

from collections.abc import Sequence

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.io.helper_threads import run_with_helpers
from zindex.store.open_files import table
from zindex.store.reader import LocalReader, kernel_pays
from zindex.store.rows import RowReader

_WIDTHS = {np.dtype(np.int32): -4, np.dtype(np.uint32): 4, np.dtype(np.int64): -8}
# Fewer tokens are read faster than a thread wakes up.
_TOKENS_PER_THREAD = 1 << 15
_TOKENS = frozenset(map(np.dtype, ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")))


def can_read_samples(reader: RowReader | AnyArray) -> bool:
    """Return whether `read_samples` applies: local tokens, once the kernel is worthwhile."""
    return isinstance(reader, LocalReader) and reader.dtype in _TOKENS and kernel_pays()


class SampleIndex:
    """The in-memory arrays from positions to tokens, as arguments of the kernel.

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
    """Fill tensors with samples, if all are full and their chunks open and verified.

    Parameters
    ----------
    reader
        An array for which `can_read_samples` holds.
    index
        The in-memory index; readable.
    positions
        Shape (samples,), int64: positions in the dataset.
    rows
        Shape (samples,), int64: row of each in the tensors.
    tensors
        Tokens, labels and loss mask, each of shape (..., length), C order: int64, int64, float32.
    extra
        Tokens that a sample has beyond its length: 0 or 1.
    pad
        The padding token.
    num_threads
        Maximum number of threads for large batches.

    Returns
    -------
    done
        If False, the caller must read all of them by the slow path, which opens files, verifies
        chunks, pads, and raises errors.
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
        outputs = tokens, labels, loss_mask, next_sample
        count: int = fill(index.columns, record, positions, rows, extra, pad, scratch, *outputs)
        return count

    shares = min(num_threads, len(positions) * width // _TOKENS_PER_THREAD, len(positions))
    ticket = table.begin_read()
    try:
        count = run_with_helpers(work, shares) if shares > 1 else work()
    finally:
        table.end_read(ticket)
    return count == len(positions)
