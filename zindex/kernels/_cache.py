"""On-disk cache of compiled kernels, shared by the processes of a user.

A file holds one kernel compiled for one signature. Its name is a hash of everything that the code
depends on: the sources of all kernels, the versions of numba and Python, and the processor. Numba's
own cache only considers the source file of the kernel, although helpers of other files are inlined,
and keeps an index per function, in which concurrent writers can swap their entries. If several
processes need the same kernel at the same time, such as loader workers, one compiles it and the
others wait.

Loading a file executes code, so directories must be owned by this user, root or the owner of zindex
itself, and be writable by that owner only; others are ignored. Files are written under temporary
names, renamed, and begin with a checksum: a damaged file is recompiled.
"""

import fcntl
import hashlib
import logging
import os
import pickle
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from zindex.kernels import _cache_folders

#: Directories that kernels of this process were read from or written to.
used: set[Path] = set()

logger = logging.getLogger(__name__)

_NUM_VERSIONS = 8
#: Seconds to wait for a process that compiles the same kernel; it may be suspended.
_LONGEST_WAIT = 60.0
_DIGEST_NBYTES = hashlib.sha256().digest_size


def _owners() -> set[int]:
    """Return the users who already control what this process executes."""
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
    """Return the content of a file, or None if it is missing, damaged or untrusted."""
    with suppress(OSError), _opened(folder) as descriptor:
        with open(name, "rb", opener=partial(os.open, dir_fd=descriptor)) as file:
            digest, content = file.read(_DIGEST_NBYTES), file.read()
        if hashlib.sha256(name.encode() + content).digest() == digest:
            used.add(folder)
            return content
    return None


def _create(folder: Path) -> None:
    """Create a cache directory, and remove those of old versions."""
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o755 if _cache_folders.chosen else 0o700, exist_ok=True)
        versions = sorted(
            folder.parent.glob(f"{_cache_folders.PREFIX}*"), key=lambda path: path.stat().st_mtime
        )
        for old in versions[:-_NUM_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file atomically, unless another process already did."""
    _create(folder)
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


#: Name of each kernel that this process is compiling -> a locked file, and its directory.
_claims: dict[str, tuple[int, Path]] = {}


def _claim(name: str) -> bool:
    """Return whether this process may compile a kernel: False while another one does.

    The lock of a killed process is released. If files cannot be locked, every process compiles.
    """
    for folder in _cache_folders.folders():
        with suppress(OSError):
            _create(folder)
            with _opened(folder) as parent:
                flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
                lock = os.open(f"{name}.lock", flags, 0o644, dir_fd=parent)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _claims[name] = lock, folder
            except BlockingIOError:
                os.close(lock)
                return False
            except OSError:
                os.close(lock)
            return True
    return True


def release(name: str) -> None:
    """Release the claim of this process on a kernel."""
    if name in _claims:
        lock, folder = _claims.pop(name)
        with suppress(OSError), _opened(folder) as parent:
            os.unlink(f"{name}.lock", dir_fd=parent)
        os.close(lock)


def release_all() -> None:
    """Release the claims of failed compilations."""
    for name in [*_claims]:
        release(name)


@lru_cache(maxsize=1)
def _announce() -> None:
    """Print a message at a terminal, once, that kernels are being compiled."""
    if sys.stderr.isatty():
        # Python prints warnings even if a script has not set up logging.
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
        self._name = _cache_folders.name_kernel(function)

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
        if (result := self._load(name, context)) is not None:
            return result
        _announce()
        pause, deadline = 0.01, time.monotonic() + _LONGEST_WAIT
        while not _claim(name) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
            if (result := self._load(name, context)) is not None:
                return result
        if (result := self._load(name, context)) is not None:
            release(name)
        return result

    def _load(self, name: str, context: Any) -> Any:
        """Return the result of an earlier compilation in a file, or None."""
        for folder in _cache_folders.folders():
            if (content := _read(folder, name)) is not None:
                rtsys.initialize(context)
                # A file that another version of a library cannot load is recompiled.
                with suppress(Exception):
                    return CompileResult._rebuild(context, *pickle.loads(content))
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write the result of a compilation, if possible."""
        name = self._file(signature, result.target_context)
        if not result.library.has_dynamic_globals:
            content = dumps(result._reduce())
            for folder in _cache_folders.folders():
                with suppress(OSError):
                    _write(folder, name, content)
                    break
        release(name)
