"""Coordinate the ranks of a job: rank 0 builds, and errors reach all ranks.

No collective is called here. All ranks need the same stores and find them by name. torch's
key-value store, which every process group has, only carries errors, counts of finished ranks, and
what the ranks request. If it does not respond, it is ignored: the rank that serves it may have
died.
"""

import hashlib
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch

from zindex import errors
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.rank_agreement import as_text, find_difference
from zindex.datasets.utils import current_rank, is_distributed
from zindex.errors import ConfigError, ZindexError, shorten
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds, Receive
from zindex.io.backoff import Backoff

R = TypeVar("R")

logger = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5

_steps = itertools.count()
_collector: ContextVar[Builds | None] = ContextVar("zindex_collector", default=None)


@contextmanager
def collect(builds: Builds) -> Iterator[None]:
    """Collect the build requests of datasets created in the block, to build them together."""
    token = _collector.set(builds)
    try:
        yield
    finally:
        _collector.reset(token)


def obtain(
    request: BuildRequest,
    receive: Receive,
    rank: int,
    config: BlendedMegatronDatasetConfig,
    *,
    may_collect: bool = True,
) -> None:
    """Call back with a store, or None for an index to compute: now, or after collected builds.

    Parameters
    ----------
    request
        The build request.
    receive
        Called with the store or None.
    rank
        The rank of this process or, in a loader worker, of its parent process.
    config
        The timeouts for other ranks.
    may_collect
        Whether the request may be collected; otherwise the callback is always immediate.
    """
    if may_collect and (collected := _collector.get()) is not None:
        collected.add(request, receive)
        return
    this = Rank(rank, config.index_timeout, config.index_takeover)
    with Builds(this, config.follow, max_computed_rows=config.max_computed_rows) as builds:
        builds.add(request, receive)
        builds.finish()


def open_builds(config: BlendedMegatronDatasetConfig, step: "RankStep") -> Builds:
    """Return the builds of a step of all ranks; followed builds may outlast it."""
    rank = Rank(current_rank(), config.index_timeout, config.index_takeover, step.listen)
    return Builds(rank, config.follow, step.report, config.max_computed_rows)


class RankStep(AbstractContextManager["RankStep"]):
    """A step that all ranks take, such as a call of ``build()``, and the errors of each.

    A context manager. An error that leaves it is broadcast and raised on the other ranks. Without
    an error it waits until all ranks are done or one has failed, but gives up on ranks that make no
    progress.

    Parameters
    ----------
    name
        The same on all ranks, and unique for each step.
    rank, num_ranks
        This rank, and the number of ranks.
    store
        A ``torch.distributed.Store``; None for a single rank.
    """

    #: Seconds that a finished rank waits for other ranks without seeing progress.
    grace = 10.0
    #: Seconds that a failed rank waits for the others to stop; its exit may end the key-value
    #: store.
    linger = 5.0
    #: Timeout of the key-value store, in seconds.
    answer = 5.0

    def __init__(self, name: str, rank: int = 0, num_ranks: int = 1, store: Any = None) -> None:
        self.name = name
        self.rank = rank
        self.num_ranks = num_ranks
        self._store = store

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._wait_for_all()
            except ZindexError as received:
                self._broadcast(received)
                raise
        elif isinstance(error, Exception):
            self._broadcast(error)

    def leave(self) -> None:
        """Skip the step: neither wait for other ranks nor let them wait for this one."""
        self._count("absent", 1)
        self._store = None

    def agree(self, request: Mapping[str, Any]) -> None:
        """Raise, here and on the other ranks, if they request something else.

        Each rank compares its request with that of the first one to arrive, and waits for no other.

        Parameters
        ----------
        request
            What this rank requests; see `zindex.datasets.rank_agreement`.

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
        """Wait until all ranks are done, one has failed, or the others make no progress."""
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
            if not backoff.wait():
                logger.warning(
                    f"rank {self.rank} continues without {missing} of {self.num_ranks} ranks, "
                    f"which made no progress for {self.grace:.0f} s"
                )
                return

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
            self._store = None
            return None
        return answers[0]


def open_step() -> RankStep:
    """Return the next step of all ranks; every process must take the same steps in order."""
    name = str(next(_steps))
    num_ranks = torch.distributed.get_world_size() if is_distributed() else 1
    if num_ranks == 1:
        return RankStep(name)
    try:
        store = torch.distributed.distributed_c10d._get_default_store()
    except Exception as error:
        logger.info("torch's process group has no key-value store: %s", error)
        store = None
    return RankStep(name, current_rank(), num_ranks, store)
