"""Decompress streams in chunks of bounded size, and detect truncation.

The file readers of the standard library and of ``zstandard`` are not used: some of them accept a
truncated stream.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

from zindex.errors import ConfigError

#: Maximum bytes per step: a decompression bomb must not fill the memory.
STEP_NBYTES = 1 << 18
#: Maximum bytes of a stream's window.
MAX_WINDOW_NBYTES = 1 << 27
# zstandard cannot limit its output: 4 KiB of input yield at most 128 MiB.
_ZSTD_NBYTES = 4 << 10


# Never leaves a reader, which raises SourceError instead or skips the content.
class DamageError(Exception):
    """The content of a source file violates its format.

    Parameters
    ----------
    reason
        What was found, as the end of a sentence that begins with the place.
    offset
        Its position, in bytes of the file's content after decompression.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset


class _Step(Protocol):
    """The decompressor of one stream."""

    @property
    def is_done(self) -> bool:
        """Whether the stream has ended."""
        ...

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield the output for some input."""
        ...

    def rest(self) -> bytes:
        """Return the input after the end of the stream."""
        ...


class _Gzip:
    def __init__(self) -> None:
        self.object = zlib.decompressobj(wbits=31)

    @property
    def is_done(self) -> bool:
        return self.object.eof

    def steps(self, data: bytes) -> Iterator[bytes]:
        while True:
            out = self.object.decompress(data, STEP_NBYTES)
            yield out
            data = self.object.unconsumed_tail
            # After a full step there may be more output, although all input is consumed.
            if self.object.eof or (not data and len(out) < STEP_NBYTES):
                return

    def rest(self) -> bytes:
        return self.object.unused_data


class _Needy:
    """Streams of ``bz2`` and ``lzma``."""

    def __init__(self, decompressor: Any) -> None:
        self.object = decompressor

    @property
    def is_done(self) -> bool:
        return bool(self.object.eof)

    def steps(self, data: bytes) -> Iterator[bytes]:
        yield self.object.decompress(data, STEP_NBYTES)
        while not self.object.eof and not self.object.needs_input:
            yield self.object.decompress(b"", STEP_NBYTES)

    def rest(self) -> bytes:
        return bytes(self.object.unused_data)


class _Zstd:
    def __init__(self, decompressor: Any) -> None:
        self.object = decompressor.decompressobj()
        self.left = b""

    @property
    def is_done(self) -> bool:
        return bool(self.object.eof)

    def steps(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_NBYTES):
            yield self.object.decompress(data[start : start + _ZSTD_NBYTES])
            if self.object.eof:
                self.left = self.object.unused_data + data[start + _ZSTD_NBYTES :]
                return

    def rest(self) -> bytes:
        return self.left


def _opener(compression: str) -> tuple[Callable[[], _Step], tuple[type[Exception], ...]]:
    """Return a factory of decompressors, and their errors for a corrupt stream."""
    if compression == "gzip":
        return _Gzip, (zlib.error,)
    if compression == "bzip2":
        return lambda: _Needy(bz2.BZ2Decompressor()), (OSError, ValueError)
    if compression == "xz":
        limit = 2 * MAX_WINDOW_NBYTES
        return lambda: _Needy(lzma.LZMADecompressor(memlimit=limit)), (lzma.LZMAError,)
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            "files that end in .zst need the package zstandard; run pip install 'zindex[streaming]'"
        ) from error
    shared = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_NBYTES)
    return lambda: _Zstd(shared), (zstandard.ZstdError,)


def decompress(chunks: Iterable[bytes], compression: str) -> Generator[bytes, None, None]:
    """Yield the content of one compressed stream, or of several concatenated ones.

    Parameters
    ----------
    chunks
        The compressed bytes, in order.
    compression
        ``"gzip"``, ``"bzip2"``, ``"xz"`` or ``"zstandard"``.

    Raises
    ------
    DamageError
        If a stream is corrupt or truncated; its offset counts decompressed bytes.
    ConfigError
        If ``zstandard`` is not installed.
    """
    begin, errors = _opener(compression)
    stream, offset, is_begun, num_streams = begin(), 0, False, 0
    for chunk in chunks:
        data = chunk
        while data:
            if not is_begun and num_streams:
                # The last stream may be followed by padding.
                data = data.lstrip(b"\0")
                if not data:
                    break
            is_begun = True
            steps = stream.steps(data)
            while True:
                try:
                    out = next(steps, None)
                except errors as error:
                    raise DamageError(
                        f"its {compression} stream is broken: {error}", offset
                    ) from None
                if out is None:
                    break
                offset += len(out)
                if out:
                    yield out
            data = b""
            if stream.is_done:
                data = stream.rest()
                stream, is_begun = begin(), False
                num_streams += 1
    if is_begun or not num_streams:
        raise DamageError(f"its {compression} stream ends too early", offset)
