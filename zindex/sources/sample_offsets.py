"""Find where each sample of a file starts, so that samples can be read in any order.

Tables of large files are kept in the user's cache folder, by path, size and time of modification.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import TypeVar

import numpy as np

from zindex.arrays import Int64Array
from zindex.cache_folders import private_folders
from zindex.errors import StoreError
from zindex.io.file_list import SourceFile
from zindex.io.local import replacing
from zindex.io.objects import Place
from zindex.io.plain_copies import digest_facts, locked
from zindex.io.request_threads import map_in_threads
from zindex.sources.file_scan import MAX_WIDTH, ContentDigest, FileScan, fits_file
from zindex.sources.offset_files import read_offsets

logger = logging.getLogger(__name__)

R = TypeVar("R")
#: Number of a file, number of a sample in it, and its bytes.
RawSample = tuple[int, int, bytes | memoryview]

#: Smallest plain file whose table is kept on disk; smaller ones are scanned faster than a table is
#: kept. A quarter of it for copies and compressed files.
MIN_KEPT_NBYTES = 4 << 20
# Most bytes of all of them.
_MAX_KEPT_NBYTES = 4 << 30
_NUM_THREADS = 8
# Between log lines while many files are prepared.
_LOG_SECONDS = 10.0

# Of the kept tables.
_VERSION = 4
_HEAD_LENGTH = 3


@dataclass
class SampleCount:
    """Number of samples that can be read in any order, and their bytes."""

    num_samples: int
    nbytes: int
    #: Whether reading adjacent ones takes a request to an object store.
    is_remote: bool = False


class SampleOffsets(SampleCount):
    """Where the samples of some files start; samples are numbered in the order of the files.

    Parameters
    ----------
    scans
        What was found in each file.
    is_remote
        Whether a file is in an object store.
    """

    def __init__(self, scans: Sequence[FileScan], *, is_remote: bool = False) -> None:
        tables = [scan.table for scan in scans]
        firsts = [*accumulate((len(table) - 1 for table in tables), initial=0)]
        nbytes = sum(int(table[-1, 0]) - int(table[0, 0]) for table in tables)
        super().__init__(firsts[-1], nbytes, is_remote)
        self.scans, self.tables, self._firsts = scans, tables, firsts

    def split(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return a range of samples by file: the file's number, and the range in the file."""
        found = []
        number = bisect_right(self._firsts, start) - 1
        while start < stop:
            first, last = self._firsts[number : number + 2]
            end = min(stop, last)
            if start < end:
                found.append((number, start - first, end - first))
            start, number = end, number + 1
        return found

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return where some samples are.

        Parameters
        ----------
        samples
            Shape (samples,), int64: their numbers.

        Returns
        -------
        files, rows, starts, stops
            Of each sample the number of its file, its row in the table, and its bytes
            ``[start, stop)``, in four arrays of this shape.
        """
        firsts = np.array(self._firsts)
        files = np.searchsorted(firsts, samples, side="right") - 1
        rows = samples - firsts[files]
        starts, stops = np.empty_like(rows), np.empty_like(rows)
        for number in np.flatnonzero(np.bincount(files)).tolist():  # np.unique imports much
            inside = files == number
            column, chosen = self.tables[number][:, 0], rows[inside]
            starts[inside], stops[inside] = column[chosen], column[chosen + 1]
        return files, rows, starts, stops


def find_offsets(
    files: Sequence[SourceFile],
    scan: Callable[[SourceFile], FileScan],
    identity: Callable[[SourceFile], str],
    scans: dict[tuple[Place, str, int | None], FileScan],
) -> SampleOffsets:
    """Return the offsets of all samples, from the cache or by reading the files once.

    Parameters
    ----------
    files
        Files of known sizes that can be read at any offset. A file that is listed twice is scanned
        once, and one in an object store by one process of those that share a cache.
    scan
        Returns the table of a file, and its digest.
    identity
        Returns what else determines the table of a file, for its name in the cache.
    scans
        What this process has found in files, by place, version and size; others are added.

    Raises
    ------
    SourceError
        If a file is damaged.
    StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
        If it cannot be read.
    """

    def find(file: SourceFile) -> FileScan:
        key = file.place, file.version, file.nbytes
        if key not in scans:
            scans[key] = find_kept(file, scan, identity(file))
        return scans[key]

    is_remote = not all(file.is_local for file in files)
    return SampleOffsets(each_once(find, files, is_shared=is_remote), is_remote=is_remote)


def find_kept(file: SourceFile, scan: Callable[[SourceFile], FileScan], identity: str) -> FileScan:
    """Return what a function finds in a file, from the cache if the file is large or remote.

    Processes that share a cache search a file one at a time.

    Parameters
    ----------
    file
        A file of known size.
    scan
        Returns the table of a file, and its digest.
    identity
        What else determines the table, for its name in the cache.
    """
    modified, path = 0, None
    if isinstance(file.place, Path):
        with suppress(OSError):  # then reading the file raises, too
            modified = os.stat(file.place).st_mtime_ns
    is_plain = file.is_cut and file.copy is None
    least = MIN_KEPT_NBYTES if is_plain else MIN_KEPT_NBYTES >> 2
    if not file.is_local or (file.nbytes or 0) >= least:
        path = _name_table(file, identity)
    found = _load(path, file) if path is not None else scan(file)
    if found is None:
        assert path is not None
        with locked(path.with_suffix(".lock")):
            found = _load(path, file)
            if found is None:
                found = read_offsets(file, identity) if _may_have_offsets(file) else None
                if found is None:
                    logger.info("%s: finding what is in %s bytes", file.url, f"{file.nbytes:,}")
                    found = scan(file)
                if found.is_whole:
                    _keep(path, found)
    found.modified = modified
    return found


def _may_have_offsets(file: SourceFile) -> bool:
    """Return whether to look for offsets next to a file: a large one, no copy of another one."""
    is_own = file.copy is None or file.growing is not None
    return is_own and (file.size or 0) >= MIN_KEPT_NBYTES >> 2


def each_once(
    function: Callable[[SourceFile], R], files: Sequence[SourceFile], *, is_shared: bool
) -> list[R]:
    """Return the results of a function for some files, in threads, once for each of them.

    If the work is shared with other processes, which do the same, they begin at different files.
    """
    given = list({file.place: file for file in files}.values())
    first = os.getpid() % len(given) if is_shared else 0
    given = given[first:] + given[:first]
    start = logged = monotonic()

    def call(number: int) -> R:
        nonlocal logged
        result = function(given[number])
        if (now := monotonic()) - logged > _LOG_SECONDS:
            logged = now
            logger.info(
                "%s and others: about %d of %d files are prepared after %.0f s",
                *(files[0].url, number + 1, len(given), now - start),
            )
        return result

    found = map_in_threads(min(_NUM_THREADS, len(given)), call, range(len(given)))
    by_place = {file.place: one for file, one in zip(given, found, strict=True)}
    return [by_place[file.place] for file in files]


def _name_table(file: SourceFile, identity: str) -> Path | None:
    """Return the place of a table in the cache; None without a cache that only its user writes."""
    # Of a copy, these are the facts of what was copied.
    facts: tuple[object, ...] = str(file.place), file.version
    if isinstance(file.place, Path):
        status = os.stat(file.place)
        facts = os.path.realpath(file.place), status.st_size, status.st_mtime_ns
    facts = (*facts, file.nbytes, file.size, identity, _VERSION)
    folders = private_folders("samples")
    return folders[0] / f"{digest_facts(*facts)}.table" if folders else None


def _load(path: Path, file: SourceFile) -> FileScan | None:
    """Return a kept table, mapped, and its digest; None if there is none that fits the file."""
    try:
        # Not numpy's format: parsing its header fails at times in threads of Python 3.11.
        words = np.memmap(path, np.int64, "r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    if len(words) < _HEAD_LENGTH:
        return None
    width, digest, checksum = words[:_HEAD_LENGTH].tolist()
    words = words[_HEAD_LENGTH:]
    if not 1 <= width <= MAX_WIDTH or len(words) < width or len(words) % width:
        return None
    # A plain view: each slice of a memmap costs a microsecond more.
    table = words.reshape(-1, width)
    is_whole = fits_file(table, file) and _sum_up(words) == checksum
    return FileScan(table, digest) if is_whole else None


def _keep(path: Path, scan: FileScan) -> None:
    """Keep a table after its head: the columns, the digest, and a checksum of the table.

    It is not synced: after a crash the checksum is wrong. Without room, files are scanned again.
    """
    words = np.ascontiguousarray(scan.table, np.int64).ravel()
    head = np.array([scan.table.shape[1], scan.digest, _sum_up(words)])
    try:
        with replacing(path, durable=False) as partial, open(partial, "xb") as stream:
            stream.write(head.data)
            stream.write(words.data)
        _trim(path.parent)
    except (OSError, StoreError) as error:
        logger.info("offsets of samples are not kept in %s: %s", path, error)


@cache
def _trim(folder: Path) -> None:
    """Remove the tables that were used longest ago, once per process, if there are too many."""
    with os.scandir(folder) as entries:
        found = [(max(one.stat().st_atime, one.stat().st_mtime), one) for one in entries]
    nbytes = sum(one.stat().st_size for _, one in found)
    for _, one in sorted(found, key=lambda pair: pair[0]):
        if nbytes <= _MAX_KEPT_NBYTES:
            break
        nbytes -= one.stat().st_size
        os.unlink(one.path)


def _sum_up(words: Int64Array) -> int:
    """Return the checksum of a table."""
    digest = ContentDigest()
    digest.add(words.view(np.uint8).data)
    return digest.to_int()
