"""Where compiled kernels are on disk, found without importing numba."""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from zindex.cache_folders import cache_folders
from zindex.kernels import IMPORTED

_PACKAGE = Path(__file__).parent

#: Prefix of the names of cache directories, followed by a hash of what compiled the kernels.
PREFIX = "kernels-"

#: Directory of kernels shared by all users of the package, for images.
SHARED = _PACKAGE / "__pycache__"

#: Environment variable that overrides the user's directories.
chosen: Path | None = None


def folders() -> list[Path]:
    """Return the cache directories, in the order in which they are read and written.

    They are below ``NUMBA_CACHE_DIR`` if it is set, else in the user's cache directory or, if that
    cannot be written, in the temporary one; `SHARED` is read if it exists. Empty if sources changed
    since they were imported.
    """
    status = [(path, path.stat()) for path in sorted(_PACKAGE.glob("*.py"))]
    if not status or max(item.st_ctime for _, item in status) >= IMPORTED:
        return []
    name = PREFIX + _version(tuple((path, item.st_mtime_ns, item.st_size) for path, item in status))
    if base := chosen or os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(base, name)]
    found = cache_folders(name)
    if (SHARED / name).exists():
        found.append(SHARED / name)
    return found


@lru_cache(maxsize=1)
def _version(sources: tuple[tuple[Path, int, int], ...]) -> str:
    """Return a hash of the sources of all kernels and of the compiler."""
    options = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    }
    versions = version("numba"), version("llvmlite"), np.__version__, sys.version, options
    digest = hashlib.sha256(repr(versions).encode())
    for path, *_ in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def name_kernel(function: Callable[..., Any]) -> str:
    """Return the prefix of the file names of a kernel."""
    return f"{function.__module__}.{function.__qualname__}"
