"""Damaged files of committed stores, rebuilt by themselves; everything else stays as it is.

What is rebuilt must be what was committed, bit for bit, or it is not put in place.
"""

import logging
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from zindex.building.planning import PlannedBlend, PlannedIndex, PlannedPacking
from zindex.building.progress import open_progress
from zindex.building.repairs.named_stores import NamedStore, find_stores
from zindex.building.repairs.remake import RemadeStore, open_remade
from zindex.building.repairs.witness import check_witness
from zindex.building.source import LengthSource
from zindex.config import RunConfig
from zindex.errors import NotReadyError, SourceError, StoreError, VerificationError
from zindex.store import files
from zindex.store.check_shard import check_shard
from zindex.store.commit import (
    MANIFEST_KEY,
    PLAN_KEY,
    ROOT_KEY,
    StorePlan,
    commit_files,
    plan_file,
    read_status,
)
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import Place, PlaceLike
from zindex.store.open import open_reader
from zindex.store.reader import forget_open_shards
from zindex.store.shard import Receipt, encode_shard
from zindex.store.shard_files import replace_shard
from zindex.store.tokens import LINK
from zindex.store.verify import Inspection, ShardId, inspect_store

logger = logging.getLogger(__name__)

# What decides bytes beside this package.
_LIBRARIES = ("zindex", "numpy", "numba", "numcodecs")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair of one store did."""

    root: Place
    #: Keys of the files that were rebuilt, in the order in which they were put in place.
    rebuilt: tuple[str, ...]
    #: How many of them are shards.
    num_rebuilt: int
    num_shards: int
    #: False where a run names a store that is not committed: nothing was done for it.
    is_built: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "store": str(self.root),
            "is_built": self.is_built,
            "rebuilt": list(self.rebuilt),
            "num_rebuilt": self.num_rebuilt,
            "num_shards": self.num_shards,
        }


def repair(
    path: PlaceLike | RunConfig,
    *,
    source: str | None = None,
    progress: bool = False,
) -> list[RepairResult]:
    """Rebuild what is damaged of committed stores, and nothing else.

    Parameters
    ----------
    path
        A store, a directory of stores, or a run: its configuration or YAML file.
    source
        What a store was made from: the prefix of the ``.bin/.idx`` pair of a token store; the token
        store or prefix of an index; the h5 or bin files of keyed tokens; the files of a store of
        records, which are imported again to a temporary folder. A run names its own, and blends
        need none.
    progress
        Whether to show bars on a terminal, or log lines elsewhere, while stores are checked.

    Returns
    -------
    results
        One for each store.

    Raises
    ------
    StoreNotFoundError
        If there is no store.
    NotReadyError
        If the store is not committed: that is for a build.
    ConfigError
        If a source is needed and not given.
    SourceError
        If the ``.bin`` that a store links to is not what it was.
    FingerprintMismatchError
        If the source is not the one that the store was made from.
    VerificationError
        If too much is damaged, or what is rebuilt is not what was committed, or nothing that is
        left but plan.json says that it is.

    Notes
    -----
    Law: a repaired store holds the bytes of the commit; no file that was sound is written.
    """
    results = []
    with open_progress(progress) as shown:
        for named in find_stores(path):
            if named.item is not None and not _is_committed(named):
                results.append(RepairResult(named.root, (), 0, 0, is_built=False))
                continue
            with shown.step(named.root.name, named.num_shards) as advance:
                results.append(_Repair(named, source, advance).run())
    return results


def _is_committed(named: NamedStore) -> bool:
    """Return whether a run's store is there, whole or damaged."""
    return any(files.exists(named.root / key) for key in (ROOT_KEY, MANIFEST_KEY))


