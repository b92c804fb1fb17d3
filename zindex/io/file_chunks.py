"""Stream whole files as chunks of bytes: decompressed, and prefetched from object stores."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from zindex.errors import SourceError, StoreNotFoundError
from zindex.io import object_client
from zindex.io.decompression import DamageError, decompress
from zindex.io.file_list import SourceFile
from zindex.io.frames import ReportBroken
from zindex.io.local import read_bytes
from zindex.io.objects import ObjectPath
from zindex.io.request_threads import map_ahead
from zindex.io.system_errors import reading

R = TypeVar("R")

#: Bytes per read from a file system. Larger buffers would be newly mapped each time, which costs
#: more than the saved system calls.
LOCAL_NBYTES = 1 << 16
#: Bytes per request to an object store, and concurrent requests.
REMOTE_NBYTES, NUM_AHEAD = 8 << 20, 4
#: Bytes of the first request, which is small so that what it has is there soon; whole MiB are
#: hashed without being copied.
FIRST_NBYTES = 1 << 20
#: Bytes of a chunk of a file that is searched, and of one of decompressed frames.
SCAN_NBYTES, FRAMES_NBYTES = 1 << 20, 4 << 20
#: Bytes of a part that a thread searches, of whole MiB, and concurrent requests for parts.
PART_NBYTES, NUM_REQUESTS = 4 << 20, 8


def read_chunks(
    file: SourceFile,
    report: Callable[[DamageError], None] | None = None,
    begun: tuple[SourceFile, bytes] | None = None,
) -> Generator[bytes, None, None]:
    """Yield the content of a file, decompressed, in order.

    Parameters
    ----------
    file
        The file.
    report
        Called for damage after which reading can go on; see `decompress`.
    begun
        What `read_start` has returned for a file of an object store.

    Raises
    ------
    DamageError
        If its compressed stream is corrupt or truncated.
    StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
        If it cannot be read.
    """
    begun = begun or (file, b"")
    chunks = local_chunks(file, 0) if file.is_local else remote_chunks(*begun)
    if file.compression is not None:
        chunks = decompress(chunks, file.compression, report)
    return chunks


@contextlib.contextmanager
def open_local(file: SourceFile) -> Iterator[int]:
    """Open a local file and yield its descriptor; its size must be unchanged since listing."""
    path = file.path
    is_whole = file.growing is None or file.growing.is_done
    try:
        with reading(path):
            if file.growing is not None:
                descriptor = file.growing.open()
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        if file.copy is not None:
            raise StoreNotFoundError(
                f"no copy {path} of {file.url} any more; open the source again"
            ) from None
        raise StoreNotFoundError(f"no file {file.url} any more; restore it") from None
    try:
        nbytes = os.fstat(descriptor).st_size
        if nbytes != file.size and is_whole:
            raise SourceError(
                f"{file.url} must have {file.size:,} bytes, as when it was listed, it has "
                f"{nbytes:,}; it was changed since, so open the source again"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_local(file: SourceFile, descriptor: int, offset: int, nbytes: int) -> bytes:
    """Return up to ``nbytes`` bytes of an open file, as it is stored."""
    if file.full_nbytes is not None and file.frames is None:
        nbytes = max(0, min(nbytes, (file.nbytes or 0) - offset))
    if file.growing is not None:
        file.growing.wait_for(min(offset + nbytes, file.nbytes or 0))
    with reading(file.path):
        return os.pread(descriptor, nbytes, offset)


def local_chunks(
    file: SourceFile, start: int, nbytes: int | None = None
) -> Generator[bytes, None, None]:
    """Yield the content of a local file from an offset, ``nbytes`` at a time."""
    with open_local(file) as descriptor:
        while chunk := read_local(file, descriptor, start, nbytes or LOCAL_NBYTES):
            start += len(chunk)
            yield chunk


def look_up(file: SourceFile) -> SourceFile:
    """Return a file of an object store with its size and version; local ones as they are.

    Raises
    ------
    StoreNotFoundError
        If there is no such object.
    StoreUnavailableError
        If the store does not answer.
    """
    if isinstance(file.place, Path) or file.nbytes is not None:
        return file
    found = object_client.head(file.place)
    if found is None:
        raise StoreNotFoundError(f"no object {file.place}; check the URL")
    return replace(file, nbytes=found.nbytes, version=found.version, modified=found.modified)


def read_at(file: SourceFile, start: int, stop: int, report: ReportBroken | None = None) -> bytes:
    """Return bytes ``[start, stop)`` of the content of a file, which has its listed size.

    Parameters
    ----------
    file
        A file that is not compressed, or has frames.
    start, stop
        The range.
    report
        Called for broken frames; see `Frames.read_into`.

    Raises
    ------
    DamageError
        If a frame is broken, and there is no ``report``.
    SourceError
        If it has changed since it was listed or looked up.
    StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
        If it cannot be read.
    """
    if file.frames is not None:
        return file.frames.read(start, stop, partial(read_stored, file), report)
    return read_stored(file, start, stop)


def read_stored(file: SourceFile, start: int, stop: int) -> bytes:
    """Return bytes ``[start, stop)`` of a file as it is stored; errors are those of `read_at`."""
    if file.is_local:
        with open_local(file) as descriptor:
            return read_local(file, descriptor, start, stop - start)
    return bytes(request_range(file, start, stop))


def request_range(file: SourceFile, start: int, stop: int) -> memoryview:
    """Return bytes ``[start, stop)`` of an object as it is stored; errors as of `read_at`."""
    assert isinstance(file.place, ObjectPath)
    of = object_client.Head(file.size or 0, file.version)
    try:
        return object_client.get_range(file.place, start, stop, of=of)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no object {file.place} any more; restore it") from None


def content_chunks(
    file: SourceFile, start: int = 0, report: ReportBroken | None = None
) -> Generator[bytes, None, None]:
    """Yield the content of a file that can be read at any offset, from one on.

    Parameters
    ----------
    file
        The file: local, looked up, or with frames, which are decompressed in threads.
    start
        The offset.
    report
        Called for broken frames; see `Frames.read_into`.
    """
    if file.frames is not None:
        return map_ahead(
            lambda span: read_at(file, *span, report),
            file.frames.split(start, FRAMES_NBYTES),
            num_threads=NUM_AHEAD,
            num_pending=NUM_AHEAD,
        )
    return (
        local_chunks(file, start, SCAN_NBYTES)
        if file.is_local
        else remote_chunks(file, start=start)
    )


def search_content(
    file: SourceFile, search: Callable[[bytes | memoryview], R], report: ReportBroken | None = None
) -> Iterator[R]:
    """Yield what a function finds in each part of a file, in order; threads read and search them.

    Parameters
    ----------
    file, report
        As of `content_chunks`.
    search
        Called with the content of a part, which has `PART_NBYTES` unless it is the last one or the
        file has frames.
    """
    if file.frames is not None:
        spans = file.frames.split(0, FRAMES_NBYTES)
    else:
        nbytes = file.nbytes or 0
        starts = range(0, nbytes, PART_NBYTES)
        spans = [(start, min(start + PART_NBYTES, nbytes)) for start in starts]

    def read(span: tuple[int, int]) -> R:
        return search(_read_part(file, *span, report))

    if len(spans) < 2:
        yield from map(read, spans)
        return
    num = NUM_AHEAD if file.is_local else NUM_REQUESTS
    yield from map_ahead(read, spans, num_threads=num, num_pending=num)


def _read_part(
    file: SourceFile, start: int, stop: int, report: ReportBroken | None
) -> bytes | memoryview:
    """Return bytes ``[start, stop)`` of the content of a file, those of a copy once it has them."""
    if file.frames is not None:
        view = np.empty(stop - start, np.uint8).data
        file.frames.read_into(start, view, partial(read_stored, file), report)
        return view
    if not file.is_local:
        return request_range(file, start, stop)
    with open_local(file) as descriptor:
        if file.growing is not None:
            file.growing.wait_for(stop)
        with reading(file.path):
            content = read_bytes(descriptor, stop - start, start)
    if len(content) < stop - start:
        raise shortened(file, start + len(content))
    return content


def shortened(file: SourceFile, stop: int) -> SourceError:
    """Return the error for a file that has become shorter."""
    return SourceError(
        f"{file.url} must have {file.nbytes:,} bytes, as when it was listed, it ends at byte "
        f"{stop:,}; it was changed since, so open the source again"
    )


def read_start(file: SourceFile) -> tuple[SourceFile, bytes]:
    """Return a file of an object store with its size and version, and its first bytes as stored.

    Raises the errors of `read_chunks`.
    """
    file = look_up(file)
    nbytes = min(REMOTE_NBYTES, file.nbytes or 0)
    return file, read_stored(file, 0, nbytes) if nbytes else b""


def remote_chunks(
    file: SourceFile, first: bytes = b"", start: int = 0
) -> Generator[bytes, None, None]:
    """Yield an object as it is stored, from an offset on.

    After the first, small request it is prefetched.

    Parameters
    ----------
    file
        The object.
    first, start
        Its first bytes, if they are known, and the offset.

    Raises
    ------
    SourceError
        If the object has changed.
    """
    file = look_up(file)
    nbytes = file.nbytes or 0
    at = min(start + (len(first) or FIRST_NBYTES), nbytes)
    if start < at:
        yield first or read_stored(file, start, at)
    yield from read_ahead(lambda one, two: read_stored(file, at + one, at + two), nbytes - at)


def read_ahead(
    read: Callable[[int, int], bytes | memoryview], nbytes: int
) -> Generator[bytes, None, None]:
    """Yield a remote file of ``nbytes`` bytes in order; each call reads bytes ``[start, stop)``."""

    def read_next(start: int) -> bytes:
        return bytes(read(start, min(start + REMOTE_NBYTES, nbytes)))

    starts = range(0, nbytes, REMOTE_NBYTES)
    return map_ahead(read_next, starts, num_threads=NUM_AHEAD, num_pending=NUM_AHEAD)
