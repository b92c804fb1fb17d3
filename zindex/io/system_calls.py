"""System calls of Linux that macOS lacks, each with what replaces it there."""

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

#: Flag to bypass the page cache; 0 where there is none.
DIRECT = getattr(os, "O_DIRECT", 0)


def own_cpus() -> set[int]:
    """Return the processors that this process may use; all of them without CPU affinity."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def read_ahead(descriptor: int, start: int, nbytes: int) -> None:
    """Ask the system to read a range of a file soon, if it takes advice."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, nbytes, os.POSIX_FADV_WILLNEED)


def drop_cached(descriptor: int) -> None:
    """Ask the system to drop a file from the page cache, if it takes advice."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_vector(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill buffers from an offset and return the bytes read, as ``os.preadv`` does."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, buffers, offset)
    count = 0
    for buffer in buffers:
        target = memoryview(buffer).cast("B")
        content = os.pread(descriptor, len(target), offset + count)
        target[: len(content)] = content
        count += len(content)
        if len(content) < len(target):
            break
    return count


def memory_nbytes() -> int:
    """Return the memory of this process; its peak where the system does not report the present."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return peak_nbytes()
    return int(pages) * resource.getpagesize()


def peak_nbytes() -> int:
    """Return the peak memory of this process."""
    try:  # getrusage would include that of its parent
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
