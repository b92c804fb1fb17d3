"""Samples of a batch by an index in memory, with tokens read from files into tensors.

Like `zindex.kernels.gather`, this kernel reads files itself. Arrays in memory are given by address
and width, so that there is one compiled version.
"""

from typing import Any, TypeAlias

import numpy as np

from zindex.arrays import Float32Array, Int64Array, IntegerArray, UInt8Array
from zindex.kernels._jit import (
    ALIGNMENT,
    LANES,
    claim,
    fence,
    jit,
    load_int32,
    load_int64,
    store_int64,
    stream_int32,
    stream_labels_int32,
    stream_labels_uint16,
    stream_uint16,
)
from zindex.kernels.gather import ROW_NBYTES, WIDTH, _read_span
from zindex.kernels.widening import widen

#: The tokens, labels and loss mask of a sample.
Row: TypeAlias = tuple[Int64Array, Int64Array, Float32Array]

#: Fields of a column, an array of integers in memory: its address, values, and bytes of a value,
#: negative if signed.
ADDRESS, SIZE, NBYTES = 0, 1, 2
#: Columns: shuffle index, sample index with two values a row, document index, document bounds.
SHUFFLE, BOUNDS, DOCUMENTS, OFFSETS = 0, 1, 2, 3


@jit
def _value(column: Int64Array, index: int) -> int:
    """Return a value of a column of any width."""
    address, nbytes = int(column[ADDRESS]), column[NBYTES]
    if nbytes == -8:
        return int(load_int64(address + 8 * index))
    value = int(load_int32(address + 4 * index))
    return value & 0xFFFFFFFF if nbytes > 0 else value


@jit
def _read_sample(
    columns: Int64Array,
    position: int,
    extra: int,
    width: int,
    record: int,
    scratch: int,
    scratch_nbytes: int,
    decoder: int,
) -> bool:
    """Read the tokens of one sample to an address; return whether it is a full sample."""
    if not 0 <= position < columns[SHUFFLE, SIZE]:
        return False
    sample = _value(columns[SHUFFLE], position)
    if sample < 0 or 2 * sample + 3 >= columns[BOUNDS, SIZE]:
        return False
    row = _value(columns[BOUNDS], 2 * sample)
    begin = _value(columns[BOUNDS], 2 * sample + 1)
    last_row = _value(columns[BOUNDS], 2 * sample + 2)
    last_end = _value(columns[BOUNDS], 2 * sample + 3) + extra
    if row < 0 or last_row >= columns[DOCUMENTS, SIZE]:
        return False
    row_nbytes = load_int64(record + 8 * ROW_NBYTES)
    filled = 0
    while row <= last_row:
        document = _value(columns[DOCUMENTS], row)
        if not 0 <= document < columns[OFFSETS, SIZE] - 1:
            return False
        start = _value(columns[OFFSETS], document)
        length = _value(columns[OFFSETS], document + 1) - start
        end = last_end if row == last_row else length
        if begin < 0 or not begin <= end <= length or end - begin > width - filled:
            return False
        target = scratch + filled * row_nbytes
        first, last = start + begin, start + end
        widen: Any = np.bool_(False)
        if not _read_span(record, first, last, target, widen, scratch, scratch_nbytes, decoder):
            return False
        filled += end - begin
        begin = 0
        row += 1
    return filled == width


