"""Shards of an imported store, from its files: those are imported again."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt

from zindex.building.executor import SerialExecutor
from zindex.building.records.import_records import import_records
from zindex.building.records.record_files import open_files
from zindex.errors import ConfigError, FingerprintMismatchError, StoreError
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import SampleFiles
from zindex.sources.token_lines import TokenLines
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store, open_store
from zindex.store.verify import ShardId


class RemadeRecords:
    """A store of records, from its files.

    All of them are imported to a temporary folder, which takes as much room as the store, twice:
    where the values of a damaged shard stand in the files, only an import finds out.

    Parameters
    ----------
    plan
        The store.
    source
        The files or folders, as text; see `import_records`. Or another store of the same records,
        as where texts were tokenised again.
    """

    def __init__(self, plan: StorePlan, source: object) -> None:
        self.plan = plan
        self._source = source
        self._folder: TemporaryDirectory[str] | None = None
        self._made: Store | None = None

    @property
    def _store(self) -> Store:
        """The files, imported again; an error if they are not what they were."""
        if self._made is not None:
            return self._made
        self._made = self._find_copy()
        if self._made is not None:
            return self._made
        identity = self.plan.spec["import"]
        lines = identity.get("token_lines")
        if "tokenizer" in identity:
            raise ConfigError(
                f"{self.plan.root} was made of texts by a tokenizer; tokenise the same texts with "
                "the same settings at another place, which gives the same store, and name that: "
                "give --source OTHER_STORE"
            )
        if not isinstance(self._source, str) or (identity["kind"] is None and lines is None):
            raise ConfigError(
                f"{self.plan.root} was imported from files, which must be named to repair it; give "
                "--source PATH, or import them again at another place"
            )
        self._folder = TemporaryDirectory(prefix="zindex-repair-")
        on_damage: OnDamage = "skip" if identity["skip_damaged"] else "error"
        source: str | SampleFiles = self._source
        if lines is not None:
            files, found = open_files(source, "jsonl", on_damage=on_damage)
            dtypes = {key: lines["dtypes"][key] for key in lines["keys"]}
            source = TokenLines(
                files, found["source"], dtypes, lines["groups"], on_damage=on_damage
            )
        made = import_records(
            source,
            f"{self._folder.name}/records.zarr",
            kind=identity["kind"],
            fields=identity["fields"],
            dtypes=identity["dtypes"],
            meta_names=identity["meta_names"],
            on_damage=on_damage,
            client=SerialExecutor(),
        )
        if made.fingerprint != self.plan.fingerprint:
            raise FingerprintMismatchError(
                f"{self._source} must be what {self.plan.root} was imported from, it gives "
                f"fingerprint {made.fingerprint[:16]} and not {self.plan.fingerprint[:16]}; name "
                "the right source"
            )
        self._made = made
        return made

    def _find_copy(self) -> Store | None:
        """Return the source if it is a store of the same records, or None."""
        if not isinstance(self._source, str):
            return None
        try:
            found = open_store(self._source)
        except StoreError:  # it is files, then
            return None
        return found if found.fingerprint == self.plan.fingerprint else None

    def make(self, shards: set[ShardId]) -> Iterator[tuple[ArrayLayout, int, npt.NDArray[Any]]]:
        """Give layout, number and values of each shard."""
        for layout in self.plan.layouts:
            for shard in range(layout.num_shards):
                if (layout.name, shard) in shards:
                    rows = layout.shard_bounds(shard)
                    yield layout, shard, self._store[layout.name].read(*rows)

    def facts(self) -> dict[str, Any]:
        """Return what was left out, and the folder of the files."""
        attributes = self._store.attributes
        return {name: attributes[name] for name in ("num_skipped", "url_prefix")}

    def close(self) -> None:
        """Remove what was imported."""
        if self._folder is not None:
            self._folder.cleanup()
