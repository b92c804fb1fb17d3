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
    #: Yields the output before damage, if the decompressor discards it.
    salvage: Callable[[Any, bytes, int], Generator[bytes, None, tuple[int, int | None]]] | None = (
        None
    )


def _feed_gzip(stream: Any, data: bytes) -> Iterator[bytes]:
    while True:
        out = stream.decompress(data, STEP_NBYTES)
        yield out
        data = stream.unconsumed_tail
        # After a full step there may be more output, although all input is consumed.
        if stream.eof or (not data and len(out) < STEP_NBYTES):
            return


def _salvage_gzip(
    stream: Any, data: bytes, num_seen: int
) -> Generator[bytes, None, tuple[int, int | None]]:
    """Yield what a damaged stream gives before the damage, which zlib discards.

    Parameters
    ----------
    stream
        A copy of the decompressor from before the input with the damage.
    data
        That input.
    num_seen
        Bytes of its output that are known.

    Returns
    -------
    nbytes
        Of the output.
    stop
        End of the stream, relative to this input, if only the checksum of its content or its length
        is wrong, else None.
    """
    nbytes = 0
    for place in range(len(data)):
        try:
            for out in _feed_gzip(stream, data[place : place + 1]):
                new, num_seen = out[num_seen:], max(0, num_seen - len(out))
                nbytes += len(new)
                if new:
                    yield new
        except zlib.error as error:
            # The last byte of the checksum, or that of the length 4 bytes later.
            is_checksum, is_length = ("incorrect data" in str(error), "length check" in str(error))
            return nbytes, place + 1 + 4 * is_checksum if is_checksum or is_length else None
    return nbytes, None


def _feed_pending(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data, STEP_NBYTES)
    while not stream.eof and not stream.needs_input:
        yield stream.decompress(b"", STEP_NBYTES)


def _feed_zstd(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data)


_FORMATS = {
    "gzip": _Format(
        partial(zlib.decompressobj, wbits=31), _feed_gzip, (zlib.error,), 1 << 16, _salvage_gzip
    ),
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


def decompress(
    chunks: Iterable[bytes],
    compression: str,
    report: Callable[[DamageError], None] | None = None,
) -> Generator[bytes, None, None]:
    """Yield the content of one compressed stream, or of several concatenated ones.

    All content before damage is yielded.

    Parameters
    ----------
    chunks
        The compressed bytes, in order.
    compression
        ``"gzip"``, ``"bzip2"``, ``"xz"`` or ``"zstandard"``.
    report
        Called for a gzip stream of which only the checksum is wrong, after its content; if it
        returns, the next stream follows. None raises.

    Raises
    ------
    DamageError
        If a stream is corrupt or truncated; its offset counts decompressed bytes.
    ConfigError
        If ``zstandard`` is not installed.
    """
    form = _FORMATS.get(compression) or _zstd()
    stream, offset, is_begun, num_streams = form.begin(), 0, False, 0
    num_left = 0  # bytes of a trailer in the next input
    for chunk in chunks:
        for start in range(0, len(chunk), form.input_nbytes):
            data = chunk[start : start + form.input_nbytes]
            data, num_left = data[num_left:], max(0, num_left - len(data))
            while data:
                if not is_begun and num_streams:
                    # The last stream may be followed by padding.
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                is_begun = True
                begun = None if form.salvage is None else stream.copy()
                first = offset
                try:
                    for out in form.feed(stream, data):
                        offset += len(out)
                        if out:
                            yield out
                except form.errors as error:
                    stop = None
                    if form.salvage is not None:
                        nbytes, stop = yield from form.salvage(begun, data, offset - first)
                        offset += nbytes
                    damage = DamageError(f"its {compression} stream is broken: {error}", offset)
                    if stop is None or report is None:
                        raise damage from None
                    report(damage)
                    num_left = max(0, stop - len(data))
                    data = data[stop:]
                    stream, is_begun = form.begin(), False
                    num_streams += 1
                    continue
                data = b""
                if stream.eof:
                    data = stream.unused_data
                    stream, is_begun = form.begin(), False
                    num_streams += 1
    if is_begun or not num_streams:
        raise DamageError(f"its {compression} stream ends too early", offset)
