"""Decompress streams in chunks of bounded size, and detect truncation.

The file readers of the standard library and of ``zstandard`` are not used: some of them accept a
truncated stream.
"""

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from zindex.lazy import need

#: Maximum bytes per step: a decompression bomb must not fill the memory.
STEP_NBYTES = 1 << 18
#: Maximum bytes of a stream's window.
MAX_WINDOW_NBYTES = 1 << 27
# zstandard cannot limit its output: 4 KiB of input yield at most 128 MiB.
_ZSTD_NBYTES = 4 << 10


# Internal: a reader raises SourceError instead, or skips the content.
class DamageError(Exception):
    """The content of a source file violates its format.

    Parameters
    ----------
    reason
        The problem, as the end of a sentence that starts with the location.
    offset
        Its position, in bytes of the file's content after decompression.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset


class _Format(NamedTuple):
    """How streams of a format are decompressed."""

    #: Returns the decompressor of one stream.
    begin: Callable[[], Any]
    #: Yields the output of a decompressor for some input.
    feed: Callable[[Any, bytes], Iterator[bytes]]
    #: Errors of a corrupt stream.
    errors: tuple[type[Exception], ...]
    #: Maximum bytes of input at a time.
    input_nbytes: int = sys.maxsize


def _feed_gzip(stream: Any, data: bytes) -> Iterator[bytes]:
    while True:
        out = stream.decompress(data, STEP_NBYTES)
        yield out
        data = stream.unconsumed_tail
        # After a full step there may be more output, although all input is consumed.
        if stream.eof or (not data and len(out) < STEP_NBYTES):
            return


def _feed_pending(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data, STEP_NBYTES)
    while not stream.eof and not stream.needs_input:
        yield stream.decompress(b"", STEP_NBYTES)


def _feed_zstd(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data)


_FORMATS = {
    "gzip": _Format(partial(zlib.decompressobj, wbits=31), _feed_gzip, (zlib.error,)),
    "bzip2": _Format(bz2.BZ2Decompressor, _feed_pending, (OSError, ValueError)),
    "xz": _Format(
        partial(lzma.LZMADecompressor, memlimit=2 * MAX_WINDOW_NBYTES),
        _feed_pending,
        (lzma.LZMAError,),
    ),
}


def _zstd() -> _Format:
    """Return the format of an optional package."""
    zstandard = need("zstandard", "a file that ends in .zst", "zindex[streaming]")
    shared = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_NBYTES)
    return _Format(shared.decompressobj, _feed_zstd, (zstandard.ZstdError,), _ZSTD_NBYTES)


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
    form = _FORMATS.get(compression) or _zstd()
    stream, offset, is_begun, num_streams = form.begin(), 0, False, 0
    for chunk in chunks:
        for start in range(0, len(chunk), form.input_nbytes):
            data = chunk[start : start + form.input_nbytes]
            while data:
                if not is_begun and num_streams:
                    # The last stream may be followed by padding.
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                is_begun = True
                try:
                    for out in form.feed(stream, data):
                        offset += len(out)
                        if out:
                            yield out
                except form.errors as error:
                    raise DamageError(
                        f"its {compression} stream is broken: {error}", offset
                    ) from None
                data = b""
                if stream.eof:
                    data = stream.unused_data
                    stream, is_begun = form.begin(), False
                    num_streams += 1
    if is_begun or not num_streams:
        raise DamageError(f"its {compression} stream ends too early", offset)
