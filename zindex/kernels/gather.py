"""Read spans of many files into arrays, with pread(2) or from maps.

The system call for a span takes less time than its Python call, so this kernel reads files itself,
from descriptors that its caller keeps open. A file that is truncated meanwhile gives a short read,
where a memory map would end the process, so that its caller maps only files that it has leased.

Rows are bytes of any dtype, so that there is one compiled version; integers may be widened to
int64.
"""

from zindex.arrays import Int64Array
from zindex.kernels._jit import (
    call_checksum,
    call_decompress,
    jit,
    load_int32,
    load_int64,
    load_uint8,
    load_uint32,
    memcpy,
    pointer,
    pread,
    store_int64,
    store_uint8,
)
from zindex.kernels.widening import widen

#: Fields of an array's record, each an int64.
#: Rows of the array, of a file and of an inner chunk, and inner chunks of a file.
LENGTH, SHARD_LENGTH, CHUNK_LENGTH, CHUNKS_PER_SHARD = 0, 1, 2, 3
#: Bytes of a row, from one inner chunk to the next, and before the first one of a file.
ROW_NBYTES, STRIDE, BASE = 4, 5, 6
#: Address of one int32 per file: its descriptor + 1, or 0 where it is not open.
DESCRIPTORS = 7
#: Address of one byte per file, set to 1 when the file is read.
USED = 8
#: Address of one byte per inner chunk: whether it is verified. 0 without verification.
VERIFIED = 9
#: Bytes of an integer, negative if signed, for widening.
WIDTH = 10
#: Address of three int64 per file, the addresses of the offsets, of the sizes and, or 0, of the
#: checksums of its chunks, if they are compressed with zstd; otherwise 0.
INDICES = 11
#: Bytes of the checksum after a compressed chunk.
CHECKSUM_NBYTES = 12
#: Address of one byte per window of rows, whether the system has been told to read it, or 0; rows
#: of a window, and windows of a file.
ADVISED, WINDOW_LENGTH, WINDOWS_PER_SHARD = 13, 14, 15
#: Address of one int64 per file: the address of its map and the bytes of that, or 0 without a map.
MAPS = 16

#: Fields of a decoder: its zstd context, addresses of ``ZSTD_decompressDCtx`` and ``crc32c_value``,
#: address and size of its memory, and the record and number of the chunk that is decoded there.
CONTEXT, DECOMPRESS, CHECKSUM, MEMORY, MEMORY_NBYTES, DECODED_RECORD, DECODED = range(7)
#: Bytes after a decoded chunk that widening may read.
SLACK_NBYTES = 8

