"""Make this process one of macOS, as far as zindex can tell: ``python like_macos.py SCRIPT.py``.

What only Linux has is taken away: names of ``os``, functions of the C library, /proc and /sys.
"""

import builtins
import ctypes
import io
import os
import runpy
import sys
from typing import Any

NAMES = (
    *("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "preadv"),
    *("pwritev", "O_DIRECT", "RWF_NOWAIT", "fdatasync", "copy_file_range", "memfd_create"),
    *("pidfd_open", "eventfd", "getrandom", "setns", "unshare", "splice", "O_TMPFILE", "O_PATH"),
    *("O_NOATIME", "POSIX_FADV_DONTNEED", "POSIX_FADV_WILLNEED"),
)
FUNCTIONS = {"renameat2", "fallocate", "prctl", "syscall", "malloc_trim"}


class Library(ctypes.CDLL):
    """The C library without functions of Linux."""

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)


def take_away() -> None:
    """Remove what macOS lacks."""
    for name in NAMES:
        if hasattr(os, name):
            delattr(os, name)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        os.process_cpu_count = os.cpu_count
    ctypes.CDLL = Library  # type: ignore[misc]
    for module, name in ((os, "open"), (io, "open"), (builtins, "open")):
        setattr(module, name, hide(getattr(module, name)))


def hide(function: Any) -> Any:
    """Return a function that opens files, without those of the kernel."""

    def open_file(path: Any, *args: Any, **settings: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **settings)

    return open_file


if __name__ == "__main__":
    take_away()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
