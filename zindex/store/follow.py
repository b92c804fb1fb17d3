"""Stores that are read while they are built: a shard is served once it is there, and waited for.

A builder writes each shard once and whole, in any order, so a shard that is there and passes its
checks holds what the finished store will hold. Nothing here tells builders apart from one another,
and nothing is remembered of them: once the store is committed its own reader takes over.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.store import files
from zindex.store.commit import ROOT_KEY, StorePlan, read_plan, read_status
from zindex.store.layout import ArrayLayout
from zindex.store.life import read_life
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import Store, open_reader, open_store
from zindex.store.reader import RowReader, Spans, Verify, read_many
from zindex.store.shard import REMEDY
from zindex.store.shard_files import find_receipt

_FIRST_WAIT, _LONGEST_WAIT, _GROWTH = 0.01, 1.0, 1.25
# Builders show life more often than this; after a shorter wait nothing can be said of them.
_SILENCE = 25.0


def _hear_nothing() -> None:
    """Stand for a builder of which nothing is known."""


@dataclass(frozen=True, slots=True)
class FollowedStore(Store):
    """A store that is built, or about to be, somewhere else or in a thread of this process.

    Its arrays wait for what is read of them. It pickles without ``listen``: another process does
    not hear of a failed build, and finds out by waiting.
    """

    #: Seconds that a read waits at most.
    patience: float = 0.0
    #: Called at every read; raises where the build is known to have failed.
    listen: Callable[[], None] = field(default=_hear_nothing, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.root, self.kind, self.fingerprint, self.spec, self.attributes, self.layouts)
        return FollowedStore, (*fields, self.verify, self.patience)

    def __getitem__(self, name: str) -> RowReader:
        """Return the reader of an array."""
        if name not in self.layouts:
            raise KeyError(f"{self.root} has no array {name!r}, it has {sorted(self.layouts)}")
        return FollowedArray(self, name)


def follow_plan(
    plan: StorePlan,
    patience: float,
    listen: Callable[[], None] = _hear_nothing,
    *,
    verify: Verify = "first",
) -> FollowedStore:
    """Return the store of a plan as it comes to be; nothing is read before its arrays are.

    Parameters
    ----------
    plan
        What is built; a builder that was there before may have cut it otherwise.
    patience
        Seconds that a read waits at most, >= 0.
    listen
        Called at every read; raises where the build is known to have failed.
    verify
        As of ``open_store``.

    Raises
    ------
    ConfigError
        If the patience is negative.
    """
    if not patience >= 0:
        raise ConfigError(f"follow must be 0 seconds or more, got {patience}; leave it out to wait")
    return FollowedStore(
        root=plan.root,
        kind=plan.kind,
        fingerprint=plan.fingerprint,
        spec=plan.spec,
        attributes=plan.to_json(),
        layouts={layout.name: layout for layout in plan.layouts},
        verify=verify,
        patience=patience,
        listen=listen,
    )


def follow_store(
    url: PlaceLike,
    patience: float,
    *,
    kind: str | None = None,
    expected: str | None = None,
    verify: Verify = "first",
) -> Store:
    """Return a store by its place, committed or begun; one that is not begun is waited for.

    Parameters
    ----------
    url
        Path or URL of the store.
    patience
        Seconds to wait at most for it to be begun, and for each read of it.
    kind, expected, verify
        As of ``open_store``, which has the same errors.

    Raises
    ------
    NotReadyError
        If it is not begun in time.
    """
    root = place_of(url)
    wait = _Wait(root, patience, _hear_nothing)
    while True:
        try:
            return open_store(root, kind=kind, expected=expected, verify=verify)
        except NotReadyError:
            break
        except StoreNotFoundError:
            wait.go_on("the plan")
    facts = read_plan(root)
    if facts["spec"].get("link") is True:
        # Only its commit says where the tokens lie.
        while not files.exists(root / ROOT_KEY):
            wait.go_on("the link to the .bin")
        return open_store(root, kind=kind, expected=expected, verify=verify)
    layouts = tuple(ArrayLayout.from_json(fields) for fields in facts["arrays"])
    plan = StorePlan(root, facts["kind"], facts["spec"], layouts)
    store = follow_plan(plan, patience, verify=verify)
    if kind is not None and store.kind != kind:
        raise StoreError(f"{root} must hold {kind}, it holds {store.kind}; check the path")
    _check_fingerprint(root, store.fingerprint, expected or store.fingerprint)
    return store


def _check_fingerprint(root: Place, found: str, expected: str) -> None:
    """Refuse a store of other content."""
    if found != expected:
        raise FingerprintMismatchError(
            f"{root} must have fingerprint {expected[:16]}, it has {found[:16]}: its data or "
            "settings differ; build it again at another place"
        )


class FollowedArray(RowReader):
    """One array of a store that is built, read by position as far as it is there.

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
        # Set at the first read: the array as the store is really cut, and which shards are there.
        self._reader: RowReader | None = None
        self._cut: ArrayLayout = store.layouts[name]
        self._is_there = np.zeros(0, np.bool_)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.name)

    def read_spans(
        self,
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
        out: npt.NDArray[Any] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the rows of many spans once all are there; see `RowReader.read_spans`.

        Raises
        ------
        NotReadyError
            If a shard is not there in time.
        """
        return self._await_rows(starts, stops).read_spans(starts, stops, out, places)

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[npt.NDArray[Any]]:
        """Return the spans of several arrays in one round, once all are there."""
        ready = []
        for spans in wanted:
            assert isinstance(spans.reader, FollowedArray)
            reader = spans.reader._await_rows(spans.starts, spans.stops)
            ready.append(spans._replace(reader=reader))
        return read_many(ready)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        starts, stops = np.array([start], np.int64), np.array([stop], np.int64)
        self._await_rows(starts, stops).read(start, stop, out)

    def _await_rows(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> RowReader:
        """Return the reader of the stored array once it holds the shards of these rows."""
        store = self.store
        store.listen()
        wait: _Wait | None = None
        if self._reader is None:
            wait = _Wait(store.root, store.patience, store.listen)
            self._bind(wait)
        assert self._reader is not None
        if not self._is_there.all():
            for shard in self._find_missing(starts, stops):
                wait = wait or _Wait(store.root, store.patience, store.listen)
                self._await_shard(shard, wait)
        return self._reader

    def _bind(self, wait: "_Wait") -> None:
        """Find out how the store is cut, once its builder has begun it."""
        store = self.store
        while True:
            try:
                plan = read_plan(store.root)
                break
            except StoreNotFoundError:
                wait.go_on("the plan")
        _check_fingerprint(store.root, plan["fingerprint"], store.fingerprint)
        (fields,) = [fields for fields in plan["arrays"] if fields["name"] == self.name]
        self._cut = ArrayLayout.from_json(fields)
        self._is_there = np.zeros(self._cut.num_shards, np.bool_)
        version = f"followed-{store.fingerprint}"
        self._reader = open_reader(store.root, self._cut, version, store.verify)

    def _find_missing(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
    ) -> list[int]:
        """Return the shards of spans that have not been there, in order."""
        length, num_shards = self._cut.shard_length, self._cut.num_shards
        inside = (starts >= 0) & (starts < stops) & (stops <= self._cut.length)  # others are errors
        firsts, lasts = starts[inside] // length, (stops[inside] - 1) // length
        touched = np.zeros(num_shards + 1, np.int64)
        np.add.at(touched, firsts, 1)
        np.add.at(touched, lasts + 1, -1)
        is_touched = np.cumsum(touched[:-1]) > 0
        missing: list[int] = np.flatnonzero(is_touched & ~self._is_there).tolist()
        return missing

    def _await_shard(self, shard: int, wait: "_Wait") -> None:
        """Wait until a shard is there and passes its checks."""
        root, key = self.store.root, self._cut.shard_key(shard)
        while True:
            # In this order: a commit promises the shards that were there before it.
            is_committed = files.exists(root / ROOT_KEY)
            if find_receipt(root, self._cut, shard) is not None:
                self._is_there[shard] = True
                return
            if is_committed:
                raise VerificationError(f"shard {key} of {root} is missing or damaged; {REMEDY}")
            wait.go_on(f"shard {key}")


class _Wait:
    """One wait of one read: how long it lasts, and what is seen of the builder meanwhile."""

    def __init__(self, root: Place, patience: float, listen: Callable[[], None]) -> None:
        self.root = root
        self.patience = patience
        self.listen = listen
        self.start = time.monotonic()
        self.pause = _FIRST_WAIT
        self.life: str | None = None
        self.is_first = True

    def go_on(self, what: str) -> None:
        """Sleep a moment, or raise because the wait has been long enough."""
        self.listen()
        if self.is_first:
            self.life, self.is_first = read_life(self.root), False
        left = self.start + self.patience - time.monotonic()
        if left <= 0:
            raise self._not_ready(what)
        # Jitter keeps thousands of ranks from asking the file system in the same instant.
        time.sleep(min(left, self.pause * random.uniform(0.5, 1.0)))
        # Slowly, so that what comes soon is not met much later.
        self.pause = min(_GROWTH * self.pause, _LONGEST_WAIT)

    def _not_ready(self, what: str) -> NotReadyError:
        """Return the error of a wait that is over."""
        try:
            status = read_status(self.root)
            num_done, num_shards = status.num_done, status.num_shards
            done = f"{num_done} of {num_shards} shards are"
        except StoreNotFoundError:
            num_done = num_shards = 0
            done = "its build has not begun"
        advice = "wait longer, with a larger follow, or build ahead with `zindex build`"
        if read_life(self.root) != self.life:
            advice = f"its build goes on; {advice}"
        elif self.patience >= _SILENCE:
            advice = "nobody seems to build it any more; start the builder again"
        return NotReadyError(
            f"{what} of {self.root} must be there within {self.patience:g} s, {done}; {advice}",
            num_done=num_done,
            num_shards=num_shards,
        )
