"""A run that rank 0 builds in the background, with futures of its stores on all ranks."""

from collections.abc import Callable, Mapping
from typing import Any

from zindex.config import RunConfig
from zindex.execution.progress import open_progress
from zindex.indexing.background_build import BackgroundBuild
from zindex.indexing.build_futures import BuildFuture, BuildFutures
from zindex.indexing.coordination import Rank
from zindex.indexing.run import Run
from zindex.indexing.run_plan import ResultKey
from zindex.indexing.store_build import BuildResult

Results = dict[ResultKey, BuildResult]


class RunBuild(BackgroundBuild[Results]):
    """The build of a run, as seen by one of its ranks.

    Rank 0 builds. The other ranks poll for the commits, and take over if the builder dies: builds
    are idempotent.

    Parameters
    ----------
    config
        The run.
    rank
        This process among those that start the build.
    client
        Returns where tasks run, as of `zindex.build`; called only if there is something to build.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: Rank,
        client: Callable[[], Any] = lambda: None,
        *,
        progress: bool = False,
    ) -> None:
        self._futures = BuildFutures(config)

        def run() -> Results:
            try:
                with open_progress(progress) as shown:
                    run = Run(config, shown, self.timeline, self._futures)
                    if rank.number:
                        run.wait_for_others(rank)
                    return run.build(client)
            except BaseException as error:
                self._futures.fail(error)
                raise

        super().__init__(run, "zindex-run")

    @property
    def futures(self) -> Mapping[str, Mapping[str, BuildFuture]]:
        """By split, and by name of the dataset or ``"blend"``: the build of each store."""
        return self._futures.by_split

    @property
    def is_done(self) -> bool:
        """Whether everything is committed; equal on all ranks.

        Raises
        ------
        CancelledError
            If a build was cancelled.
        ZindexError
            If the build failed.
        """
        is_done = super().is_done
        if is_done:
            self._raise_error()
        return is_done

    def cancel(self) -> None:
        """Cancel this process's builds, or its wait; finished shards and stores are kept."""
        self._futures.cancel()
