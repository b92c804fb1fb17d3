"""Verify every byte of a store against its checksums, and report the damaged files.

Read-only; ``zindex.maintenance.repairs.repair`` rebuilds what this finds.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zindex.errors import (
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreUnreadableError,
    VerificationError,
)
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.io.request_threads import map_ahead
from zindex.store.checked_json import parse_as
from zindex.store.commit import (
    MANIFEST_KEY,
    PLAN_KEY,
    ROOT_KEY,
    canonical_json,
    fingerprint,
    read_plan,
    read_root,
)
from zindex.store.layout import ArrayLayout, parse_layouts
from zindex.store.records import KIND
from zindex.store.shard import Receipt
from zindex.store.shard_files import check_shard
from zindex.store.signature import SIGNATURE_KEY, check_signature
from zindex.store.tokenizer_note import FILES_KEY, NOTE_KEY, read_kept_file, read_note
from zindex.store.tokens import find_link
from zindex.store.verify_values import ValueChecks

#: Folder of a repair's recomputed shards; the next repair removes what a killed one left behind.
REPAIR_KEY = "_zindex/repair"

#: Array and number of a shard.
ShardId = tuple[str, int]

# Threads that read shards: disks and networks serve several, and each needs little memory.
_NUM_THREADS = 8
# Queued shards: a store of millions is not queued at once.
_NUM_PENDING = 4 * _NUM_THREADS
# Fields of ``attributes.zindex`` that plan.json also has.
_PLAN_FIELDS = ("format_version", "kind", "fingerprint", "spec", "arrays", "grid")
# Size and checksum of each shard of each array.
_MANIFEST: Any = dict[str, tuple[tuple[int, int], ...]]
# Files of a build that readers do not need.
_SCRATCH_KEYS = ("_zindex/generator.json", "_zindex/alive")


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that differs from the committed one."""

    #: Its key below the store's root, or the path of a ``.bin`` that the store links to.
    key: str
    #: Description of the problem.
    problem: str
    #: Its shard; None for metadata.
    shard: ShardId | None = None


