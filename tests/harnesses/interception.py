"""Calls of the file system in several clients of one process: scheduled, refused, or with faults.

The functions of `os` that the package uses are replaced. A client is a context variable, so that it
follows the work into the threads of asyncio; other calls of the process pass.
"""

import builtins
import contextvars
import errno
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.killing import Killed
from zindex.io import local

try:
    from zindex.io import create_only
except ImportError:  # an earlier version, in which the harnesses must find what was wrong
    create_only = local  # type: ignore[misc]

CLIENT: contextvars.ContextVar[int | None] = contextvars.ContextVar("client", default=None)
#: Functions of `os` whose first argument is a path, or a descriptor.
NAMES = (
    *("open", "link", "rename", "replace", "unlink", "stat", "lstat", "mkdir", "rmdir", "listdir"),
    *("scandir", "fsync", "writev", "pwrite", "write"),
)
_MAKES_NAMES = ("link", "rename", "replace", "renameat2", "mkdir")
#: Seconds for which a client may remember that a name was missing.
_REMEMBERED = 60.0
#: Seconds after which a client is taken to wait for a lock.
_PATIENCE = 0.2


@contextmanager
def intercepted(around: Callable[..., Any], root: str) -> Iterator[None]:
    """Have ``around(name, call, *args, **settings)`` called in place of each call of a client.

    Calls for paths outside of ``root`` pass.
    """

    def replace(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*args: Any, **settings: Any) -> Any:
            is_path = isinstance(args[0], str | os.PathLike)
            passes = is_path and not os.fspath(args[0]).startswith(root)
            if CLIENT.get() is None or passes or "opener" in settings:  # which makes a call itself
                return call(*args, **settings)
            return around(name, partial(_call, call, *args, **settings), *args, **settings)

        return replaced

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setattr(os, name, replace(name, getattr(os, name)))
        opened = replace("open_file", builtins.open)
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        patch.setattr(create_only, "_rename_new", replace("renameat2", create_only._rename_new))
        patch.setattr(create_only, "time", _Sleep(around), raising=False)
        yield


def _call(call: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call what may make calls itself, which pass."""
    token = CLIENT.set(None)
    try:
        return call(*args, **settings)
    finally:
        CLIENT.reset(token)


class _Sleep:
    """Stands for the module `time`."""

    def __init__(self, around: Callable[..., Any]) -> None:
        self.sleep = lambda seconds: around("sleep", lambda: None, seconds)


class FileSystem:
    """A file system as a network or an object store gives it to several clients.

    Parameters
    ----------
    rng
        Draws the faults.
    refused
        Calls that it does not have: ``"renameat2"``, ``"link"``.
    lost
        Probability that a call that gives a name is done and then reports an error.
    stale
        Probability that a client fails to open a file with ESTALE, once.
    remembers
        Whether each client remembers for up to 60 s of the clock that a name was missing.
    coarse
        Whether times have two seconds.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        refused: tuple[str, ...] = (),
        lost: float = 0.0,
        stale: float = 0.0,
        remembers: bool = False,
        coarse: bool = False,
    ) -> None:
        self.rng, self.refused, self.lost, self.stale = rng, refused, lost, stale
        self.remembers, self.coarse, self.now = remembers, coarse, 0.0
        self.missing: dict[tuple[int | None, str], float] = {}
        #: What has failed with ESTALE before.
        self.reopened: set[tuple[int | None, str]] = set()

    def call(self, name: str, call: Callable[[], Any], *args: Any, **settings: Any) -> Any:
        """Make a call with the faults of this file system."""
        self.now += self.rng.expovariate(1.0)
        if name in self.refused:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        path = args[-1] if name in _MAKES_NAMES and name != "mkdir" else args[0]
        key = CLIENT.get(), str(path)
        flags = args[1] if name == "open" and len(args) > 1 else 0
        mode = args[1] if name == "open_file" and len(args) > 1 else settings.get("mode", "r")
        looks = name in ("stat", "lstat") or (name == "open" and not flags & os.O_CREAT)
        looks = looks or (name == "open_file" and "r" in mode)
        if looks and self.remembers and self.missing.get(key, -1e9) > self.now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        reads = looks and name not in ("stat", "lstat") and key not in self.reopened
        if reads and self.stale and self.rng.random() < self.stale:
            self.reopened.add(key)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        try:
            found = call()
        except FileNotFoundError:
            if looks:
                self.missing[key] = self.now + self.rng.uniform(0, _REMEMBERED)
            raise
        finally:
            if not looks:
                self.missing.pop(key, None)
        if name in _MAKES_NAMES and self.rng.random() < self.lost:
            # What the server says to the repeated request.
            gone = name in ("rename", "replace")
            code = errno.ENOENT if gone else errno.EEXIST
            raise OSError(code, os.strerror(code), path)
        if self.coarse and name in ("stat", "lstat"):
            found = _coarse(found)
        return found


