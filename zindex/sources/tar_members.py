"""Iterate over the members of a tar archive: their bytes, or the reason for their rejection.

Nothing is unpacked, and no name or link is followed: names only become keys of samples.
"""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

from zindex.errors import SourceError
from zindex.formats import tar_headers
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import content_chunks, open_local, read_local
from zindex.io.file_list import SourceFile
from zindex.io.frames import ReportBroken
from zindex.sources.file_scan import ContentDigest

#: Maximum bytes of a member, each of which is read whole.
MAX_MEMBER_NBYTES = 4 << 30
#: Zeros that may follow the end of an archive.
MAX_PADDING_NBYTES = 64 << 20
#: Bytes per read of a buffer: with contents, and for headers only.
STEP_NBYTES, HEADERS_NBYTES = 1 << 18, 1 << 15
# With each header, as many bytes are read ahead as the last member had, up to this limit.
_MAX_AHEAD_NBYTES = 8 << 20
# Longest gap between headers in an object store that is read: a request takes no less time.
_MAX_GAP_NBYTES = 16 << 20
# A name whose key and field need no check; upper case is changed elsewhere.
_PLAIN = re.compile(rb"((?:[a-zA-Z0-9-][\w-]*/)*[\w-]+)\.([a-z0-9][a-z0-9._]*)", re.ASCII)
# Samples of an archive whose keys are compared.
_MAX_KNOWN = 1 << 16

logger = logging.getLogger(__name__)

#: Offset of a member, including its extended headers; its name; its content, or the reason for its
#: rejection.
Member = tuple[int, str, bytes | DamageError]


class ArchiveBuffer(ABC):
    """A range of bytes of an archive in memory."""

    def __init__(self) -> None:
        self.buffer = b""
        #: Offset of the buffer in the archive.
        self.base = 0
        #: Offset of the end mark of the archive, once it is found.
        self.end: int | None = None
        #: Offset at which members end without an end mark.
        self.stop: int | None = None

    @abstractmethod
    def cover(self, start: int, nbytes: int) -> None:
        """Move the buffer to a byte and fill it with at least ``nbytes``.

        Raises
        ------
        DamageError
            If the archive ends before.
        """

    @abstractmethod
    def more(self, start: int) -> bytes:
        """Return some bytes from an offset on, none at the end; the buffer may change."""


class FileBuffer(ArchiveBuffer):
    """Buffers an open local file.

    Parameters
    ----------
    file, descriptor
        The file, and its descriptor.
    step_nbytes
        Bytes to read at once.
    digest
        Digests what is read.
    """

    def __init__(
        self,
        file: SourceFile,
        descriptor: int,
        step_nbytes: int,
        digest: ContentDigest | None = None,
    ) -> None:
        super().__init__()
        self.digest = digest
        self.file, self.descriptor, self.step_nbytes = file, descriptor, step_nbytes
        self.ahead_nbytes = 0
        self.nbytes = file.nbytes or 0

    def cover(self, start: int, nbytes: int) -> None:
        """Read the buffer; see `ArchiveBuffer`."""
        if start + nbytes > self.nbytes:
            raise ended(start, nbytes, self.nbytes)
        if nbytes > tar_headers.BLOCK_NBYTES:
            self.ahead_nbytes = min(nbytes, _MAX_AHEAD_NBYTES)
        wanted = max(nbytes, self.step_nbytes, self.ahead_nbytes)
        blocks: list[bytes] = []
        stop = start
        # One system call moves at most 2 GiB.
        while stop < min(start + wanted, self.nbytes):
            blocks.append(read_local(self.file, self.descriptor, stop, start + wanted - stop))
            if not blocks[-1]:
                raise ended(start, nbytes, stop)
            stop += len(blocks[-1])
        self.buffer = b"".join(blocks)
        if self.digest is not None:
            self.digest.add(self.buffer)
        self.base = start

    def more(self, start: int) -> bytes:
        """Read some bytes; see `ArchiveBuffer`."""
        return read_local(self.file, self.descriptor, start, STEP_NBYTES)


