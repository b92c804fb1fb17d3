"""Create and commit stores: a plan, create-only shards in any order, the root ``zarr.json`` last.

::

    STORE/_zindex/plan.json      the plan; a second builder must have an equal one
    STORE/<array>/c/<i>          one file per shard, written whole by one task
    STORE/_zindex/manifest.json  size and checksum of every shard
    STORE/<array>/zarr.json      array metadata
    STORE/zarr.json              the commit: before it, no Zarr reader sees anything

A valid shard is its own receipt, so repeating an interrupted build resumes it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zindex.errors import (
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
    shorten,
)
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.io.request_threads import map_in_threads
from zindex.store.check_place import MANIFEST_KEY as MANIFEST_KEY
from zindex.store.check_place import PLAN_KEY as PLAN_KEY
from zindex.store.check_place import ROOT_KEY as ROOT_KEY
from zindex.store.check_place import check_place
from zindex.store.checked_json import MAX_SIZE, Facts, parse_as
from zindex.store.layout import DATA_TYPES, ArrayLayout, ChunkGrid, parse_layouts
from zindex.store.shard import REMEDY, Receipt
from zindex.version import VERSION

#: Version of all descriptions and layouts written by this package; increased when bytes on disk
#: change. In version 1 shards have no table of checksums.
FORMAT_VERSION = 2
#: Attributes of every store: the program that committed it.
COMMON_ATTRIBUTES = {"made_by": f"zindex {VERSION}"}
# Facts of a store and their types.
_KINDS: dict[str, Any] = {
    "kind": str,
    "fingerprint": str,
    "spec": dict,
    "arrays": list,
    "grid": dict | None,
}


def canonical_json(value: Any) -> str:
    """Return a value as canonical JSON: sorted keys, no spaces, ASCII, finite numbers.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": [0.1, None]})
    '{"a":[0.1,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(spec: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of a description.

    Examples
    --------
    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Parse the JSON object of a small file.

    Raises
    ------
    StoreError
        If the bytes are not one JSON object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} must hold JSON, got {content[:40]!r}; build it again") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where} must hold a JSON object, got {type(value).__name__}")
    return value


def seal(content: dict[str, Any], name: str) -> bytes:
    """Return the canonical JSON of an object, which holds its own digest under a name."""
    return canonical_json(content | {name: fingerprint(content)}).encode()


def read_sealed(path: Place, name: str, remedy: str = REMEDY) -> dict[str, Any]:
    """Return the object that `seal` wrote to a file, without its digest.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StoreError
        If it is not a JSON object.
    VerificationError
        If it fails its digest.
    """
    stored = files.read_file(path)
    content = parse_json(stored, str(path))
    _check_digest(content, name, content, stored, path, remedy)
    return content


