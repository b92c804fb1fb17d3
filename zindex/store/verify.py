"""Every byte of a store against its checksums: which files are damaged, and what is wrong.

Nothing is changed here; ``zindex.building.repairs.repair`` rebuilds what this finds.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from zindex.errors import (
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreUnreadableError,
    VerificationError,
)
from zindex.store import files
from zindex.store.check_shard import check_shard
from zindex.store.commit import MANIFEST_KEY, PLAN_KEY, ROOT_KEY, read_plan, read_root
from zindex.store.identity import canonical_json, fingerprint
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.shard import Receipt
from zindex.store.tokens import LINK

#: Array and number of a shard.
ShardId = tuple[str, int]

# Threads that read shards: a disk or a network serves several at a time, and each holds little.
_NUM_THREADS = 8
# Shards that are handed to them at a time: a store of millions is not queued up whole.
_NUM_PENDING = 4 * _NUM_THREADS
# Fields of ``attributes.zindex`` that stand in plan.json too.
_PLAN_FIELDS = ("format_version", "kind", "fingerprint", "spec", "arrays", "grid")
# What a build leaves beside its shards, and no reader needs.
_SCRATCH_KEYS = ("_zindex/generator.json", "_zindex/alive")


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is not what was committed."""

    #: Its key below the store's root, or the path of a ``.bin`` that the store links to.
    key: str
    #: What is wrong with it, in words.
    problem: str
    #: The shard that it is; None for metadata.
    shard: ShardId | None = None


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What was found in one store."""

    root: Place
    #: ``"tokens"`` or ``"index"``; None if neither root nor plan can be read.
    kind: str | None
    fingerprint: str | None
    num_shards: int
    #: Bytes of shards that were read and checked.
    nbytes: int
    damages: tuple[Damage, ...]
    #: What is there beyond the store, or missing from it without being damage.
    notes: tuple[str, ...]
    #: Whether texts became tokens here, so that only another store of the same can repair it.
    is_tokenized: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether every file is what was committed."""
        return not self.damages

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "store": str(self.root),
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "num_shards": self.num_shards,
            "nbytes": self.nbytes,
            "damaged": [
                {"key": damage.key, "problem": damage.problem, "is_shard": bool(damage.shard)}
                for damage in self.damages
            ],
            "notes": list(self.notes),
        }


#: A shard, and its receipt or what is wrong with it.
_Checked = tuple[ShardId, Receipt | None, Damage | None]


@dataclass(slots=True)
class Inspection:
    """All that is known of a store after every byte was read: what a repair starts from."""

    root: Place
    #: ``attributes.zindex``, or as much of it as plan.json holds; None if both are damaged.
    facts: dict[str, Any] | None = None
    layouts: tuple[ArrayLayout, ...] = ()
    #: Whether the root zarr.json is there and right; the facts are then all of its attributes.
    has_root: bool = False
    #: Whether a commit has begun here, so that every shard has been there.
    was_committed: bool = False
    #: What the manifest says of each shard; None if it cannot be read.
    manifest: dict[ShardId, Receipt] | None = None
    #: Receipts of the shards that are what they should be.
    receipts: dict[ShardId, Receipt] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nbytes: int = 0

    @property
    def report(self) -> StoreReport:
        """What was found, for people."""
        facts = self.facts or {}
        return StoreReport(
            root=self.root,
            kind=facts.get("kind"),
            fingerprint=facts.get("fingerprint"),
            num_shards=sum(layout.num_shards for layout in self.layouts),
            nbytes=self.nbytes,
            damages=tuple(self.damages),
            notes=tuple(self.notes),
            is_tokenized="tokenizer" in facts.get("spec", {}).get("import", {}),
        )


def verify_store(
    url: PlaceLike, *, advance: Callable[[int], None] = lambda num_shards: None
) -> StoreReport:
    """Read every byte of a store and report what is damaged.

    Parameters
    ----------
    url
        Path or URL of the store.
    advance
        Called with a number of shards whenever so many more were read.

    Returns
    -------
    report
        The damaged files, each with what is wrong, and notes on what else is there.

    Raises
    ------
    StoreNotFoundError
        If nothing is there.
    StoreError
        If what is there was not written by zindex, or by a later format.

    Notes
    -----
    Law: a store is sound exactly if every file has the bytes with which it was committed. Cost: one
    pass over the store, memory of a few megabytes for each of a few threads.
    """
    return inspect_store(url, advance=advance).report


