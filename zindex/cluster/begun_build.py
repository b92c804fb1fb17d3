"""A build that is begun when a job starts, and runs while ranks make their model."""

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from zindex.building.timeline import Timeline

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from zindex.building.index_store import BuildResult
    from zindex.building.run import ResultKey
    from zindex.config import RunConfig


class BegunBuild:
    """A build behind its process; on ranks that build nothing it is done at once.

    Made by `Cluster.begin_build`.
    """

    def __init__(self) -> None:
        #: When each task ran, and each block of `span`.
        self.timeline = Timeline()
        self._thread: threading.Thread | None = None
        self._results: dict[ResultKey, BuildResult] | None = None
        self._error: BaseException | None = None

    def start(
        self,
        config: "RunConfig | Mapping[str, Any] | str | os.PathLike[str]",
        client: Any,
        *,
        progress: bool,
    ) -> None:
        """Begin to build with a client."""
        # Ranks that build nothing need not load what builds.
        from zindex.building.run import build

        def run() -> None:
            try:
                self._results = build(config, client, progress=progress, timeline=self.timeline)
            except BaseException as error:
                self._error = error

        # A daemon: a build must not outlive the job, and what it has finished stays.
        self._thread = threading.Thread(target=run, name="zindex-build", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._thread is None or not self._thread.is_alive()

    def span(self, name: str) -> AbstractContextManager[None]:
        """Show the time that a block takes in the timeline, beside the tasks."""
        return self.timeline.span(name)

    def wait(self) -> "dict[ResultKey, BuildResult] | None":
        """Wait for the end of the build, and return what `zindex.build` returns.

        Returns
        -------
        results
            None on ranks that build nothing: what they open, they wait for.

        Raises
        ------
        ZindexError
            What the build raised.
        """
        if self._thread is not None:
            with self.timeline.span("wait-for-build"):
                self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results
