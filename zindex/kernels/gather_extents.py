"""Gather spans of arrays in files or in memory into the rows of a batch, for many keys at once.

Arrays are given by their extents, bytes of files or addresses, or as those of
`zindex.kernels.gather`. Files are read with pread(2) from descriptors that the caller keeps open,
or from maps. Values are copied, widened to int64 or compared with 0 at run time, so that there is
one compiled version.
"""

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import (
    carray,
    inline,
    jit,
    load_int32,
    load_int64,
    memcpy,
    pointer,
    pread,
    store_uint8,
)
from zindex.kernels.gather import (
    BASE,
    CHUNK_LENGTH,
    CHUNKS_PER_SHARD,
    INDICES,
    LENGTH,
    MAPS,
    SHARD_LENGTH,
    STRIDE,
    decode,
    find_descriptor,
    find_mapped,
)
from zindex.kernels.widening import widen

#: Fields of a group, the spans of one array with one target: bounds of its spans, which groups may
#: share; offset added to them in this array; addresses of two int64 arrays over extents, the ends
#: in values and the places of the values, which are bytes of a file or addresses; of an int32 array
#: over extents, the file of each or -1; and of an int64 array (files, 3), the addresses of each
#: file's descriptor + 1 (int32), 0 where it is closed, of a byte that is set to 1 when the file is
#: read, and of its map as of `zindex.kernels.gather`; number of extents; bytes of a value, negative
#: if signed; address and length of the target; the conversion of values; and, written by the
#: kernel, the largest value that it widened, -1 if one was negative. If the first address of an
#: array is 0, the second one is that of its record of `zindex.kernels.gather`.
FIRST, STOP, SHIFT, ENDS, PLACES, FILE_OF, FILES, NUM_EXTENTS, WIDTH = range(9)
TARGET, TARGET_LENGTH, FORM, LARGEST = 9, 10, 11, 12
GROUP_LENGTH = 13

#: Fields of the state after the next group and span: the array, file and bytes that are read to
#: convert them.
HELD, HELD_FILE, HELD_START, HELD_STOP = range(3, 7)
STATE_LENGTH = 7

#: Conversions of values: the same bytes, int64, or one byte that is 0 or 1.
COPY, WIDEN, TRUTH = 0, 1, 2


