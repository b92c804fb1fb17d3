"""Open stores by location, both committed ones and ones that are still being built.

A builder writes each shard once and whole, in any order, so a shard that passes its checks has its
final content. Readers of an unfinished store wait for the shards that they need and keep no state
about the builder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    MissingKeyError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    check_choice,
)
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.store.chunk_reader import Verify
from zindex.store.commit import ROOT_KEY, StorePlan, read_plan, read_root
from zindex.store.heartbeat import BuildWait
from zindex.store.layout import ArrayLayout, parse_layouts
from zindex.store.reader import LocalReader, forget_open_shards
from zindex.store.records import KIND, read_document_fields, read_fields
from zindex.store.remote_reader import RemoteReader
from zindex.store.rows import RoundReader, RowReader, Spans, read_many
from zindex.store.shard_files import find_receipt

# The tokens of a linked store are in a .bin file.
_OPTIONAL_ARRAYS = (schema.TOKENS.name, schema.SEQUENCE_MODE.name)


@dataclass(frozen=True, slots=True)
class Store:
    """A committed store and its arrays. Pickled as these few fields."""

    root: Place
    kind: str
    fingerprint: str
    #: The description whose hash is the fingerprint.
    spec: dict[str, Any]
    #: All of ``attributes.zindex``.
    attributes: dict[str, Any]
    layouts: dict[str, ArrayLayout]
    #: When readers verify an inner chunk against its crc32c.
    verify: Verify = "first"

    @property
    def num_shards(self) -> int:
        """Files that hold values."""
        return sum(layout.num_shards for layout in self.layouts.values())

    def __contains__(self, name: object) -> bool:
        return name in self.layouts

    def __getitem__(self, name: str) -> RowReader:
        """Return the reader of an array."""
        if name not in self.layouts:
            known = sorted(self.layouts)
            raise MissingKeyError(f"{self.root} has no array {name!r}, it has {known}")
        return self._reader(name)

    def _reader(self, name: str) -> RowReader:
        version = self.attributes["manifest_sha256"]
        return open_reader(self.root, self.layouts[name], version, self.verify)


def open_reader(
    root: Place, layout: ArrayLayout, version: str = "", verify: Verify = "first"
) -> RowReader:
    """Return the reader of an array of a store, committed or not; see `LocalReader`."""
    if isinstance(root, Path):
        return LocalReader(root, layout, version, verify)
    return RemoteReader(root, layout, version, verify)


def open_store(
    url: PlaceLike,
    *,
    kind: str | None = None,
    expected: str | None = None,
    verify: Verify = "first",
    follow: float | None = None,
) -> Store:
    """Open a committed store, by reading a single file.

    Parameters
    ----------
    url
        Path or URL of the store: ``file``, ``s3``, ``gs``, ``az``, ``http`` or ``https``.
    kind
        ``"tokens"`` or ``"index"``; None accepts both.
    expected
        Fingerprint that the store must have; None accepts any.
    verify
        When an inner chunk is verified against its crc32c: ``"first"``, on first use in a process;
        ``"always"``, at every read; ``"never"``.
    follow
        Timeout in seconds of a read that needs an unfinished part of the store; None refuses an
        uncommitted store.

    Raises
    ------
    ConfigError
        If ``verify`` is none of these.
    NotReadyError
        If it was begun but is not committed.
    StoreNotFoundError
        If the location is empty.
    StoreError
        If it is not a zindex store of this kind and format.
    FingerprintMismatchError
        If its content is not the expected one.
    VerificationError
        If its metadata are damaged.
    """
    check_choice("verify", verify, get_args(Verify))
    if follow is not None:
        return follow_store(url, follow, kind=kind, expected=expected, verify=verify)
    root = place_of(url)
    facts = read_root(root)
    _check_content(root, facts, kind, expected)
    if isinstance(root, Path):
        forget_open_shards(root)
    layouts = parse_layouts(facts["arrays"], root)
    store = Store(**_identify(root, facts, layouts), verify=verify)
    _check_arrays(store)
    return store


def _identify(root: Place, facts: dict[str, Any], layouts: Sequence[ArrayLayout]) -> dict[str, Any]:
    """Return the fields of a `Store` that describe its content."""
    named = {name: facts[name] for name in ("kind", "fingerprint", "spec")}
    by_name = {layout.name: layout for layout in layouts}
    return named | {"root": root, "attributes": facts, "layouts": by_name}


def _check_arrays(store: Store) -> None:
    """Raise if the sizes of a store's arrays differ from the counts in its description."""
    spec, wanted = store.spec, list[tuple[str, int, str]]()
    if store.kind == "tokens":
        for name, (count, total, dtype) in schema.TOKEN_ARRAYS.items():
            if count in spec and (name in store or name not in _OPTIONAL_ARRAYS):
                wanted.append(
                    (name, (spec[count] or 0) + bool(total), dtype or spec.get("token_dtype", ""))
                )
        for field in read_document_fields(spec, store.root):
            wanted += _name_arrays(field.arrays(spec.get("num_documents") or 0))
    elif store.kind == KIND and "fields" in spec:
        for each in read_fields(spec, store.root).values():
            arrays = _name_arrays(each.arrays(spec.get("num_records") or 0))
            wanted += arrays if spec.get("has_records", True) else [arrays[0], *arrays[2:]]
    for name, length, dtype in wanted:
        found = store.layouts.get(name)
        if found is None or (found.length, found.dtype) != (length, dtype):
            raise StoreError(
                f"{store.root} must have {name} of {length} {dtype}, as its description "
                f"counts, it has {'none' if found is None else f'{found.length} {found.dtype}'}; "
                "restore it"
            )


