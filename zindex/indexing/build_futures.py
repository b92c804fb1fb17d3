"""Futures of the stores of a running build: one per split and dataset, and one per blend."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from zindex.config import RunConfig
from zindex.indexing.run_plan import BLEND_LABEL, ResultKey, label_paths
from zindex.indexing.store_build import BuildResult
from zindex.io.objects import Place
from zindex.plan.split import SPLIT_NAMES


class BuildFuture(Future[BuildResult | None]):
    """The build of one store: a ``concurrent.futures.Future`` that can also be awaited.

    The result is None if the run needs no such store. ``cancel()`` also stops a running build and
    keeps its finished shards. Callbacks run in the thread of the builds and block it.
    """

    def __await__(self) -> Generator[Any, None, BuildResult | None]:
        # Shielded: a timeout of one waiter does not cancel the build.
        return asyncio.shield(asyncio.wrap_future(self)).__await__()


class BuildFutures:
    """All futures of a run, each set as soon as its store is committed.

    Parameters
    ----------
    config
        The run. It has a future for every dataset and blend of each split; which of them need a
        store is known once the datasets are open.
    """

    def __init__(self, config: RunConfig) -> None:
        labels = label_paths([dataset.path for dataset in config.members])
        named: list[tuple[str | None, str]] = [*labels.items()]
        if config.blend_kind is not None:
            named.append((None, BLEND_LABEL))
        self._keys: dict[ResultKey, BuildFuture] = {}
        self._roots: dict[Place, list[ResultKey]] = {}
        #: By split, and by name of the dataset; ``"blend"``.
        self.by_split: dict[str, dict[str, BuildFuture]] = {}
        for split in SPLIT_NAMES:
            for path, label in named:
                future = self._keys[path, split] = BuildFuture()
                # Required for `concurrent.futures.wait` and `as_completed` to notice it.
                future.add_done_callback(_notify_if_cancelled)
                self.by_split.setdefault(split, {})[label] = future

    def bind(self, key: ResultKey, root: Place) -> None:
        """Assign a store to a future; datasets of equal lengths share one."""
        keys = self._roots.setdefault(root, [])
        if key not in keys:
            keys.append(key)

    def finish(self, root: Place, result: BuildResult) -> None:
        """Set the result of a committed store."""
        for key in self._roots[root]:
            _settle(self._keys[key], result)

    def skip_others(self, keys: Iterable[ResultKey]) -> None:
        """Set the result of all futures that need no store."""
        for key in self._keys.keys() - set(keys):
            _settle(self._keys[key], None)

    def fail(self, error: BaseException) -> None:
        """Set the error of the run on all pending futures."""
        for future in self._keys.values():
            _settle(future, None, error)

    def is_cancelled(self, root: Place) -> bool:
        """Return whether every future of a store is cancelled."""
        keys = self._roots[root]
        return all(self._keys[key].cancelled() for key in keys)

    def on_cancel(self, roots: Iterable[Place], cancel: Callable[[], object]) -> None:
        """Call back once the futures of all these stores are cancelled, possibly immediately."""
        wanted = list(roots)

        def check(_: object) -> None:
            if all(map(self.is_cancelled, wanted)):
                cancel()

        for root in wanted:
            for key in self._roots[root]:
                self._keys[key].add_done_callback(check)

    def cancel(self) -> None:
        """Cancel all pending futures."""
        for future in self._keys.values():
            future.cancel()

    def check(self) -> None:
        """Raise a ``concurrent.futures.CancelledError`` if any future is cancelled."""
        names = [
            f"{split}/{name}"
            for split, row in self.by_split.items()
            for name, future in row.items()
            if future.cancelled()
        ]
        if names:
            raise CancelledError(
                f"the build of {', '.join(names)} was cancelled; its finished shards stay"
            )


def _notify_if_cancelled(future: Future[Any]) -> None:
    if future.cancelled():
        future.set_running_or_notify_cancel()


def _settle(
    future: BuildFuture, result: BuildResult | None, error: BaseException | None = None
) -> None:
    """Set the outcome of a future unless it has one; it may be cancelled concurrently."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
