"""Rounds: which records of a growing store a reader gets, decided once and recorded.

The records of a round depend on the generations that exist when it begins, so they are written to
a numbered log of the reader. Whichever rank or loader worker writes a round first decides it, and
all others read it, also after they were killed and started again. No rank waits for another one.
"""

import re
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreNotFoundError,
    check_choice,
    check_whole,
)
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import History
from zindex.growing.numbered_log import NumberedLog
from zindex.io import files
from zindex.io.backoff import Backoff
from zindex.io.fork_locks import fork_safe_lock
from zindex.io.objects import Place
from zindex.io.request_threads import pause
from zindex.plan import intervals
from zindex.plan.keys import Stage, stream_key
from zindex.store.checked_json import parse_as
from zindex.store.commit import fingerprint, read_sealed, seal

ROUNDS_KEY = "_zindex/rounds"
_READER_KEY = "reader.json"
_DIGEST = "sha256"
_REMEDY = "restore it from a copy of the store"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Looks for new generations while a round lacks records: often at first, and then a few times a
# second.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 0.25, 1.5
_NUM_KEPT = 64

Priority = Literal["new", "old"]


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How records are chosen for rounds.

    Notes
    -----
    Law: the records of a round are a function of these rules, the round before, and the history of
    the store up to the generation of the round.
    """

    #: Records of a round.
    round_size: int
    #: Versions by which a record may be behind the newest one; None for any.
    staleness: int | None = None
    #: Whether the newest or the oldest records are chosen first.
    priority: Priority = "new"
    #: Times that a record may be used; unused ones are chosen first.
    num_uses: int = 1
    #: Records after which the version of the trainer increases; None takes the newest version of
    #: the store in its place.
    records_per_version: int | None = None
    #: Whether the records of a round are in a keyed order, and its seed.
    shuffle: bool = True
    seed: int = 42

    def __post_init__(self) -> None:
        for name, least in (("round_size", 1), ("num_uses", 1), ("seed", 0)):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least))
        for name, least in (("staleness", 0), ("records_per_version", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_whole(name, value, least))
        check_choice("priority", self.priority, get_args(Priority))

    def choose(self, history: History, before: "Round | None") -> "Round | None":
        """Return the next round of a store; None if it has too few records for it.

        Parameters
        ----------
        history
            The store up to its head.
        before
            The last round; None before the first one.
        """
        generation = history.number
        if before is not None and generation < before.generation:  # not visible here yet
            return None
        number = 0 if before is None else before.number + 1
        version = history.find_newest_version(generation)
        if self.records_per_version is not None:
            version = number * self.round_size // self.records_per_version
        chosen = history.find_live(generation)
        if self.staleness is not None:
            chosen &= history.versions >= version - self.staleness
        eligible = history.find_records(chosen)
        used = [intervals.EMPTY] * self.num_uses
        if before is not None:
            used = [intervals.intersect(intervals.merge(each), eligible) for each in before.used]
        picks, left, taken = [], self.round_size, intervals.EMPTY
        for level, candidates in enumerate([eligible, *used[:-1]]):
            free = intervals.subtract(intervals.subtract(candidates, used[level]), taken)
            found = intervals.take(free, left, last=self.priority == "new")
            picks.append(found)
            left -= intervals.count(found)
            used[level] = intervals.merge(np.concatenate([used[level], found]))
            taken = intervals.merge(np.concatenate([taken, found]))
        if left:
            return None
        return Round(
            number,
            generation,
            _to_pairs(np.concatenate(picks)),
            tuple(map(_to_pairs, used)),
        )


Pairs = tuple[tuple[int, int], ...]


def _to_pairs(found: Int64Array) -> Pairs:
    return tuple((start, stop) for start, stop in found.tolist())


@dataclass(frozen=True, slots=True)
class Round:
    """The records of one round."""

    number: int
    #: The generation at which it was chosen.
    generation: int
    #: Its records, as ranges of their global numbers.
    picks: Pairs
    #: Records that were used once, twice and so on after it, among those that may be chosen again.
    used: tuple[Pairs, ...]

    @property
    def ranges(self) -> Int64Array:
        """The ranges of its records: shape (ranges, 2), int64."""
        return np.array(self.picks, np.int64).reshape(-1, 2)


class KeptRound(NamedTuple):
    """A round, and its records in their order."""

    round: Round
    #: Shape (round size,), int64: global numbers of the records in their order.
    records: Int64Array


class RoundJournal:
    """The rounds of one reader of a store.

    Parameters
    ----------
    log
        The store.
    reader
        Name of the reader: all ranks of a run, and the run when it is resumed, have one name.
    rules
        How records are chosen: always the same for a reader.
    """

    def __init__(self, log: GrowingLog, reader: str, rules: RoundRules) -> None:
        self.log, self.reader, self.rules = log, reader, rules
        self.folder = reader_folder(log.root, reader)
        self.rounds = NumberedLog(self.folder / "log")
        self._kept: OrderedDict[int, KeptRound] = OrderedDict()
        self._lock = fork_safe_lock()
        self._begin()

    def _begin(self) -> None:
        """Write the rules of a new reader, or check those of a known one."""
        rules = asdict(self.rules)
        content = {"rules": rules, "store": self.log.identity}
        path = self.folder / _READER_KEY
        files.make_folder(self.folder)
        if files.write_once(path, [seal(content, _DIGEST)]):
            files.sync_directory(self.folder)
            return
        known = read_sealed(path, _DIGEST, _REMEDY)
        if known != content:
            found: dict[str, Any] = parse_as(dict, known.get("rules"), str(path))
            names = [name for name, value in rules.items() if found.get(name) != value]
            shown = ", ".join(f"{name}={found.get(name)!r}" for name in names)
            raise FingerprintMismatchError(
                f"reader {self.reader!r} of {self.log.root} must keep its settings, it has "
                f"{shown}; give these, or another name to the reader"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, that identifies the rounds."""
        named = {"store": self.log.identity, "reader": self.reader, "rules": asdict(self.rules)}
        return fingerprint(named)

    def find(self, number: int, patience: float) -> KeptRound:
        """Return a round and its records; the first process that needs it decides it.

        Parameters
        ----------
        number
            Number of the round, from 0.
        patience
            Seconds to wait for records.

        Raises
        ------
        NotReadyError
            If the store has too few records for it until then.
        """
        with self._lock:
            kept = self._kept.get(number)
        if kept is None:
            found = self.read(number)
            if found is None:
                found = self._decide(number, patience)
            kept = KeptRound(found, self._arrange(found))
            with self._lock:
                self._kept[number] = kept
                while len(self._kept) > _NUM_KEPT:
                    self._kept.popitem(last=False)
        return kept

    def read(self, number: int) -> Round | None:
        """Return a decided round, or None."""
        if (kept := self._kept.get(number)) is not None:
            return kept.round
        content = self.rounds.read(number)
        return None if content is None else parse_as(Round, content, str(self.rounds.path(number)))

    def _decide(self, number: int, patience: float) -> Round:
        """Decide a round, and those before it that are not decided; or read what others decide."""
        before = self.read(number - 1) if number else None
        if before is None and number:
            last = self.rounds.find_last(-1)
            before = self.read(last) if last >= 0 else None
        backoff = Backoff(
            _FIRST_PAUSE, _LONGEST_PAUSE, growth=_GROWTH, timeout=patience, sleep=pause
        )
        while before is None or before.number < number:
            following = 0 if before is None else before.number + 1
            found = self.read(following)
            if found is None:
                with self.log.lock:
                    self.log.advance()
                    found = self.rules.choose(self.log.history, before)
                if found is not None and not self.rounds.create(following, asdict(found)):
                    found = self.read(following)
            if found is not None:
                before = found
                backoff.restart()
            elif not backoff.wait():
                raise self._not_ready(following, patience)
        return before

    def _not_ready(self, number: int, patience: float) -> NotReadyError:
        size = self.rules.round_size
        return NotReadyError(
            f"round {number} of reader {self.reader!r} needs {size:,} records of {self.log.root} "
            f"that are fresh and unused, there were fewer at generation {self.log.history.number} "
            f"after {patience:g} s; start the writers, or raise patience, staleness or num_uses",
            num_done=0,
            num_shards=size,
        )

    def _arrange(self, found: Round) -> Int64Array:
        """Return the records of a round in their order."""
        records = intervals.expand(found.ranges)
        if not self.rules.shuffle:
            return records
        size, seed = len(records), self.rules.seed
        name = f"rounds of {self.log.identity}"
        words = stream_key(seed, Stage.STREAM_ORDER, name, found.number, num_words=size)
        return records[np.argsort(words, kind="stable")]


def reader_folder(root: Place, reader: str) -> Place:
    """Return the folder of a reader; ConfigError if it cannot have this name."""
    if not isinstance(reader, str) or not _NAME.fullmatch(reader):
        raise ConfigError(
            "the name of a reader must be up to 64 letters, digits and ._-, beginning with a "
            f"letter or digit, got {reader!r}; choose another one"
        )
    return root / ROUNDS_KEY / reader


def list_readers(root: Place) -> list[str]:
    """Return the names of the readers of a store."""
    names = sorted(files.list_names(root / ROUNDS_KEY))
    return [name for name in names if files.exists(root / ROUNDS_KEY / name / _READER_KEY)]


def read_rules(root: Place, reader: str) -> RoundRules:
    """Return the rules of a reader.

    Raises
    ------
    StoreNotFoundError
        If there is no reader of that name.
    """
    path = reader_folder(root, reader) / _READER_KEY
    try:
        content = read_sealed(path, _DIGEST, _REMEDY)
    except StoreNotFoundError:
        raise StoreNotFoundError(
            f"{root} must have the reader {reader!r}, it has {list_readers(root)}; name one"
        ) from None
    return parse_as(RoundRules, content.get("rules"), str(path))