@inline
def _find_extent(ends: int, count: int, value: int) -> int:
    """Return the first extent that ends after a value."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if load_int64(ends + 8 * middle) > value:
            high = middle
        else:
            low = middle + 1
    return low


@inline
def _write_truth(source: int, target: int, count: int, nbytes: int) -> None:
    """Write whether any byte of an integer is not 0."""
    out = carray(pointer(target), (count,), dtype=np.uint8)
    raw = carray(pointer(source), (count * nbytes,), dtype=np.uint8)
    if nbytes == 1:  # the usual masks; this loop vectorises
        for i in range(count):
            out[i] = raw[i] != 0
        return
    for i in range(count):
        byte = np.uint8(0)
        for k in range(nbytes):
            byte |= raw[i * nbytes + k]
        out[i] = byte != 0


@jit
def gather_extents(
    groups: Int64Array,
    starts: Int64Array,
    stops: Int64Array,
    places: Int64Array,
    scratch: int,
    scratch_nbytes: int,
    decoder: int,
    state: Int64Array,
) -> bool:
    """Copy spans of arrays until one needs the caller; return whether all are done.

    Parameters
    ----------
    groups
        Shape (groups, GROUP_LENGTH), int64, changed. The caller keeps the memory at its addresses
        alive, and the files open.
    starts, stops
        Shape (spans,), int64: values of the group's array, counted over its extents, without the
        group's shift.
    places
        Shape (spans,), int64: first value of each span in the target.
    scratch, scratch_nbytes
        Address and size of a buffer for values of files to convert.
    decoder
        As of `zindex.kernels.gather`.
    state
        Shape (STATE_LENGTH,), int64, changed: the next group, -1 for the first one that shares its
        spans; the first of those; and the next span. The kernel stops at a span that is outside its
        array or target, in a file that is closed or cannot be read whole, or for which
        `zindex.kernels.gather` stops; the caller handles it.

    Notes
    -----
    Law: the target of a group holds at ``places[i]`` what numpy gives for ``[starts[i] + shift,
    stops[i] + shift)`` of its concatenated extents. Cost: the bytes of the spans, and for each a
    binary search over the extents and a system call.
    """
    group = state[1]
    state[HELD] = 0
    while group < groups.shape[0]:
        last = group + 1
        while last < groups.shape[0] and groups[last, FIRST] == groups[group, FIRST]:
            last += 1
        # Groups that share spans are copied span by span: an array that is read twice with another
        # shift is then still in the cache.
        for span in range(max(state[2], groups[group, FIRST]), groups[group, STOP]):
            for k in range(max(group, state[0]), last):
                record = groups[k]
                start, stop = starts[span] + record[SHIFT], stops[span] + record[SHIFT]
                more = 0
                for later in range(k + 1, last):
                    if groups[later, PLACES] == record[PLACES]:
                        more = max(more, groups[later, SHIFT] - record[SHIFT])
                where = scratch, scratch_nbytes, decoder, state
                if not _copy_span(record, start, stop, places[span], more, *where):
                    state[0], state[1], state[2] = k, group, span
                    return False
            state[0] = -1
        group, state[2] = last, 0
    return True


@jit
def _find_chunk(array: int, row: int, nbytes: int, decoder: int) -> tuple[int, int, int, int, int]:
    """Return where a value is of an array of `zindex.kernels.gather`.

    These are the descriptor of its file, negative if the caller must read it; the number of the
    file, -1 if the chunk was decoded; its byte or, of a decoded chunk, its address; the address of
    the address of the file's map; and the end of its chunk.
    """
    chunk_length = load_int64(array + 8 * CHUNK_LENGTH)
    file, within = divmod(row, load_int64(array + 8 * SHARD_LENGTH))
    chunk, skip = divmod(within, chunk_length)
    number = file * load_int64(array + 8 * CHUNKS_PER_SHARD) + chunk
    descriptor = find_descriptor(array, file, within, number)
    source = load_int64(array + 8 * BASE) + chunk * load_int64(array + 8 * STRIDE)
    slot = load_int64(array + 8 * MAPS) + 8 * file
    if descriptor >= 0 and load_int64(array + 8 * INDICES):
        source = decode(array, descriptor, file, chunk, number, decoder)
        file = -1
        if source == 0:
            descriptor = -1
    return descriptor, file, source + skip * nbytes, slot, row - skip + chunk_length


@jit
def _copy_span(
    record: Int64Array,
    start: int,
    stop: int,
    place: int,
    more: int,
    scratch: int,
    scratch_nbytes: int,
    decoder: int,
    state: Int64Array,
) -> bool:
    """Copy one span; return False if it is outside its array or target, or cannot be read.

    The ``more`` values that follow it are read too, for a later group of the same array.
    """
    count, width, form = record[NUM_EXTENTS], record[WIDTH], record[FORM]
    space = record[TARGET_LENGTH] - place
    if place < 0 or space < 0 or start > stop or stop - start > space:
        return False
    if start == stop:
        return True
    ends, array = record[ENDS], record[PLACES]
    if ends:
        total = load_int64(ends + 8 * (count - 1)) if count else 0
    else:
        total = load_int64(array + 8 * LENGTH)
    if start < 0 or stop > total:
        return False
    nbytes = abs(width)
    target_nbytes = 8 if form == WIDEN else 1 if form == TRUTH else nbytes
    target = record[TARGET] + place * target_nbytes
    extent = _find_extent(ends, count, start) if ends else 0
    first = load_int64(ends + 8 * (extent - 1)) if extent else 0
    while start < stop:
        descriptor, slot = 0, 0
        if ends:
            end = load_int64(ends + 8 * extent)
            source = load_int64(array + 8 * extent) + (start - first) * nbytes
            file = int(load_int32(record[FILE_OF] + 4 * extent))
            if file >= 0 and end > start:
                cells = record[FILES] + 24 * file
                descriptor = int(load_int32(load_int64(cells))) - 1
                store_uint8(load_int64(cells + 8), 1)
                slot = load_int64(cells + 16)
        else:
            descriptor, file, source, slot, end = _find_chunk(array, start, nbytes, decoder)
        if descriptor < 0:
            return False
        length = min(stop, end) - start
        if length > 0 and file >= 0:
            mapped = find_mapped(slot, source, length * nbytes)
            if mapped:
                source, file = mapped, -1
            elif form == COPY:
                wanted = length * nbytes
                if pread(descriptor, pointer(target), wanted, source) != wanted:
                    return False
            else:
                length = min(length, scratch_nbytes // nbytes)
                wanted = min(length + more, end - start, scratch_nbytes // nbytes) * nbytes
                is_held = state[HELD] == array and state[HELD_FILE] == file
                is_held = is_held and state[HELD_START] <= source
                if not (is_held and source + length * nbytes <= state[HELD_STOP]):
                    state[HELD] = 0
                    got = pread(descriptor, pointer(scratch), wanted, source)
                    if got < length * nbytes:
                        return False
                    state[HELD], state[HELD_FILE] = array, file
                    state[HELD_START], state[HELD_STOP] = source, source + got
                source = scratch + source - state[HELD_START]
        if length > 0:
            if form == WIDEN:
                largest = widen(source, target, length, width)
                if largest < 0 or record[LARGEST] >= 0:
                    record[LARGEST] = largest if largest < 0 else max(largest, record[LARGEST])
            elif form == TRUTH:
                _write_truth(source, target, length, nbytes)
            elif file < 0:
                memcpy(pointer(target), pointer(source), length * nbytes)
            start += length
            target += length * target_nbytes
        if start >= end:
            first = end
            extent += 1
    return True
