"""Repair committed stores: rebuild damaged shards and install them only if they match."""

import logging
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from zindex.config import RunConfig
from zindex.errors import SourceError, StoreError, VerificationError
from zindex.execution.progress import open_progress
from zindex.indexing.run_plan import PlannedBlend, PlannedIndex
from zindex.ingest.length_source import LengthSource
from zindex.io import files
from zindex.io.objects import Place, PlaceLike
from zindex.maintenance.repairs.named_stores import NamedStore, find_stores
from zindex.maintenance.repairs.rebuild import (
    BLEND_INPUTS,
    Rebuild,
    Sound,
    select_attributes,
    select_inputs,
)
from zindex.plan.packing import PackingPlan
from zindex.store import commit
from zindex.store.commit import PLAN_KEY, ROOT_KEY, StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import Store, open_reader
from zindex.store.reader import forget_open_shards
from zindex.store.shard import Receipt
from zindex.store.shard_files import check_shard, replace_shard
from zindex.store.tokens import LINK
from zindex.store.verify import REPAIR_KEY, ShardId, StoreReport, verify_store

logger = logging.getLogger(__name__)

# Libraries that determine bytes.
_LIBRARIES = ("zindex", "numpy", "numba", "numcodecs")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of the repair of one store."""

    root: Place
    #: Keys of the rebuilt files, in the order in which they were installed.
    rebuilt: tuple[str, ...]
    #: How many of them are shards.
    num_rebuilt: int
    num_shards: int
    #: False if a run names a store that is not committed: nothing was done for it.
    is_built: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = asdict(self) | {"store": str(self.root)}
        del fields["root"]
        return fields


def repair(
    path: PlaceLike | RunConfig, *, source: str | None = None, progress: bool = False
) -> list[RepairResult]:
    """Rebuild the damaged files of committed stores, and change nothing else.

    Parameters
    ----------
    path
        A store, a directory of stores, or a run: its configuration or YAML file.
    source
        The source of a store: the prefix of the ``.bin/.idx`` pair of a token store; the token
        store or prefix of an index; the h5 or bin files of keyed tokens; the files of a store of
        records, all of which are read again. A run names its own sources, and blends need none.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise, during the checks.

    Returns
    -------
    results
        One result per store.

    Raises
    ------
    StoreNotFoundError
        If there is no store.
    NotReadyError
        If the store is not committed: build it instead.
    ConfigError
        If a source is required and not given.
    SourceError
        If the ``.bin`` that a store links to has changed.
    FingerprintMismatchError
        If the source is not the one that the store was created from.
    VerificationError
        If too much is damaged, or a rebuilt file differs from the committed one, or only plan.json
        is left and no intact shard agrees with it.

    Notes
    -----
    Law: a repaired store has the bytes of the commit; no intact file is written. A repair is
    idempotent: nothing is installed before everything rebuilt is verified, so an interrupted repair
    can be run again. Space: the recomputed shards are kept in the store's ``_zindex`` folder until
    then, and on an object store also a server-side copy of the intact ones.
    """
    results = []
    with open_progress(progress) as shown:
        for named in find_stores(path):
            if named.item is not None and not _is_committed(named.root):
                results.append(RepairResult(named.root, (), 0, 0, is_built=False))
                continue
            with shown.step(named.root.name, named.num_shards) as advance:
                results.append(_Repair(named, source, advance).run())
    return results


def _is_committed(root: Place) -> bool:
    """Return whether a commit was begun, even if the store is damaged."""
    return any(files.exists(root / key) for key in (ROOT_KEY, commit.MANIFEST_KEY))


class _Repair:
    """The repair of one store."""

    def __init__(
        self, named: NamedStore, source: str | None, advance: Callable[[int], None]
    ) -> None:
        self.root, self.item = named.root, named.item
        self.source: str | LengthSource | None = source
        if source is None and isinstance(named.item, PlannedIndex):
            self.source = named.item.source
        self.planned = named.plan
        # Only its own metadata contain the sizes of the arrays of a packed index.
        has_sizes = named.item is not None and not isinstance(named.item.plan, PackingPlan)
        self.known = named.plan.to_json() if named.plan is not None and has_sizes else None
        self.found = self._inspect(advance)
        facts = self.found.facts
        assert facts is not None
        self.facts = facts
        grid = None if facts["grid"] is None else ChunkGrid.from_json(facts["grid"])
        self.plan = StorePlan(self.root, facts["kind"], facts["spec"], self.found.layouts, grid)

    def _inspect(self, advance: Callable[[int], None]) -> StoreReport:
        """Return what is damaged; raise if too much is damaged to know what was committed."""
        found = verify_store(self.root, advance=advance)
        if not (found.has_root or self._is_planned(found)) and self.known is not None:
            found = verify_store(self.root, self.known, advance=advance)
        if found.facts is None or not (found.has_root or self._is_planned(found)):
            raise VerificationError(
                f"{self.root} must have a sound zarr.json or plan.json to be repaired, both are "
                "damaged; name the run file that built it, or remove the store and build it again"
            )
        if not found.was_committed:
            status = commit.read_status(self.root)
            raise status.not_ready(
                f"{self.root} must be committed to be repaired, {status.num_done} of "
                f"{status.num_shards} shards are finished; build it again, it resumes from there"
            )
        return found

    def _is_planned(self, found: StoreReport) -> bool:
        """Return whether the facts of a store agree with the plan of its run, if given by a run."""
        if found.facts is None or self.planned is None:
            return found.facts is not None
        return bool(found.facts["fingerprint"] == self.planned.fingerprint)

    def run(self) -> RepairResult:
        """Rebuild the damaged files, verify them, and install them."""
        rebuilt: list[str] = []
        num_rebuilt = 0
        if self.found.damages:
            rebuilt, num_rebuilt = self._rebuild()
            self._check_link()
        else:
            files.remove_tree(self.root / REPAIR_KEY)  # left by a repair that died at its end
        return RepairResult(self.root, tuple(rebuilt), num_rebuilt, self.plan.num_shards)

    def _rebuild(self) -> tuple[list[str], int]:
        """Return the keys of the installed files, shards first, and the number of shards."""
        found = self.found
        for sound in self._choose_sound():
            with ExitStack() as stack:
                copy, rebuilt, facts = None, {}, self.facts
                if not found.has_root or len(sound) < self.plan.num_shards:
                    blend = self.item.plan if isinstance(self.item, PlannedBlend) else None
                    rebuild = Rebuild(self.plan, sound, self.source, self.facts, blend)
                    copy = stack.enter_context(rebuild.open())
                    rebuilt = self._compare(copy, sound)
                    facts = facts if found.has_root else copy.attributes
                receipts = found.receipts | rebuilt
                attributes = select_attributes(self.plan, facts)
                contents = commit.commit_files(self.plan, receipts.values(), attributes)
                if found.has_root and contents[ROOT_KEY] != self._read(ROOT_KEY):
                    continue
                if found.manifest is None and not found.has_root and self.planned is None:
                    check_sound_shards(self.plan, found.receipts, receipts)
                shards = [] if copy is None else self._put_shards(copy, rebuilt)
                metadata = self._put_metadata({PLAN_KEY: commit.plan_file(self.plan)} | contents)
                for folder in {(self.root / key).parent for key in (*shards, *metadata)}:
                    files.sync_directory(folder)
                return [*shards, *metadata], len(shards)
        raise VerificationError(
            f"{self.root} must have the checksums of its zarr.json, its rebuilt shards have "
            f"others and are not kept; {_versions()}; remove the store and build it again"
        )

    def _choose_sound(self) -> list[Sound]:
        """Return the shards that a rebuild keeps, and those that the next one keeps if it fails."""
        found = self.found
        if found.manifest is not None:
            return [found.receipts]
        # Valid shards may be swapped: without a manifest only rebuilding all of them detects that.
        is_named = isinstance(self.item, PlannedBlend)
        inputs = select_inputs(self.plan, found.receipts, is_named=is_named)
        return [found.receipts, inputs] if found.has_root else [inputs]

    def _compare(self, copy: Store, sound: Sound) -> dict[ShardId, Receipt]:
        """Return the receipts of the recomputed shards that differ from the existing ones.

        Raises
        ------
        VerificationError
            If one contradicts the manifest.
        """
        rebuilt = {}
        for layout in self.plan.layouts:
            for shard in range(layout.num_shards):
                key = layout.name, shard
                if key in sound:
                    continue
                receipt = check_shard(copy.root, layout, shard)
                if isinstance(receipt, str):
                    raise VerificationError(f"{copy.root / layout.shard_key(shard)} {receipt}")
                committed = (self.found.manifest or {}).get(key)
                if self._is_wrong(layout, receipt, committed):
                    assert committed is not None
                    raise VerificationError(
                        f"shard {layout.shard_key(shard)} of {self.root} must have "
                        f"{committed.nbytes} bytes of checksum {committed.crc32c:08x}, what was "
                        f"rebuilt has {receipt.nbytes} of {receipt.crc32c:08x}; {_versions()}; "
                        "remove the store and build it again"
                    )
                if not self._is_same(copy, layout, receipt):
                    rebuilt[key] = receipt
        return rebuilt

    def _is_wrong(self, layout: ArrayLayout, receipt: Receipt, committed: Receipt | None) -> bool:
        """Return whether a rebuilt shard contradicts the manifest."""
        if committed is None or receipt == committed:
            return False
        # Without a root the manifest is not proven: an equal existing shard outweighs it.
        is_proven = self.found.has_root
        return is_proven or receipt != check_shard(self.root, layout, receipt.shard)

    def _is_same(self, copy: Store, layout: ArrayLayout, receipt: Receipt) -> bool:
        """Return whether an intact shard has the rebuilt values; compressed bytes may differ."""
        present = self.found.receipts.get((layout.name, receipt.shard))
        if present is None or present == receipt or layout.codec == "none":
            return present == receipt
        rows = layout.shard_bounds(receipt.shard)
        stored = open_reader(self.root, layout).read(*rows)
        values = copy[layout.name].read(*rows)
        return np.array_equal(stored, values, equal_nan=stored.dtype.kind == "f")

    def _put_shards(self, copy: Store, rebuilt: Mapping[ShardId, Receipt]) -> list[str]:
        """Install verified shards and return their keys."""
        keys = []
        for (name, shard), receipt in rebuilt.items():
            layout = copy.layouts[name]
            key = layout.shard_key(shard)
            content = files.read_file(copy.root / key, limit=receipt.nbytes)
            replace_shard(self.root, layout, receipt, [content])
            keys.append(key)
            logger.info("%s: %s is rebuilt", self.root, key)
        if isinstance(self.root, Path):
            forget_open_shards(self.root)
        return keys

    def _put_metadata(self, contents: Mapping[str, bytes]) -> list[str]:
        """Install metadata files that are damaged, the root last; return their keys."""
        keys = [key for key, content in contents.items() if self._read(key) != content]
        for key in keys:
            files.write_once(self.root / key, [contents[key]], replace=True)
        return keys

    def _read(self, key: str) -> bytes | None:
        """Return the content of a metadata file, or None if it cannot be read."""
        with suppress(StoreError):
            return files.read_file(self.root / key)
        return None

    def _check_link(self) -> None:
        """Raise if the ``.bin`` that the store links to is damaged: it cannot be rebuilt."""
        link = self.facts.get(LINK)
        for damage in self.found.damages:
            if isinstance(link, dict) and damage.key == link["path"]:
                raise SourceError(
                    f"{damage.key} {damage.problem}; restore it, it cannot be rebuilt from "
                    f"{self.root}"
                )


def check_sound_shards(plan: StorePlan, sound: Sound, rebuilt: Sound) -> None:
    """Check rebuilt shards if the root zarr.json and the manifest are both lost.

    ``plan.json`` only proves itself, as its digest can be changed with it. Shards rebuilt from it
    must therefore agree with intact shards, or with what the user gives.

    Parameters
    ----------
    plan
        The plan of the store, of which only plan.json is known.
    sound
        Receipts of the shards that passed their own checksums before the repair.
    rebuilt
        Receipts of all shards after it.

    Raises
    ------
    VerificationError
        If an intact shard has values that no rebuilt shard of its array has, or none is intact.
    """
    is_tokens = plan.kind == "tokens"
    need = "restore one of them, or name the run file that built it"
    if is_tokens:
        need = "restore one of them, or name the unchanged .bin/.idx pair with --source"
    lost = "its zarr.json and its manifest are both damaged"
    # Shards may have been swapped: their values are then those of another shard.
    contents = {(item.array, item.nbytes, item.crc32c) for item in rebuilt.values()}
    for (name, shard), receipt in sound.items():
        if (name, receipt.nbytes, receipt.crc32c) not in contents:
            key = next(layout for layout in plan.layouts if layout.name == name).shard_key(shard)
            raise VerificationError(
                f"{key} of {plan.root} passes its own checksums, and holds other values than what "
                f"plan.json and the source give, while {lost}; {need}"
            )
    # That the inputs of a blend agree with themselves proves nothing. The source of tokens was
    # compared with the whole plan.
    is_proven = any(name not in BLEND_INPUTS for name, _ in sound)
    if not (is_proven or is_tokens or all(name in BLEND_INPUTS for name, _ in rebuilt)):
        raise VerificationError(
            f"{plan.root} must have a sound shard that agrees with its plan.json, it has none, and "
            f"{lost}; {need}, or remove the store and build it again"
        )


def _versions() -> str:
    """Return the versions of the libraries that determine bytes, for messages."""
    found = []
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):  # zindex may run from a checkout
            found.append(f"{name} {version(name)}")
    return (
        f"here are {', '.join(found)} on {platform.machine()}, which may differ from what built it"
    )