@dataclass(frozen=True)
class StorePlan:
    """The description of a store, complete before its first shard is written."""

    root: Place
    #: ``"tokens"`` or ``"index"``.
    kind: str
    #: Everything that determines the values: the fingerprint is its hash. Never a path or a time.
    spec: dict[str, Any]
    layouts: tuple[ArrayLayout, ...]
    #: The common grid of the layouts, if there is one.
    grid: ChunkGrid | None = None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ``kind`` and ``spec``; independent of the chunk grid."""
        return fingerprint({"kind": self.kind, "spec": self.spec})

    def at(self, root: Place) -> "StorePlan":
        """Return the same plan for another location, with the same fingerprint."""
        plan = replace(self, root=root)
        plan.__dict__["fingerprint"] = self.fingerprint
        return plan

    def named(self, folder: PlaceLike, prefix: str) -> "StorePlan":
        """Return the same plan for the folder's directory named by prefix and fingerprint."""
        return self.at(place_of(folder) / f"{prefix}-{self.fingerprint[:32]}")

    @property
    def num_shards(self) -> int:
        """Shards of the finished store."""
        return sum(layout.num_shards for layout in self.layouts)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(layout.nbytes for layout in self.layouts)

    def read_status(self) -> "StoreStatus":
        """Count the finished shards; 0 if the store is not begun."""
        try:
            return read_status(self.root)
        except StoreNotFoundError:
            return StoreStatus(num_done=0, num_shards=self.num_shards, committed=False)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``plan.json``, without its digest."""
        return {
            "format_version": FORMAT_VERSION if any(item.table for item in self.layouts) else 1,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "spec": self.spec,
            "arrays": [layout.to_json() for layout in self.layouts],
            "grid": None if self.grid is None else self.grid.to_json(),
        }

    def cut_like(self, stored: dict[str, Any]) -> "StorePlan":
        """Return this plan with the layouts of a ``plan.json`` of the same fingerprint."""
        return replace(
            self,
            layouts=parse_layouts(stored["arrays"], self.root),
            grid=None if stored["grid"] is None else ChunkGrid.from_json(stored["grid"]),
        )


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Progress of a store's build."""

    num_done: int
    num_shards: int
    committed: bool

    def not_ready(self, message: str) -> NotReadyError:
        """Return the error of a store that is not committed."""
        return NotReadyError(message, num_done=self.num_done, num_shards=self.num_shards)


def begin_store(plan: StorePlan) -> StorePlan:
    """Write the plan, or adopt an existing one of the same content.

    Returns
    -------
    plan
        The given plan, on the existing chunk grid if another builder was first.

    Raises
    ------
    FingerprintMismatchError
        If the location holds other content, or files that zindex did not write.
    StoreUnwritableError
        If the file system has too little space for the missing shards; compressed arrays are not
        counted, as their size is unknown.
    VerificationError
        If the existing plan fails its digest.
    """
    for layout in plan.layouts:
        layout.check()
    path = plan.root / PLAN_KEY
    check_place(plan.root, plan.layouts)
    files.make_folder(plan.root.parent)
    is_new = files.write_once(path, [plan_file(plan)])
    if not is_new:
        stored = read_plan(plan.root)
        if stored["fingerprint"] != plan.fingerprint:
            raise FingerprintMismatchError(
                f"{plan.root} holds fingerprint {stored['fingerprint'][:16]}, the build wants "
                f"{plan.fingerprint[:16]}: its data or settings differ; choose another place or "
                "remove the old store"
            )
        plan = plan.cut_like(stored)
    files.check_room(plan.root, count_missing_nbytes(plan, is_new=is_new))
    return plan


