"""Leave old generations out of a growing store, and remove what no reader needs any more."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError, StateMismatchError, check_whole
from zindex.formats.keyed.shards import GROWING_KEY
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import Eviction, History
from zindex.growing.homes import FILES_KEY, STORE_PREFIX, home_path
from zindex.growing.numbered_log import NumberedLog
from zindex.growing.rounds import Round, list_readers, read_rules, reader_folder
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.io.request_threads import map_in_threads
from zindex.plan import intervals
from zindex.store.check_place import ROOT_KEY
from zindex.store.checked_json import parse_as

# A release of all rounds of a reader.
_ALL = 10**12 - 1


def evict(
    store: PlaceLike, *, keep_versions: int | None = None, keep_generations: int | None = None
) -> int:
    """Leave old generations out of later rounds and later generations of a store.

    Parameters
    ----------
    store
        Path or URL of a growing store.
    keep_versions
        Policy versions to keep, counted back from the newest one; None keeps all.
    keep_generations
        Generations with records to keep, counted back from the head; None keeps all.

    Returns
    -------
    generation
        Number of the commit; 0 if there was nothing to evict.

    Raises
    ------
    ConfigError
        If neither number is given, or one is below 1.
    StoreNotFoundError
        If there is no growing store.

    Notes
    -----
    Nothing is removed: rounds and states of earlier generations keep their records until
    ``zindex gc`` finds that none can be reached.
    """
    if keep_versions is None and keep_generations is None:
        raise ConfigError(
            "evict must know what to keep, got neither keep_versions nor keep_generations; give one"
        )
    for name, value in (("keep_versions", keep_versions), ("keep_generations", keep_generations)):
        if value is not None:
            check_whole(name, value, 1)

    def make(history: History) -> Eviction | None:
        version = number = None
        if keep_versions is not None:
            version = history.find_newest_version(history.number) - keep_versions + 1
        if keep_generations is not None:
            number = int(history.numbers[-keep_generations:].min(initial=history.number))
        gone = history.numbers < (number or 0)
        gone |= history.versions < (version or 0)
        return Eviction("evict", version, number) if (gone & history.find_live()).any() else None

    return GrowingLog(store).commit(make)


def release(store: PlaceLike, reader: str, state: Mapping[str, Any] | None) -> None:
    """Declare that a reader will not be resumed from states before one, so records may be removed.

    Parameters
    ----------
    store
        Path or URL of the growing store.
    reader
        Name of the reader.
    state
        Its oldest state that is kept; None if it will never be resumed.

    Raises
    ------
    StoreNotFoundError
        If there is no such store or reader.
    StateMismatchError
        If it is not a state.
    """
    log = GrowingLog(store)
    rules = read_rules(log.root, reader)
    number = _ALL
    if state is not None:
        position = state.get("consumed_samples") if isinstance(state, Mapping) else None
        if type(position) is not int or position < 0:
            raise StateMismatchError(
                f"a state must have consumed_samples, got {state!r}; give what state_dict() "
                "returned"
            )
        number = position // rules.round_size
    folder = reader_folder(log.root, reader) / "released"
    files.make_folder(folder)
    files.write_once(folder / f"{number:012d}", [b"released\n"])
    files.sync_directory(folder)


@dataclass(frozen=True, slots=True)
class Unused:
    """A file or a store that no reader of a growing store needs."""

    path: Place
    reason: str
    nbytes: int


def remove_unused(found: Iterable[Unused]) -> None:
    """Remove files and stores of a growing store, a store's commit first."""
    items = list(found)

    def remove(item: Unused) -> None:
        if files.exists(item.path):
            files.remove_file(item.path)
        else:
            files.remove_file(item.path / ROOT_KEY)
            files.remove_tree(item.path)

    if items:
        map_in_threads(files.num_writers(items[0].path), remove, items)