def inspect_store(
    url: PlaceLike,
    facts: dict[str, Any] | None = None,
    *,
    advance: Callable[[int], None] = lambda num_shards: None,
) -> Inspection:
    """Return all that is known of a store after reading every byte.

    Parameters
    ----------
    url
        Place of the store.
    facts
        What plan.json must hold, where it is known; otherwise its own digest has to do.
    advance
        As of `verify_store`, which has the same errors.
    """
    found = Inspection(place_of(url))
    found.was_committed = any(files.exists(found.root / key) for key in (ROOT_KEY, MANIFEST_KEY))
    _check_root(found)
    _check_plan(found, facts)
    if found.facts is None:
        return found
    found.layouts = tuple(ArrayLayout.from_json(fields) for fields in found.facts["arrays"])
    _check_manifest(found)
    _check_array_metadata(found)
    _check_shards(found, advance)
    _check_link(found)
    _note_other_files(found)
    return found


def _check_root(found: Inspection) -> None:
    """Check the root zarr.json; its facts are kept if it is right."""
    root = found.root
    try:
        facts = read_root(root)
        content = files.read_file(root / ROOT_KEY)
        if not _is_canonical(content):
            raise VerificationError("")
    except NotReadyError as error:
        found.damages.append(Damage(ROOT_KEY, "is missing: the store is not committed"))
        found.notes.append(f"{error.num_done} of {error.num_shards} shards are there")
    except VerificationError:
        problem = "is missing" if not files.exists(root / ROOT_KEY) else "fails its digest"
        found.damages.append(Damage(ROOT_KEY, problem))
    except StoreNotFoundError:
        if not found.was_committed:
            raise
        found.damages.append(Damage(ROOT_KEY, "is missing"))
    except StoreUnavailableError:
        raise
    except StoreUnreadableError as error:
        found.damages.append(Damage(ROOT_KEY, f"cannot be read: {error.strerror or error}"))
    except StoreError:
        if not files.exists(root / PLAN_KEY) or _is_of_later_format(root):
            raise
        found.damages.append(Damage(ROOT_KEY, "does not hold the metadata of a zindex store"))
    else:
        found.facts, found.has_root = facts, True


def _is_of_later_format(root: Place) -> bool:
    """Return whether a plan is sound, and of a format that this package does not read."""
    try:
        read_plan(root)
    except VerificationError:
        return False
    except StoreError as error:
        return "format version" in str(error)
    return False


def _check_plan(found: Inspection, known: dict[str, Any] | None) -> None:
    """Check plan.json against the root, or take the facts from it."""
    if found.facts is not None:
        known = {name: found.facts[name] for name in _PLAN_FIELDS}
    content = _read(found, PLAN_KEY)
    if known is not None:
        expected = canonical_json(known | {"plan_sha256": fingerprint(known)}).encode()
        if content is not None and content != expected:
            found.damages.append(Damage(PLAN_KEY, "does not hold the plan that was committed"))
        found.facts = found.facts or known
    elif content is not None:
        try:
            found.facts = facts = read_plan(found.root)
            named = fingerprint({"kind": facts["kind"], "spec": facts["spec"]})
            if not _is_canonical(content) or facts["fingerprint"] != named:
                raise VerificationError("")
        except (StoreError, VerificationError):
            found.facts = None
            found.damages.append(Damage(PLAN_KEY, "fails its digest"))


def _check_manifest(found: Inspection) -> None:
    """Check the manifest against the root, or by what it must look like."""
    if not found.was_committed:
        return
    content = _read(found, MANIFEST_KEY)
    if content is None:
        return
    assert found.facts is not None
    digest = hashlib.sha256(content).hexdigest()
    if found.has_root and digest != found.facts["manifest_sha256"]:
        found.damages.append(Damage(MANIFEST_KEY, "is not the manifest that was committed"))
        return
    found.manifest = _parse_manifest(content, found.layouts)
    if found.manifest is None:
        found.damages.append(Damage(MANIFEST_KEY, "does not hold a size and a checksum per shard"))