def count_missing_nbytes(plan: StorePlan, *, is_new: bool = False) -> int:
    """Return the bytes of the uncompressed shards that a store lacks: of all, if it is new."""
    return sum(
        layout.nbytes
        - (0 if is_new else layout.nbytes * _count_files(plan.root, layout) // layout.num_shards)
        for layout in plan.layouts
        if layout.num_shards and layout.codec == "none"
    )


def plan_file(plan: StorePlan) -> bytes:
    """Return the content of a store's ``plan.json`` with its own digest."""
    return seal(plan.to_json(), "plan_sha256")


def commit_store(
    plan: StorePlan, receipts: Iterable[Receipt], attributes: dict[str, Any] | None = None
) -> None:
    """Commit a finished store: write its metadata, the root ``zarr.json`` last.

    Parameters
    ----------
    plan
        The plan that ``begin_store`` wrote.
    receipts
        One for every shard of every array, in any order.
    attributes
        Facts about the result that are not part of its fingerprint, such as totals.

    Raises
    ------
    VerificationError
        If a shard has no receipt.
    FingerprintMismatchError
        If a commit with other content exists. One with other attributes is kept.
    """
    contents = commit_files(plan, receipts, COMMON_ATTRIBUTES | (attributes or {}))
    root = contents.pop(ROOT_KEY)
    keys = [layout.shard_key(i) for layout in plan.layouts for i in range(layout.num_shards)]
    folders = {key.rpartition("/")[0] for key in (*contents, *keys)}
    folders |= {folder.rpartition("/")[0] for folder in folders}
    num_threads = files.num_writers(plan.root)
    map_in_threads(num_threads, lambda key: _create_same(plan.root / key, contents[key]), contents)
    map_in_threads(num_threads, lambda name: files.sync_directory(plan.root / name), folders)
    _create_same(plan.root / ROOT_KEY, root, _commit_facts)
    files.sync_directory(plan.root)
    files.sync_directory(plan.root.parent)


def commit_files(
    plan: StorePlan, receipts: Iterable[Receipt], attributes: dict[str, Any] | None = None
) -> dict[str, bytes]:
    """Return the files of a commit by key; parameters as of `commit_store`.

    Raises
    ------
    VerificationError
        If a shard has no receipt.
    """
    by_shard = {(receipt.array, receipt.shard): receipt for receipt in receipts}
    manifest: dict[str, list[list[int]]] = {}
    for layout in plan.layouts:
        rows = manifest.setdefault(layout.name, [])
        for shard in range(layout.num_shards):
            receipt = by_shard.get((layout.name, shard))
            if receipt is None:
                raise VerificationError(
                    f"{plan.root} cannot be committed: shard {layout.shard_key(shard)} was never "
                    "finished; build again"
                )
            rows.append([receipt.nbytes, receipt.crc32c])
    contents = {MANIFEST_KEY: canonical_json(manifest).encode()}
    metadata = {layout.name: layout.zarr_metadata() for layout in plan.layouts}
    for name, fields in metadata.items():
        contents[f"{name}/{ROOT_KEY}"] = canonical_json(fields).encode()
    facts = plan.to_json() | (attributes or {})
    facts["manifest_sha256"] = hashlib.sha256(contents[MANIFEST_KEY]).hexdigest()
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"zindex": facts},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
    }
    facts["root_sha256"] = fingerprint(root)
    contents[ROOT_KEY] = canonical_json(root).encode()
    return contents


def _create_same(
    path: Place, content: bytes, facts_of: Callable[[bytes, Place], Any] | None = None
) -> None:
    """Create a file; an existing file must have the same bytes, or the same facts."""
    if files.write_once(path, [content]):
        return
    found = files.read_file(path)
    if found == content:
        return
    if facts_of is not None:
        with suppress(StoreError, VerificationError):
            if facts_of(found, path) == facts_of(content, path):
                return
    raise FingerprintMismatchError(
        f"{path} must hold what this build computed, it holds other bytes; "
        "remove the store and build again"
    )


def _commit_facts(content: bytes, path: Place) -> list[Any]:
    """Return what two commits of one store have in common; other attributes may differ."""
    facts = parse_root(content, path)
    return [facts.get(name) for name in ("fingerprint", "arrays", "manifest_sha256")]


def read_root(root: Place) -> dict[str, Any]:
    """Return ``attributes.zindex`` of a committed store.

    Raises
    ------
    NotReadyError
        If the store was begun but is not committed.
    StoreNotFoundError
        If the location is empty.
    StoreError
        If the store was not written by zindex, or by a later format.
    VerificationError
        If the root metadata fails its digest.
    """
    path = root / ROOT_KEY
    try:
        content = files.read_file(path)
    except StoreNotFoundError:
        status = read_status(root)
        raise status.not_ready(
            f"{root} is not built yet: {status.num_done} of {status.num_shards} shards are "
            "finished; run the build again to go on from there"
        ) from None
    return parse_root(content, root)


def parse_root(content: bytes, root: Place) -> dict[str, Any]:
    """Return ``attributes.zindex`` of a store from its root ``zarr.json``; see `read_root`."""
    path = root / ROOT_KEY
    metadata = parse_json(content, str(path))
    attributes = metadata.get("attributes")
    facts = attributes.get("zindex") if isinstance(attributes, dict) else None
    if not isinstance(facts, dict):
        raise StoreError(f"{root} must be a store written by zindex, its zarr.json is not")
    _check_digest(facts, "root_sha256", metadata, content, path, REMEDY)
    facts = _check_facts(facts, root)
    parse_as(str, facts.get("manifest_sha256"), f"{path} as manifest_sha256")
    return facts