def _name_arrays(arrays: list[tuple[schema.ArraySpec, int, str]]) -> list[tuple[str, int, str]]:
    return [(array.name, length, dtype) for array, length, dtype in arrays]


def _check_content(
    root: Place, facts: dict[str, Any], kind: str | None, expected: str | None
) -> None:
    """Raise if a store is of another kind or has other content."""
    if kind is not None and facts["kind"] != kind:
        raise StoreError(f"{root} must hold {kind}, it holds {facts['kind']}; check the path")
    found = facts["fingerprint"]
    if expected is not None and found != expected:
        raise FingerprintMismatchError(
            f"{root} must have fingerprint {expected[:16]}, it has {found[:16]}: its data or "
            "settings differ; build it again at another place"
        )


def _no_news() -> None:
    """Do nothing: the build's errors are unknown here."""


@dataclass(frozen=True, slots=True)
class FollowedStore(Store):
    """A store that another process or thread is building or about to build.

    Reads wait for their rows. It is pickled without ``listen`` and ``computed``: another process
    detects a failed build by its timeout.
    """

    #: Timeout of a read, in seconds.
    patience: float = 0.0
    #: Called at every read; raises the error of a failed build.
    listen: Callable[[], None] = field(default=_no_news, compare=False, repr=False)
    #: Arrays that this process has computed; it reads them in memory until they are stored.
    computed: dict[str, AnyArray] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.root, self.kind, self.fingerprint, self.spec, self.attributes, self.layouts)
        return FollowedStore, (*fields, self.verify, self.patience)

    def _reader(self, name: str) -> Any:
        return self.computed[name] if name in self.computed else FollowedArray(self, name)


def follow_plan(
    plan: StorePlan,
    patience: float,
    listen: Callable[[], None] = _no_news,
    *,
    verify: Verify = "first",
) -> FollowedStore:
    """Return the store of a plan while it is built; nothing is read until its arrays are used.

    Parameters
    ----------
    plan
        The plan; an earlier builder may have chosen another chunk grid.
    patience
        Timeout of a read in seconds, >= 0.
    listen
        Called at every read; raises the error of a failed build.
    verify
        As of ``open_store``.

    Raises
    ------
    ConfigError
        If the patience is negative.
    """
    if not patience >= 0:
        raise ConfigError(f"follow must be 0 seconds or more, got {patience}; leave it out to wait")
    fields = _identify(plan.root, plan.to_json(), plan.layouts)
    return FollowedStore(**fields, verify=verify, patience=patience, listen=listen)


