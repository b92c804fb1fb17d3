"""A build in a background thread of its process."""

import atexit
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Generic, TypeVar, cast

from zindex.execution.timeline import Timeline

R = TypeVar("R")


def before_exit(function: Callable[[], None]) -> None:
    """Register an exit hook that runs while thread pools still accept work.

    Functions of ``atexit`` run after the pools are shut down.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


class BackgroundBuild(Generic[R]):
    """A build in a daemon thread: it ends with its process, which keeps finished shards.

    Parameters
    ----------
    build
        Called in the thread, with a copy of the caller's context; None if there is nothing to
        build.
    name
        Name of the thread.
    """

    def __init__(self, build: Callable[[], R] | None, name: str) -> None:
        #: Has the tasks of the build and the blocks of `span`.
        self.timeline = Timeline()
        self._result: R | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if build is not None:
            self._thread = threading.Thread(
                target=copy_context().run, args=(self._run, build), name=name, daemon=True
            )
            self._thread.start()

    def _run(self, build: Callable[[], R]) -> None:
        try:
            self._result = build()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether the build has finished or failed."""
        return self._thread is None or not self._thread.is_alive()

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the duration of a block in the timeline, next to the tasks."""
        return self.timeline.span(name)

    def join(self) -> None:
        """Wait until the build has finished or failed."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> R:
        """Wait for the build and return its result; None if there was no build.

        Raises
        ------
        ZindexError
            The error of the build.
        """
        if self._thread is not None:
            with self.timeline.span("wait-for-build"):
                self._thread.join()
        self._raise_error()
        return cast("R", self._result)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
