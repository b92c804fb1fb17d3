"""A step that all ranks of a job take: they compare requests and errors, and notice dead ranks.

No collective is called here. torch's key-value store, which every process group has, carries
errors, counts of ranks, heartbeats, and what the ranks request. If it does not respond, it is
ignored: the rank that serves it may have died.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

from zindex import errors
from zindex.errors import ConfigError, ZindexError, shorten
from zindex.execution.rank_agreement import as_text, find_difference
from zindex.execution.rank_heartbeat import RankHeartbeat
from zindex.io.backoff import Backoff

R = TypeVar("R")

logger = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5
# Text in place of a heartbeat, when the builder skips the step.
_NOBODY = "none"
# Heartbeats that the store of a job serves per second at most, and looks of all ranks at files.
_MAX_BEATS, _MAX_LOOKS = 4000, 500


class RankStep(AbstractContextManager["RankStep"]):
    """A step that all ranks take, such as a call of ``build()``, and the errors of each.

    A context manager. An error that leaves it is broadcast and raised on the other ranks. Without
    an error it waits until all ranks are done or one has failed, but gives up on ranks that have
    died or make no progress.

    Rank 0 is the builder of the step. If it dies, or is not there in time, exactly one of the ranks
    that call `take_over` becomes the builder.

    Parameters
    ----------
    name
        The same on all ranks, and unique for each step.
    rank, num_ranks
        This rank, and the number of ranks.
    store
        A ``torch.distributed.Store``; None for a single rank.

    Attributes
    ----------
    is_builder
        Whether this rank builds, known once the step is entered, or since it took over.
    is_lost
        Whether the store does not respond; the rank that serves it, usually rank 0, may have died.
    longest_wait
        Seconds between two looks at a file system; longer with thousands of ranks.
    """

    #: Seconds that a finished rank waits for other ranks without seeing progress.
    grace = 10.0
    #: Seconds after the start of the step until which a finished rank waits for late ones.
    lateness = 8.0
    #: Seconds that a failed rank waits for the others to stop; its exit may end the key-value
    #: store.
    linger = 5.0
    #: Timeout of the key-value store, in seconds.
    answer = 2.0
    #: Seconds between two heartbeats of a rank; longer with thousands of ranks.
    interval = 0.5
    #: Seconds without a heartbeat after which a rank has died, at least four intervals.
    silence = 3.0

    def __init__(self, name: str, rank: int = 0, num_ranks: int = 1, store: Any = None) -> None:
        self.name = name
        self.rank = rank
        self.num_ranks = num_ranks
        self.is_builder = rank == 0
        self.is_lost = False
        self._store = store
        interval = max(self.interval, num_ranks / _MAX_BEATS)
        self.silence = max(self.silence, 4 * interval)
        self.longest_wait = min(2.0, max(0.25, num_ranks / _MAX_LOOKS))
        self._start = time.monotonic()
        self._heartbeat = RankHeartbeat(store, interval)
        self._builder = _LastChange(self.silence)
        self._others = _LastChange(self.silence)

    def __enter__(self) -> Self:
        if self._store is not None:
            self._count("arrived", 1)
            self.is_builder = self.rank == 0 and self._claim("")
            self._heartbeat.start(self._send_alive)
            if self.is_builder:
                self._heartbeat.start(self._send_builder)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._heartbeat.stop(self._send_alive)
        try:
            if error is None:
                try:
                    self._wait_for_all()
                except ZindexError as received:
                    self._broadcast(received)
                    raise
            elif isinstance(error, Exception):
                self._broadcast(error)
        finally:
            self._heartbeat.stop(self._send_builder)

    def leave(self) -> None:
        """Skip the step: neither wait for other ranks nor let them wait for this one."""
        self._count("absent", 1)
        self._heartbeat.stop(self._send_builder)
        if self.is_builder:
            self._ask(lambda store: store.set(self._key("builder"), _NOBODY))
        self._store = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Be the builder during the block, which may outlast the step."""
        if self._store is None:
            yield
            return
        self._heartbeat.start(self._send_builder)
        try:
            yield
        finally:
            self._heartbeat.stop(self._send_builder)

    def take_over(self) -> bool:
        """Return whether this rank has become the builder, because there is no other one."""
        if not self._builder.is_due:
            return False
        found = self._ask(self._read_builder)
        if found is None or not (self._builder.is_old(found) or found == _NOBODY):
            return False
        self.is_builder = self._claim(found)
        return self.is_builder

    def _read_builder(self, store: Any) -> str:
        """Return the last heartbeat of the builder; empty before the first."""
        key = self._key("builder")
        return str(store.get(key).decode()) if store.check([key]) else ""

    def _claim(self, found: str) -> bool:
        """Become the builder unless there was a heartbeat of one since."""
        own, key = self._next_beat(), self._key("builder")
        return self._ask(lambda store: store.compare_set(key, found, own).decode()) == own

    def _send_alive(self, store: Any) -> None:
        store.add(self._key("beats"), 1)

    def _send_builder(self, store: Any) -> None:
        store.set(self._key("builder"), self._next_beat())

    def _next_beat(self) -> str:
        """Return a text that no other heartbeat has."""
        return f"{self.rank} {time.monotonic_ns()}"

    def agree(self, request: Mapping[str, Any]) -> None:
        """Raise, here and on the other ranks, if they request something else.

        Each rank compares its request with that of the first one to arrive, and waits for no other.

        Parameters
        ----------
        request
            What this rank requests; see `zindex.datasets.rank_requests`.

        Raises
        ------
        ConfigError
            If the request differs from that of the first rank; it names the ranks and the field.
        """
        if self._store is None:
            return
        text = as_text(request)
        own = f"{self.rank} {hashlib.sha256(text.encode()).hexdigest()}"
        first = self._ask(lambda store: store.compare_set(self._key("request"), "", own).decode())
        if first == own:
            self._ask(lambda store: store.set(self._key("requested"), text))
        elif first is not None and first.split()[1] != own.split()[1]:
            raise ConfigError(self._describe_difference(text, first.split()[0]))

    def _describe_difference(self, text: str, first: str) -> str:
        """Return the message on a request that differs from that of the first rank."""

        def get_first(store: Any) -> str:
            key = self._key("requested")
            with suppress(RuntimeError):  # the rank may have died before it wrote it
                store.wait([key], timedelta(seconds=self.answer / 2))
                return str(store.get(key).decode())
            return "null"

        other = json.loads(self._ask(get_first) or "null")
        found = other and find_difference(json.loads(text), other)
        where, own, theirs = found or ("some field", "one request", "another")
        return (
            f"all ranks must request the same datasets, they differ in {where}: rank {self.rank} "
            f"has {shorten(own)}, rank {first} has {shorten(theirs)}; start every rank with the "
            "same arguments"
        )

    def listen(self) -> None:
        """Raise the error of another rank, if any."""
        key = self._key("failed")
        message = self._ask(lambda store: store.get(key) if store.check([key]) else None)
        if message is None:
            return
        rank, kind, said = json.loads(message)
        text = f"rank {rank}: {said}"
        try:
            error: Exception = getattr(errors, kind, ZindexError)(text)
        except TypeError:  # its constructor takes more than a message
            error = ZindexError(text)
        error._zindex_received = True  # type: ignore[attr-defined]
        raise error

    def report(self, error: Exception) -> None:
        """Publish an error, which other ranks raise where they listen."""
        if not getattr(error, "_zindex_received", False):
            kind, message = type(error).__name__, str(error)
            if not isinstance(error, ZindexError):
                kind, message = "ZindexError", f"{kind}: {message}"
            text = json.dumps([self.rank, kind, message])
            self._ask(lambda store: store.set(self._key("failed"), text))

    def _broadcast(self, error: Exception) -> None:
        """Broadcast an error and wait for peers to exit: they may need this rank's store."""
        self.report(error)
        num_stopped = self._count("stopped", 1)
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, timeout=self.linger)
        while num_stopped is not None and self._num_missing(num_stopped) > 0:
            if not backoff.wait():
                return
            num_stopped = self._count("stopped")

    def _wait_for_all(self) -> None:
        """Wait until all ranks are done, one has failed, or the others have died or hang."""
        num_done = self._count("done", 1)
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, timeout=self.grace)
        while self._store is not None:
            self.listen()
            previous, num_done = num_done, self._count("done")
            if num_done is None:
                return
            missing = self._num_missing(num_done)
            if missing <= 0:
                return
            if num_done != previous:
                backoff.restart()
            why = self._why_hopeless()
            if why is not None or not backoff.wait():
                why = why or f"made no progress for {self.grace:.0f} s"
                logger.warning(
                    f"rank {self.rank} continues without {missing} of {self.num_ranks} ranks, "
                    f"which {why}"
                )
                return

    def _why_hopeless(self) -> str | None:
        """Return what the missing ranks did if none of them will be done soon."""
        if not self._others.is_due:
            return None
        num_begun, beats = self._count("arrived"), self._count("beats")
        if not self._others.is_old(beats):
            return None
        if num_begun == self.num_ranks:
            return "have died"
        is_late = time.monotonic() - self._start >= self.lateness
        return "have died or not begun" if is_late else None

    def _num_missing(self, num_present: int) -> int:
        return self.num_ranks - num_present - (self._count("absent") or 0)

    def _key(self, word: str) -> str:
        return f"zindex/{self.name}/{word}"

    def _count(self, word: str, increment: int = 0) -> int | None:
        """Return the number of ranks that reported a status; None if the store does not respond."""
        key = self._key(word)
        return self._ask(lambda store: int(store.add(key, increment)))

    def _ask(self, query: Callable[[Any], R]) -> R | None:
        """Return the store's response; None after a timeout, and the store is not used again."""
        store, answers = self._store, []
        if store is None:
            return None

        def ask() -> None:
            try:
                answers.append(query(store))
            except Exception as error:
                logger.info("torch's key-value store does not respond: %s", error)

        # A connection to a dead machine may hang forever; a daemon thread does not delay exit.
        thread = threading.Thread(target=ask, name="zindex-store", daemon=True)
        thread.start()
        thread.join(self.answer)
        if not answers:
            self._store, self.is_lost = None, True
            return None
        return answers[0]


class _LastChange:
    """How long a value has not changed; looked at a few times before it counts as old."""

    def __init__(self, age: float) -> None:
        self._age = age
        self._value: Any = None
        self._since = self._next_look = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._next_look

    def is_old(self, value: Any) -> bool:
        """Return whether the value has been the same for long."""
        now = time.monotonic()
        self._next_look = now + self._age / 8
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since >= self._age
