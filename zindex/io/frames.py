"""Read compressed files from any offset: those of frames that can be decompressed separately.

These are files of bgzip, whose frames are gzip members of at most 64 KiB, and of seekable zstd.
"""

import os
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.io.decompression import MAX_WINDOW_NBYTES, DamageError
from zindex.io.frame_cache import FrameCache
from zindex.lazy import need

#: Most bytes of the content of a frame, which is decompressed as a whole. Files of larger ones are
#: copied.
MAX_FRAME_NBYTES = 8 << 20
#: Offsets of the columns of a table of frames, and the value of an unknown checksum.
STORED, CONTENT, CHECKSUM = range(3)
NO_CHECKSUM = -1
_UNKNOWN_SIZE = (1 << 64) - 1
_NUM_LOCKS = 64

#: Returns bytes ``[start, stop)`` of a file as it is stored.
ReadStored = Callable[[int, int], bytes]
#: Takes why a frame is broken, and the bytes ``[start, stop)`` of the content that it has.
ReportBroken = Callable[[str, int, int], None]


class Frames:
    """The frames of a compressed file.

    Parameters
    ----------
    compression
        ``"gzip"`` or ``"zstandard"``.
    table
        Shape (frames + 1, 3), int64: where each frame starts in the file and in the content, and
        the lower 32 bits of the XXH64 of its content, or `NO_CHECKSUM`. The last row has the ends.
    """

    def __init__(self, compression: str, table: Int64Array) -> None:
        self._decode = _inflate if compression == "gzip" else _decode_zstd
        self.table = table
        self._starts = np.ascontiguousarray(table[:, CONTENT])
        #: Keeps what is decompressed.
        self.cache: FrameCache | None = None
        self._process, self._locks = 0, list[threading.Lock]()

    @property
    def nbytes(self) -> int:
        """Bytes of the content."""
        return int(self._starts[-1])

    def read(
        self, start: int, stop: int, read_stored: ReadStored, report: ReportBroken | None
    ) -> bytes:
        """Return bytes ``[start, stop)`` of the content; see `read_into`."""
        content = bytearray(stop - start)
        self.read_into(start, memoryview(content), read_stored, report)
        return bytes(content)

    def read_into(
        self, start: int, view: memoryview, read_stored: ReadStored, report: ReportBroken | None
    ) -> None:
        """Read content from an offset on, without what is before.

        Parameters
        ----------
        start
            The offset.
        view
            Is filled.
        read_stored
            Reads the file, once at most.
        report
            Called for broken frames, whose content is read as zeros; None raises.

        Raises
        ------
        DamageError
            If a frame is broken.
        """
        stop = start + len(view)
        first = int(self._starts.searchsorted(start, side="right")) - 1
        last = int(self._starts.searchsorted(stop))
        if self.cache is None:
            self._read(first, last, start, view, read_stored, report)
        elif (missing := self.cache.find_missing(first, last))[0] == missing[1]:
            self.cache.read_into(start, view)
        else:  # concurrent requests for samples of a frame read it once
            with self._lock_of(missing[0]):
                self._read(first, last, start, view, read_stored, report)

    def _lock_of(self, frame: int) -> threading.Lock:
        """Return the lock of a frame and some others; a fork has its own."""
        if self._process != os.getpid():
            self._locks = [threading.Lock() for _ in range(_NUM_LOCKS)]
            self._process = os.getpid()  # last, for other threads
        return self._locks[frame % _NUM_LOCKS]

    def _read(
        self,
        first: int,
        last: int,
        start: int,
        view: memoryview,
        read_stored: ReadStored,
        report: ReportBroken | None,
    ) -> None:
        """Read content that some frames have; see `read_into`."""
        stop, cache = start + len(view), self.cache
        missing = (first, last) if cache is None else cache.find_missing(first, last)
        rows = self.table[missing[0] : missing[1] + 1].tolist()
        if cache is not None:
            before, after = rows[0][CONTENT], rows[-1][CONTENT]
            if start < before:
                cache.read_into(start, view[: before - start])
            if max(start, after) < stop:
                cache.read_into(max(start, after), view[max(start, after) - start :])
        if len(rows) < 2:
            return
        base = rows[0][STORED]
        stored = memoryview(read_stored(base, rows[-1][STORED]))
        for number, (at, begin, checksum) in enumerate(rows[:-1], missing[0]):
            end, finish, _ = rows[number - missing[0] + 1]
            if begin == finish:  # nothing, such as bgzip's mark of the end
                continue
            try:
                content = self._decode(stored[at - base : end - base], finish - begin, checksum)
            except ValueError as error:
                if report is None:
                    raise DamageError(str(error), begin) from None
                report(str(error), begin, finish)
                content = bytes(finish - begin)
            else:
                if cache is not None:
                    cache.put(number, begin, content)
            one, two = max(start, begin), min(stop, finish)
            view[one - start : two - start] = content[one - begin : two - begin]

    def split(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Return ranges of the content from an offset on, of whole frames and about a size."""
        ends = np.append(np.arange(start + nbytes, self.nbytes, nbytes), self.nbytes)
        cuts = np.unique(self._starts[self._starts.searchsorted(ends)]).tolist()
        return list(zip([start, *cuts], cuts, strict=False)) if start < self.nbytes else []


def _inflate(frame: memoryview, nbytes: int, checksum: int) -> bytes:
    """Return the content of a gzip member, whose own checksum is compared."""
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(frame, nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"its gzip frame is broken: {error}") from None
    if not stream.eof or stream.unused_data or len(content) != nbytes:
        raise ValueError(f"its gzip frame is not of {nbytes:,} bytes, as its index says")
    return content


_local = threading.local()


def _zstd() -> tuple[Any, Any, Any]:
    """Return the package, and this thread's decompressor and compressor."""
    if not hasattr(_local, "zstd"):
        package = need("zstandard", "a file that ends in .zst", "zindex[streaming]")
        _local.zstd = (
            package,
            package.ZstdDecompressor(max_window_size=MAX_WINDOW_NBYTES),
            package.ZstdCompressor(level=-100, write_checksum=True),
        )
    found: tuple[Any, Any, Any] = _local.zstd
    return found


def _decode_zstd(frame: memoryview, nbytes: int, checksum: int) -> bytes:
    """Return the content of a frame, compared with its own checksum or that of the index."""
    package, decompressor, compressor = _zstd()
    try:
        facts = package.get_frame_parameters(frame)
        if facts.content_size not in (nbytes, _UNKNOWN_SIZE):
            raise ValueError(f"its zstd frame is not of {nbytes:,} bytes, as its index says")
        content: bytes = decompressor.decompress(frame, max_output_size=nbytes)
    except package.ZstdError as error:
        raise ValueError(f"its zstd frame is broken: {error}") from None
    if len(content) != nbytes:
        raise ValueError(f"its zstd frame is not of {nbytes:,} bytes, as its index says")
    if checksum != NO_CHECKSUM and not facts.has_checksum:
        # A frame ends in the lower 32 bits of the XXH64 of its content: no other package has it.
        found = int.from_bytes(compressor.compress(content)[-4:], "little")
        if found != checksum:
            raise ValueError("its zstd frame has a wrong checksum")
    return content
