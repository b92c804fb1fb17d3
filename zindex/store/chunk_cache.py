"""What this process keeps of arrays in object stores: decoded chunks, and promises of more.

Whoever finds a chunk neither here nor on its way promises to bring it, so that no chunk is asked
for twice at a time.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zindex.errors import StoreUnavailableError
from zindex.store.request_threads import DaemonPool, wait_for, wait_until_done

#: Bytes of decoded chunks and shard indices that a process keeps unless told otherwise.
CACHE_NBYTES = 256 << 20

#: An array's number in this process, and a chunk of it; below 0 the index of a shard.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """What this process has read from object stores since it began, or since the last reset."""

    #: Requests for parts of shards, without those tried again.
    num_requests: int = 0
    #: Bytes that came with them.
    nbytes: int = 0
    #: Chunks that were in memory, or on their way.
    num_hits: int = 0
    #: Chunks that had to be asked for.
    num_misses: int = 0
    #: Chunks that were asked for before they were needed.
    num_ahead: int = 0


class ChunkCache:
    """Chunks by key: a bounded number of bytes, the least used goes first."""

    def __init__(self) -> None:
        self.limit = CACHE_NBYTES
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as in a new process: a forked child has none of the threads."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._nbytes = 0
        self._coming: dict[Key, Future[Any]] = {}
        self._numbers: dict[Hashable, int] = {}
        #: Array and shard whose chunks are known to lie one after the other; a few bytes each.
        self.regular: set[tuple[int, int]] = set()
        #: Of each array the last chunk read, and for how many reads it went on from there.
        self.runs: dict[int, tuple[int, int]] = {}
        self._counts = dict.fromkeys(ReaderStatistics.__dataclass_fields__, 0)
        #: Threads that wait for answers.
        self.pool = DaemonPool(name="zindex-fetch")

    def number(self, identity: Hashable) -> int:
        """Return the number that stands for an array in this process."""
        with self._lock:
            return self._numbers.setdefault(identity, len(self._numbers))

    def claim(
        self, keys: Sequence[Key], *, counted: bool = True
    ) -> tuple[dict[Key, Any], dict[Key, Future[Any]]]:
        """Return what is here or on its way by key, and promises that the caller must keep."""
        found: dict[Key, Any] = {}
        mine: dict[Key, Future[Any]] = {}
        with self._lock:
            for key in keys:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    found[key] = self._kept[key][0]
                elif key in self._coming:
                    found[key] = self._coming[key]
                else:
                    mine[key] = self._coming[key] = Future()
            if counted:
                self._counts["num_hits"] += len(found)
                self._counts["num_misses"] += len(mine)
        return found, mine

    def claim_ahead(self, keys: Sequence[Key]) -> list[Key]:
        """Return those keys that nobody has or brings; the caller promises to."""
        with self._lock:
            mine = [key for key in keys if key not in self._kept and key not in self._coming]
            self._coming.update({key: Future() for key in mine})
            self._counts["num_ahead"] += len(mine)
        return mine

    def keep_promise(self, key: Key, value: Any, nbytes: int, *, kept: bool = True) -> None:
        """Hand over what came, and keep it if it is wanted."""
        with self._lock:
            promise = self._coming.pop(key, None)
            if kept and key not in self._kept and nbytes <= self.limit:
                self._kept[key] = value, nbytes
                self._nbytes += nbytes
                self._shrink()
        if promise is not None:
            with suppress(InvalidStateError):  # the process ends, and so was said
                promise.set_result(value)

    def break_promise(self, key: Key, error: BaseException) -> None:
        """Tell whoever waits that nothing comes."""
        with self._lock:
            promise = self._coming.pop(key, None)
        if promise is not None:
            with suppress(InvalidStateError):
                promise.set_exception(error)

    def find(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return what is here by key."""
        with self._lock:
            return {key: self._kept[key][0] for key in keys if key in self._kept}

    def count_requests(self, count: int, nbytes: int) -> None:
        """Count requests that were answered, and what they brought."""
        with self._lock:
            self._counts["num_requests"] += count
            self._counts["nbytes"] += nbytes

    def statistics(self, *, reset: bool) -> ReaderStatistics:
        """Return the counts, and begin to count anew if asked."""
        with self._lock:
            counts = ReaderStatistics(**self._counts)
            if reset:
                self._counts = dict.fromkeys(self._counts, 0)
        return counts

    def set_limit(self, nbytes: int) -> None:
        """Keep at most so many bytes from here on."""
        with self._lock:
            self.limit = nbytes
            self._shrink()

    def _shrink(self) -> None:
        """Drop what was used least until there is room; the lock is held."""
        while self._nbytes > self.limit:
            self._nbytes -= self._kept.popitem(last=False)[1][1]


def settle(value: Any) -> Any:
    """Return what a promise brings, or a value itself."""
    return wait_for(value) if isinstance(value, Future) else value


def is_worth_another_try(value: Any) -> bool:
    """Return whether a value is a promise that was broken, after waiting for it.

    Its maker may have asked too early, of a shard that is there by now, or have been interrupted. A
    store that does not answer has been asked often enough.
    """
    if not isinstance(value, Future):
        return False
    wait_until_done(value)
    error = value.exception()
    return error is not None and not isinstance(error, StoreUnavailableError)


#: The one of this process.
cache = ChunkCache()
os.register_at_fork(after_in_child=cache.reset)


def reader_statistics(*, reset: bool = False) -> ReaderStatistics:
    """Return what this process has read from object stores; ``reset`` begins to count anew."""
    return cache.statistics(reset=reset)


def set_chunk_cache(nbytes: int) -> None:
    """Set how many bytes of chunks from object stores this process keeps; 0 keeps none.

    Each loader worker is a process of its own: call this in its ``worker_init_fn``.
    """
    cache.set_limit(nbytes)
