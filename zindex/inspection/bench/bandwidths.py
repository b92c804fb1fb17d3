"""Measure the bandwidth of memory, checksums and the index folder."""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zindex.errors import ConfigError, ZindexError
from zindex.io import files
from zindex.io.machine import count_cpus
from zindex.io.memory_traffic import measure_calls, measure_copies
from zindex.io.objects import Place
from zindex.io.system_calls import drop_cached
from zindex.io.system_errors import reason_of
from zindex.kernels.samples import gather_lengths
from zindex.store.codecs import checksum

# Size and number of shards; enough to exceed the disk's own cache.
_FILE_NBYTES, _MAX_FILES = 1 << 24, 64
# Shards are written and read concurrently, as in builds.
_NUM_THREADS = 4
_SMALL_NBYTES, _NUM_SMALL = 1 << 12, 16
# An array far larger than CPU caches.
_NUM_LENGTHS = 1 << 25


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bandwidths of all CPUs together, in bytes per second unless noted."""

    #: Bytes copied per second; each byte is read and written.
    copy: float
    #: Random 4-byte reads per second, from an array far larger than the caches.
    gathers_per_second: float
    #: crc32c throughput of one thread.
    checksum: float
    #: Throughput of writing and syncing 16 MiB files.
    write: float
    #: Throughput of reading the same files.
    read: float
    #: Whether they were read from the page cache; None if unknown.
    is_read_cached: bool | None
    #: Seconds to write and sync a 4 KiB file.
    file_seconds: float


def measure_bandwidths(place: Place, seconds: float = 3.0) -> Bandwidths:
    """Measure the bandwidths of this machine and of a folder.

    Parameters
    ----------
    place
        Directory or prefix of future indices. Files written there are removed.
    seconds
        Approximate duration of the measurement.

    Raises
    ------
    ConfigError
        If the folder is not writable.
    """
    copy, gathers, crc = _measure_memory(seconds / 3)
    with scratch_place(place) as folder:
        write, small = _measure_writes(folder, seconds / 3)
        read, is_cached = _measure_reads(folder, seconds / 3)
    return Bandwidths(copy, gathers, crc, write, read, is_cached, small)


@contextmanager
def scratch_place(place: Place) -> Iterator[Place]:
    """Create a temporary folder in a place, and remove it with its content on exit.

    Raises
    ------
    ConfigError
        If the folder is not writable.
    """
    folder = place / f"zindex-bench-{uuid.uuid4().hex[:12]}"
    missing: list[Path] = []
    if isinstance(place, Path):
        missing = [path for path in (place, *place.parents) if not path.exists()]
    try:
        _write_probe(place, folder)
        yield folder
    finally:
        _remove(folder, missing)


def _write_probe(place: Place, folder: Place) -> None:
    """Write a small file to a scratch folder, to find out whether the place can be written."""
    try:
        files.write_once(folder / "probe", [b"\0"])
    except (OSError, ZindexError) as error:
        raise ConfigError(
            f"{place} must be a place to write indices to, it is not: {reason_of(error)}; name "
            "another folder"
        ) from error


def _remove(folder: Place, missing: list[Path]) -> None:
    """Remove a scratch folder, if it exists, and the parents that were created for it."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        return
    from zindex.io import object_client

    with suppress(ZindexError, OSError):
        for key in list(object_client.iterate_keys(folder)):
            files.remove_file(folder / key)


def _measure_memory(seconds: float) -> tuple[float, float, float]:
    """Return bytes copied, numbers gathered and bytes checksummed, per second."""
    num_threads = count_cpus()
    lengths = np.ones(_NUM_LENGTHS, np.int32)
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(lengths), (num_threads, 1 << 20), dtype=np.int32)
    picked = np.empty_like(picks)
    content = lengths[: 1 << 20].view(np.uint8).data

    def gather(number: int) -> None:
        thread = number % num_threads
        gather_lengths(lengths, picks[thread], 0, picked[thread])

    copies = measure_copies(num_threads, seconds / 3)
    gathers = measure_calls(gather, num_threads, seconds / 3)
    sums = measure_calls(lambda _: checksum(content), 1, seconds / 3)
    return copies, gathers * picks.shape[1], sums * content.nbytes


def _measure_writes(folder: Place, seconds: float) -> tuple[float, float]:
    """Return bytes written per second, and the seconds of a small file; keep the files."""
    content = np.random.default_rng(0).bytes(_FILE_NBYTES)
    small = content[:_SMALL_NBYTES]
    start = time.perf_counter()
    for number in range(_NUM_SMALL):
        files.write_once(folder / f"small-{number}", [small])
    file_seconds = (time.perf_counter() - start) / _NUM_SMALL
    free = files.free_nbytes(folder)
    if free is not None and free < 2 * _NUM_THREADS * _FILE_NBYTES:
        raise ConfigError(
            f"{folder.parent} must have {2 * _NUM_THREADS * _FILE_NBYTES:,} bytes free, it has "
            f"{free:,}; make room or name another folder"
        )
    most = _MAX_FILES if free is None else min(_MAX_FILES, free // 2 // _FILE_NBYTES)

    def write(number: int) -> None:
        files.write_once(folder / f"large-{number}", [content], cached=False)

    num_written, start = 0, time.perf_counter()
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        while not num_written or (num_written < most and time.perf_counter() - start < seconds):
            list(pool.map(write, range(num_written, num_written + _NUM_THREADS)))
            num_written += _NUM_THREADS
    return num_written * _FILE_NBYTES / (time.perf_counter() - start), file_seconds


def _measure_reads(folder: Place, seconds: float) -> tuple[float, bool | None]:
    """Return bytes read per second of the large files, and whether they were cached."""
    names = sorted(name for name in files.list_names(folder) if name.startswith("large-"))
    is_cached = _drop_cached([folder / name for name in names])

    def read(name: str) -> int:
        return len(files.read_range(folder / name, 0, _FILE_NBYTES))

    nbytes, start = 0, time.perf_counter()
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for first in range(0, len(names), _NUM_THREADS):
            nbytes += sum(pool.map(read, names[first : first + _NUM_THREADS]))
            if time.perf_counter() - start > seconds:
                break
    return nbytes / (time.perf_counter() - start), is_cached


def _drop_cached(paths: list[Place]) -> bool | None:
    """Drop files from the page cache; return whether some are cached still, None if unknown."""
    found: bool | None = False
    for path in paths:
        if not isinstance(path, Path):
            return False
        with open(path, "rb") as stream:
            drop_cached(stream.fileno())
            if not hasattr(os, "RWF_NOWAIT"):
                return None
            try:
                # Reads from the page cache only.
                os.preadv(stream.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT)
                found = True
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return None
    return found
