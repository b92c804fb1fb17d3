"""Per-process cache of decoded chunks of object stores, with futures of pending requests.

A caller that finds a chunk neither cached nor requested claims it, so concurrent callers never
request a chunk twice.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from zindex.errors import StoreUnavailableError
from zindex.io.request_threads import DaemonPool, settle, wait_until_done

#: Default limit in bytes of decoded chunks and shard indices.
CACHE_NBYTES = 256 << 20

#: An array, as one object of this process, and a chunk; a negative one is the index of a shard.
Key = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Reads from object stores since the process started or the counts were reset."""

    #: Requests for parts of shards, without retries.
    num_requests: int = 0
    #: Bytes of the answers.
    nbytes: int = 0
    #: Chunks that were cached, or already requested.
    num_hits: int = 0
    #: Chunks that had to be requested.
    num_misses: int = 0
    #: Chunks that were prefetched.
    num_ahead: int = 0


class ChunkCache:
    """An LRU cache of chunks by key, with a limit in bytes."""

    def __init__(self) -> None:
        self.limit = CACHE_NBYTES
        self.reset()

    def reset(self) -> None:
        """Clear the cache, as in a new process: a forked child has none of the threads."""
        self._lock = threading.Lock()
        self._cached: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._nbytes = 0
        self._requested: dict[Key, Future[Any]] = {}
        #: Indices of shards whose chunks are at regular positions: four bytes per chunk.
        self.regular: dict[Key, Any] = {}
        #: For each array, the last chunk read and the number of sequential reads before it.
        self.runs: dict[Any, tuple[int, int]] = {}
        self._counts = dict.fromkeys(ReaderStatistics.__dataclass_fields__, 0)
        #: Threads that wait for answers.
        self.pool = DaemonPool(name="zindex-fetch")

    def claim(self, keys: Iterable[Key]) -> tuple[dict[Key, Any], dict[Key, Future[Any]]]:
        """Return cached values and futures by key, and new futures for the caller to complete."""
        found: dict[Key, Any] = {}
        mine: dict[Key, Future[Any]] = {}
        with self._lock:
            for key in keys:
                if key in self._cached:
                    self._cached.move_to_end(key)
                    found[key] = self._cached[key][0]
                elif key in self._requested:
                    found[key] = self._requested[key]
                else:
                    mine[key] = self._requested[key] = Future()
        return found, mine

    def complete(self, key: Key, value: Any, nbytes: int, *, kept: bool = True) -> None:
        """Complete the future of a key, and cache the value if ``kept``."""
        with self._lock:
            future = self._requested.pop(key, None)
            if kept and key not in self._cached and nbytes <= self.limit:
                self._cached[key] = value, nbytes
                self._nbytes += nbytes
                self._shrink()
        if future is not None:
            settle(future.set_result, value)

    def fail(self, key: Key, error: BaseException) -> None:
        """Fail the future of a key."""
        with self._lock:
            future = self._requested.pop(key, None)
        if future is not None:
            settle(future.set_exception, error)

    def count(self, **counts: int) -> None:
        """Add to the counts of `ReaderStatistics`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def statistics(self, *, reset: bool) -> ReaderStatistics:
        """Return the counts, and optionally reset them."""
        with self._lock:
            counts = ReaderStatistics(**self._counts)
            if reset:
                self._counts = dict.fromkeys(self._counts, 0)
        return counts

    def set_limit(self, nbytes: int) -> None:
        """Set the limit in bytes, and evict what exceeds it."""
        with self._lock:
            self.limit = nbytes
            self._shrink()

    def _shrink(self) -> None:
        """Evict the least recently used; the lock is held."""
        while self._nbytes > self.limit:
            self._nbytes -= self._cached.popitem(last=False)[1][1]


def is_worth_another_try(value: Any) -> bool:
    """Wait for a future; return whether it failed in a way that a retry may fix.

    Its request may have been made before the shard was written, or have been interrupted. Requests
    to an unavailable store have already been retried.
    """
    if not isinstance(value, Future):
        return False
    wait_until_done(value)
    error = value.exception()
    return error is not None and not isinstance(error, StoreUnavailableError)


#: The cache of this process.
cache = ChunkCache()
os.register_at_fork(after_in_child=cache.reset)


def reader_statistics(*, reset: bool = False) -> ReaderStatistics:
    """Return what this process has read from object stores; ``reset`` zeroes the counts."""
    return cache.statistics(reset=reset)


def set_chunk_cache(nbytes: int) -> None:
    """Set the limit in bytes of cached chunks from object stores; 0 disables the cache.

    Each loader worker is a separate process: call this in its ``worker_init_fn``.
    """
    cache.set_limit(nbytes)
