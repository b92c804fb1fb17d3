"""What memory, processors and the place of the indices give, measured for a moment each."""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zindex.errors import ConfigError, ZindexError
from zindex.kernels.samples import gather_lengths
from zindex.store import files
from zindex.store.codecs import checksum
from zindex.store.objects import Place

# A shard of an index; enough of them that a disk's own memory is not all that is measured.
_FILE_NBYTES, _MAX_FILES = 1 << 24, 64
# Shards are written and read side by side, as builds do.
_NUM_THREADS = 4
_SMALL_NBYTES, _NUM_SMALL = 1 << 12, 16
# Far beyond caches of processors.
_MEMORY_NBYTES = 1 << 27


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second, unless a name says otherwise; all processors of the machine together."""

    #: Bytes copied per second, each of which is read and written.
    copy: float
    #: Numbers of four bytes, picked at random from far more memory than caches hold, per second.
    gathers_per_second: float
    #: One thread's crc32c.
    checksum: float
    #: Files of 16 MiB, written and synced.
    write: float
    #: The same files, read again.
    read: float
    #: Whether they were read out of this machine's memory; None: there is no telling.
    is_read_cached: bool | None
    #: Seconds that a file of 4 KiB takes, written and synced.
    file_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def measure_bandwidths(place: Place, seconds: float = 3.0) -> Bandwidths:
    """Return what this machine and a place give.

    Parameters
    ----------
    place
        Directory or prefix where indices will lie. What is written there is removed.
    seconds
        How long the measurement may take, about.

    Raises
    ------
    ConfigError
        If nothing can be written there.
    """
    copy, gathers, crc = _measure_memory(seconds / 3)
    with scratch_place(place) as folder:
        write, small = _measure_writes(folder, seconds / 3)
        read, is_cached = _measure_reads(folder, seconds / 3)
    return Bandwidths(copy, gathers, crc, write, read, is_cached, small)


@contextmanager
def scratch_place(place: Place) -> Iterator[Place]:
    """Give a new folder in a place, and remove it with all that it holds, whatever happens.

    Raises
    ------
    ConfigError
        If nothing can be written there.
    """
    folder = place / f"zindex-bench-{uuid.uuid4().hex[:12]}"
    missing: list[Path] = []
    if isinstance(place, Path):
        missing = [path for path in (place, *place.parents) if not path.exists()]
    try:
        files.write_once(folder / "probe", [b"\0"])
    except (OSError, ZindexError) as error:
        _remove(folder, missing)
        raise ConfigError(
            f"{place} must be a place to write indices to, it is not: {error}; name another folder"
        ) from error
    try:
        yield folder
    finally:
        _remove(folder, missing)


def _remove(folder: Place, missing: list[Path]) -> None:
    """Remove a scratch folder, and the folders above it that were made for it."""
    remove_all(folder)
    for path in missing:
        with suppress(OSError):
            path.rmdir()


def remove_all(folder: Place) -> None:
    """Remove a folder with all that it holds; one that is not there is no error."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    from zindex.store import object_client

    with suppress(ZindexError, OSError):
        for key in list(object_client.iterate_keys(folder)):
            files.remove_file(folder / key)


def _measure_memory(seconds: float) -> tuple[float, float, float]:
    """Return bytes copied, numbers gathered and bytes summed up, each per second."""
    num_threads = len(os.sched_getaffinity(0))
    length = _MEMORY_NBYTES // 4 // num_threads
    numbers = [np.arange(length, dtype=np.int32) for _ in range(num_threads)]
    others = [np.empty_like(part) for part in numbers]
    lengths = np.ones(num_threads * length, np.int32)
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(lengths), (num_threads, 1 << 20), dtype=np.int32)
    picked = np.empty_like(picks)

    def copy(thread: int) -> None:
        np.copyto(others[thread], numbers[thread])

    def gather(thread: int) -> None:
        gather_lengths(lengths, picks[thread], 0, picked[thread])

    def crc(thread: int) -> None:
        checksum(others[0][: 1 << 20].view(np.uint8).data)

    with ThreadPoolExecutor(num_threads) as pool:
        copies = _rate(pool, copy, num_threads, seconds / 3)
        gathers = _rate(pool, gather, num_threads, seconds / 3)
        sums = _rate(pool, crc, 1, seconds / 3)
    nbytes = numbers[0].nbytes
    return copies * nbytes, gathers * picks.shape[1], sums * (1 << 22)


def _rate(
    pool: ThreadPoolExecutor, call: Callable[[int], None], num_threads: int, seconds: float
) -> float:
    """Return how often a second threads together make a call; the first ones are not timed."""
    call(0)  # compiles, which is best done by one thread alone
    list(pool.map(call, range(num_threads)))
    num_calls, start = 0, time.perf_counter()
    while not num_calls or time.perf_counter() - start < seconds:
        list(pool.map(call, range(num_threads)))
        num_calls += num_threads
    return num_calls / (time.perf_counter() - start)


def _measure_writes(folder: Place, seconds: float) -> tuple[float, float]:
    """Return bytes written per second, and the seconds of a small file; files stay there."""
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
        while num_written < most and time.perf_counter() - start < seconds:
            list(pool.map(write, range(num_written, num_written + _NUM_THREADS)))
            num_written += _NUM_THREADS
    return num_written * _FILE_NBYTES / (time.perf_counter() - start), file_seconds


def _measure_reads(folder: Place, seconds: float) -> tuple[float, bool | None]:
    """Return bytes read per second of the large files, and whether memory held them."""
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
    """Have the system forget files, and return whether it holds some of them nevertheless."""
    found: bool | None = False
    for path in paths:
        if not isinstance(path, Path):
            return False
        with open(path, "rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                # Reads only what is in memory.
                os.preadv(stream.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT)
                found = True
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return None
    return found
