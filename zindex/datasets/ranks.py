"""What the ranks of a run owe each other: who builds, and news of failures.

No collective is called here. All ranks need the same stores and find them by their names; torch's
key-value store, which every process group has, only carries word of ranks that failed or finished.
A store that does not answer is no news, for the rank that serves it may be the one that died.
"""

import itertools
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

import torch

from zindex import errors
from zindex.building.background import FollowedBuilds
from zindex.building.on_demand import Builds, Needed, Receive, ensure_store
from zindex.building.waiting import Rank
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.utils import current_rank
from zindex.errors import ZindexError

R = TypeVar("R")

logger = logging.getLogger(__name__)

# Seconds that a rank which is done waits for the others without any news of them.
_GRACE = 10.0
# Seconds that a rank which failed gives the others to stop too; its end may end the store.
_LINGER = 5.0
# Seconds that the store has for an answer.
_ANSWER = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5

_calls = itertools.count()
_collected: ContextVar[Builds | None] = ContextVar("zindex_collected", default=None)


@contextmanager
def collect(builds: Builds) -> Iterator[None]:
    """Let datasets that are made in the block need their stores together, not one by one."""
    token = _collected.set(builds)
    try:
        yield
    finally:
        _collected.reset(token)


def obtain(
    needed: Needed, receive: Receive, rank: int, config: BlendedMegatronDatasetConfig
) -> None:
    """Hand over a committed store: now, or when all that are collected are finished.

    Parameters
    ----------
    needed
        The store.
    receive
        Called with it.
    rank
        The rank of this process, or of the one that it works for.
    config
        How long to wait for other ranks.
    """
    builds = _collected.get()
    if builds is None:
        obtain_now(needed, receive, rank, config)
    else:
        builds.add(needed, receive)


def obtain_now(
    needed: Needed, receive: Receive, rank: int, config: BlendedMegatronDatasetConfig
) -> None:
    """Hand over a store now, committed unless it is to be followed; parameters as of `obtain`."""
    this = Rank(rank, config.index_timeout, config.index_takeover)
    if config.follow is None:
        receive(ensure_store(needed, this))
        return
    with FollowedBuilds(this, config.follow) as builds:
        builds.add(needed, receive)
        builds.finish()


def open_builds(config: BlendedMegatronDatasetConfig, meeting: "Meeting") -> Builds:
    """Return the builds of a step that all ranks take; those that are followed outlast it."""
    rank = Rank(current_rank(), config.index_timeout, config.index_takeover, meeting.listen)
    if config.follow is None:
        return Builds(rank)
    return FollowedBuilds(rank, config.follow, meeting.report)


class Meeting:
    """One step that all ranks take, such as a call of ``build()``; none waits for all in vain.

    A context manager. Leaving it with an error tells the other ranks, which raise the same one
    where they are. Leaving it without waits until all ranks are done or one has failed, but not
    for ranks of which nothing is heard.

    Parameters
    ----------
    name
        The same on all ranks, and new for each step.
    rank, num_ranks
        This rank, and how many there are.
    store
        A ``torch.distributed.Store``; None if there is nobody to talk to.
    """

    def __init__(self, name: str, rank: int = 0, num_ranks: int = 1, store: Any = None) -> None:
        self.name = name
        self.rank = rank
        self.num_ranks = num_ranks
        self._store = store

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._wait_for_all()
            except ZindexError as heard:
                self._tell(heard)
                raise
        elif isinstance(error, Exception):
            self._tell(error)

    def leave(self) -> None:
        """Take no part: neither does this rank wait for others, nor they for it."""
        self._count("absent", 1)
        self._store = None

    def listen(self) -> None:
        """Raise the error of another rank, if one has failed."""
        key = self._key("failed")
        news = self._ask(lambda store: store.get(key) if store.check([key]) else None)
        if news is None:
            return
        said = json.loads(news)
        kind = getattr(errors, said["kind"], ZindexError)
        message = f"rank {said['rank']}: {said['message']}"
        try:
            error: Exception = kind(message)
        except TypeError:  # it takes more than a sentence
            error = ZindexError(message)
        error._zindex_heard = True  # type: ignore[attr-defined]
        raise error

    def report(self, error: Exception) -> None:
        """Tell the others of an error, which they raise where they listen."""
        if not getattr(error, "_zindex_heard", False):
            kind, message = type(error).__name__, str(error)
            if not isinstance(error, ZindexError):
                kind, message = "ZindexError", f"{kind}: {message}"
            news = json.dumps({"rank": self.rank, "kind": kind, "message": message})
            self._ask(lambda store: store.set(self._key("failed"), news))

    def _tell(self, error: Exception) -> None:
        """Tell the others of an error, and stay until they have stopped too: they may need us."""
        self.report(error)
        self._count("stopped", 1)
        deadline = time.monotonic() + _LINGER
        for _ in self._pauses():
            num_stopped = self._count("stopped")
            if num_stopped is None or time.monotonic() >= deadline:
                return
            if num_stopped + (self._count("absent") or 0) >= self.num_ranks:
                return

    def _wait_for_all(self) -> None:
        """Wait until all ranks are done, or one has failed, or nothing is heard of the others."""
        num_done = self._count("done", 1)
        deadline = time.monotonic() + _GRACE
        for _ in self._pauses():
            self.listen()
            seen, num_done = num_done, self._count("done")
            if num_done is None:
                return
            missing = self.num_ranks - num_done - (self._count("absent") or 0)
            if missing <= 0:
                return
            if num_done != seen:
                deadline = time.monotonic() + _GRACE
            elif time.monotonic() >= deadline:
                logger.warning(
                    "rank %d goes on without %d of %d ranks: nothing was heard of them for %.0f s",
                    self.rank,
                    missing,
                    self.num_ranks,
                    _GRACE,
                )
                return

    def _pauses(self) -> Iterator[None]:
        """Give a turn at growing intervals; none if there is nobody to talk to."""
        pause = _FIRST_WAIT
        while self._store is not None:
            yield
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_WAIT)

    def _key(self, word: str) -> str:
        return f"zindex/{self.name}/{word}"

    def _count(self, word: str, increment: int = 0) -> int | None:
        """Return how many ranks have said a word, with this one; None if there is no news."""
        key = self._key(word)
        return self._ask(lambda store: int(store.add(key, increment)))

    def _ask(self, question: Callable[[Any], R]) -> R | None:
        """Return the store's answer; None if it gives none, and then it is not asked again."""
        store, answers = self._store, []
        if store is None:
            return None

        def ask() -> None:
            try:
                answers.append(question(store))
            except Exception as error:
                logger.info("torch's store gives no news: %s", error)

        # A connection to a machine that died may never answer; a daemon holds up nobody.
        asking = threading.Thread(target=ask, name="zindex-news", daemon=True)
        asking.start()
        asking.join(_ANSWER)
        if not answers:
            self._store = None
            return None
        return answers[0]


def open_meeting() -> Meeting:
    """Return the next step of all ranks: every process must take the same ones in order."""
    name = str(next(_calls))
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return Meeting(name)
    num_ranks = distributed.get_world_size()
    if num_ranks == 1:
        return Meeting(name)
    try:
        store = distributed.distributed_c10d._get_default_store()
    except Exception as error:
        logger.info("torch's process group has no store: %s", error)
        store = None
    return Meeting(name, current_rank(), num_ranks, store)
