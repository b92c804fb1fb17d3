"""Create-only names: give a finished file its final name unless that exists, on any file system.

In order of preference: a rename that fails for an existing name, a hard link, and a claim. A claim
is a file that is created exclusively under the final name, contains the name of the finished file,
and is then replaced by it. Other writers complete a claim that they find, so a killed writer blocks
none. A call may report an error after its work was done, such as a retried NFS request: the inode
under the final name decides.
"""

import ctypes
import errno
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from zindex.errors import StoreError

#: Prefix of a claim, followed by the name of the finished file.
CLAIM = b"zindex claim "
# Errors of renameat2(2) and link(2) in file systems without them.
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.EMLINK)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", lambda *names: -1)
#: Flags to create a new file.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Wait for the content of a claim that was just created.
_NUM_WAITS, _PAUSE = 20, 0.05
#: Whether mounts, by their device numbers, create files exclusively.
_exclusive: dict[int, bool] = {}


def partial_path(path: str | os.PathLike[str]) -> str:
    """Return a new temporary name next to a path, for a file that is renamed when complete."""
    return f"{os.fspath(path)}.{uuid4().hex[:12]}.partial"


def open_descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file; retry if a network file system returns a stale handle of a replaced file."""
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return os.open(path, flags | os.O_CLOEXEC)


def publish(partial: str, path: Path, status: os.stat_result) -> bool:
    """Give a finished file its final name; return False if that exists.

    Parameters
    ----------
    partial
        The temporary name, which is gone afterwards.
    path
        The final name.
    status
        Of the finished file.

    Raises
    ------
    StoreError
        If the file system cannot create a file exclusively.
    """
    for move in (_rename_new, os.link, _claim):
        try:
            move(partial, path)
        except OSError as error:
            if error.errno in _UNSUPPORTED and move is not _claim:
                continue
            is_new = has_inode(path, status)
            if not (is_new or isinstance(error, FileExistsError)):
                raise
        else:
            is_new = move is not _claim or has_inode(path, status)
        if move is os.link or not is_new:
            with suppress(OSError):  # a second name does no harm
                os.unlink(partial)
        break
    return is_new


def exchange(partial: str, path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Replace a file by a finished one with this status.

    Raises
    ------
    StoreError
        If it is unknown whether that was done before another writer replaced the file again.
    """
    try:
        os.replace(partial, path)
    except OSError as error:
        if has_inode(path, status):
            return
        if isinstance(error, FileNotFoundError) and os.path.lexists(path):
            raise StoreError(
                f"{path} must have one writer at a time, another one has replaced it; run again"
            ) from error
        raise


def has_inode(path: str | os.PathLike[str], status: os.stat_result) -> bool:
    """Return whether a name leads to the file of this status."""
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), status)
    return False


def _rename_new(partial: str, path: Path) -> None:
    """Rename a file with one call that fails for an existing name; most local disks can."""
    ctypes.set_errno(errno.ENOSYS)
    names = os.fsencode(partial), os.fsencode(path)
    if _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))


def _claim(partial: str, path: Path) -> None:
    """Claim the final name by exclusive creation and replace the claim by the file."""
    _check_exclusive(path.parent)
    while True:
        try:
            descriptor = os.open(path, NEW_FILE, 0o666)
            break
        except FileExistsError:
            if complete(path):
                raise
    try:
        try:
            os.write(descriptor, CLAIM + os.fsencode(os.path.basename(partial)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except OSError:
        with suppress(FileNotFoundError):  # another writer has completed the claim
            os.unlink(partial)
            os.unlink(path)  # only its creator may: anyone can take a free name
            raise


def complete(path: Path) -> bool:
    """Finish a file that is a claim; return False if its name has become free.

    Raises
    ------
    StoreError
        If its writer died before it wrote which file it claimed the name for.
    """
    for _ in range(_NUM_WAITS):
        try:
            with open(path, "rb", opener=open_descriptor) as file:
                content = file.read(4096)
            if not CLAIM.startswith(content[: len(CLAIM)]):
                return True
            name = os.fsdecode(content[len(CLAIM) :])
            if re.fullmatch(re.escape(path.name) + r"\.[0-9a-f]{12}\.partial", name):
                with suppress(FileNotFoundError):
                    os.replace(path.with_name(name), path)
                    return True
        except FileNotFoundError:
            return False
        time.sleep(_PAUSE)  # its creator is still running, or died between two calls
    raise StoreError(
        f"{path} must be a whole file, it is the claim of a writer that died; remove it and run "
        "again"
    )


def _check_exclusive(folder: Path) -> None:
    """Reject a file system without exclusive creation; each mount is probed once."""
    device = os.stat(folder).st_dev
    if device not in _exclusive:
        probe, num_created = partial_path(folder / "probe"), 0
        try:
            for _ in range(2):
                os.close(os.open(probe, NEW_FILE, 0o666))
                num_created += 1
        except OSError as error:
            if error.errno not in (errno.EEXIST, *_UNSUPPORTED):
                raise
        finally:
            with suppress(OSError):
                os.unlink(probe)
        _exclusive[device] = num_created == 1
    if not _exclusive[device]:
        raise StoreError(
            f"the file system of {folder} must refuse to create a file that exists, by renameat2, "
            "link or O_EXCL, it has none of these, and two writers could mix their files; choose "
            "another place"
        )