def _parse_manifest(
    content: bytes, layouts: tuple[ArrayLayout, ...]
) -> dict[ShardId, Receipt] | None:
    """Return the receipts of a manifest, or None if it does not hold them."""
    try:
        rows = json.loads(content)
        if canonical_json(rows).encode() != content:
            return None
        receipts = {
            (name, shard): Receipt(name, shard, nbytes, crc)
            for name, pairs in rows.items()
            for shard, (nbytes, crc) in enumerate(pairs)
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    expected = {(layout.name, shard) for layout in layouts for shard in range(layout.num_shards)}
    return receipts if receipts.keys() == expected else None


def _check_array_metadata(found: Inspection) -> None:
    """Check the zarr.json of every array; an unfinished store has none."""
    if not found.was_committed:
        return
    for layout in found.layouts:
        key = f"{layout.name}/{ROOT_KEY}"
        content = _read(found, key)
        if content is not None and content != canonical_json(layout.zarr_metadata()).encode():
            found.damages.append(Damage(key, "does not hold the metadata that were committed"))


def _check_shards(found: Inspection, advance: Callable[[int], None]) -> None:
    """Check every shard, several at a time."""
    manifest = found.manifest or {}
    names = {
        (receipt.array, receipt.nbytes, receipt.crc32c): key for key, receipt in manifest.items()
    }

    def check(layout: ArrayLayout, shard: int) -> _Checked:
        key, committed = (layout.name, shard), manifest.get((layout.name, shard))
        receipt, problem = check_shard(found.root, layout, shard, committed)
        if receipt is not None and committed is not None and receipt != committed:
            other = names.get((receipt.array, receipt.nbytes, receipt.crc32c))
            receipt, problem = None, "holds other values than were committed"
            if other is not None:
                problem = f"holds what was committed as {layout.shard_key(other[1])}"
        damage = None if problem is None else Damage(layout.shard_key(shard), problem, key)
        return key, receipt, damage

    jobs = ((layout, shard) for layout in found.layouts for shard in range(layout.num_shards))
    for key, receipt, damage in _run_in_order(check, jobs):
        advance(1)
        if receipt is not None:
            found.receipts[key] = receipt
            found.nbytes += receipt.nbytes
        # An unfinished store misses shards that nobody has promised.
        elif damage and (found.was_committed or damage.problem != "is missing"):
            found.damages.append(damage)


def _run_in_order(
    check: Callable[[ArrayLayout, int], _Checked], jobs: Iterator[tuple[ArrayLayout, int]]
) -> Iterator[_Checked]:
    """Give what comes of each job, in order; a bounded number of them is under way."""
    pending: deque[Future[_Checked]] = deque()
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="zindex-verify") as pool:
        try:
            while True:
                for layout, shard in islice(jobs, _NUM_PENDING - len(pending)):
                    pending.append(pool.submit(check, layout, shard))
                if not pending:
                    return
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _check_link(found: Inspection) -> None:
    """Check the size of the ``.bin`` that a store links to: all that is known of it."""
    link = (found.facts or {}).get(LINK)
    if not isinstance(link, dict):
        return
    path, nbytes = link["path"], link["nbytes"]
    size = os.path.getsize(path) if os.path.exists(path) else None
    if size is None:
        found.damages.append(Damage(path, "is missing: the tokens of this store lie there"))
    elif size != nbytes:
        found.damages.append(Damage(path, f"has {size:,} bytes, {nbytes:,} were linked to"))
    else:
        found.notes.append(f"the tokens lie in {path}, of which only the size was checked")


def _note_other_files(found: Inspection) -> None:
    """Note what is no part of the store."""
    known = {ROOT_KEY, PLAN_KEY, MANIFEST_KEY, *_SCRATCH_KEYS}
    known |= {f"{layout.name}/{ROOT_KEY}" for layout in found.layouts}
    for layout in found.layouts:
        known |= {layout.shard_key(shard) for shard in range(layout.num_shards)}
    for key in _list_keys(found.root):
        if key in known:
            continue
        if key.endswith(".partial"):
            found.notes.append(f"{key} is what a stopped build left; it can be removed")
        else:
            found.notes.append(f"{key} is no part of the store")


def _list_keys(root: Place) -> Iterator[str]:
    """Give the keys of all files below a root, in order."""
    if not isinstance(root, Path):
        from zindex.store import object_client

        yield from sorted(object_client.iterate_keys(root))
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def _read(found: Inspection, key: str) -> bytes | None:
    """Return the content of a metadata file; None, and damage, if it cannot be read."""
    try:
        return files.read_file(found.root / key)
    except StoreNotFoundError:
        found.damages.append(Damage(key, "is missing"))
    except StoreUnavailableError:
        raise
    except StoreUnreadableError as error:
        found.damages.append(Damage(key, f"cannot be read: {error.strerror or error}"))
    except StoreError:
        found.damages.append(Damage(key, "is far larger than it can be"))
    return None


def _is_canonical(content: bytes) -> bool:
    """Return whether a file holds JSON exactly as zindex writes it."""
    try:
        return canonical_json(json.loads(content)).encode() == content
    except (ValueError, RecursionError):
        return False