#: Fields of a group, the spans of one array: end of its spans, addresses of the array's record and
#: of the target, rows of the target, whether to widen to int64, and whether places are given.
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
    decoder: int,
    state: Int64Array,
) -> bool:
    """Read spans until one needs the caller; return whether all are done.

    Parameters
    ----------
    groups
        Shape (groups, GROUP_LENGTH), int64: the spans of each array.
    starts, stops
        Shape (spans,), int64, rows of the span's array.
    places
        Shape (spans,), int64, rows of the target; ignored in groups without places.
    scratch, scratch_nbytes
        Address and size of a buffer for values to widen; it has eight bytes more.
    decoder
        Address of a decoder, for compressed arrays; its memory holds a stored and a decoded chunk
        and ``SLACK_NBYTES``.
    state
        Shape (3,), int64, changed: next group and span, and the span's place. The kernel stops at a
        span that is outside its array or target, in a file that is not open, a chunk that is not
        verified or a window that is not advised, or that cannot be read whole; the caller handles
        it. Compressed chunks are verified whenever they are decoded.
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
            done = _read_span(record, start, stop, target, wide, scratch, scratch_nbytes, decoder)
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
    decoder: int,
) -> bool:
    """Read one span to an address; return whether it was read whole."""
    shard_length = load_int64(record + 8 * SHARD_LENGTH)
    chunk_length = load_int64(record + 8 * CHUNK_LENGTH)
    row_nbytes = load_int64(record + 8 * ROW_NBYTES)
    indices = load_int64(record + 8 * INDICES)
    target_nbytes = 8 if wide else row_nbytes
    row = start
    while row < stop:
        shard = row // shard_length
        within = row - shard * shard_length
        chunk = within // chunk_length
        skip = within - chunk * chunk_length
        number = shard * load_int64(record + 8 * CHUNKS_PER_SHARD) + chunk
        descriptor = find_descriptor(record, shard, within, number)
        if descriptor < 0:
            return False
        count = min(chunk_length - skip, stop - row)
        source = scratch if wide else target
        if indices:
            source = decode(record, descriptor, shard, chunk, number, decoder)
            if not source:
                return False
            source += skip * row_nbytes
            if not wide:
                memcpy(pointer(target), pointer(source), count * row_nbytes)
        else:
            offset = load_int64(record + 8 * BASE) + skip * row_nbytes
            offset += chunk * load_int64(record + 8 * STRIDE)
            slot = load_int64(record + 8 * MAPS) + 8 * shard
            mapped = find_mapped(slot, offset, count * row_nbytes)
            if wide and not mapped:
                count = min(count, scratch_nbytes // row_nbytes)
            nbytes = count * row_nbytes
            if not mapped:
                if pread(descriptor, pointer(source), nbytes, offset) != nbytes:
                    return False
            elif wide:
                source = mapped
            else:
                memcpy(pointer(target), pointer(mapped), nbytes)
        if wide:
            widen(source, target, count, load_int64(record + 8 * WIDTH))
        target += count * target_nbytes
        row += count
    return True


@jit
def find_descriptor(record: int, shard: int, within: int, number: int) -> int:
    """Return the descriptor of a file that is open, or -1.

    It is -1, too, if the chunk of this number needs to be verified, or the window of the row
    ``within`` the file to be advised.
    """
    verified = load_int64(record + 8 * VERIFIED)
    if verified and load_int64(record + 8 * INDICES) == 0 and load_uint8(verified + number) == 0:
        return -1
    advised = load_int64(record + 8 * ADVISED)
    if advised:
        window = shard * load_int64(record + 8 * WINDOWS_PER_SHARD)
        window += within // load_int64(record + 8 * WINDOW_LENGTH)
        if load_uint8(advised + window) == 0:
            return -1
    descriptor = load_int32(load_int64(record + 8 * DESCRIPTORS) + 4 * shard) - 1
    if descriptor >= 0:
        store_uint8(load_int64(record + 8 * USED) + shard, 1)
    return int(descriptor)


@jit
def find_mapped(slot: int, offset: int, nbytes: int) -> int:
    """Return the address of bytes of a file, 0 if they are not mapped.

    Parameters
    ----------
    slot
        Address of the address of the map's record.
    offset, nbytes
        The bytes.
    """
    record = load_int64(slot)
    if not record or offset + nbytes > load_int64(record + 8):
        return 0
    return int(load_int64(record)) + offset


@jit
def decode(record: int, descriptor: int, shard: int, chunk: int, number: int, decoder: int) -> int:
    """Return the address of the verified values of a compressed chunk, 0 if there are none."""
    memory = int(load_int64(decoder + 8 * MEMORY))
    if (
        load_int64(decoder + 8 * DECODED_RECORD) == record
        and load_int64(decoder + 8 * DECODED) == number
    ):
        return memory
    store_int64(decoder + 8 * DECODED_RECORD, 0)
    index = load_int64(record + 8 * INDICES) + 24 * shard
    nbytes = load_int64(load_int64(index + 8) + 8 * chunk)
    chunk_nbytes = load_int64(record + 8 * CHUNK_LENGTH) * load_int64(record + 8 * ROW_NBYTES)
    stored = memory + chunk_nbytes + SLACK_NBYTES
    checksum_nbytes = load_int64(record + 8 * CHECKSUM_NBYTES)
    body = nbytes - checksum_nbytes
    if body < 1 or nbytes > load_int64(decoder + 8 * MEMORY_NBYTES) - (stored - memory):
        return 0
    offset = load_int64(load_int64(index) + 8 * chunk)
    mapped = find_mapped(load_int64(record + 8 * MAPS) + 8 * shard, offset, nbytes)
    if mapped:
        stored = mapped
    elif pread(descriptor, pointer(stored), nbytes, offset) != nbytes:
        return 0
    if checksum_nbytes and load_int64(record + 8 * VERIFIED):
        found = call_checksum(load_int64(decoder + 8 * CHECKSUM), stored, body)
        if found != load_uint32(stored + body):
            return 0
        table = load_int64(index + 16)
        if table and load_uint32(table + 4 * chunk) != found:
            return 0
    decompress = load_int64(decoder + 8 * DECOMPRESS)
    context = load_int64(decoder + 8 * CONTEXT)
    if call_decompress(decompress, context, memory, chunk_nbytes, stored, body) != chunk_nbytes:
        return 0
    store_int64(decoder + 8 * DECODED, number)
    store_int64(decoder + 8 * DECODED_RECORD, record)
    return memory
