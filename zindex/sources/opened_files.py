"""Open files of samples to read them at any offset: in place, by requests, or as copies.

Compressed files are read in place if they have frames.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from zindex.errors import StoreUnwritableError
from zindex.io.file_chunks import look_up, open_local, read_local
from zindex.io.file_list import SourceFile
from zindex.io.objects import Place
from zindex.io.plain_copies import Damage, PlainCopies
from zindex.io.request_threads import map_in_threads
from zindex.sources.framed_files import find_frames
from zindex.sources.sample_offsets import each_once

logger = logging.getLogger(__name__)

#: Default maximum of stored bytes that are read in advance to find samples.
PREPARE_NBYTES = 8 << 30
#: Files of an object store that are not compressed are copied if they have at most this many bytes
#: together. A request for each few samples of larger ones costs less than to wait for the copies.
SMALL_NBYTES = 256 << 20
#: Concurrent requests for sizes.
NUM_REQUESTS = 32
# At both ends of a file that is read in order, whose format has checksums there.
_END_NBYTES = 1 << 16


@dataclass
class OpenedFiles:
    """Files that can be read at any offset."""

    files: list[SourceFile]
    #: Damage that was found by copying, by file.
    damages: list[list[Damage]] = field(default_factory=list)
    #: Keeps the copies.
    copies: PlainCopies | None = None


def look_up_all(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Return files with their sizes; one request each in object stores, made concurrently.

    Raises
    ------
    StoreNotFoundError
        If one does not exist.
    StoreUnavailableError
        If a store does not answer.
    """
    num_remote = sum(not file.is_local for file in files)
    return map_in_threads(min(NUM_REQUESTS, num_remote), look_up, files)


def advance_nbytes(files: Sequence[SourceFile], limit: int) -> int:
    """Return the stored bytes that are read in advance: of remote and compressed files.

    Local files that have frames are read in place. Frames are only looked for if the files have
    more than ``limit`` bytes.
    """
    given = {file.place: file for file in files if not file.is_cut}
    nbytes = sum(file.nbytes or 0 for file in given.values())
    local = [file for file in given.values() if file.is_local]
    if nbytes > limit and local:
        framed = each_once(find_frames, local, is_shared=True)
        nbytes -= sum(file.nbytes or 0 for file, one in zip(local, framed, strict=True) if one)
    return nbytes


def open_files(
    files: Sequence[SourceFile], *, whole_lines: bool = False, copy_all: bool = False
) -> OpenedFiles:
    """Return files that can be read at any offset.

    Parameters
    ----------
    files
        Files with known sizes.
    whole_lines
        Whether copies of damaged files end after their last whole line.
    copy_all
        Whether large files of object stores are copied, too.

    Returns
    -------
    opened
        Compressed files without frames, and small ones of object stores, are copied to this node;
        see `PlainCopies`, also for errors. Frames are kept when they are first read.
    """
    wanted = {file.place: file for file in files if not file.is_cut}
    remote = [file for file in wanted.values() if not file.is_local]
    small: set[Place] = set()
    for compressed in (False, True):
        of_kind = [file for file in remote if (file.compression is not None) == compressed]
        if copy_all or sum(file.nbytes or 0 for file in of_kind) <= SMALL_NBYTES:
            small |= {file.place for file in of_kind}

    def find(file: SourceFile) -> SourceFile:
        if file.compression is None or file.place in small:
            return file
        return find_frames(file) or file

    opened = OpenedFiles(list(files), [[] for _ in files])
    found = each_once(find, list(wanted.values()), is_shared=True) if wanted else []
    kept = [one for one in found if one.compression or one.frames or one.place in small]
    if not kept:
        return opened
    copied = [file for file in kept if file.frames is None]
    results = {file.place: (file, list[Damage]()) for file in kept}
    try:
        copies = opened.copies = PlainCopies(kept, whole_lines=whole_lines)
    except StoreUnwritableError:
        if copied:
            raise
    else:
        if copies.num_missing:
            logger.info(
                "%s: %d of %d compressed or remote files, of %s bytes in all, are copied to %s",
                *(copied[0].url, copies.num_missing, len(copied)),
                *(f"{sum(file.nbytes or 0 for file in copied):,}", copies.folder),
            )
        for file, result in zip(kept, each_once(copies.open, kept, is_shared=True), strict=True):
            results[file.place] = result
    for number, file in enumerate(files):
        if file.place in results:
            opened.files[number], opened.damages[number] = results[file.place]
    return opened


def read_ends(file: SourceFile) -> str:
    """Return a digest of both ends of a file."""
    with open_local(file) as descriptor:
        last = max(0, (file.nbytes or 0) - _END_NBYTES)
        ends = [read_local(file, descriptor, start, _END_NBYTES) for start in (0, last)]
    return hashlib.sha256(b"".join(ends)).hexdigest()
