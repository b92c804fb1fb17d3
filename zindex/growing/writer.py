"""Append records to a growing store: a generation at once, or through a writer that collects."""

import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self, cast

from zindex.arrays import DTypeLike
from zindex.errors import ConfigError, SourceError, StoreNotFoundError, check_whole, shorten
from zindex.formats.keyed.keyed_array import sum_lengths
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_presets import find_schema
from zindex.growing.fields import FieldValues, infer_schema
from zindex.growing.growing_log import GrowingLog, create_growing
from zindex.growing.history import Append
from zindex.growing.homes import (
    MAX_FILE_NBYTES,
    FieldArrays,
    home_path,
    write_file,
    write_records,
)
from zindex.io import files
from zindex.io.fork_locks import fork_safe_lock
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.store.check_place import ROOT_KEY
from zindex.store.checked_json import parse_as
from zindex.store.commit import read_sealed, seal

#: Folder of the markers of appends with a key.
KEYS_KEY = "_zindex/keys"
_DIGEST = "sha256"

Record = Mapping[str, Any]
#: Names, or declares, a kind of records.
Kind = str | os.PathLike[str] | RecordSchema


def append(
    store: PlaceLike,
    records: Iterable[Record],
    *,
    version: int = 0,
    key: str | None = None,
    kind: Kind | None = None,
    dtypes: Mapping[str, DTypeLike] | None = None,
    vocab_size: int | None = None,
) -> int:
    """Append records to a growing store as one generation, and make the store if there is none.

    Parameters
    ----------
    store
        Path or URL of the store. Any number of processes may append at once.
    records
        One or more records: numbers, lists or arrays of numbers, groups of these, texts, bytes or
        JSON objects by key. All records of a store have the keys, shapes and dtypes of the first
        generation. Each gets the key ``policy_version``.
    version
        Version of the policy that made the records, >= 0.
    key
        Identity of this append, such as ``"worker 3, prompt 17"``: an append with a key that was
        committed before writes nothing. So a worker that was killed repeats its last append.
    kind, dtypes, vocab_size
        Of a new store: kind of its records, numpy dtypes by key, and the number of token ids; see
        `GrowingWriter`.

    Returns
    -------
    generation
        Number of the commit: readers that see it see these records.

    Raises
    ------
    SourceError
        If a record does not fit the store, has a token id that the vocabulary lacks, or a number
        that is not finite. Nothing is written then.
    ConfigError
        If a setting is invalid.
    FingerprintMismatchError
        If the location holds something else.
    StoreUnwritableError, StoreUnavailableError
        If a file cannot be written. The generation may be committed or not; repeat it with a key.
    """
    with GrowingWriter(store, kind=kind, dtypes=dtypes, vocab_size=vocab_size) as writer:
        return writer.append(list(records), version=version, key=key)


