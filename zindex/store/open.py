"""Committed stores, opened by place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zindex.errors import FingerprintMismatchError, StoreError
from zindex.store.commit import read_root
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.reader import (
    ArrayReader,
    RowReader,
    Verify,
    check_verify,
    forget_open_shards,
)


@dataclass(frozen=True, slots=True)
class Store:
    """A committed store: what it is and its arrays. Pickles as these few fields."""

    root: Place
    kind: str
    fingerprint: str
    #: The description whose hash is the fingerprint.
    spec: dict[str, Any]
    #: All of ``attributes.zindex``.
    attributes: dict[str, Any]
    layouts: dict[str, ArrayLayout]
    #: When readers check an inner chunk against its crc32c.
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
            raise KeyError(f"{self.root} has no array {name!r}, it has {sorted(self.layouts)}")
        version = self.attributes["manifest_sha256"]
        return open_reader(self.root, self.layouts[name], version, self.verify)


def open_reader(
    root: Place, layout: ArrayLayout, version: str = "", verify: Verify = "first"
) -> RowReader:
    """Return the reader of an array of a store, committed or not; see `ArrayReader`."""
    if isinstance(root, Path):
        return ArrayReader(root, layout, version, verify)
    from zindex.store.remote_reader import RemoteReader

    return RemoteReader(root, layout, version, verify)


def open_store(
    url: PlaceLike,
    *,
    kind: str | None = None,
    expected: str | None = None,
    verify: Verify = "first",
    follow: float | None = None,
) -> Store:
    """Open a committed store; one file is read.

    Parameters
    ----------
    url
        Path or URL of the store: ``file``, ``s3``, ``gs``, ``az``, ``http`` or ``https``.
    kind
        ``"tokens"`` or ``"index"``; None accepts both.
    expected
        Fingerprint that the content must have; None accepts any.
    verify
        When an inner chunk is checked against its crc32c: ``"first"``, at its first touch in a
        process; ``"always"``, at every read; ``"never"``.
    follow
        Seconds that a read of a store which is still being built waits at most for what it needs;
        None refuses such a store.

    Raises
    ------
    ConfigError
        If ``verify`` is none of these.
    NotReadyError
        If it was begun but is not committed.
    StoreNotFoundError
        If nothing is there.
    StoreError
        If it is not a zindex store of this kind and format.
    FingerprintMismatchError
        If its content is not the expected one.
    VerificationError
        If its metadata are damaged.
    """
    check_verify(verify)
    if follow is not None:
        from zindex.store.follow import follow_store

        return follow_store(url, follow, kind=kind, expected=expected, verify=verify)
    root = place_of(url)
    facts = read_root(root)
    if kind is not None and facts["kind"] != kind:
        raise StoreError(f"{root} must hold {kind}, it holds {facts['kind']}; check the path")
    if expected is not None and facts["fingerprint"] != expected:
        raise FingerprintMismatchError(
            f"{root} must have fingerprint {expected[:16]}, it has {facts['fingerprint'][:16]}: "
            "its data or settings differ; build it again at another place"
        )
    if isinstance(root, Path):
        forget_open_shards(root)
    layouts = [ArrayLayout.from_json(fields) for fields in facts["arrays"]]
    return Store(
        root=root,
        kind=facts["kind"],
        fingerprint=facts["fingerprint"],
        spec=facts["spec"],
        attributes=facts,
        layouts={layout.name: layout for layout in layouts},
        verify=verify,
    )
