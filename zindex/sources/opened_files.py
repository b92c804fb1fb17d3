"""Open files of samples to read them at any offset: in place, by requests, or as copies."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from zindex.io.file_chunks import look_up, open_local, read_local
from zindex.io.file_list import SourceFile
from zindex.io.plain_copies import Damage, PlainCopies
from zindex.io.request_threads import map_in_threads
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


def advance_nbytes(files: Sequence[SourceFile]) -> int:
    """Return the stored bytes that are read in advance: of compressed and remote files."""
    found = {file.place: file.nbytes or 0 for file in files if not (file.is_local and file.is_cut)}
    return sum(found.values())


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
        Compressed files, and small ones of object stores, are copied to this node; see
        `PlainCopies`, also for errors.
    """
    remote = {file.place: file.nbytes or 0 for file in files if not file.is_local and file.is_cut}
    is_small = copy_all or sum(remote.values()) <= SMALL_NBYTES
    copied = [file for file in files if not file.is_cut or (is_small and not file.is_local)]
    opened = OpenedFiles(list(files), [[] for _ in files])
    if not copied:
        return opened
    copies = opened.copies = PlainCopies(copied, whole_lines=whole_lines)
    if copies.num_missing:
        logger.info(
            "%s: %d of %d compressed or remote files, of %s bytes in all, are copied to %s",
            *(copied[0].url, copies.num_missing, len(copied)),
            *(f"{advance_nbytes(copied):,}", copies.folder),
        )
    found = dict(
        zip(
            (file.place for file in copied),
            each_once(copies.open, copied, is_shared=True),
            strict=True,
        )
    )
    for number, file in enumerate(files):
        if file.place in found:
            opened.files[number], opened.damages[number] = found[file.place]
    return opened


def read_ends(file: SourceFile) -> str:
    """Return a digest of both ends of a file."""
    with open_local(file) as descriptor:
        last = max(0, (file.nbytes or 0) - _END_NBYTES)
        ends = [read_local(file, descriptor, start, _END_NBYTES) for start in (0, last)]
    return hashlib.sha256(b"".join(ends)).hexdigest()
