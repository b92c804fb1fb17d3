"""Find where each sample of a file starts, so that samples can be read in any order.

Tables of large files are kept in the user's cache folder, by path, size and time of modification.
"""

import hashlib
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
from zindex.io.local import write_once
from zindex.io.objects import Place
from zindex.io.plain_copies import digest_facts, locked
from zindex.io.request_threads import map_in_threads

logger = logging.getLogger(__name__)

R = TypeVar("R")
#: Number of a file, number of a sample in it, and its bytes.
RawSample = tuple[int, int, bytes | memoryview]

#: Smallest file whose table is kept on disk; smaller ones are scanned faster than a table is kept.
MIN_KEPT_NBYTES = 4 << 20
_NUM_THREADS = 8
# Between log lines while many files are prepared.
_LOG_SECONDS = 10.0

# Of the kept tables.
_VERSION = 3
_MAX_WIDTH = 8
_BLOCK_NBYTES = 1 << 20

#: Table of a file: shape (samples + 1, columns), int64. The first column has the offset of each
#: sample, and where the last one ends; further columns are those of the format.
Table = Int64Array


class ContentDigest:
    """A fast digest of content, which finds accidental changes but does not resist forgery.

    Each MiB is hashed by its words times random odd weights, modulo 2**64: a single changed word,
    or two swapped ones, always change the sum.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._held = bytearray()

    def add(self, content: bytes) -> None:
        """Add bytes; the digest does not depend on how they are divided."""
        if self._held or len(content) % _BLOCK_NBYTES:
            self._held += content
            stop = len(self._held) // _BLOCK_NBYTES * _BLOCK_NBYTES
            if not stop:
                return
            content, self._held = bytes(self._held[:stop]), self._held[stop:]
        for words in np.frombuffer(content, "<u8").reshape(-1, _BLOCK_NBYTES // 8):
            self._hash.update(np.dot(words, _weights()).tobytes())

    def to_int(self) -> int:
        """Return the digest as an int64."""
        whole = self._hash.copy()
        whole.update(self._held)
        return int.from_bytes(whole.digest()[:8], "little", signed=True)


@cache
def _weights() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.PCG64(0).random_raw(_BLOCK_NBYTES // 8) | np.uint64(1)


@dataclass
class FileScan:
    """What was found in a file."""

    table: Table
    #: `ContentDigest` of what was read for that.
    digest: int
    #: Whether no damage was left out.
    is_whole: bool = True
    #: The file's time of modification when it was found, in nanoseconds.
    modified: int = 0


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
        for number in np.unique(files).tolist():
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

    Parameters
    ----------
    file
        A file of known size.
    scan
        Returns the table of a file, and its digest.
    identity
        What else determines the table, for its name in the cache.
    """
    if not file.is_local:
        return _find_remote(file, scan, identity)
    path = found = None
    modified = 0
    with suppress(OSError):  # then reading the file raises, too
        modified = os.stat(file.path).st_mtime_ns
    if (file.size or 0) >= MIN_KEPT_NBYTES:
        path = _name_table(file, identity)
        found = None if path is None else _load(path, file)
    if found is None:
        found = scan(file)
        if path is not None and found.is_whole:
            _keep(path, found)
    found.modified = modified
    return found


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


def _find_remote(
    file: SourceFile, scan: Callable[[SourceFile], FileScan], identity: str
) -> FileScan:
    """Return what is in an object, always kept: requests take longer than reading a table."""
    path = _name_table(file, identity)
    found = None if path is None else _load(path, file)
    if path is None or found is not None:
        return found or scan(file)
    with locked(path.with_suffix(".lock")):
        found = _load(path, file)
        if found is None:
            logger.info("%s: finding what is in %s bytes", file.url, f"{file.nbytes:,}")
            found = scan(file)
            if found.is_whole:
                _keep(path, found)
    return found


def _name_table(file: SourceFile, identity: str) -> Path | None:
    """Return the place of a table in the cache; None without a cache that only its user writes."""
    facts: tuple[object, ...] = (str(file.place), file.size, file.version, identity, _VERSION)
    if file.is_local:
        status, path = os.stat(file.path), os.path.realpath(file.path)
        facts = (path, status.st_size, status.st_mtime_ns, identity, _VERSION)
    if file.nbytes != file.size:
        facts = (*facts, file.nbytes)
    folders = private_folders("samples")
    return folders[0] / f"{digest_facts(*facts)}.table" if folders else None


def _load(path: Path, file: SourceFile) -> FileScan | None:
    """Return a kept table, mapped, and its digest; None if there is none that fits the file."""
    try:
        # Not numpy's format: parsing its header fails at times in threads of Python 3.11.
        words = np.memmap(path, np.int64, "r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    width = int(words[0])
    if not 1 <= width <= _MAX_WIDTH or len(words) < 2 + width or (len(words) - 2) % width:
        return None
    # A plain view: each slice of a memmap costs a microsecond more.
    table, digest = words[2:].reshape(-1, width), int(words[1])
    offsets = table[:, 0]
    fits = offsets[0] >= 0 and offsets[-1] <= (file.nbytes or 0) and (np.diff(offsets) >= 0).all()
    return FileScan(table, digest) if fits else None


def _keep(path: Path, scan: FileScan) -> None:
    """Keep the number of columns, the digest and a table; without room, files are scanned again."""
    head = np.array([scan.table.shape[1], scan.digest])
    content = np.concatenate([head, scan.table.ravel()]).astype(np.int64)
    try:
        write_once(path, [content.data.cast("B")], replace=True)
    except (OSError, StoreError) as error:
        logger.info("offsets of samples are not kept in %s: %s", path, error)
