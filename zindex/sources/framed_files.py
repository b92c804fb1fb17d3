"""Find the frames of compressed files, so that these are read at any offset without a copy.

The frames of seekable zstd are in a table at its end, those of bgzip in the headers of its blocks,
or in the index that ``bgzip -i`` writes.

Sources: https://github.com/facebook/zstd, contrib/seekable_format; the sections on BGZF and its
index in the SAM format specification, https://samtools.github.io/hts-specs, and in the manual of
``bgzip``.
"""

import logging
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import StoreError
from zindex.io.file_chunks import SCAN_NBYTES, content_chunks, look_up, read_stored
from zindex.io.file_list import SourceFile
from zindex.io.frames import CONTENT, MAX_FRAME_NBYTES, NO_CHECKSUM, Frames
from zindex.sources.file_scan import FileScan
from zindex.sources.offset_files import FRAMES
from zindex.sources.sample_offsets import find_kept
from zindex.sources.tar_members import ChunkBuffer

logger = logging.getLogger(__name__)

# Of seekable zstd: in the first bytes of the table, and in the last ones of the file.
_TABLE_MAGIC, _END_MAGIC = 0x184D2A5E, 0x8F92EAB1
# Bytes before the entries of the table, after them, and that are read at first.
_HEAD_NBYTES, _FOOT_NBYTES, _TAIL_NBYTES = 8, 9, 1 << 16
# Of bgzip: the first bytes of a block, of any gzip member, bytes of a header, and most of a block.
_BLOCK_MAGIC, _GZIP_MAGIC = b"\x1f\x8b\x08\x04", b"\x1f\x8b\x08"
# Its extra field, whose last two bytes, the size less one, follow.
_BLOCK_FIELD = b"\6\0BC\2\0"
_HEADER_NBYTES, _MAX_BLOCK_NBYTES = 18, 1 << 16
# Of its index: of each block but the first, its offset in the file and in the content.
_ENTRY_NBYTES = 16


def find_frames(file: SourceFile) -> SourceFile | None:
    """Return a compressed file that can be read at any offset by its frames.

    Parameters
    ----------
    file
        A compressed file of known size. Its frames are found once and kept in the cache, like
        tables of samples.

    Returns
    -------
    opened
        The file with its frames, and the bytes of its content; None if it has none, or they are too
        large to be decompressed one at a time.
    """
    find = {"zstandard": _find_zstd, "gzip": _find_blocks}.get(file.compression or "")
    if find is None:
        return None
    table = find_kept(file, lambda one: FileScan(find(one), 0), FRAMES).table
    if len(table) < 2 or np.diff(table[:, CONTENT]).max() > MAX_FRAME_NBYTES:
        return None
    frames = Frames(str(file.compression), table)
    return replace(
        file, nbytes=frames.nbytes, full_nbytes=file.size, compression=None, frames=frames
    )


def _make_table(rows: list[tuple[int, int]] | Int64Array) -> Int64Array:
    """Return the table of frames without checksums; see `Frames`. Without frames it has one row."""
    bounds = np.array(rows, np.int64).reshape(-1, 2)
    if bounds[-1, 1] == 0:  # no content
        bounds = bounds[:1]
    return np.column_stack([bounds, np.full(len(bounds), NO_CHECKSUM)])


def _find_zstd(file: SourceFile) -> Int64Array:
    """Return the table of frames at the end of seekable zstd."""
    nothing, nbytes = _make_table([(0, 0)]), file.nbytes or 0
    tail = read_stored(file, max(0, nbytes - _TAIL_NBYTES), nbytes)
    if int.from_bytes(tail[-4:], "little") != _END_MAGIC:
        return nothing
    count, kind = int.from_bytes(tail[-9:-5], "little"), tail[-5]
    width = 12 if kind & 0x80 else 8
    size = _HEAD_NBYTES + width * count + _FOOT_NBYTES
    if not count or kind & 0x7C or size > nbytes:
        return nothing
    if size > len(tail):
        tail = read_stored(file, nbytes - size, nbytes)
    head = np.frombuffer(tail[-size:], "<u4", 2).tolist()
    if head != [_TABLE_MAGIC, size - _HEAD_NBYTES]:
        return nothing
    entries = np.frombuffer(tail[-size + _HEAD_NBYTES : -_FOOT_NBYTES], "<u4").reshape(count, -1)
    table = np.full((count + 1, 3), NO_CHECKSUM, np.int64)
    table[0, :2] = 0
    np.cumsum(entries[:, :2], axis=0, out=table[1:, :2])
    table[:-1, 2:] = entries[:, 2:] if width == 12 else NO_CHECKSUM
    is_sound = table[-1, 0] + size == nbytes and entries[:, 1].all()
    return table if is_sound else nothing


def _find_blocks(file: SourceFile) -> Int64Array:
    """Return the blocks of bgzip, from its index or by reading their headers."""
    nbytes = file.nbytes or 0
    if not _block_nbytes(read_stored(file, 0, min(nbytes, _HEADER_NBYTES))):
        return _make_table([(0, 0)])
    if not file.is_local:
        found = _read_index(file)
        if found is not None:
            return found
        logger.info("%s has no index (bgzip -i), it is read to find its blocks", file.url)
    with closing(content_chunks(file)) as chunks:
        return _make_table(_Blocks(chunks, nbytes).find())


