"""Members of tar archives, one after another: their bytes, or why a reader refuses them.

Nothing is ever written, and no name or link is followed: names only become keys of samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from zindex.errors import SourceError
from zindex.formats.damage import Damage
from zindex.formats.tar_headers import (
    BLOCK_NBYTES,
    DIRECTORY,
    LINKS,
    LONG_LINK,
    LONG_NAME,
    MAX_EXTENSION_NBYTES,
    PAX,
    PAX_GLOBAL,
    REGULAR,
    Extension,
    read_header,
)
from zindex.sources.chunks import read_local
from zindex.sources.file_list import SourceFile

#: Bytes that one member may have, since each is read as a whole.
MAX_MEMBER_NBYTES = 4 << 30
#: Zeros that may follow the end of an archive.
MAX_PADDING_NBYTES = 64 << 20
#: Bytes that a window reads at once: with contents, and of headers alone.
STEP_NBYTES, HEADERS_NBYTES = 1 << 18, 1 << 15
# As many bytes as the last member has are read ahead of a header, up to this.
_MAX_AHEAD_NBYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the content of a member is not given."""

    reason: str
    offset: int


#: Where a member begins, its extended headers included, its name, and its content.
Member = tuple[int, str, bytes | Refusal]


class Window(Protocol):
    """A stretch of an archive in memory."""

    buffer: bytes
    #: Where the buffer begins in the archive.
    base: int
    #: Where the archive's end is marked, once that was found.
    end: int | None

    def cover(self, start: int, nbytes: int) -> None:
        """Make the buffer begin at a byte and hold so many; Damage if the archive ends before."""
        ...

    def more(self, start: int) -> bytes:
        """Return some bytes from a place on, none at the end; the buffer may change."""
        ...


class FileWindow:
    """A window of an open local file.

    Parameters
    ----------
    file
        Which.
    descriptor
        Of it.
    step_nbytes
        Bytes to read at once.
    """

    def __init__(self, file: SourceFile, descriptor: int, step_nbytes: int) -> None:
        self.file = file
        self.descriptor = descriptor
        self.step_nbytes = step_nbytes
        self.ahead_nbytes = 0
        self.nbytes = file.nbytes or 0
        self.buffer, self.base = b"", 0
        self.end: int | None = None

    def cover(self, start: int, nbytes: int) -> None:
        """Read the buffer; see `Window`."""
        if start + nbytes > self.nbytes:
            raise ended(start, nbytes, self.nbytes)
        if nbytes > BLOCK_NBYTES:
            self.ahead_nbytes = min(nbytes, _MAX_AHEAD_NBYTES)
        wanted = max(nbytes, self.step_nbytes, self.ahead_nbytes)
        pieces = [read_local(self.file, self.descriptor, start, wanted)]
        held = len(pieces[0])
        # One system call moves at most 2 GiB.
        while held < nbytes:
            pieces.append(read_local(self.file, self.descriptor, start + held, nbytes - held))
            if not pieces[-1]:
                raise ended(start, nbytes, start + held)
            held += len(pieces[-1])
        self.buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.base = start

    def more(self, start: int) -> bytes:
        """Read some bytes; see `Window`."""
        return read_local(self.file, self.descriptor, start, STEP_NBYTES)