def read_plan(root: Place) -> dict[str, Any]:
    """Read ``plan.json``.

    Raises
    ------
    StoreNotFoundError
        If it does not exist.
    StoreError, VerificationError
        If it is of a later format, or damaged.
    """
    stored = read_sealed(root / PLAN_KEY, "plan_sha256")
    return _check_facts(stored, root)


def _check_digest(
    facts: Any, name: str, content: dict[str, Any], stored: bytes, path: Place, remedy: str
) -> None:
    """Remove the digest from the facts of a file, and check it; `stored` are the file's bytes."""
    digest = facts.pop(name, None)
    # In canonical form the bytes without the digest were hashed: no need to encode again.
    rest = stored.replace(f'"{name}":"{digest}",'.encode("utf-8", "replace"), b"", 1)
    if hashlib.sha256(rest).hexdigest() == digest:
        return
    try:
        actual = fingerprint(content)
    except (ValueError, RecursionError):  # JSON that zindex never writes, such as NaN
        actual = None
    if digest is None or digest != actual:
        raise VerificationError(f"{path} fails its digest; {remedy}")


def _check_facts(facts: dict[str, Any], root: Place) -> Facts:
    """Return facts of a format that this package can read, with the fingerprint of their spec."""
    version = facts.get("format_version")
    if type(version) is not int or version not in (1, FORMAT_VERSION):
        raise StoreError(
            f"{root} has format version {shorten(version)}, this zindex reads {FORMAT_VERSION}; "
            "update zindex"
        )
    for name, kind in _KINDS.items():
        parse_as(kind, facts.get(name), f"{root} as {name}")
    named = {name: facts[name] for name in ("kind", "spec")}
    try:
        is_same = fingerprint(named) == facts["fingerprint"]
    except (ValueError, RecursionError):
        is_same = False
    if not is_same:
        raise VerificationError(f"{root} must have the fingerprint of its description; {REMEDY}")
    _check_spec(facts["spec"], root)
    return Facts(facts | {"spec": Facts(facts["spec"])})


def _check_spec(spec: dict[str, Any], root: Place) -> None:
    """Check the facts that readers use."""
    for name, value in spec.items():
        if name.startswith("num_") and value is not None and not _is_count(value):
            raise StoreError(f"{root} must hold a count as {name}, it holds {shorten(value)}")
    dtype = spec.get("token_dtype", "int32")
    if not isinstance(dtype, str) or dtype not in DATA_TYPES:
        raise StoreError(f"{root} must hold a dtype as token_dtype, it holds {shorten(dtype)}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE


def read_status(root: Place) -> StoreStatus:
    """Count the finished shards of a begun or committed store.

    Raises
    ------
    StoreNotFoundError
        If no store was begun at this location.
    StoreError, VerificationError
        If its plan is of a later format, or damaged.
    """
    try:
        plan = read_plan(root)
    except StoreNotFoundError:
        raise StoreNotFoundError(f"no zindex store at {root}; check the path or build it") from None
    layouts = parse_layouts(plan["arrays"], root)
    return StoreStatus(
        num_done=sum(_count_files(root, layout) for layout in layouts),
        num_shards=sum(layout.num_shards for layout in layouts),
        committed=files.exists(root / ROOT_KEY),
    )


def _count_files(root: Place, layout: ArrayLayout) -> int:
    """Count the shards of an array that have their final name."""
    keys = files.list_keys(root / layout.name / "c", depth=layout.shard_key(0).count("/") - 1)
    return sum(key.removesuffix("/0").isdecimal() for key in keys)