class ChunkBuffer(ArchiveBuffer):
    """Buffers a stream of chunks, forward only.

    Parameters
    ----------
    chunks
        The content of the archive, in order.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self.chunks = chunks

    def cover(self, start: int, nbytes: int) -> None:
        """Consume chunks until the buffer is filled; see `ArchiveBuffer`."""
        stop = self.base + len(self.buffer)
        blocks = [self.buffer[start - self.base :]] if start < stop else []
        while stop < start + nbytes:
            chunk = next(self.chunks, b"")
            if not chunk:
                raise ended(start, nbytes, stop)
            if stop + len(chunk) > start:
                blocks.append(chunk[max(0, start - stop) :])
            stop += len(chunk)
        self.buffer = b"".join(blocks)
        self.base = start

    def more(self, start: int) -> bytes:
        """Return the rest of the buffer, then chunk by chunk; see `ArchiveBuffer`."""
        if start < self.base + len(self.buffer):
            return self.buffer[start - self.base :]
        self.base = start
        self.buffer = next(self.chunks, b"")
        return self.buffer


class ObjectBuffer(ChunkBuffer):
    """Buffers a remote file, or one of frames, forward only; long gaps are not read.

    Parameters
    ----------
    file
        The file, looked up.
    digest
        Digests what is read.
    report
        Called for broken frames. Members that start in one, and all after it, cannot be read.
    """

    def __init__(
        self,
        file: SourceFile,
        digest: ContentDigest | None = None,
        report: ReportBroken | None = None,
    ) -> None:
        self.file, self.digest, self.nbytes = file, digest, file.nbytes or 0
        self._report = report
        self._broken: list[tuple[int, int, str]] = []
        self._at = 0
        self._source = content_chunks(file, 0, self._note)
        super().__init__(self._read())

    def cover(self, start: int, nbytes: int) -> None:
        """Continue behind a gap, or as `ChunkBuffer`."""
        if start + nbytes > self.nbytes:
            raise ended(start, nbytes, self.nbytes)
        if start - self.base - len(self.buffer) > _MAX_GAP_NBYTES:
            self._source.close()
            self._source = content_chunks(self.file, start, self._note)
            self.base, self.buffer, self._at, self.chunks = start, b"", start, self._read()
        super().cover(start, nbytes)
        for first, last, reason in self._broken:
            if first < start + nbytes and start < last:
                raise DamageError(reason, max(first, start))

    def _note(self, reason: str, start: int, stop: int) -> None:
        """Note a broken frame; a thread calls it before the chunk is there."""
        if self._report is not None:
            self._report(reason, start, stop)
        self._broken.append((start, stop, reason))

    def _read(self) -> Iterator[bytes]:
        """Yield chunks, broken frames as chunks of their own."""
        while chunk := next(self._source, b""):
            if self.digest is not None:
                self.digest.add(chunk)
            edges = {edge - self._at for span in self._broken for edge in span[:2]}
            cuts = sorted(edge for edge in edges if 0 < edge < len(chunk))
            self._at += len(chunk)
            for start, stop in pairwise([0, *cuts, len(chunk)]):
                yield chunk[start:stop] if cuts else chunk

    def close(self) -> None:
        """End the requests that were made ahead."""
        self._source.close()


@contextmanager
def open_headers(
    file: SourceFile, digest: ContentDigest | None = None, report: ReportBroken | None = None
) -> Iterator[ArchiveBuffer]:
    """Open a buffer for the headers of an archive that can be read at any offset.

    Parameters
    ----------
    file
        The archive.
    digest
        Digests what is read.
    report
        Called for broken frames.
    """
    if file.is_local and file.frames is None:
        with open_local(file) as descriptor:
            yield FileBuffer(file, descriptor, HEADERS_NBYTES, digest)
    else:
        with closing(ObjectBuffer(file, digest, report)) as buffer:
            yield buffer


def ended(start: int, nbytes: int, stop: int) -> DamageError:
    """Return the error for an archive that ends too early."""
    if start >= stop:
        return DamageError(
            "the archive ends without the two blocks of zeros that mark its end", start
        )
    return DamageError(f"{nbytes:,} bytes must follow, only {max(0, stop - start):,} do", start)


def iterate_members(
    archive: ArchiveBuffer, position: int, *, with_content: bool
) -> Iterator[Member]:
    """Yield the regular files of an archive; directories are skipped.

    Parameters
    ----------
    archive
        The archive.
    position
        Offset of a member.
    with_content
        Whether contents are read, or skipped and returned empty.

    Raises
    ------
    DamageError
        If the rest of the archive cannot be read.
    """
    start = position
    extension: tar_headers.Extension | None = None
    while True:
        at = position - archive.base
        if not 0 <= at <= len(archive.buffer) - tar_headers.BLOCK_NBYTES:
            if position == archive.stop:
                return
            archive.cover(position, tar_headers.BLOCK_NBYTES)
            at = 0
        try:
            header = tar_headers.read_header(archive.buffer, at)
        except SourceError as error:
            raise DamageError(str(error), position) from None
        if header is None:
            archive.end = position
            return
        raw, nbytes, kind = header
        if kind in tar_headers.REGULAR:
            sparse = False
            if extension is not None:
                raw = raw if extension.name is None else extension.name
                nbytes = nbytes if extension.nbytes is None else extension.nbytes
                sparse, extension = extension.is_sparse, None
            name = raw.decode("utf-8", "surrogateescape")
            content: bytes | DamageError = b""
            reason = _refuse(name, nbytes) if not sparse else "is sparse"
            if kind == 0 and name.endswith("/"):  # a directory written by old programs
                nbytes = 0
            elif reason is not None:
                reason = f"there is a member {name[:200]!r} that {reason}"
                yield start, name, DamageError(reason, start)
            else:
                if with_content:
                    stop = at + tar_headers.BLOCK_NBYTES + nbytes
                    if stop > len(archive.buffer):
                        archive.cover(position, tar_headers.BLOCK_NBYTES + nbytes)
                        at, stop = 0, tar_headers.BLOCK_NBYTES + nbytes
                    content = archive.buffer[at + tar_headers.BLOCK_NBYTES : stop]
                yield start, name, content
            position += tar_headers.BLOCK_NBYTES + (nbytes + 511 & -512)
            start = position
            continue
        position += tar_headers.BLOCK_NBYTES
        if kind == tar_headers.DIRECTORY:
            start, extension = position, None
        elif kind in tar_headers.LINKS:
            name = (extension.name if extension and extension.name else raw).decode(
                "utf-8", "surrogateescape"
            )
            reason = f"there is {tar_headers.LINKS[kind]} {name[:200]!r}, which is not followed"
            yield start, name, DamageError(reason, start)
            start, extension = position, None
        else:
            extension = extension or tar_headers.Extension()
            _take_extension(archive, position, nbytes, kind, extension)
            position += nbytes + 511 & -512


def plain_fields(content: bytes) -> tuple[str, dict[str, bytes]] | None:
    """Return the key of a sample and its fields, if all is as most programs write it, else None.

    That are regular members with simple names, each field once.

    Parameters
    ----------
    content
        The members of the sample, from the first header on.
    """
    at, nbytes = 0, len(content)
    key, fields = b"", dict[str, bytes]()
    try:
        while at < nbytes and (header := tar_headers.read_header(content, at)) is not None:
            name, size, kind = header
            found = _PLAIN.fullmatch(name)
            start, stop = at + tar_headers.BLOCK_NBYTES, at + tar_headers.BLOCK_NBYTES + size
            if (
                found is None
                or kind not in tar_headers.REGULAR
                or stop > nbytes
                or size > MAX_MEMBER_NBYTES
            ):
                return None
            if found[1] != key:
                if key:
                    return None
                key = found[1]
            field = found[2].decode()
            if field in fields:
                return None
            fields[field] = content[start:stop]
            at = start + (size + 511 & -512)
    except SourceError:
        return None
    return key.decode(), fields


def _refuse(name: str, nbytes: int) -> str | None:
    """Return the reason to reject a regular member, or None."""
    if nbytes > MAX_MEMBER_NBYTES:
        return f"has {nbytes:,} bytes, more than {MAX_MEMBER_NBYTES:,}"
    if not name:
        return "has no name"
    if name[0] == "/" or (".." in name and ".." in name.split("/")):
        return "has a name that leads out of the archive"
    return None


def _take_extension(
    archive: ArchiveBuffer, position: int, nbytes: int, kind: int, extension: tar_headers.Extension
) -> None:
    """Apply an extended header to the member after it; DamageError if its kind is unknown."""
    if kind not in tar_headers.EXTENSIONS:
        text = "a sparse member" if kind == ord("S") else f"a member of kind {chr(kind)!r}"
        raise DamageError(
            f"there is {text}, which is not supported", position - tar_headers.BLOCK_NBYTES
        )
    if nbytes > tar_headers.MAX_EXTENSION_NBYTES:
        reason = f"there is an extended header of {nbytes:,} bytes"
        raise DamageError(
            f"{reason}, more than {tar_headers.MAX_EXTENSION_NBYTES:,}",
            position - tar_headers.BLOCK_NBYTES,
        )
    archive.cover(position, nbytes)
    try:
        extension.take(kind, archive.buffer[:nbytes])
    except SourceError as error:
        raise DamageError(str(error), position - tar_headers.BLOCK_NBYTES) from None


def check_rest(archive: ArchiveBuffer) -> None:
    """Read to the end of the file; DamageError unless only zeros follow the end mark.

    Only then is a compressed stream known to be intact, because it is checked while it is read.
    """
    start = position = archive.end or 0
    while chunk := archive.more(position):
        if chunk.count(0) != len(chunk):
            raise DamageError(
                "there are bytes behind the archive's end; is it several in one?", start
            )
        position += len(chunk)
        if position - start > MAX_PADDING_NBYTES:
            raise DamageError(
                f"more than {MAX_PADDING_NBYTES:,} zeros follow the archive's end", start
            )


def key_of(name: str) -> str | None:
    """Return the key of a member's sample, or None.

    Examples
    --------
    >>> key_of("images/0001.seg.png"), key_of("images/.DS_Store"), key_of("README")
    ('images/0001', None, None)
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base:
        return None
    first, slash, _ = name.partition("/")
    is_meta = slash and len(first) >= 4 and first[:2] == first[-2:] == "__"
    return None if is_meta else name[:dot]


class KeyCheck:
    """Finds samples of an archive whose members are not adjacent, by their keys."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._num_repeated = 0

    def add(self, key: str) -> None:
        """Add the key of the next sample."""
        if len(self._known) < _MAX_KNOWN:
            self._num_repeated += key in self._known
            self._known.add(key)

    def warn(self, url: str, num_samples: int) -> None:
        """Log how many samples have the key of an earlier one, if any."""
        if self._num_repeated:
            logger.warning(
                "%s: %d of %d samples have the key of an earlier one; if they are parts of it, "
                "write the members of a sample one after the other (tar --sort=name)",
                *(url, self._num_repeated, num_samples),
            )