class ChunkWindow:
    """A window that moves over chunks, forward only.

    Parameters
    ----------
    chunks
        The archive's content, in order.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = chunks
        self.buffer, self.base = b"", 0
        self.end: int | None = None

    def cover(self, start: int, nbytes: int) -> None:
        """Take chunks until the buffer holds what is wanted; see `Window`."""
        stop = self.base + len(self.buffer)
        pieces = [self.buffer[start - self.base :]] if start < stop else []
        while stop < start + nbytes:
            chunk = next(self.chunks, b"")
            if not chunk:
                raise ended(start, nbytes, stop)
            if stop + len(chunk) > start:
                pieces.append(chunk[max(0, start - stop) :])
            stop += len(chunk)
        self.buffer = b"".join(pieces)
        self.base = start

    def more(self, start: int) -> bytes:
        """Return the rest of the buffer, then chunk by chunk; see `Window`."""
        if start < self.base + len(self.buffer):
            return self.buffer[start - self.base :]
        self.base = start
        self.buffer = next(self.chunks, b"")
        return self.buffer


def ended(start: int, nbytes: int, stop: int) -> Damage:
    """Return the damage of an archive that ends too early."""
    if start >= stop:
        return Damage("the archive ends without the two blocks of zeros that mark its end", start)
    return Damage(f"{nbytes:,} bytes must follow, only {max(0, stop - start):,} do", start)


def iterate_members(window: Window, position: int, *, with_content: bool) -> Iterator[Member]:
    """Yield the regular files of an archive; directories are passed by.

    Parameters
    ----------
    window
        Of the archive.
    position
        Where a member begins.
    with_content
        Whether contents are read; otherwise they are empty, and are hopped over.

    Raises
    ------
    Damage
        If the archive cannot be read on from a place.
    """
    start = position
    extension: Extension | None = None
    while True:
        at = position - window.base
        if not 0 <= at <= len(window.buffer) - BLOCK_NBYTES:
            window.cover(position, BLOCK_NBYTES)
            at = 0
        try:
            header = read_header(window.buffer, at)
        except SourceError as error:
            raise Damage(str(error), position) from None
        if header is None:
            window.end = position
            return
        raw, nbytes, kind = header
        if kind in REGULAR:
            sparse = False
            if extension is not None:
                raw = raw if extension.name is None else extension.name
                nbytes = nbytes if extension.nbytes is None else extension.nbytes
                sparse, extension = extension.is_sparse, None
            name = raw.decode("utf-8", "surrogateescape")
            content: bytes | Refusal = b""
            reason = _refuse(name, nbytes) if not sparse else "is sparse"
            if kind == 0 and name.endswith("/"):  # as old programs mark a directory
                nbytes = 0
            elif reason is not None:
                yield start, name, Refusal(f"there is a member {name[:200]!r} that {reason}", start)
            else:
                if with_content:
                    stop = at + BLOCK_NBYTES + nbytes
                    if stop > len(window.buffer):
                        window.cover(position, BLOCK_NBYTES + nbytes)
                        at, stop = 0, BLOCK_NBYTES + nbytes
                    content = window.buffer[at + BLOCK_NBYTES : stop]
                yield start, name, content
            position += BLOCK_NBYTES + (nbytes + 511 & -512)
            start = position
            continue
        position += BLOCK_NBYTES
        if kind == DIRECTORY:
            start, extension = position, None
        elif kind in LINKS:
            name = (extension.name if extension and extension.name else raw).decode(
                "utf-8", "surrogateescape"
            )
            reason = f"there is {LINKS[kind]} {name[:200]!r}, which is not followed"
            yield start, name, Refusal(reason, start)
            start, extension = position, None
        else:
            extension = extension or Extension()
            _take_extension(window, position, nbytes, kind, extension)
            position += nbytes + 511 & -512


def _refuse(name: str, nbytes: int) -> str | None:
    """Return why a regular member is refused, if it is."""
    if nbytes > MAX_MEMBER_NBYTES:
        return f"has {nbytes:,} bytes, more than {MAX_MEMBER_NBYTES:,}"
    if not name:
        return "has no name"
    if name[0] == "/" or (".." in name and ".." in name.split("/")):
        return "has a name that leads out of the archive"
    return None


def _take_extension(
    window: Window, position: int, nbytes: int, kind: int, extension: Extension
) -> None:
    """Take what a header says of the member behind it; Damage if it is of no known kind."""
    if kind not in PAX and kind not in (PAX_GLOBAL, LONG_NAME, LONG_LINK):
        text = "a sparse member" if kind == ord("S") else f"a member of kind {chr(kind)!r}"
        raise Damage(f"there is {text}, which is not supported", position - BLOCK_NBYTES)
    if nbytes > MAX_EXTENSION_NBYTES:
        reason = f"there is an extended header of {nbytes:,} bytes"
        raise Damage(f"{reason}, more than {MAX_EXTENSION_NBYTES:,}", position - BLOCK_NBYTES)
    window.cover(position, nbytes)
    content = window.buffer[:nbytes]
    try:
        if kind in PAX:
            extension.take_pax(content)
        elif kind == PAX_GLOBAL:
            Extension().take_pax(content, is_global=True)
        elif kind == LONG_NAME:
            extension.name = content.partition(b"\0")[0]
    except SourceError as error:
        raise Damage(str(error), position - BLOCK_NBYTES) from None


def check_rest(window: Window) -> None:
    """Read on behind the end of an archive; Damage unless only zeros follow.

    Streams are checked as they are read, so that their compression is sound is known only then.
    """
    start = position = window.end or 0
    while chunk := window.more(position):
        if chunk.count(0) != len(chunk):
            raise Damage("there are bytes behind the archive's end; is it several in one?", start)
        position += len(chunk)
        if position - start > MAX_PADDING_NBYTES:
            raise Damage(f"more than {MAX_PADDING_NBYTES:,} zeros follow the archive's end", start)