@jit
def read_samples(
    columns: Int64Array,
    record: int,
    positions: Int64Array,
    rows: Int64Array,
    extra: int,
    pad: int,
    scratch: UInt8Array,
    stride: int,
    decoder: int,
    tokens: Int64Array,
    labels: Int64Array,
    loss_mask: Float32Array,
    next_sample: Int64Array,
) -> int:
    """Fill in samples of one dataset until one needs the caller; return the number done.

    Several threads may call this with the same arguments, except scratch memory and decoder: each
    sample is done by one of them.

    Parameters
    ----------
    columns
        Shape (4, 3), int64: shuffle index, sample index, document index and bounds of documents.
    record
        Address of the record of the tokens' array, as of `zindex.kernels.gather`; integers.
    positions
        Shape (samples,), int64: positions in the dataset.
    rows
        Shape (samples,), int64: row of each sample in the tensors.
    extra
        Tokens of a sample beyond its length: 0 or 1.
    pad
        Id of padding tokens.
    scratch
        Shape (bytes,), uint8, a multiple of eight: a buffer for a sample and eight bytes more; or
        with ``stride`` the destination of all samples.
    stride
        Bytes from one row of ``scratch`` to the next; 0 to fill the tensors instead.
    decoder
        Address of a decoder, as of `zindex.kernels.gather`; one per thread.
    tokens, labels, loss_mask
        Shape (rows, length): int64, int64 and float32; filled. Padding becomes id 0 with loss
        weight 0; without an extra token, so does the last label.
    next_sample
        Shape (1,), int64, initially zero: the next unclaimed sample; advanced.

    Returns
    -------
    count
        Samples done by this call. If all threads together did fewer than all samples, one sample is
        partial, needs a file opened or a chunk verified, or is damaged; no more samples are
        claimed.
    """
    length = tokens.shape[1]
    width = length + extra
    address: Any = np.int64(scratch.ctypes.data)
    item = load_int64(record + 8 * WIDTH)
    # For tokens of unusual width.
    wide = np.empty(0 if item == 2 or item == -4 else width, np.int64)
    aligned = length % LANES == 0 and loss_mask.ctypes.data % ALIGNMENT == 0
    aligned &= (tokens.ctypes.data | labels.ctypes.data) % ALIGNMENT == 0
    done = 0
    while True:
        i = claim(next_sample.ctypes.data)
        if not 0 <= i < positions.size:
            break
        row = rows[i]
        place: Any = address + row * stride
        if not _read_sample(
            columns, positions[i], extra, width, record, place, scratch.size, decoder
        ):
            store_int64(next_sample.ctypes.data, positions.size)
            break
        done += 1
        if stride:
            continue
        target = tokens[row], labels[row], loss_mask[row]
        if aligned and (item == 2 or item == -4):
            _stream_row(address, item, extra, pad, target)
        elif item == 2:
            _fill_row(scratch.view(np.uint16), extra, pad, target)
        elif item == -4:
            _fill_row(scratch.view(np.int32), extra, pad, target)
        else:
            widened: Any = np.int64(wide.ctypes.data)
            widen(address, widened, width, item)
            _fill_row(wide, extra, pad, target)
    fence()
    return done


@jit
def _fill_row(text: IntegerArray, extra: int, pad: int, target: Row) -> None:
    """Write tokens, labels and loss mask of a sample."""
    tokens, labels, loss_mask = target
    for i in range(tokens.size):
        value = np.int64(text[i])
        tokens[i] = 0 if value == pad else value
    count = tokens.size - 1 + extra
    for i in range(count):
        value = np.int64(text[i + 1])
        labels[i] = 0 if value == pad else value
        loss_mask[i] = np.float32(0.0 if value == pad else 1.0)
    if count < tokens.size:
        labels[count] = 0
        loss_mask[count] = 0.0


@jit
def _stream_row(text: int, item: int, extra: int, pad: int, target: Row) -> None:
    """Like `_fill_row`, past the caches; up to eight bytes after the text are read."""
    tokens, labels, loss_mask = target
    first, second, third = tokens.ctypes.data, labels.ctypes.data, loss_mask.ctypes.data
    nbytes = abs(item)
    # One target at a time: processors combine stores to a few cache lines only.
    for i in range(0, tokens.size, LANES):
        if item == 2:
            stream_uint16(text + nbytes * i, first + 8 * i, pad)
        else:
            stream_int32(text + nbytes * i, first + 8 * i, pad)
    text += nbytes
    for i in range(0, tokens.size, LANES):
        if item == 2:
            stream_labels_uint16(text + nbytes * i, second + 8 * i, third + 4 * i, pad)
        else:
            stream_labels_int32(text + nbytes * i, second + 8 * i, third + 4 * i, pad)
    if not extra:
        labels[tokens.size - 1] = 0
        loss_mask[tokens.size - 1] = 0.0
