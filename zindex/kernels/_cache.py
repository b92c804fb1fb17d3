"""Compiled kernels on disk: the processes of a user compile each kernel once.

A file holds one kernel compiled for one signature, and its name is a hash of all that its code
depends on: the sources of every kernel, the versions of numba and Python, the processor. A change
of any of them therefore leads to other files. Numba's own cache looks at the source of one file
only, although helpers of other files are inlined, and keeps an index per function, in which
concurrent writers can exchange their entries.

Reading a file executes code, so directories must be owned by this user, root or the owner of
zindex itself, and writable by that owner only. Others are ignored. Files are written under
temporary names, renamed, and begin with a checksum: a damaged one leads to a compilation.
"""

import hashlib
import logging
import os
import pickle
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from zindex.kernels import IMPORTED

_PACKAGE = Path(__file__).parent

#: The directory of kernels for all users of the package, in images for example.
SHARED = _PACKAGE / "__pycache__"

#: Where kernels are read and written instead of the user's directories.
chosen: Path | None = None

#: Directories that kernels of this process were read from or written to.
used: set[Path] = set()

logger = logging.getLogger(__name__)

_PREFIX, _NUM_VERSIONS = "kernels-", 8
_DIGEST_NBYTES = hashlib.sha256().digest_size


def folders() -> list[Path]:
    """Return the directories of compiled kernels: where they are read first, and written first.

    They are below ``NUMBA_CACHE_DIR`` if it is set, else in the user's cache directory or, if that
    cannot be written, in the temporary one; `SHARED` is read if it exists. Empty if sources changed
    since they were imported.
    """
    status = [(path, path.stat()) for path in sorted(_PACKAGE.glob("*.py"))]
    if not status or max(item.st_ctime for _, item in status) >= IMPORTED:
        return []
    version = _version(tuple((path, item.st_mtime_ns, item.st_size) for path, item in status))
    if base := chosen or os.environ.get("NUMBA_CACHE_DIR"):
        bases = [Path(base)]
    else:
        bases = [Path(tempfile.gettempdir(), f"zindex-{os.geteuid()}")]
        home, caches = os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(caches) or os.path.isdir(home):
            bases.insert(0, Path(caches if os.path.isabs(caches) else f"{home}/.cache", "zindex"))
        if (SHARED / f"{_PREFIX}{version}").exists():
            bases.append(SHARED)
    return [base / f"{_PREFIX}{version}" for base in bases]


@lru_cache(maxsize=1)
def _version(sources: tuple[tuple[Path, int, int], ...]) -> str:
    """Return a hash of the sources of all kernels and of what compiles them."""
    options = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    }
    versions = numba.__version__, llvmlite.__version__, np.__version__, sys.version, options
    digest = hashlib.sha256(repr(versions).encode())
    for path, *_ in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _owners() -> set[int]:
    """Return the users who decide anyway what this process executes."""
    return {0, os.geteuid(), os.stat(__file__).st_uid}


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a directory that only trusted users can write to; refuse others with an OSError."""
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid not in _owners():
            raise PermissionError(f"{folder} is owned by the user {status.st_uid}")
        if status.st_mode & 0o022:
            raise PermissionError(f"{folder} is writable by other users")
        yield descriptor
    finally:
        os.close(descriptor)


def _read(folder: Path, name: str) -> bytes | None:
    """Return what a file holds, or None if there is no undamaged one that can be trusted."""
    with suppress(OSError), _opened(folder) as descriptor:
        with open(name, "rb", opener=partial(os.open, dir_fd=descriptor)) as file:
            digest, content = file.read(_DIGEST_NBYTES), file.read()
        if hashlib.sha256(name.encode() + content).digest() == digest:
            used.add(folder)
            return content
    return None


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file atomically, unless another process already has."""
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o755 if chosen else 0o700, exist_ok=True)
        versions = sorted(folder.parent.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime)
        for old in versions[:-_NUM_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)
    if _read(folder, name) is not None:
        return
    temporary = f"{name}.{uuid.uuid4().hex}"
    with _opened(folder) as descriptor:
        opener = partial(os.open, mode=0o644, dir_fd=descriptor)
        try:
            with open(temporary, "xb", opener=opener) as file:
                file.write(hashlib.sha256(name.encode() + content).digest() + content)
            os.replace(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            used.add(folder)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=descriptor)
            raise


@lru_cache(maxsize=1)
def _announce() -> None:
    """Explain to a user at a terminal, once, what takes seconds."""
    if sys.stderr.isatty():
        # Python shows warnings where a script has not set up logging.
        level = logging.INFO if logger.hasHandlers() else logging.WARNING
        logger.log(
            level, "compiling kernels, once per machine; zindex warm compiles the common ones"
        )


class KernelCache(NullCache):  # type: ignore[misc]
    """The compiled signatures of one kernel.

    Parameters
    ----------
    function
        The Python function.
    """

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"

    def _file(self, signature: Any, context: Any) -> str:
        """Return the name of the file of a signature on this processor."""
        key = self._name, signature, context.codegen().magic_tuple()
        return f"{self._name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the result of an earlier compilation, or None.

        Numba's cache initialises the whole compiler before it reads: half a second, and seconds
        with extensions. Only the runtime is needed.
        """
        name = self._file(signature, context)
        for folder in folders():
            if (content := _read(folder, name)) is not None:
                rtsys.initialize(context)
                # Whatever another version of a library makes of it, it can be compiled.
                with suppress(Exception):
                    return CompileResult._rebuild(context, *pickle.loads(content))
        _announce()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write the result of a compilation where that is possible."""
        if result.library.has_dynamic_globals:
            return
        name = self._file(signature, result.target_context)
        content = dumps(result._reduce())
        for folder in folders():
            with suppress(OSError):
                _write(folder, name, content)
                return