@dataclass(slots=True)
class StoreReport:
    """The state of a store after every byte was read: the input of a repair."""

    root: Place
    #: ``attributes.zindex``, or the part of it in plan.json; None if both are damaged.
    facts: dict[str, Any] | None = None
    layouts: tuple[ArrayLayout, ...] = ()
    #: Whether the root zarr.json is intact; the facts are then all of its attributes.
    has_root: bool = False
    #: Whether a commit had begun, so that every shard existed.
    was_committed: bool = False
    #: Receipts of the manifest; None if it cannot be read.
    manifest: dict[ShardId, Receipt] | None = None
    #: Receipts of the intact shards.
    receipts: dict[ShardId, Receipt] = field(default_factory=dict)
    damages: list[DamagedFile] = field(default_factory=list)
    #: Arrays with values that no training should see, although they were committed like that.
    invalid: list[DamagedFile] = field(default_factory=list)
    #: Other files, and missing parts that are not damage.
    notes: list[str] = field(default_factory=list)
    #: Bytes of shards that were read and checked.
    nbytes: int = 0

    def add(self, key: str, problem: str) -> None:
        """Record damage of a file that is not a shard."""
        self.damages.append(DamagedFile(key, problem))

    @property
    def kind(self) -> str | None:
        """``"tokens"`` or ``"index"``; None if neither root nor plan can be read."""
        return (self.facts or {}).get("kind")

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint, if root or plan can be read."""
        return (self.facts or {}).get("fingerprint")

    @property
    def num_shards(self) -> int:
        """Shards of the finished store."""
        return sum(layout.num_shards for layout in self.layouts)

    @property
    def is_tokenized(self) -> bool:
        """Whether zindex tokenised the text, so that only a copy of the store can repair it."""
        return "tokenizer" in (self.facts or {}).get("spec", {}).get("import", {})

    @property
    def is_sound(self) -> bool:
        """Whether every file equals the committed one, and no value is invalid."""
        return not self.damages and not self.invalid

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
            "invalid": [{"key": item.key, "problem": item.problem} for item in self.invalid],
            "notes": self.notes,
        }


def verify_store(
    url: PlaceLike,
    facts: dict[str, Any] | None = None,
    *,
    key: str | None = None,
    advance: Callable[[int], None] = lambda num_shards: None,
    token_keys: frozenset[str] | None = None,
    num_ids: int | None = None,
) -> StoreReport:
    """Read every byte of a store and report what is damaged.

    Parameters
    ----------
    url
        Path or URL of the store.
    facts
        Expected content of plan.json, if known; otherwise its own digest is checked.
    key
        PEM file of an Ed25519 public key that must have signed the store; None skips the check.
    advance
        Called with the number of shards read since the last call.
    token_keys, num_ids
        As of `ValueChecks`.

    Returns
    -------
    report
        The damaged files, each with its problem, and notes on other files. In keyed stores also the
        token ids that the vocabulary lacks, and floats that are not finite.

    Raises
    ------
    StoreNotFoundError
        If the location is empty.
    StoreError
        If its content was not written by zindex, or by a later format.

    Notes
    -----
    Law: a store is sound if and only if every file has the bytes with which it was committed. Cost:
    one pass over the store, and a few megabytes of memory for each of a few threads.
    """
    found = StoreReport(place_of(url))
    found.was_committed = any(files.exists(found.root / key) for key in (ROOT_KEY, MANIFEST_KEY))
    _check_root(found)
    _check_plan(found, facts)
    if found.facts is None:
        return found
    found.layouts = parse_layouts(found.facts["arrays"], found.root)
    if found.was_committed:
        _check_manifest(found)
        for layout in found.layouts:
            metadata = canonical_json(layout.zarr_metadata())
            problem = "does not hold the metadata that were committed"
            _check_same(found, f"{layout.name}/{ROOT_KEY}", metadata, problem)
    is_keyed = found.kind == KIND and found.was_committed
    given = found.facts["spec"], found.root, token_keys, num_ids
    values = ValueChecks(*given) if is_keyed else None
    _check_shards(found, advance, values)
    _check_link(found)
    _check_tokenizer(found)
    if key is not None:
        try:
            check_signature(found.root, key)
        except VerificationError as error:
            found.add(SIGNATURE_KEY, str(error))
    _note_other_files(found)
    if values is not None and not found.damages:
        found.invalid += [DamagedFile(*item) for item in values.describe()]
    return found


def _check_root(found: StoreReport) -> None:
    """Check the root zarr.json, and keep its facts if it is intact."""
    root = found.root
    try:
        facts = read_root(root)
        content = files.read_file(root / ROOT_KEY)
        if not _is_canonical(content):
            raise VerificationError("")
    except NotReadyError as error:
        found.add(ROOT_KEY, "is missing: the store is not committed")
        found.notes.append(f"{error.num_done} of {error.num_shards} shards are there")
    except VerificationError:
        problem = "is missing" if not files.exists(root / ROOT_KEY) else "fails its digest"
        found.add(ROOT_KEY, problem)
    except StoreNotFoundError:
        if not found.was_committed:
            raise
        found.add(ROOT_KEY, "is missing")
    except StoreUnavailableError:
        raise
    except StoreUnreadableError as error:
        found.add(ROOT_KEY, f"cannot be read: {error.strerror or error}")
    except StoreError:
        if not files.exists(root / PLAN_KEY) or _is_of_later_format(root):
            raise
        found.add(ROOT_KEY, "does not hold the metadata of a zindex store")
    else:
        found.facts, found.has_root = facts, True


def _is_of_later_format(root: Place) -> bool:
    """Return whether a plan is intact but of a format that this package cannot read."""
    try:
        read_plan(root)
    except (StoreError, VerificationError) as error:
        return "format version" in str(error)
    return False


def _check_plan(found: StoreReport, known: dict[str, Any] | None) -> None:
    """Check plan.json against the root, or take the facts from it."""
    if found.facts is not None:
        known = {name: found.facts[name] for name in _PLAN_FIELDS}
    if known is not None:
        expected = canonical_json(known | {"plan_sha256": fingerprint(known)})
        _check_same(found, PLAN_KEY, expected, "does not hold the plan that was committed")
        found.facts = found.facts or known
    elif (content := _read(found, PLAN_KEY)) is not None:
        try:
            found.facts = facts = read_plan(found.root)
            named = fingerprint({"kind": facts["kind"], "spec": facts["spec"]})
            if not _is_canonical(content) or facts["fingerprint"] != named:
                raise VerificationError("")
        except (StoreError, VerificationError):
            found.facts = None
            found.add(PLAN_KEY, "fails its digest")


def _check_manifest(found: StoreReport) -> None:
    """Check the manifest against the root, or its structure if there is no root."""
    content = _read(found, MANIFEST_KEY)
    if content is None:
        return
    assert found.facts is not None
    digest = hashlib.sha256(content).hexdigest()
    if found.has_root and digest != found.facts["manifest_sha256"]:
        found.add(MANIFEST_KEY, "is not the manifest that was committed")
        return
    found.manifest = _parse_manifest(content, found.layouts)
    if found.manifest is None:
        found.add(MANIFEST_KEY, "does not hold a size and a checksum per shard")


def _parse_manifest(
    content: bytes, layouts: tuple[ArrayLayout, ...]
) -> dict[ShardId, Receipt] | None:
    """Return the receipts of a manifest, or None if it does not hold them."""
    try:
        rows = parse_as(_MANIFEST, json.loads(content), MANIFEST_KEY)
        if canonical_json(rows).encode() != content:
            return None
        receipts = {
            (name, shard): Receipt(name, shard, nbytes, crc)
            for name, pairs in rows.items()
            for shard, (nbytes, crc) in enumerate(pairs)
        }
    except (ValueError, StoreError, RecursionError):
        return None
    expected = {(layout.name, shard) for layout in layouts for shard in range(layout.num_shards)}
    return receipts if receipts.keys() == expected else None


def _check_shards(
    found: StoreReport, advance: Callable[[int], None], values: ValueChecks | None
) -> None:
    """Check every shard and its values, several at a time."""
    manifest = found.manifest or {}
    numbers = {replace(receipt, shard=0): receipt.shard for receipt in manifest.values()}

    def check(job: tuple[ArrayLayout, int]) -> Receipt | DamagedFile:
        layout, shard = job
        committed = manifest.get((layout.name, shard))
        inspect = None
        if values is not None and layout.name in values.fields:
            inspect = partial(values.inspect, layout.name)
        checked = check_shard(found.root, layout, shard, committed, inspect=inspect)
        if isinstance(checked, Receipt):
            if committed in (None, checked):
                return checked
            other = numbers.get(replace(checked, shard=0))
            checked = "holds other values than were committed"
            if other is not None:
                checked = f"holds what was committed as {layout.shard_key(other)}"
        return DamagedFile(layout.shard_key(shard), checked, (layout.name, shard))

    jobs = ((layout, shard) for layout in found.layouts for shard in range(layout.num_shards))
    results = map_ahead(
        check, jobs, num_threads=_NUM_THREADS, num_pending=_NUM_PENDING - 1, name="zindex-verify"
    )
    for result in results:
        advance(1)
        if isinstance(result, Receipt):
            found.receipts[result.array, result.shard] = result
            found.nbytes += result.nbytes
        # An uncommitted store may lack shards.
        elif found.was_committed or result.problem != "is missing":
            found.damages.append(result)


def _check_link(found: StoreReport) -> None:
    """Check the size of the ``.bin`` that a store links to; it has no checksums."""
    link = find_link(found.facts or {}, found.root)
    if link is None:
        return
    path, nbytes, problem = link
    if problem is not None:
        found.add(path, f"must have the {nbytes:,} bytes of the tokens of this store: {problem}")
    else:
        found.notes.append(f"the tokens are in {path}, of which only the size was checked")


def _check_tokenizer(found: StoreReport) -> None:
    """Check the tokenizer kept in the store, if any."""
    try:
        note = read_note(found.root)
    except StoreUnavailableError:
        raise
    except (StoreError, VerificationError):
        found.add(NOTE_KEY, "fails its digest; remove it and add the tokenizer again")
        return
    if note is None:
        return
    for name in note.files:
        try:
            read_kept_file(found.root, note, name)
        except VerificationError as error:
            found.add(f"{note.folder}/{name}", str(error).rpartition(name)[2].strip())


def _note_other_files(found: StoreReport) -> None:
    """Note files that are not part of the store."""
    known = {ROOT_KEY, PLAN_KEY, MANIFEST_KEY, SIGNATURE_KEY, NOTE_KEY, *_SCRATCH_KEYS}
    known |= {f"{layout.name}/{ROOT_KEY}" for layout in found.layouts}
    for layout in found.layouts:
        known |= {layout.shard_key(shard) for shard in range(layout.num_shards)}
    keys: list[str] = []
    with suppress(StoreUnreadableError):  # a folder, whose shards count as damage
        keys = sorted(files.list_keys(found.root, depth=None))
    for key in keys:
        if key in known or key.startswith((f"{REPAIR_KEY}/", f"{FILES_KEY}/")):
            continue
        if key.endswith(".partial"):
            found.notes.append(f"{key} is what a stopped build left; it can be removed")
        else:
            found.notes.append(f"{key} is no part of the store")


def _read(found: StoreReport, key: str) -> bytes | None:
    """Return the content of a metadata file; None, recorded as damage, if unreadable."""
    try:
        return files.read_file(found.root / key)
    except StoreNotFoundError:
        found.add(key, "is missing")
    except StoreUnavailableError:
        raise
    except StoreUnreadableError as error:
        found.add(key, f"cannot be read: {error.strerror or error}")
    except StoreError:
        found.add(key, "is far larger than it can be")
    return None


def _check_same(found: StoreReport, key: str, expected: str, problem: str) -> None:
    """Check that a metadata file holds a text."""
    content = _read(found, key)
    if content is not None and content != expected.encode():
        found.add(key, problem)


def _is_canonical(content: bytes) -> bool:
    """Return whether a file holds JSON exactly as zindex writes it."""
    try:
        return canonical_json(json.loads(content)).encode() == content
    except (ValueError, RecursionError):
        return False
