"""A local copy of a file that a thread makes; what has been written can be read already."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Reads bytes ``[start, stop)`` of the content of the file.
Read = Callable[[int, int], bytes | memoryview]


class GrowingCopy:
    """A copy that is made when it is first needed.

    Parameters
    ----------
    path
        The copy, which has this name when it is complete.
    make
        Makes it, unless another process has, and reports what it writes by `begin` and `advance`.
    submit
        Runs a function in a thread.
    read
        Reads the file itself; None if that is not possible.
    begin_others
        Begins other copies that are needed soon.
    """

    def __init__(
        self,
        path: "Path",
        make: Callable[["GrowingCopy"], Any],
        submit: Callable[[Callable[[], None]], Any],
        read: Read | None,
        begin_others: Callable[[], None],
    ) -> None:
        self.path, self._make, self._submit = path, make, submit
        self._read, self._begin_others = read, begin_others
        self.is_done = False
        self._reset()

    def _reset(self) -> None:
        """Begin again, as in a forked child, in which the thread does not run."""
        self._process, self._changed = os.getpid(), threading.Condition()
        self._is_started = False
        self._error: BaseException | None = None
        self._partial: str | None = None
        self._num_written = 0

    def start(self) -> None:
        """Start the thread, unless it was started."""
        if self._process != os.getpid() and not self.is_done:
            self._reset()
        with self._changed:
            if self._is_started:
                return
            self._is_started = True
        self._submit(self._run)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._make(self)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._error, self.is_done = error, error is None
            self._changed.notify_all()

    def begin(self, partial: str) -> None:
        """Note the name of the file while it grows."""
        with self._changed:
            self._partial = partial
            self._changed.notify_all()

    def advance(self, num_written: int) -> None:
        """Note how many of its bytes can be read."""
        with self._changed:
            self._num_written = num_written
            self._changed.notify_all()

    def wait_for(self, stop: int) -> None:
        """Wait until bytes before an offset are written, or all are; start the thread if needed.

        Raises the errors of making the copy.
        """
        if self.is_done:
            return
        self.start()
        with self._changed:
            while not self.is_done and self._num_written < stop:
                if self._error is not None:
                    raise self._error
                self._changed.wait()

    def open(self) -> int:
        """Return a descriptor of the copy, which may be incomplete.

        Raises the errors of making the copy.
        """
        while not self.is_done:
            self.start()
            with self._changed:
                while not self.is_done and self._partial is None:
                    if self._error is not None:
                        raise self._error
                    self._changed.wait()
                partial = self._partial
            try:
                return os.open(str(partial), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # it is complete, or has failed
                self.wait_for(1 << 62)
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_awaited(self) -> bool:
        """Whether the next read starts the thread, and is of the file itself if possible."""
        return not self._is_started and self._process == os.getpid()

    def read_first(self, offset: int, view: memoryview) -> bool:
        """Read content from the file itself if nothing is copied yet, and begin to copy it.

        So the first read waits for a single request. Later ones wait for the copy.
        """
        if self._read is None or not self.is_awaited:
            return False
        view[:] = self._read(offset, offset + len(view))
        self.start()
        self._begin_others()
        return True