def _coarse(status: os.stat_result) -> os.stat_result:
    """Return a status whose times are multiples of two seconds."""
    second = int(status.st_mtime) // 2 * 2
    fields = [getattr(status, name) for name in ("st_mode", "st_ino", "st_dev", "st_nlink")]
    fields += [status.st_uid, status.st_gid, status.st_size, second, second, second]
    times = {f"st_{kind}time": float(second) for kind in "amc"}
    times |= {f"st_{kind}time_ns": second * 10**9 for kind in "amc"}
    return os.stat_result(fields, times)


class Scheduler:
    """Runs clients one call at a time, in an order that a seed draws.

    Parameters
    ----------
    rng
        Draws who makes the next call.
    file_system
        Makes the calls.
    root
        The folder whose calls are scheduled.
    dies
        For some clients the number of the call before which they are killed, from 0.
    """

    def __init__(
        self,
        rng: random.Random,
        file_system: FileSystem,
        root: str,
        dies: dict[int, int] | None = None,
    ) -> None:
        self.rng, self.file_system, self.root, self.dies = rng, file_system, root, dies or {}
        self.turn = threading.Condition()
        self.waiting: dict[int, list[object]] = {}
        self.chosen: object = None
        self.num_calls: dict[int, int] = {}

    def run(self, *works: Callable[[], Any]) -> list[Any]:
        """Run a work per client; return their results, or the errors that they raised."""
        results: list[Any] = [None] * len(works)
        self.ended = [False] * len(works)

        def client(number: int) -> None:
            CLIENT.set(number)
            try:
                self.around("begin", lambda: None)
                results[number] = works[number]()
            except* Killed:
                results[number] = Killed()
            except* Exception as errors:
                results[number] = errors.exceptions[0]
            with self.turn:
                self.ended[number] = True
                self.turn.notify_all()

        threads = [
            threading.Thread(target=client, args=[n], daemon=True) for n in range(len(works))
        ]
        with intercepted(self.around, self.root):
            for thread in threads:
                thread.start()
            self._choose()
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "the clients hang"
        return results

    def _choose(self) -> None:
        """Let one client after the other make its next call, when none makes one."""
        with self.turn:
            while not all(self.ended):
                # A client that makes no call waits for a lock of another one.
                self.turn.wait_for(
                    lambda: (
                        self.chosen is None
                        and all(self.waiting.get(n) or end for n, end in enumerate(self.ended))
                    ),
                    _PATIENCE,
                )
                clients = [n for n, tokens in sorted(self.waiting.items()) if tokens]
                if clients and self.chosen is None:
                    self.chosen = self.waiting[self.rng.choice(clients)].pop(0)
                    self.turn.notify_all()

    def around(self, name: str, call: Callable[[], Any], *args: Any, **settings: Any) -> Any:
        """Make a call when its turn comes."""
        number = CLIENT.get()
        assert number is not None
        token = object()
        with self.turn:
            self.waiting.setdefault(number, []).append(token)
            self.turn.notify_all()
            assert self.turn.wait_for(lambda: self.chosen is token, 60)
        try:
            made = self.num_calls[number] = self.num_calls.get(number, -1) + 1
            if made >= self.dies.get(number, made + 1):
                raise Killed
            return self.file_system.call(name, call, *(args or (0,)), **settings)
        finally:
            with self.turn:
                self.chosen = None
                self.turn.notify_all()
