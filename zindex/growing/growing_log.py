"""The description and the log of a growing store: open, follow and commit."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import (
    FingerprintMismatchError,
    SourceError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    VerificationError,
)
from zindex.formats.keyed.shards import GROWING_KEY
from zindex.growing.fields import GrowingKey, GrowingSchema
from zindex.growing.history import Entry, History, parse_entry
from zindex.growing.homes import HomeReader
from zindex.growing.numbered_log import NumberedLog
from zindex.io import files
from zindex.io.backoff import Backoff
from zindex.io.fork_locks import fork_safe_lock
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.store.check_place import PLAN_KEY, ROOT_KEY, check_place
from zindex.store.checked_json import parse_as
from zindex.store.commit import fingerprint, read_sealed, seal
from zindex.store.records import check_dtypes
from zindex.store.tokenizer_note import read_note

LOG_KEY = "_zindex/log"
SUMMARY_KEY = "_zindex/summary.json"
_DIGEST = "sha256"
_REMEDY = "restore it from a copy of the store"
_FORMAT_VERSION = 1
# Commits between two summaries, at least; more if there are many, as summaries grow with them.
_SUMMARY_INTERVAL = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
# Network file systems show new files within this many seconds.
_VISIBILITY_TIMEOUT, _LONGEST_VISIBILITY_PAUSE = 120.0, 1.0
_KEYS: Any = tuple[GrowingKey, ...]
_NUM_IDS: Any = int | None
_KIND: Any = dict[str, Any] | None


class GrowingLog:
    """A growing store in this process: its schema, and its history as far as it was read.

    Parameters
    ----------
    url
        Path or URL of the store.

    Raises
    ------
    StoreNotFoundError
        If there is no growing store.
    StoreError, VerificationError
        If its description or its log is damaged, or of a later format.
    """

    def __init__(self, url: PlaceLike) -> None:
        self.root = place_of(url)
        try:
            content = read_sealed(self.root / GROWING_KEY, _DIGEST, _REMEDY)
        except StoreNotFoundError:
            raise StoreNotFoundError(
                f"no growing store at {self.root}; check the path, or append records to make it"
            ) from None
        where = str(self.root / GROWING_KEY)
        if content.get("format_version") != _FORMAT_VERSION:
            raise StoreError(
                f"{where} has format version {content.get('format_version')!r}, this zindex reads "
                f"{_FORMAT_VERSION}; update zindex"
            )
        #: Identity of the store, drawn when it was made.
        self.identity: str = parse_as(str, content.get("id"), where)
        keys = parse_as(_KEYS, content.get("keys"), where)
        check_dtypes({key.name: key.dtype for key in keys})
        kind = parse_as(_KIND, content.get("kind"), where)
        num_ids = parse_as(_NUM_IDS, content.get("num_ids"), where)
        self.schema = GrowingSchema(keys, num_ids, kind)
        self.log = NumberedLog(self.root / LOG_KEY)
        self.history = History(len(self.schema.fields))
        self.reader = HomeReader(self.root, self.schema)
        #: Held while the history is read or extended.
        self.lock = fork_safe_lock()
        self._load_summary()
        self.advance()
        number = self.history.number + 1
        if files.exists(self.log.path(number + 1)) and self.log.read(number) is None:
            raise VerificationError(
                f"{self.log.path(number)} must exist, as commit {number + 1} does; {_REMEDY}"
            )

    def advance(self) -> bool:
        """Read the commits since the last call; return whether there are any."""
        with self.lock:
            before = self.history.number
            for content in self.log.read_after(before):
                self._add(content)
            return self.history.number > before

    def read_num_ids(self) -> int | None:
        """Return the number of ids of the vocabulary, or of the tokenizer that the store keeps."""
        note = read_note(self.root) if self.schema.num_ids is None else None
        return self.schema.num_ids if note is None else note.vocab_size

    def choose(self, generation: int | None) -> tuple[int, Int64Array]:
        """Return the number of a generation, by default the head, and the places of its records.

        Raises
        ------
        StoreNotFoundError
            If the store has no such generation.
        SourceError
            If it has no records at the generation.
        """
        head = self.history.number
        number = head if generation is None else generation
        if number > head:
            raise StoreNotFoundError(
                f"{self.root} must have generation {number}, its head is {head}; wait for it, or "
                "give an earlier one"
            )
        live = np.flatnonzero(self.history.find_live(number))
        if not len(live):
            raise SourceError(
                f"{self.root} must have records to be a keyed store, generation {number} has none; "
                "append records, or give a generation before the eviction"
            )
        return number, live

    def wait_for(self, number: int) -> None:
        """Read up to a commit that exists; a network file system may show it late.

        Raises
        ------
        StoreUnavailableError
            If it is not seen.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_VISIBILITY_PAUSE, timeout=_VISIBILITY_TIMEOUT)
        while self.history.number < number:
            self.advance()
            if self.history.number < number and not backoff.wait():
                raise StoreUnavailableError(
                    f"generation {number} of {self.root} must be visible here, as it is elsewhere, "
                    f"{self.history.number} is the last after {backoff.elapsed:.0f} s; check that "
                    "all nodes have one store"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return GrowingLog, (self.root,)

    def _add(self, content: dict[str, Any]) -> None:
        number = self.history.number + 1
        where = str(self.log.path(number))
        if content.get("number") != number:
            raise VerificationError(f"{where} must hold commit {number}; {_REMEDY}")
        self.history.add(number, parse_entry(content, where))

    def commit(self, make: Callable[[History], Entry | None]) -> int:
        """Commit an entry under the next free number; return the number.

        Parameters
        ----------
        make
            Called with the history up to the head, again after each commit of another process.
            None commits nothing, and the result is 0.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            with self.lock:
                self.advance()
                entry = make(self.history)
                if entry is None:
                    return 0
                number = self.history.number + 1
                is_created = self.log.create(number, {"number": number} | asdict(entry))
                if is_created:
                    self.history.add(number, entry)
            if is_created:
                if number % max(_SUMMARY_INTERVAL, (1 << number.bit_length()) >> 6) == 0:
                    self.write_summary()
                return number
            backoff.wait()

    def fingerprint_at(self, number: int) -> str:
        """Return the SHA-256, in hex, that identifies the records of the store at a commit.

        Raises
        ------
        StoreNotFoundError
            If there is no such commit.
        """
        content = self.log.read(number) if number else {}
        if content is None:
            raise StoreNotFoundError(
                f"{self.root} must have generation {number}, its head is {self.history.number}; "
                "wait for it, or give an earlier one"
            )
        return fingerprint({"growing": self.identity, "commit": content})

    def write_summary(self) -> None:
        """Write the history for processes that open the store later; failures do no harm."""
        sealed = seal(self.history.to_json(), _DIGEST)
        with suppress(StoreError):  # such as another writer's
            files.write_once(self.root / SUMMARY_KEY, [sealed], replace=True)

    def _load_summary(self) -> None:
        """Begin at a summary, if there is an intact one: without it, all commits are read."""
        path = self.root / SUMMARY_KEY
        with suppress(StoreError, VerificationError):
            content = read_sealed(path, _DIGEST, "remove it")
            number = parse_as(int, content.get("number"), str(path))
            if files.exists(self.log.path(number)):
                self.history.load(content, str(path))


def is_growing(url: PlaceLike) -> bool:
    """Return whether there is a growing store at a location."""
    return files.exists(place_of(url) / GROWING_KEY)


def create_growing(root: Place, schema: GrowingSchema) -> GrowingLog:
    """Make an empty growing store, or open the one that another process has made.

    Raises
    ------
    FingerprintMismatchError
        If the location holds other files.
    """
    if any(files.exists(root / key) for key in (ROOT_KEY, PLAN_KEY)):
        raise FingerprintMismatchError(
            f"{root} must be a growing store to be appended to, it is a store that was written at "
            "once; choose another place, and append its records there"
        )
    try:
        check_place(root)
    except FingerprintMismatchError:
        if not is_growing(root):  # another process has just made it
            raise
    folder = (root / GROWING_KEY).parent
    files.make_folder(folder)
    content = {
        "format_version": _FORMAT_VERSION,
        "id": uuid.uuid4().hex,
        "keys": [asdict(key) for key in schema.keys],
        "num_ids": schema.num_ids,
        "kind": schema.kind,
    }
    files.write_once(root / GROWING_KEY, [seal(content, _DIGEST)])
    files.sync_directory(folder)
    return GrowingLog(root)