def follow_store(
    url: PlaceLike,
    patience: float,
    *,
    kind: str | None = None,
    expected: str | None = None,
    verify: Verify = "first",
) -> Store:
    """Return a committed or unfinished store by its location; wait until it is begun.

    Parameters
    ----------
    url
        Path or URL of the store.
    patience
        Timeout in seconds of the wait for its plan, and of each read.
    kind, expected, verify
        As of ``open_store``, which raises the same errors.

    Raises
    ------
    NotReadyError
        If it is not begun before the timeout.
    """
    root = place_of(url)
    wait = BuildWait(root, patience, _no_news)
    while True:
        try:
            return open_store(root, kind=kind, expected=expected, verify=verify)
        except NotReadyError:
            break
        except StoreNotFoundError:
            wait.pause("the plan")
    facts = read_plan(root)
    _check_content(root, facts, kind, expected)
    if facts["spec"].get("link") is True:
        # The location of the tokens is only known after the commit.
        while not files.exists(root / ROOT_KEY):
            wait.pause("the link to the .bin")
        return open_store(root, kind=kind, expected=expected, verify=verify)
    layouts = parse_layouts(facts["arrays"], root)
    plan = StorePlan(root, facts["kind"], facts["spec"], layouts)
    return follow_plan(plan, patience, verify=verify)


class FollowedArray(RoundReader):
    """One array of an unfinished store; a read waits for its shards.

    Parameters
    ----------
    store
        The store.
    name
        The array.
    """

    def __init__(self, store: FollowedStore, name: str) -> None:
        super().__init__(store.layouts[name])
        self.store = store
        self.name = name
        # Set at the first read: the array on its actual chunk grid, and which shards are finished.
        self._reader: RowReader | None = None
        self._stored: ArrayLayout = store.layouts[name]
        self._is_finished = np.zeros(0, np.bool_)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.name)

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several arrays in one round, once all shards are finished.

        Raises
        ------
        NotReadyError
            If a shard is not finished before the timeout.
        """
        ready = []
        for spans in wanted:
            assert isinstance(spans.reader, FollowedArray)
            reader = spans.reader._await_rows(spans.starts, spans.stops)
            ready.append(spans._replace(reader=reader))
        return read_many(ready)

    def _await_rows(self, starts: Int64Array, stops: Int64Array) -> RowReader:
        """Return the reader of the stored array once the shards of these rows are finished."""
        self.store.listen()
        if self._reader is None or not self._is_finished.all():
            wait = BuildWait(self.store.root, self.store.patience, self.store.listen)
            if self._reader is None:
                self._reader = self._bind(wait)
            for shard in self._find_missing(starts, stops):
                if not self._is_finished[shard]:
                    self._await_shard(shard, wait)
        return self._reader

    def _bind(self, wait: BuildWait) -> RowReader:
        """Return a reader on the store's chunk grid, once its builder has written the plan."""
        store = self.store
        while True:
            try:
                plan = read_plan(store.root)
                break
            except StoreNotFoundError:
                wait.pause("the plan")
        _check_content(store.root, plan, None, store.fingerprint)
        layouts = {layout.name: layout for layout in parse_layouts(plan["arrays"], store.root)}
        self._stored = layouts[self.name]
        self._is_finished = np.zeros(self._stored.num_shards, np.bool_)
        return open_reader(store.root, self._stored, f"followed-{store.fingerprint}", store.verify)

    def _find_missing(self, starts: Int64Array, stops: Int64Array) -> list[int]:
        """Return the shards of spans that are not known to be finished, ascending."""
        length, num_shards = self._stored.shard_length, self._stored.num_shards
        # The reader rejects spans outside the array.
        inside = (starts >= 0) & (starts < stops) & (stops <= self._stored.length)
        firsts, lasts = starts[inside] // length, (stops[inside] - 1) // length
        touched = np.zeros(num_shards + 1, np.int64)
        np.add.at(touched, firsts, 1)
        np.add.at(touched, lasts + 1, -1)
        is_touched = np.cumsum(touched[:-1]) > 0
        missing: list[int] = np.flatnonzero(is_touched & ~self._is_finished).tolist()
        return missing

    def _await_shard(self, shard: int, wait: BuildWait) -> None:
        """Wait until a shard is written and passes its checks, or all are committed."""
        store = self.store
        while not files.exists(store.root / ROOT_KEY):
            if find_receipt(store.root, self._stored, shard) is not None:
                self._is_finished[shard] = True
                return
            wait.pause(f"shard {self._stored.shard_key(shard)}")
        # After a commit all shards exist, and the manifest identifies them.
        facts = read_root(store.root)
        _check_content(store.root, facts, None, store.fingerprint)
        version = facts["manifest_sha256"]
        self._reader = open_reader(store.root, self._stored, version, store.verify)
        self._is_finished[:] = True