def _read_index(file: SourceFile) -> Int64Array | None:
    """Return the blocks of a remote file by the index beside it; None if that does not fit."""
    place = file.place.parent / f"{file.place.name}.gzi"
    try:
        index = look_up(SourceFile(f"{file.url}.gzi", place, None))
    except (FileNotFoundError, StoreError):  # some stores deny what does not exist
        return None
    size, nbytes = index.nbytes or 0, file.nbytes or 0
    if size % _ENTRY_NBYTES != 8 or size > nbytes + _ENTRY_NBYTES:
        return None
    entries = np.frombuffer(read_stored(index, 0, size), "<i8")
    if entries[0] != len(entries) // 2:
        return None
    bounds = np.concatenate([np.zeros((1, 2), np.int64), entries[1:].reshape(-1, 2)])
    last = int(bounds[-1, 0])
    if (np.diff(bounds, axis=0) <= 0).any() or last >= nbytes:
        return None
    # The last blocks are listed by their start at most.
    blocks = _Blocks(iter([read_stored(file, last, nbytes)]), nbytes - last)
    ends = np.array(blocks.find(), np.int64)
    if blocks.is_broken or len(ends) < 2 or ends[-1, 0] + last != nbytes:
        return None
    return _make_table(np.concatenate([bounds, ends[1:] + bounds[-1]]))


def _block_nbytes(header: bytes) -> int:
    """Return the bytes of the block of bgzip that has a header; 0 if it is none."""
    is_block = header[:4] == _BLOCK_MAGIC and header[10:16] == _BLOCK_FIELD
    return int.from_bytes(header[16:18], "little") + 1 if is_block else 0


class _Blocks:
    """The blocks of a file of bgzip, found by their headers.

    Parameters
    ----------
    chunks, nbytes
        The file as it is stored, and its size.
    """

    def __init__(self, chunks: Iterator[bytes], nbytes: int) -> None:
        self._buffer, self._nbytes = ChunkBuffer(chunks), nbytes
        #: Whether there are bytes of no block.
        self.is_broken = False

    def find(self) -> list[tuple[int, int]]:
        """Return where each block starts, in the file and in its content, and the ends.

        Bytes between blocks are a block of one byte, which cannot be decompressed. Of a file that
        has other members of gzip, too, no block is returned.
        """
        found = [(0, 0)]
        start = content = 0
        size = self._size_at(0, 0)
        while start < self._nbytes:
            stop, after = start + size, 0
            if stop < self._nbytes:
                after = self._size_at(stop, start)
            if not size or (not after and stop != self._nbytes):
                other = self._find_next(start)
                if not size and self._is_padding(start, other):
                    break
                # If the size in a header is wrong, the next block starts earlier or later.
                if not size or other < stop or stop > self._nbytes:
                    stop, after = other, self._size_at(other, start)
            place = self._cover(start, stop - start)
            whole = memoryview(self._buffer.buffer)[place : place + stop - start]
            if not size and whole[:3] == _GZIP_MAGIC:
                return found[:1]
            nbytes = int.from_bytes(whole[-4:], "little")
            if not size or nbytes > _MAX_BLOCK_NBYTES or not (nbytes or _is_empty(whole)):
                self.is_broken, nbytes = True, 1
            start, size, content = stop, after, content + nbytes
            found.append((start, content))
        return found

    def _cover(self, start: int, nbytes: int) -> int:
        """Fill the buffer from an offset on; return where that is in the buffer."""
        buffer, stop = self._buffer, min(start + nbytes, self._nbytes)
        if stop > buffer.base + len(buffer.buffer):
            buffer.cover(start, stop - start)
        return start - buffer.base

    def _size_at(self, offset: int, start: int) -> int:
        """Return the bytes of the block at an offset, or 0; buffer all bytes from a start."""
        place = self._cover(start, offset - start + _HEADER_NBYTES) + offset - start
        return _block_nbytes(self._buffer.buffer[place : place + _HEADER_NBYTES])

    def _find_next(self, start: int) -> int:
        """Return where the next block after an offset starts, or the end of the file."""
        offset = start + 1
        while offset < self._nbytes:
            place = self._cover(start, offset - start + SCAN_NBYTES)
            found = self._buffer.buffer.find(_BLOCK_MAGIC, place + offset - start)
            if found < 0:
                offset = self._buffer.base + len(self._buffer.buffer) - len(_BLOCK_MAGIC) + 1
                if offset + len(_BLOCK_MAGIC) > self._nbytes:
                    break
            else:
                offset = self._buffer.base + found
                if self._size_at(offset, start):
                    return offset
                offset += 1
        return self._nbytes

    def _is_padding(self, start: int, stop: int) -> bool:
        """Return whether there are only zeros up to the end of the file."""
        place = self._cover(start, stop - start)
        content = self._buffer.buffer[place : place + stop - start]
        return stop == self._nbytes and content.count(0) == len(content)


def _is_empty(block: memoryview) -> bool:
    """Return whether a block has no content, as the one that marks the end."""
    with suppress(zlib.error):
        return not zlib.decompress(block, wbits=31)
    return False
