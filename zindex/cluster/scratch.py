"""Directories of one machine for what a cluster writes: removed with it, or by the next one."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "zindex-node-"
_LOCK = "lock"


@contextmanager
def open_scratch(place: Path) -> Iterator[Path]:
    """Give a private directory; those that killed nodes of this user left are removed."""
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    # The system lets go of the lock when this process ends, however it does. Python's files are
    # closed in children: they do not hold it.
    with (folder / f"{_LOCK}.new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # nobody finds it unlocked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove the directories of nodes that are gone; they may hold the key of their run."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def numba_cache(place: Path) -> Path:
    """Return a directory of compiled kernels that outlives the job, if it is safe to use.

    Compiled code is run: a directory that another user could write to is never taken.
    """
    folder = place / f"zindex-numba-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and folder.is_dir():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="zindex-numba-", dir=place))