class GrowingWriter:
    """Collects records and commits them as generations of a growing store.

    Parameters
    ----------
    store
        Path or URL of the store, made by the first commit. Any number of writers, in any processes
        of any nodes, may write to it.
    max_records
        Records of a generation, after which `add` commits.
    version
        Version of the policy that makes the records; see `set_version`.
    kind
        Kind of the records of a new store, such as ``"grpo"``: a preset, a `RecordSchema` or its
        YAML file. It declares dtypes, token ids, and which keys have equal lengths. Records may
        have other keys, too.
    dtypes
        Numpy dtypes by key, for a new store. By default arrays keep their own. Lists of fractions,
        and lists under a key with ``reward`` in its name, become float32, lists under a key with
        ``mask`` bool, others int32.
    vocab_size
        Number of token ids of a new store; None accepts any id from 0 on.

    Notes
    -----
    Safe to use from several threads. As a context manager it commits the last records at the end,
    unless the block fails. Each commit writes one file of values and one small file; readers see
    all records of a generation or none.
    """

    def __init__(
        self,
        store: PlaceLike,
        *,
        max_records: int = 256,
        version: int = 0,
        kind: Kind | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.root = place_of(store)
        self.max_records = check_whole("max_records", max_records, 1)
        self.version = check_whole("version", version, 0)
        self._kind = None if kind is None else find_schema(kind)
        self._dtypes = dtypes
        self._vocab_size = None if vocab_size is None else check_whole("vocab_size", vocab_size, 1)
        self._records: list[Record] = []
        self._lock = fork_safe_lock()
        self._log: GrowingLog | None = None

    def add(self, record: Record) -> int | None:
        """Add a record; return the generation if this completed one.

        Raises
        ------
        SourceError
            If the record does not fit the store; it is then left out.
        """
        _check_mapping(record)
        with self._lock:
            log = self._find()
            if log is not None:
                log.schema.flatten([record], self.version)
            self._records.append(record)
            return self.commit() if len(self._records) >= self.max_records else None

    def set_version(self, version: int) -> None:
        """Commit the records of the current policy, and go on with those of another version."""
        with self._lock:
            if check_whole("version", version, 0) != self.version:
                self.commit()
                self.version = version

    def commit(self) -> int | None:
        """Commit the records added since the last commit; return the generation, None without any.

        Raises
        ------
        SourceError
            If a record does not fit the store. All records of the generation are then dropped.
        StoreUnwritableError, StoreUnavailableError
            If a file cannot be written. The records are kept; commit again.
        """
        with self._lock:
            records, self._records = self._records, []
            if not records:
                return None
            try:
                return self.append(records, version=self.version)
            except OSError:
                self._records = records + self._records
                raise

    def append(
        self, records: Sequence[Record], *, version: int | None = None, key: str | None = None
    ) -> int:
        """Commit records as one generation, apart from added ones; as of `append`."""
        with self._lock:
            chosen = self.version if version is None else check_whole("version", version, 0)
            if not records:
                raise ConfigError(
                    f"a generation must have records, got none for {self.root}; append one or more"
                )
            for record in records:
                _check_mapping(record)
            log = self._open(records)
            fields = log.schema.flatten(records, chosen)
            marker = None if key is None else self.root / KEYS_KEY / f"{_hash(key)}.json"
            has_marker = marker is not None and files.exists(marker)
            if marker is not None and has_marker:
                committed = self._repeat(log, marker)
                if committed is not None:
                    return committed
            entry = self._write(log, fields, len(records), chosen)
            if marker is None:
                return log.commit(lambda _: entry)
            # Whichever process writes the marker first, its values are committed.
            content = {"entry": asdict(entry), "since": log.history.number}
            files.write_once(marker, [seal(content, _DIGEST)], replace=has_marker)
            files.sync_directory(marker.parent)
            return cast("int", self._repeat(log, marker))

    def _write(
        self, log: GrowingLog, fields: Sequence[FieldValues], num_records: int, version: int
    ) -> Append:
        """Write the values of a generation under a new name; return what is to be committed."""
        name = uuid.uuid4().hex
        nbytes = sum(array.nbytes for field in fields for array in field)
        is_store = nbytes > MAX_FILE_NBYTES
        if is_store:
            arrays = [FieldArrays(values, sum_lengths(lengths)) for values, lengths in fields]
            made = {"id": log.identity, "name": name}
            digest = write_records(self.root, name, log.schema, arrays, made).fingerprint
        else:
            nbytes, digest = write_file(self.root, name, fields)
        num_values = tuple(len(field.values) for field in fields)
        return Append("append", name, num_records, version, num_values, nbytes, digest, is_store)

    def _repeat(self, log: GrowingLog, marker: Place) -> int | None:
        """Commit the generation of a key, unless that was done before; return its number.

        None if its values were collected as garbage before they were committed.
        """
        content = read_sealed(marker, _DIGEST, "restore it from a copy of the store")
        entry = parse_as(Append, content.get("entry"), str(marker))
        since = parse_as(int, content.get("since"), str(marker))
        for number, commit in enumerate(log.log.read_after(since), since + 1):
            if commit.get("name") == entry.name:
                return number
        path = home_path(self.root, entry)
        if not files.exists(path / ROOT_KEY if entry.is_store else path):
            return None
        # Later commits are checked one by one, as each could be another process's commit of it.
        committed = log.commit(lambda history: None if entry.name in history.recent else entry)
        return committed or log.history.recent[entry.name]

    def _find(self) -> GrowingLog | None:
        """Return the log of the store; None if it does not exist yet."""
        if self._log is None:
            with suppress(StoreNotFoundError):
                self._log = GrowingLog(self.root)
        return self._log

    def _open(self, records: Sequence[Record]) -> GrowingLog:
        """Return the log of the store, which is made if it does not exist."""
        if self._find() is None:
            schema = infer_schema(records, self._dtypes, self._vocab_size, self._kind)
            schema.flatten(records, 0)  # nothing is written if a record does not fit
            self._log = create_growing(self.root, schema)
        assert self._log is not None
        return self._log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()


def _check_mapping(record: object) -> None:
    """Raise for a record that is no mapping, as the keys of one that is given without a list."""
    if not isinstance(record, Mapping):
        raise SourceError(
            f"a record must be a mapping from keys to values, got {shorten(record)}; append a list "
            "of such mappings"
        )


def _hash(key: str) -> str:
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{digest[:2]}/{digest}"