def find_unused(
    store: PlaceLike, *, states: Sequence[Mapping[str, Any]] = (), hours: float = 24.0
) -> list[Unused]:
    """Return the files and stores of a growing store that nothing can reach.

    Parameters
    ----------
    store
        Path or URL of a growing store.
    states
        States of loaders of single generations whose records are kept; see `GrowingStore`. Rounds
        that are not released are kept in any case.
    hours
        Minimum age: of an eviction, and of files that no commit names.

    Notes
    -----
    Listed are generations that were evicted and that neither a round of a reader nor a state has;
    files that were compacted; and what killed writers left.
    """
    before = time.time() - 3600 * hours
    root = place_of(store)
    # Listed before the log is read: what is committed meanwhile is then known.
    found = {root / FILES_KEY / name for name in files.list_names(root / FILES_KEY)}
    found |= {root / name for name in files.list_names(root) if name.startswith(STORE_PREFIX)}
    if isinstance(root, Path):
        folder = (root / GROWING_KEY).parent
        keys = files.list_keys(folder, depth=None)
        found |= {folder / key for key in keys if key.endswith(".partial")}
    log = GrowingLog(store)
    history = log.history
    kept = _find_reachable(log, states, before)
    offset = history.record_offset
    known = set()
    unused = []
    for home in history.homes:
        path = home_path(root, home)
        known.add(path)
        own = np.array([[offset[home.start], offset[home.stop]]])
        if path in found and not intervals.count(intervals.intersect(own, kept)):
            unused.append(Unused(path, "evicted, and no reader can reach it", home.nbytes))
    others = sorted(found - known, key=str)
    measured = map_in_threads(files.num_writers(root), _measure, others)
    for path, (times, nbytes) in zip(others, measured, strict=True):
        if max(times, default=before) < before:
            compacted = "" if path.name.endswith(".partial") else "compacted, or "
            unused.append(Unused(path, f"{compacted}left by a killed writer", nbytes))
    return sorted(unused, key=lambda item: str(item.path))


def _measure(path: Place) -> tuple[list[float], int]:
    """Return the modification times of a file, or of the files of a store, and their bytes."""
    paths = (
        [path] if files.exists(path) else [path / key for key in files.list_keys(path, depth=None)]
    )
    times = [found for each in paths if (found := files.modified_seconds(each)) is not None]
    return times, sum(files.file_nbytes(each) or 0 for each in paths)


def _find_reachable(
    log: GrowingLog, states: Sequence[Mapping[str, Any]], before: float
) -> Int64Array:
    """Return the records that are kept: of the head, of recent evictions, of rounds and states."""
    history = log.history
    # An eviction counts once it is old enough: processes may not have seen it yet.
    at = history.number
    for number in sorted(history.evictions):
        modified = files.modified_seconds(log.log.path(number))
        if modified is None or modified >= before:
            at = number - 1
            break
    chosen: BoolArray = history.find_live(at) | (history.numbers > at)
    for state in states:
        generation = state.get("generation") if isinstance(state, Mapping) else None
        if type(generation) is not int:
            raise StateMismatchError(
                f"a state must have a generation, got {state!r}; give the generation of its store"
            )
        chosen |= history.find_live(generation)
    found = [history.find_records(chosen)]
    for reader in list_readers(log.root):
        found += [each.ranges for each in read_rounds(log.root, reader)]
    return intervals.merge(np.concatenate(found))


def read_rounds(root: Place, reader: str) -> Iterator[Round]:
    """Yield the rounds of a reader that it may read again."""
    folder = reader_folder(root, reader)
    released = files.list_names(folder / "released")
    first = max((int(name) for name in released if name.isdecimal()), default=0)
    rounds = NumberedLog(folder / "log")
    read: Callable[[int], Any] = rounds.read
    numbers = range(first, rounds.find_last(-1) + 1)
    for content in map_in_threads(files.num_writers(root), read, numbers):
        yield parse_as(Round, content, str(folder))
