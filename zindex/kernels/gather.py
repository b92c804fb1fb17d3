"""Spans of many files, read straight into arrays.

This is the one kernel that touches files: the system call for a span takes less time than the
interpreter needs to ask for it. It only reads, with pread(2) on descriptors that its caller holds
open; a file that is cut meanwhile gives fewer bytes, where a memory map would end the process.

Rows are bytes here, whatever their dtype, so that there is one compiled version; integers may be
widened to int64 on their way.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zindex.kernels._jit import jit
from zindex.kernels._memory import (
    load_int32,
    load_int64,
    load_uint8,
    pointer,
    pread,
    store_int64,
    store_uint8,
)

Int64Array: TypeAlias = npt.NDArray[np.int64]

#: Fields of an array's record, each an int64.
#: Rows of the array, of a file and of an inner chunk, and inner chunks of a file.
LENGTH, SHARD_LENGTH, CHUNK_LENGTH, CHUNKS_PER_SHARD = 0, 1, 2, 3
#: Bytes of a row, from one inner chunk to the next, and before the first one of a file.
ROW_NBYTES, STRIDE, BASE = 4, 5, 6
#: Address of one int32 per file: its descriptor + 1, or 0 where it is not open.
DESCRIPTORS = 7
#: Address of one byte per file, set to 1 when the file is read.
USED = 8
#: Address of one byte per inner chunk: whether it is verified. 0 where nobody asks.
VERIFIED = 9
#: Bytes of an integer, negative if signed: what may be widened.
WIDTH = 10

#: Fields of a group of spans of one array: where its spans end in the round, addresses of the
#: array's record and of the target, rows of the target, whether it is int64 while the array is
#: not, and whether places are given.
STOP, RECORD, TARGET, TARGET_LENGTH, WIDE, PLACED = 0, 1, 2, 3, 4, 5
GROUP_LENGTH = 6


@jit
def gather(
    groups: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    places: Int64Array,
    scratch: int,
    scratch_nbytes: int,
    state: Int64Array,
) -> bool:
    """Read spans until one needs more than a read; return whether all are done.

    Parameters
    ----------
    groups
        Shape (groups, GROUP_LENGTH), int64: the spans of each array.
    starts, stops
        Shape (spans,), int64, rows of the span's array.
    places
        Shape (spans,), int64, rows of the target; not looked at in groups without places.
    scratch, scratch_nbytes
        Address and size of memory for values on their way to int64; eight bytes more are there.
    state
        Shape (3,), int64, changed: group and span to go on with, and the span's place. A span that
        is left to the caller is outside its array or target, in a file that is not open, in a
        chunk that is not verified, or cannot be read whole.
    """
    group, span, place = state[0], state[1], state[2]
    done = True
    while span < starts.size:
        while span >= groups[group, STOP]:
            group += 1
            place = 0
        record = groups[group, RECORD]
        if groups[group, PLACED]:
            place = places[span]
        start, stop = starts[span], stops[span]
        length = groups[group, TARGET_LENGTH]
        inside = 0 <= start <= stop <= load_int64(record + 8 * LENGTH)
        done = inside and 0 <= place <= length and stop - start <= length - place
        if done:
            wide = groups[group, WIDE] != 0
            row_nbytes = 8 if wide else load_int64(record + 8 * ROW_NBYTES)
            target = groups[group, TARGET] + place * row_nbytes
            done = _read_span(record, start, stop, target, wide, scratch, scratch_nbytes)
        if not done:
            break
        place += stop - start
        span += 1
    state[0], state[1], state[2] = group, span, place
    return done


@jit
def _read_span(
    record: int,
    start: int,
    stop: int,
    target: int,
    wide: bool,
    scratch: int,
    scratch_nbytes: int,
) -> bool:
    """Read one span to an address; return whether all of it could be read."""
    shard_length = load_int64(record + 8 * SHARD_LENGTH)
    chunk_length = load_int64(record + 8 * CHUNK_LENGTH)
    row_nbytes = load_int64(record + 8 * ROW_NBYTES)
    verified = load_int64(record + 8 * VERIFIED)
    row = start
    while row < stop:
        shard = row // shard_length
        within = row - shard * shard_length
        chunk = within // chunk_length
        skip = within - chunk * chunk_length
        if verified:
            number = shard * load_int64(record + 8 * CHUNKS_PER_SHARD) + chunk
            if load_uint8(verified + number) == 0:
                return False
        descriptor = load_int32(load_int64(record + 8 * DESCRIPTORS) + 4 * shard) - 1
        if descriptor < 0:
            return False
        store_uint8(load_int64(record + 8 * USED) + shard, 1)
        count = min(chunk_length - skip, stop - row)
        if wide:
            count = min(count, scratch_nbytes // row_nbytes)
        nbytes = count * row_nbytes
        offset = load_int64(record + 8 * BASE) + skip * row_nbytes
        offset += chunk * load_int64(record + 8 * STRIDE)
        if pread(descriptor, pointer(scratch if wide else target), nbytes, offset) != nbytes:
            return False
        if wide:
            _widen(scratch, count, load_int64(record + 8 * WIDTH), target)
            target += 8 * count
        else:
            target += nbytes
        row += count
    return True


@jit
def _widen(source: int, count: int, width: int, target: int) -> None:
    """Write integers of a width to an address as int64.

    Each is cut out of the eight bytes at its place, of which the last may reach past the source by
    seven bytes, into memory that is there.
    """
    nbytes = abs(width)
    shift = 64 - 8 * nbytes
    mask = -1 if width < 0 else (1 << (8 * nbytes)) - 1
    for i in range(count):
        value = load_int64(source + nbytes * i)
        store_int64(target + 8 * i, ((value << shift) >> shift) & mask)
