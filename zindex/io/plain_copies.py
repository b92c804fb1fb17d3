"""Copies of compressed and remote files on this node, decompressed, to be read at any offset.

Files that have frames are not copied: frames are kept when they are first read.

The processes of a node share copies: the one that locks a copy first makes it, while others make
other ones or wait for it. Copies that no process uses are removed to make room for others.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from zindex.cache_folders import private_folders
from zindex.errors import StoreUnwritableError
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import read_chunks, read_stored
from zindex.io.file_list import SourceFile
from zindex.io.frame_cache import FREE_NBYTES, STEP_NBYTES, FrameCache, boot_id
from zindex.io.growing_copy import GrowingCopy
from zindex.io.local import free_nbytes, replacing
from zindex.io.object_calls import is_usable
from zindex.io.request_threads import ForkSafePool
from zindex.io.system_errors import unwritable

logger = logging.getLogger(__name__)

# Of the content of copies.
_VERSION = 1
# Expected bytes of a copy for each stored byte.
_EXPANSION = 4
# Copies that no process uses are kept up to this share of a file system.
_KEPT_SHARE = 0.1
_LOCK = "in-use"
_NUM_THREADS = 8


@dataclass(frozen=True)
class Damage:
    """Damage of a compressed file that was found when it was copied."""

    reason: str
    #: In bytes of the decompressed content.
    offset: int
    #: Whether the copy ends there.
    is_end: bool

    def to_error(self) -> DamageError:
        """Return the damage as an error."""
        return DamageError(self.reason, self.offset)


class PlainCopies:
    """Copies of some files, which are kept as long as this object exists.

    Parameters
    ----------
    files
        Files with known sizes and, in object stores, versions.
    whole_lines
        Whether copies of damaged files end after their last whole line.

    Raises
    ------
    StoreUnwritableError
        If there is no folder for copies that only its user can write to.
    """

    def __init__(self, files: Sequence[SourceFile], *, whole_lines: bool) -> None:
        self._whole_lines = whole_lines
        self._growing: WeakSet[GrowingCopy] = WeakSet()
        self._is_begun = False
        self._threads = ForkSafePool(_NUM_THREADS, "zindex-copies")
        # Sources that share a folder share its copies; a source that grows keeps them.
        parents = sorted({str(file.place.parent) for file in files})
        key = digest_facts(parents, whole_lines, _VERSION)
        nbytes = sum({file.place: _needed(file) for file in files}.values())
        folders = private_folders("copies")[::-1]  # the temporary folder is local, homes may not be
        if not folders:
            raise StoreUnwritableError(
                "copies of compressed and remote files need a folder that only its user can write "
                "to, below TMPDIR or XDG_CACHE_HOME; set one of them, or prepare_nbytes=0 to read "
                "files in their order"
            )
        base = max(folders, key=lambda one: ((one / key).is_dir(), free_nbytes(one) >= nbytes))
        self.folder = base / key
        self._held = _hold(self.folder)
        missing = {file.place: file for file in files if not self._record(file).exists()}
        self.num_missing = sum(file.frames is None for file in missing.values())
        if missing:
            _make_room(base, sum(map(_needed, missing.values())))

    def __del__(self) -> None:
        if held := getattr(self, "_held", None):
            held.close()

    def open(self, file: SourceFile) -> tuple[SourceFile, list[Damage]]:
        """Return a file with its copy, and the damage of its content.

        A missing copy is made. That of a file that is not compressed is made by a thread, once it
        is read: its errors are raised then.

        Raises
        ------
        SourceError
            If the file has changed since it was listed.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If it cannot be read.
        StoreUnwritableError
            If there is no room for its copy.
        """
        record = self._record(file)
        path = record.with_suffix(".content")
        if file.frames is not None:
            if not boot_id():  # whether frames are whole would not be known
                return file, []
            with contextlib.suppress(OSError):  # without a cache, frames are decompressed again
                num_frames = len(file.frames.table) - 1
                file.frames.cache = FrameCache(record, num_frames, file.frames.nbytes)
            return file, []
        found, growing = _read_record(record, path), None
        if found is None and file.compression is None:
            growing = self._grow(file, path, record)
            found = file.nbytes or 0, list[Damage]()
        elif found is None:
            found = self._make(file, path, record)
        nbytes, damages = found
        plain = replace(
            file, nbytes=nbytes, full_nbytes=None, compression=None, copy=path, growing=growing
        )
        return plain, damages

    def _grow(self, file: SourceFile, path: Path, record: Path) -> GrowingCopy:
        """Return the copy of a file, which a thread makes."""

        def begin_all() -> None:
            for one in list(self._growing):
                one.start()

        growing = GrowingCopy(
            path,
            lambda one: self._make(file, path, record, one),
            self._submit,
            (lambda start, stop: read_stored(file, start, stop)) if is_usable() else None,
            begin_all,
        )
        self._growing.add(growing)
        return growing

    @property
    def is_begun(self) -> bool:
        """Whether copies are made, or none is needed."""
        self._is_begun = self._is_begun or not any(one.is_awaited for one in list(self._growing))
        return self._is_begun

    def _submit(self, function: Callable[[], None]) -> None:
        self._threads.get().submit(function)

    def _record(self, file: SourceFile) -> Path:
        """Return the file that has the size and the damage of a copy, or the frames of a file."""
        facts: tuple[object, ...] = (str(file.place), file.nbytes, file.version)
        if isinstance(file.place, Path):
            with contextlib.suppress(OSError):  # then reading the file raises, too
                facts = os.path.realpath(file.place), file.nbytes, file.place.stat().st_mtime_ns
        if file.frames is not None:
            return self.folder / f"{digest_facts(facts, boot_id())}.cache"
        return self.folder / f"{digest_facts(facts, file.compression, boot_id())}.json"

    def _make(
        self, file: SourceFile, path: Path, record: Path, growing: GrowingCopy | None = None
    ) -> tuple[int, list[Damage]]:
        """Copy a file, unless another process has."""
        with locked(record.with_suffix(".lock")):
            return _read_record(record, path) or self._write(file, path, record, growing)

    def _write(
        self, file: SourceFile, path: Path, record: Path, growing: GrowingCopy | None
    ) -> tuple[int, list[Damage]]:
        # The names of copies have the boot, which only synced files survive.
        durable = not boot_id()
        damages: list[Damage] = []

        def note(damage: DamageError) -> None:
            damages.append(Damage(damage.reason, damage.offset, is_end=False))

        for left in path.parent.glob(f"{path.name}.*.partial"):
            left.unlink(missing_ok=True)  # of a killed process
        nbytes = last = checked = 0
        try:
            with replacing(path, durable=durable) as partial, open(partial, "xb") as stream:
                if growing is not None:
                    growing.begin(partial)
                try:
                    with contextlib.closing(read_chunks(file, note)) as chunks:
                        for chunk in chunks:
                            stream.write(chunk)
                            if place := chunk.rfind(b"\n") + 1:
                                last = nbytes + place
                            nbytes += len(chunk)
                            if growing is not None:
                                stream.flush()
                                growing.advance(nbytes)
                            if nbytes - checked > STEP_NBYTES:
                                checked = nbytes
                                _check_free(path)
                except DamageError as damage:
                    damages.append(Damage(damage.reason, damage.offset, is_end=True))
                    nbytes = last if self._whole_lines else nbytes
                    stream.truncate(nbytes)
            facts = [[one.reason, one.offset, one.is_end] for one in damages]
            with replacing(record, durable=durable) as partial:
                Path(partial).write_text(json.dumps({"nbytes": nbytes, "damages": facts}))
            if nbytes > _needed(file):
                _make_room(self.folder.parent, 0)
        except StoreUnwritableError as error:
            raise StoreUnwritableError(
                f"{error}; this is a copy of {file.url}, so set TMPDIR to a folder with more room, "
                "or prepare_nbytes=0 to read files in their order",
                error.errno,
                error.strerror,
            ) from error
        return nbytes, damages


def _needed(file: SourceFile) -> int:
    """Return the bytes that the copy of a file, or all its frames, may need."""
    nbytes = file.nbytes or 0
    is_plain = file.frames is not None or file.compression is None
    return nbytes if is_plain else _EXPANSION * nbytes


def _check_free(path: Path) -> None:
    """Raise StoreUnwritableError if a file system is almost full."""
    free = free_nbytes(path.parent)
    if free < FREE_NBYTES:
        error = OSError(errno.ENOSPC, f"only {free:,} bytes would be left for other programs")
        raise unwritable(str(path), error)


def digest_facts(*facts: object) -> str:
    """Return a file name for what determines the content of a file in a cache."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _read_record(record: Path, path: Path) -> tuple[int, list[Damage]] | None:
    """Return the size and the damage of a copy; None if there is none."""
    try:
        found = json.loads(record.read_text())
        nbytes, damages = found["nbytes"], [Damage(*one) for one in found["damages"]]
        return (nbytes, damages) if path.stat().st_size == nbytes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one process or thread has at a time; none without locks of the system."""
    with open(path, "a") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:  # a child that was forked meanwhile has the descriptor, too
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_UN)


def _hold(folder: Path) -> TextIO:
    """Create a folder, and return an open file that keeps it from removal."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            stream = open(folder / _LOCK, "a")  # noqa: SIM115
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_SH)
            if os.path.exists(folder / _LOCK) and os.path.samestat(
                os.fstat(stream.fileno()), os.stat(folder / _LOCK)
            ):
                os.utime(folder / _LOCK)
                return stream
            stream.close()


_removing = threading.Lock()


def _make_room(base: Path, needed: int) -> None:
    """Remove unused copies, the ones used longest ago first, until others have room."""
    status = os.statvfs(base)
    limit = int(status.f_blocks * status.f_frsize * _KEPT_SHARE)
    with _removing, contextlib.suppress(OSError):
        times: dict[Path, float] = {}
        for folder in base.iterdir():
            with contextlib.suppress(OSError):
                times[folder] = os.stat(folder / _LOCK).st_mtime
        sizes = {folder: _nbytes_of(folder) for folder in times}
        for folder in sorted(times, key=times.__getitem__):
            if sum(sizes.values()) + needed <= limit and free_nbytes(base) >= needed:
                break
            if _remove_unused(folder):
                logger.info("copies of files in %s, which no process uses, are removed", folder)
                del sizes[folder]


def _nbytes_of(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries)


def _remove_unused(folder: Path) -> bool:
    """Remove a folder of copies unless a process uses it; return whether."""
    with contextlib.suppress(OSError), open(folder / _LOCK, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
        return True
    return False
