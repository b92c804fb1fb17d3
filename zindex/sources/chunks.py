"""Contents of whole files as chunks of bytes: decompressed, and read ahead where that is slow."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from zindex.errors import SourceError, StoreNotFoundError
from zindex.sources.decompression import decompress
from zindex.sources.file_list import SourceFile
from zindex.store.files import read_range
from zindex.store.local import reading
from zindex.store.objects import ObjectPath
from zindex.store.request_threads import DaemonPool, wait_for

if TYPE_CHECKING:
    from concurrent.futures import Future

#: Bytes that are read from a file system at once. Larger pieces would come from fresh pages each
#: time, which costs more than the system calls that they save.
LOCAL_NBYTES = 1 << 16
#: Bytes that one request to an object store brings, and how many are under way.
REMOTE_NBYTES, NUM_AHEAD = 8 << 20, 4


def read_chunks(file: SourceFile) -> Generator[bytes, None, None]:
    """Yield the content of a file, decompressed, in order.

    Raises
    ------
    Damage
        If its compression is broken or cut.
    StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
        If it cannot be read.
    """
    if isinstance(file.place, ObjectPath):
        chunks: Generator[bytes, None, None] = _remote_chunks(file.place)
    else:
        chunks = local_chunks(file, 0)
    if file.compression is not None:
        chunks = decompress(chunks, file.compression)
    return chunks


@contextlib.contextmanager
def open_local(file: SourceFile) -> Iterator[int]:
    """Open a local file, which must have the size that it was listed with; give its descriptor."""
    path = file.path
    try:
        with reading(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"no file {file.url} any more; restore it") from None
    try:
        nbytes = os.fstat(descriptor).st_size
        if nbytes != file.nbytes:
            raise SourceError(
                f"{file.url} must have {file.nbytes:,} bytes, as when it was listed, it has "
                f"{nbytes:,}; it was changed since, so open the source again"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_local(file: SourceFile, descriptor: int, offset: int, nbytes: int) -> bytes:
    """Return bytes of an open file, fewer at its end or where the system gives fewer."""
    with reading(file.path):
        return os.pread(descriptor, nbytes, offset)


def local_chunks(file: SourceFile, start: int) -> Generator[bytes, None, None]:
    """Yield the content of a local file from a byte on."""
    with open_local(file) as descriptor:
        while chunk := read_local(file, descriptor, start, LOCAL_NBYTES):
            start += len(chunk)
            yield chunk


def _remote_chunks(place: ObjectPath) -> Generator[bytes, None, None]:
    """Yield the content of an object, some requests ahead of who uses it."""
    from zindex.store import object_client

    found = object_client.head(place)
    if found is None:
        raise StoreNotFoundError(f"no object {place}; check the URL")
    nbytes = found.nbytes

    def read(start: int) -> bytes:
        return bytes(read_range(place, start, min(start + REMOTE_NBYTES, nbytes)))

    seen = 0
    for chunk in read_ahead(read, range(0, nbytes, REMOTE_NBYTES)):
        seen += len(chunk)
        yield chunk
    if seen != nbytes or object_client.head(place) != found:
        raise SourceError(f"{place} must stay as it is while it is read, it was written meanwhile")


def read_ahead(read: Callable[[Any], bytes], places: Iterable[Any]) -> Generator[bytes, None, None]:
    """Yield what each call brings, in order, with `NUM_AHEAD` of them under way."""
    pool = DaemonPool(NUM_AHEAD, "zindex-read-ahead")
    pending: deque[Future[bytes]] = deque()
    try:
        for place in places:
            pending.append(pool.submit(read, place))
            if len(pending) > NUM_AHEAD:
                yield wait_for(pending.popleft())
        while pending:
            yield wait_for(pending.popleft())
    finally:
        pool.close()
