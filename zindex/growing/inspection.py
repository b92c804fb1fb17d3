"""Describe and verify a growing store."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from zindex.errors import (
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    VerificationError,
    ZindexError,
)
from zindex.formats.keyed.shards import GROWING_KEY
from zindex.formats.keyed.value_rules import describe_first
from zindex.growing.eviction import read_rounds
from zindex.growing.growing_log import LOG_KEY, GrowingLog, is_growing
from zindex.growing.history import Home, parse_entry
from zindex.growing.homes import home_path, read_file
from zindex.growing.numbered_log import NumberedLog
from zindex.growing.rounds import ROUNDS_KEY, list_readers, read_rules, reader_folder
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.maintenance.repairs.named_stores import NamedStore, find_stores
from zindex.store.tokenizer_note import NOTE_KEY
from zindex.store.verify import DamagedFile, StoreReport, verify_store
from zindex.wording import count_noun


def describe_growing(store: PlaceLike) -> tuple[int, dict[str, Any]]:
    """Return the bytes of a growing store, and its generations, keys and readers by name.

    Raises
    ------
    StoreNotFoundError, StoreError, VerificationError
        If there is no growing store, or its log is damaged.
    """
    log = GrowingLog(store)
    history, live = log.history, log.history.find_live()
    homes = [home for home in history.homes if live[home.start : home.stop].any()]
    versions = history.versions[live]
    facts: dict[str, Any] = {
        "generation": history.number,
        "num_records": int(history.rows[live, 1].sum()),
        "num_generations": int(live.sum()),
        "num_evicted": int((~live).sum()),
        "num_files": sum(not home.is_store for home in homes),
        "num_stores": sum(home.is_store for home in homes),
        "vocab_size": log.schema.num_ids,
        "keys": [f"{key.name}: {key.shape} {key.dtype}" for key in log.schema.keys],
    }
    if len(versions):
        facts["policy_versions"] = f"{versions.min():,} to {versions.max():,}"
    for reader in list_readers(log.root):
        rounds = NumberedLog(reader_folder(log.root, reader) / "log")
        size, count = read_rules(log.root, reader).round_size, rounds.find_last(-1) + 1
        facts[f"reader {reader}"] = f"{count_noun(count, 'round')} of {count_noun(size, 'record')}"
    return sum(home.nbytes for home in homes), facts


def find_all(paths: Iterable[str]) -> tuple[list[Place], list[NamedStore]]:
    """Return the growing stores and the other stores that paths name, as of `find_stores`.

    Raises
    ------
    StoreNotFoundError
        If there is neither at a path, nor directly below it.
    """
    growing, stores = list[Place](), list[NamedStore]()
    for path in paths:
        root = place_of(path)
        if is_growing(root):
            growing.append(root)
            continue
        below = (root / name for name in sorted(files.list_names(root)))
        found = [place for place in below if is_growing(place)]
        with suppress(*[StoreNotFoundError] * bool(found)):
            stores += find_stores(path)
        growing += found
    return growing, stores


def verify_growing(store: PlaceLike) -> StoreReport:
    """Read every byte of a growing store and report what is damaged.

    Parameters
    ----------
    store
        Path or URL of the store.

    Returns
    -------
    report
        The damaged files, each with its problem. Evicted generations that were removed are notes.

    Raises
    ------
    StoreNotFoundError
        If there is no growing store.
    """
    try:
        log = GrowingLog(store)
    except (StoreError, VerificationError) as error:
        if isinstance(error, OSError):  # missing, or not to be read
            raise
        report = StoreReport(place_of(store), was_committed=True)
        is_described = str(report.root / GROWING_KEY) not in str(error)
        report.add(LOG_KEY if is_described else GROWING_KEY, _shorten(error))
        return report
    report = StoreReport(log.root, {"kind": "growing", "fingerprint": log.identity})
    report.was_committed = True
    for number in range(1, log.history.number + 1):
        try:
            content = log.log.read(number)
            if content is None:
                raise VerificationError("is missing")
            parse_entry(content, str(log.log.path(number)))
        except StoreUnavailableError:
            raise
        except ZindexError as error:
            report.add(f"{LOG_KEY}/{number}", _shorten(error))
    live, num_ids = log.history.find_live(), None
    try:
        num_ids = log.read_num_ids()
    except StoreUnavailableError:
        raise
    except ZindexError as error:
        report.add(NOTE_KEY, _shorten(error))
    for home in log.history.homes:
        _verify_home(log, home, bool(live[home.start : home.stop].any()), num_ids, report)
    for reader in list_readers(log.root):
        try:
            read_rules(log.root, reader)
            list(read_rounds(log.root, reader))
        except StoreUnavailableError:
            raise
        except (ZindexError, TypeError) as error:
            report.add(f"{ROUNDS_KEY}/{reader}", _shorten(error))
    return report


def _verify_home(
    log: GrowingLog, home: Home, is_live: bool, num_ids: int | None, report: StoreReport
) -> None:
    """Check the file or the store of some generations, and its values."""
    path = home_path(log.root, home)
    key = str(path)[len(str(log.root)) + 1 :]
    if not (is_live or files.exists(path) or files.list_names(path)):
        report.notes.append(f"{key} was evicted and removed")
        return
    try:
        token_keys = frozenset(key.name for key in log.schema.keys if key.is_tokens)
        if home.is_store:
            found = verify_store(path, token_keys=token_keys, num_ids=num_ids)
            report.layouts += found.layouts
            report.nbytes += found.nbytes
            for damage in found.damages:
                report.add(f"{key}/{damage.key}", damage.problem)
            report.invalid += [replace(x, key=f"{key}/{x.key}") for x in found.invalid]
            if found.fingerprint not in (None, home.digest):
                report.add(key, "is not the store that was committed")
            return
        _, num_records, _, *num_values = log.history.rows[home.start].tolist()
        fields = read_file(log.root, home, log.schema, num_records, num_values)
        report.nbytes += home.nbytes
        for (name, *_), (values, offsets) in zip(log.schema.fields, fields, strict=True):
            given = np.asarray(values), np.asarray(offsets), str(path)
            problem = describe_first(name, *given, is_tokens=name in token_keys, num_ids=num_ids)
            if problem is not None:
                report.invalid.append(DamagedFile(key, problem))
    except StoreUnavailableError:
        raise
    except ZindexError as error:
        report.add(key, _shorten(error))


def _shorten(error: Exception) -> str:
    """Return an error as the problem of a file."""
    return " ".join(str(error).split())
