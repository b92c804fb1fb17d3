"""Compressed streams as chunks of bytes, of a bounded size whatever they hold; cuts are damage.

The readers of files of the standard library and of ``zstandard`` are not used: some of them take
the end of a cut stream for its end.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

from zindex.errors import ConfigError
from zindex.formats.damage import Damage

#: Bytes that one step may bring, so that no bomb fills the memory.
STEP_NBYTES = 1 << 18
#: Bytes that a stream's window may take while it is decompressed.
MAX_WINDOW_NBYTES = 1 << 27
# zstandard has no bound of a step: 4 KiB in bring at most 128 MiB out.
_ZSTD_NBYTES = 4 << 10


class _Step(Protocol):
    """One stream that is being decompressed."""

    @property
    def is_done(self) -> bool:
        """Whether the stream has ended."""
        ...

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield what some input brings."""
        ...

    def rest(self) -> bytes:
        """Return the input behind the end."""
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
            # After a full step more may be held back although all input is taken.
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
    """Return what begins a stream, and the errors by which that says that it is broken."""
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
    """Yield the content of one compressed stream, or of several one behind the other.

    Parameters
    ----------
    chunks
        The compressed bytes, in order.
    compression
        ``"gzip"``, ``"bzip2"``, ``"xz"`` or ``"zstandard"``.

    Raises
    ------
    Damage
        If a stream is broken or ends too early; offsets count what came out until then.
    ConfigError
        If ``zstandard`` is not installed.
    """
    begin, errors = _opener(compression)
    stream, offset, is_begun, num_streams = begin(), 0, False, 0
    for chunk in chunks:
        data = chunk
        while data:
            if not is_begun and num_streams:
                # What is behind the last stream may be padding.
                data = data.lstrip(b"\0")
                if not data:
                    break
            is_begun = True
            steps = stream.steps(data)
            while True:
                try:
                    out = next(steps, None)
                except errors as error:
                    raise Damage(f"its {compression} stream is broken: {error}", offset) from None
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
        raise Damage(f"its {compression} stream ends too early", offset)