class _Repair:
    """The repair of one store."""

    def __init__(
        self, named: NamedStore, source: str | None, advance: Callable[[int], None]
    ) -> None:
        self.root = named.root
        self.item = named.item
        self.source: str | LengthSource | None = source
        if source is None and isinstance(named.item, PlannedIndex | PlannedPacking):
            self.source = named.item.source
        self.known = None
        # How large the arrays of a packed index are, only its own metadata tell.
        self.planned = None
        if named.folder is not None and named.item is not None:
            self.planned = named.item.store_plan(named.folder)
            if not isinstance(named.item, PlannedPacking):
                self.known = self.planned.to_json()
        self.advance = advance
        # Keys in the order in which they were put in place; one may be put twice.
        self.rebuilt_shards: dict[str, None] = {}
        self.rebuilt_metadata: list[str] = []
        self._remade: RemadeStore | None = None
        self._replaced = _Replaced()

    def run(self) -> RepairResult:
        """Find what is damaged, and rebuild it."""
        self.found = self._inspect()
        found = self.found
        num_shards = sum(layout.num_shards for layout in found.layouts)
        if found.damages:
            try:
                self._rebuild_all()
            except BaseException:
                self._replaced.put_back()
                raise
            finally:
                if self._remade is not None:
                    self._remade.close()
                self._replaced.close()
                self._forget()
            self._check_link()
        shards = tuple(self.rebuilt_shards)
        rebuilt = (*shards, *self.rebuilt_metadata)
        return RepairResult(self.root, rebuilt, len(shards), num_shards)

    def _inspect(self) -> Inspection:
        found = inspect_store(self.root, advance=self.advance)
        if not (found.has_root or self._is_planned(found)) and self.known is not None:
            found = inspect_store(self.root, self.known, advance=self.advance)
        if found.facts is None or not (found.has_root or self._is_planned(found)):
            raise VerificationError(
                f"{self.root} must have a sound zarr.json or plan.json to be repaired, both are "
                "damaged; name the run file that built it, or remove the store and build it again"
            )
        if not found.was_committed:
            status = read_status(self.root)
            raise NotReadyError(
                f"{self.root} must be committed to be repaired, {status.num_done} of "
                f"{status.num_shards} shards are finished; build it again, it goes on from there",
                num_done=status.num_done,
                num_shards=status.num_shards,
            )
        return found

    def _is_planned(self, found: Inspection) -> bool:
        """Return whether the facts of a store are what its run plans, as far as a run names it."""
        if found.facts is None or self.planned is None:
            return found.facts is not None
        return bool(found.facts["fingerprint"] == self.planned.fingerprint)

    @property
    def _plan(self) -> StorePlan:
        """The plan of the store, as it was committed."""
        facts = self.found.facts
        assert facts is not None
        grid = None if facts["grid"] is None else ChunkGrid(**facts["grid"])
        return StorePlan(self.root, facts["kind"], facts["spec"], self.found.layouts, grid)

    def _open_remade(self) -> RemadeStore:
        if self._remade is None:
            blend = self.item.plan if isinstance(self.item, PlannedBlend) else None
            damaged = {damage.shard for damage in self.found.damages if damage.shard is not None}
            self._remade = open_remade(self._plan, self.found.facts, self.source, blend, damaged)
        return self._remade

    def _rebuild_all(self) -> None:
        found, sound = self.found, dict(self.found.receipts)
        damaged = {damage.shard for damage in found.damages if damage.shard is not None}
        if damaged:
            self._rebuild_shards(damaged)
        if found.manifest is None and not self._is_whole():
            # Shards may be sound and yet not in their places; only their values tell.
            self._rebuild_shards(
                {
                    (layout.name, shard)
                    for layout in found.layouts
                    for shard in range(layout.num_shards)
                }
            )
        if found.manifest is None and not found.has_root and self.planned is None:
            check_witness(self._plan, sound, found.receipts)
        contents = self._contents()
        if found.has_root and contents[ROOT_KEY] != self._read(ROOT_KEY):
            raise VerificationError(
                f"{self.root} must have the checksums of its zarr.json, its rebuilt shards have "
                f"others and are not kept; {_versions()}; remove the store and build it again"
            )
        self._put_metadata({PLAN_KEY: plan_file(self._plan)} | contents)

    def _is_whole(self) -> bool:
        """Return whether the root proves the shards without a manifest."""
        if not self.found.has_root:
            return False
        return self._contents()[ROOT_KEY] == self._read(ROOT_KEY)

    def _contents(self) -> dict[str, bytes]:
        """Return the content of every metadata file of the commit."""
        facts = self.found.facts
        assert facts is not None
        plan = self._plan
        if self.found.has_root:
            known = {*plan.to_json(), "manifest_sha256"}
            attributes = {name: value for name, value in facts.items() if name not in known}
        else:
            attributes = self._open_remade().facts()
        return commit_files(plan, self.found.receipts.values(), attributes)

    def _rebuild_shards(self, shards: set[ShardId]) -> None:
        """Compute shards anew, and write those that are not what they must be."""
        for layout, shard, values in self._open_remade().make(shards):
            key = layout.name, shard
            buffers, receipt = encode_shard(layout, shard, values)
            committed = (self.found.manifest or {}).get(key)
            if self._is_wrong(layout, receipt, committed):
                assert committed is not None
                raise VerificationError(
                    f"shard {layout.shard_key(shard)} of {self.root} must have {committed.nbytes} "
                    f"bytes of checksum {committed.crc32c:08x}, what was rebuilt has "
                    f"{receipt.nbytes} of {receipt.crc32c:08x}; {_versions()}; remove the store "
                    "and build it again"
                )
            if self._is_same(layout, shard, receipt, values):
                continue
            if committed is None:
                # Whether it is right is known when all are there.
                self._replaced.keep(self.root / layout.shard_key(shard))
            replace_shard(self.root, layout, receipt, buffers)
            self._forget()
            self.found.receipts[key] = receipt
            self.rebuilt_shards[layout.shard_key(shard)] = None
            logger.info("%s: %s is rebuilt", self.root, layout.shard_key(shard))

    def _is_wrong(self, layout: ArrayLayout, receipt: Receipt, committed: Receipt | None) -> bool:
        """Return whether a rebuilt shard is not what the manifest says."""
        if committed is None or receipt == committed:
            return False
        # Without a root the manifest is not proven: a shard that is there and the same weighs more.
        is_proven = self.found.has_root
        return is_proven or receipt != check_shard(self.root, layout, receipt.shard)[0]

    def _check_link(self) -> None:
        """Say that a ``.bin`` beside the store cannot be repaired."""
        link = (self.found.facts or {}).get(LINK)
        for damage in self.found.damages:
            if isinstance(link, dict) and damage.key == link["path"]:
                raise SourceError(
                    f"{damage.key} {damage.problem}; restore it, it cannot be rebuilt from "
                    f"{self.root}"
                )

    def _read(self, key: str) -> bytes | None:
        """Return the content of a metadata file, or None if it cannot be read."""
        with suppress(StoreError):
            return files.read_file(self.root / key)
        return None

    def _forget(self) -> None:
        """Have readers of this process open the files that are there now."""
        if isinstance(self.root, Path):
            forget_open_shards(self.root)

    def _is_same(self, layout: ArrayLayout, shard: int, receipt: Receipt, values: Any) -> bool:
        """Return whether a sound shard has these values; compressors may write them otherwise."""
        present = self.found.receipts.get((layout.name, shard))
        if present is None or present == receipt or layout.codec == "none":
            return present == receipt
        stored = open_reader(self.root, layout).read(*layout.shard_bounds(shard))
        return np.array_equal(stored, values, equal_nan=stored.dtype.kind == "f")

    def _put_metadata(self, contents: dict[str, bytes]) -> None:
        """Put metadata files in place where they are damaged; the root comes last."""
        for key, content in contents.items():
            if self._read(key) != content:
                files.write_once(self.root / key, [content], replace=True)
                self.rebuilt_metadata.append(key)
        for folder in {
            (self.root / key).parent for key in (*self.rebuilt_shards, *self.rebuilt_metadata)
        }:
            files.sync_directory(folder)


class _Replaced:
    """What was at the places of rebuilt shards, on local disk, to be put back if need be."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._paths: list[Place] = []

    def keep(self, path: Place) -> None:
        """Keep a file, or that there is none."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="zindex-repair-")
        nbytes = files.file_nbytes(path)
        if nbytes is not None:
            content = files.read_file(path, limit=nbytes)
            (Path(self._folder.name) / str(len(self._paths))).write_bytes(content)
        self._paths.append(path)

    def put_back(self) -> None:
        """Have every place hold what it held; one that was kept twice ends with the first."""
        for number in reversed(range(len(self._paths))):
            assert self._folder is not None
            kept, path = Path(self._folder.name) / str(number), self._paths[number]
            if kept.exists():
                files.write_once(path, [kept.read_bytes()], replace=True)
            else:
                files.remove_file(path)

    def close(self) -> None:
        """Let go of what was kept."""
        if self._folder is not None:
            self._folder.cleanup()


def _versions() -> str:
    """Return the versions of what decides bytes, for messages."""
    found = []
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):  # zindex may run from a checkout
            found.append(f"{name} {version(name)}")
    return (
        f"here are {', '.join(found)} on {platform.machine()}, which may differ from what built it"
    )
