"""Move the records of many small generations to fewer, larger Zarr stores; readers do not notice.

Any number of processes may compact one store: the log takes the first compaction of generations,
and the others are abandoned.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from zindex.errors import ZindexError, check_whole
from zindex.growing.generations import Generations
from zindex.growing.growing_log import GrowingLog
from zindex.growing.history import Compaction, History, Home
from zindex.growing.homes import write_records
from zindex.io.objects import PlaceLike
from zindex.store.commit import fingerprint

logger = logging.getLogger(__name__)

#: Defaults: files or stores that are worth a compaction, and the largest store that it makes.
MIN_COUNT, TARGET_NBYTES = 8, 256 << 20
# A store is written again if what is newer has at least this part of its bytes: each byte is then
# written a few times at most.
_GROWTH = 2


def compact(
    store: PlaceLike, *, min_count: int = MIN_COUNT, target_nbytes: int = TARGET_NBYTES
) -> int:
    """Move the records of consecutive small generations to larger Zarr stores.

    Parameters
    ----------
    store
        Path or URL of a growing store.
    min_count
        Files or stores of small generations that are worth a compaction, >= 2.
    target_nbytes
        Bytes of the largest store that is made.

    Returns
    -------
    num_compactions
        Stores that were made and committed.

    Raises
    ------
    StoreNotFoundError
        If there is no growing store.

    Notes
    -----
    Law: generations, their records and all states stay the same. What was compacted is removed by
    ``zindex gc``, since processes may still read it; those that miss it read the new store. Memory:
    a shard of the new store.
    """
    check_whole("min_count", min_count, 2)
    check_whole("target_nbytes", target_nbytes, 1)
    log = GrowingLog(store)
    runs = find_runs(log.history, min_count, target_nbytes)
    num_done = sum(_compact_run(log, run) for run in runs)
    if num_done:
        log.write_summary()
    return num_done


def find_runs(history: History, min_count: int, target_nbytes: int) -> list[list[Home]]:
    """Return the runs of homes to be compacted, newest first; evicted records stay apart."""
    live = history.find_live()
    homes, runs = history.homes, []
    stop = len(homes)
    while stop:
        start, nbytes = stop, 0
        while start:
            home = homes[start - 1]
            is_grown = home.is_store and home.nbytes > _GROWTH * nbytes
            if not live[home.start : home.stop].all() or (
                start < stop and (is_grown or nbytes + home.nbytes > target_nbytes)
            ):
                break
            start, nbytes = start - 1, nbytes + home.nbytes
        if stop - start >= min_count:
            runs.append(homes[start:stop])
        stop = min(start, stop - 1)
    return runs


def _compact_run(log: GrowingLog, homes: list[Home]) -> bool:
    """Write the records of a run of homes as one store; return whether that was committed."""
    chosen = np.arange(homes[0].start, homes[-1].stop)
    first, last = log.history.numbers[chosen[[0, -1]]].tolist()
    identity = {"id": log.identity, "compacted": [home.digest for home in homes]}
    name = f"{first:09d}-{last:09d}-{fingerprint(identity)[:16]}"
    fields = [*Generations(log, chosen).join().values()]
    made = write_records(log.root, name, log.schema, fields, identity)
    nbytes = sum(layout.nbytes for layout in made.layouts.values())
    entry = Compaction("compact", name, first, last, nbytes, made.fingerprint)
    names = [home.name for home in homes]

    def make(history: History) -> Compaction | None:
        place = next((i for i, home in enumerate(history.homes) if home.name == names[0]), 0)
        found = [home.name for home in history.homes[place : place + len(names)]]
        return entry if found == names else None

    return log.commit(make) > 0


@contextmanager
def compacting(
    store: PlaceLike,
    *,
    every: float = 30.0,
    min_count: int = MIN_COUNT,
    target_nbytes: int = TARGET_NBYTES,
) -> Iterator[None]:
    """Compact a store in a thread of this process while the block runs.

    Parameters
    ----------
    store
        Path or URL of a growing store, which may not exist yet.
    every
        Seconds from one compaction to the next.
    min_count, target_nbytes
        As of `compact`.

    Notes
    -----
    One process of a job suffices. Errors are logged, and the next compaction tries again.
    """
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(every):
            try:
                compact(store, min_count=min_count, target_nbytes=target_nbytes)
            except (ZindexError, OSError) as error:
                logger.warning("%s is not compacted now: %s", store, error)

    thread = threading.Thread(target=work, name="zindex-compact", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
