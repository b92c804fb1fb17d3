"""Shards of a store of keyed tokens, from the h5 or bin files that it was converted from."""

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from zindex.building.executor import SerialExecutor, run_builds
from zindex.building.keyed.convert_keyed import SourceReader, plan_keyed, read_source
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout
from zindex.store.local import local_path
from zindex.store.records import BYTE_GRID
from zindex.store.verify import ShardId


class RemadeKeyed:
    """A store of keyed tokens, from its files.

    Parameters
    ----------
    plan
        The store.
    source
        The folder or file, as text; see `convert_keyed`.
    """

    def __init__(self, plan: StorePlan, source: object) -> None:
        self.plan = plan
        self._source = source
        self._opened: tuple[SourceReader, str] | None = None

    def _open(self) -> tuple[SourceReader, str]:
        """Return the files, after checking that they are the ones, and their folder."""
        if self._opened is None:
            if not isinstance(self._source, str):
                raise ConfigError(
                    f"{self.plan.root} was converted from keyed files, which must be named to "
                    "repair it; give --source PATH"
                )
            path = str(local_path(self._source, "a folder of keyed files"))
            kind = self.plan.spec["convert"]["storage_type"]
            source, folder = read_source(path, kind, strict=False)
            made = run_builds(plan_keyed(source, self.plan.root, kind, BYTE_GRID, SerialExecutor()))
            if made.fingerprint != self.plan.fingerprint:
                raise FingerprintMismatchError(
                    f"{path} must be what {self.plan.root} was converted from, it gives "
                    f"fingerprint {made.fingerprint[:16]} and not {self.plan.fingerprint[:16]}; "
                    "name the right source"
                )
            self._opened = SourceReader(source), folder
        return self._opened

    def make(self, shards: set[ShardId]) -> Iterator[tuple[ArrayLayout, int, npt.NDArray[Any]]]:
        """Read the rows of each shard."""
        for layout in self.plan.layouts:
            for shard in range(layout.num_shards):
                if (layout.name, shard) in shards:
                    rows = self._open()[0].read(layout.name, *layout.shard_bounds(shard))
                    yield layout, shard, rows

    def facts(self) -> dict[str, Any]:
        """Return the folder of the files."""
        return {"num_skipped": 0, "url_prefix": self._open()[1]}

    def close(self) -> None:
        """Nothing is kept."""
