"""Find where each sample of a file starts, so that samples can be read in any order.

Tables of large files are kept in the user's cache folder, by path, size and time of modification.
"""

import hashlib
import io
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from zindex.arrays import Int64Array
from zindex.cache_folders import cache_folders
from zindex.errors import StoreError
from zindex.io.file_list import SourceFile
from zindex.io.local import write_once

logger = logging.getLogger(__name__)

#: Smallest file whose table is kept on disk; smaller ones are scanned faster than a table is kept.
MIN_KEPT_NBYTES = 16 << 20
_NUM_THREADS = 8

#: Table of a file: shape (samples + 1, columns), int64. The first column has the offset of each
#: sample, and where the last one ends; further columns are those of the format.
Table = Int64Array


@dataclass
class SampleCount:
    """Number of samples that can be read in any order, and their bytes."""

    num_samples: int
    nbytes: int


class SampleOffsets(SampleCount):
    """Where the samples of some files start; samples are numbered in the order of the files.

    Parameters
    ----------
    tables
        Table of each file.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        firsts = [*accumulate((len(table) - 1 for table in tables), initial=0)]
        nbytes = sum(int(table[-1, 0]) - int(table[0, 0]) for table in tables)
        super().__init__(firsts[-1], nbytes)
        self.tables, self._firsts = tables, firsts

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


def find_offsets(
    files: Sequence[SourceFile],
    scan: Callable[[SourceFile], Table],
    identity: Callable[[SourceFile], str],
) -> SampleOffsets:
    """Return the offsets of all samples, from the cache or by reading the files once.

    Parameters
    ----------
    files
        Local files that are not compressed. A file that is listed twice is scanned once.
    scan
        Returns the table of a file.
    identity
        Returns what else determines the table of a file, for its name in the cache.

    Raises
    ------
    SourceError
        If a file is damaged.
    StoreNotFoundError, StoreUnreadableError
        If it cannot be read.
    """
    given = {file.path: file for file in files}

    def find(file: SourceFile) -> Table:
        path = None
        if (file.nbytes or 0) >= MIN_KEPT_NBYTES:
            path = _name_table(file, identity(file))
            if path is not None and (kept := _load(path, file)) is not None:
                return kept
        table = scan(file)
        if path is not None:
            _keep(path, table)
        return table

    if len(given) == 1:
        tables = [*map(find, given.values())]
    else:
        with ThreadPoolExecutor(min(_NUM_THREADS, len(given))) as threads:
            tables = [*threads.map(find, given.values())]
    by_path = dict(zip(given, tables, strict=True))
    return SampleOffsets([by_path[file.path] for file in files])


def _name_table(file: SourceFile, identity: str) -> Path | None:
    """Return the place of a table in the cache; None without a cache that only its user writes."""
    status = os.stat(file.path)
    facts = (os.path.realpath(file.path), status.st_size, status.st_mtime_ns, identity)
    name = f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.npy"
    for folder in cache_folders("samples"):
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(folder)
            if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                return folder / name
    return None


def _load(path: Path, file: SourceFile) -> Table | None:
    """Return a kept table, mapped; None if there is none, or it cannot be of this file."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    if table.dtype != np.int64 or table.ndim != 2 or not len(table):
        return None
    offsets = table[:, 0]
    fits = offsets[0] >= 0 and offsets[-1] <= (file.nbytes or 0) and (np.diff(offsets) >= 0).all()
    # A plain view: each slice of a memmap costs a microsecond more.
    return table.view(np.ndarray) if fits else None


def _keep(path: Path, table: Table) -> None:
    """Keep a table; without room, the next process scans the file again."""
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    try:
        write_once(path, [buffer.getbuffer()], replace=True)
    except (OSError, StoreError) as error:
        logger.info("offsets of samples are not kept in %s: %s", path, error)
