"""Open the datasets of a run, in this process or by tasks.

A ``.idx`` file is read completely before it is trusted: tens of gigabytes for trillions of tokens,
which all nodes together read faster than one.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from zindex.execution.executor import Executor, run_together
from zindex.indexing.task_size import batch_items, choose_task_seconds
from zindex.ingest.length_source import LengthSource, open_source
from zindex.io.objects import is_remote
from zindex.io.request_threads import map_in_threads
from zindex.store.tokenizer_note import TokenizerNote

#: Bytes of ``.idx`` files that one process checks itself, in about a tenth of a second.
FEW_NBYTES = 1 << 28
#: Maximum bytes and files per task; more bytes if there are more threads than tasks pay for.
TASK_NBYTES, TASK_FILES = 1 << 28, 64
# Bytes that a thread checks per second.
_CHECK_BANDWIDTH = 2e9
# Threads that open datasets, which mostly wait for the file system.
_NUM_OPENERS = 8
# Priority over permutations computed ahead, because all other tasks need the datasets.
_FIRST = 3


def open_here(paths: Sequence[str], *, require_bin: bool = True) -> list[LengthSource]:
    """Return the opened datasets, several opened at a time; raises as `open_source` does."""
    num_threads = min(_NUM_OPENERS, len(paths))
    return map_in_threads(num_threads, partial(open_source, require_bin=require_bin), paths)


def read_notes(sources: Sequence[LengthSource]) -> dict[str, TokenizerNote | None]:
    """Return the description of each dataset's tokenizer, by path."""
    num_threads = min(_NUM_OPENERS, len(sources))
    notes = map_in_threads(num_threads, LengthSource.read_note, sources)
    return {source.path: note for source, note in zip(sources, notes, strict=True)}


def has_much_to_check(paths: Iterable[str]) -> bool:
    """Return whether the ``.idx`` files of datasets are large enough to check them in tasks."""
    return sum(map(_idx_nbytes, paths)) > FEW_NBYTES


async def open_by_tasks(
    paths: Sequence[str],
    executor: Executor,
    receive: Callable[[Sequence[LengthSource]], None] = lambda sources: None,
) -> list[LengthSource]:
    """Return the opened datasets, their ``.idx`` files checked by tasks, small ones in batches.

    Parameters
    ----------
    paths
        Paths of stores, and of pairs without their suffix.
    executor
        Where the tasks run; its workers must see the same files.
    receive
        Called with the datasets of each task as soon as they are open.

    Raises
    ------
    StoreNotFoundError, SourceError
        As `open_source` does.
    """
    pairs = [path for path in paths if _idx_nbytes(path)]

    async def one(rows: range) -> list[LengthSource]:
        # Workers may have another working directory.
        absolute = [os.path.abspath(pairs[row]) for row in rows]
        key = f"check-{rows.start}"
        found = await executor.run(open_pairs, absolute, key=key, priority=_FIRST)
        named = zip(found, rows, strict=True)
        sources = [replace(source, path=pairs[row]) for source, row in named]
        receive(sources)
        return sources

    sizes = [_idx_nbytes(path) for path in pairs]
    room = check_nbytes(sum(sizes), executor.num_threads, executor.overhead)
    batches = batch_items(sizes, TASK_FILES, room)
    opened = chain.from_iterable(await run_together(map(one, batches)))
    by_path = dict(zip(pairs, opened, strict=True))
    others = [path for path in paths if path not in by_path]
    by_path |= zip(others, open_here(others), strict=True)
    return [by_path[path] for path in paths]


def check_nbytes(nbytes: int, num_threads: int, overhead: float) -> float:
    """Return the maximum bytes of ``.idx`` files per task, of so many in total."""
    seconds = choose_task_seconds(nbytes / _CHECK_BANDWIDTH, num_threads, overhead)
    return max(TASK_NBYTES, seconds * _CHECK_BANDWIDTH)


def open_pairs(paths: Sequence[str]) -> list[LengthSource]:
    """Task: open pairs."""
    return [open_source(path) for path in paths]


def _idx_nbytes(path: str) -> int:
    """Return the size of a pair's ``.idx`` file; 0 if there is none."""
    if is_remote(path):
        return 0
    try:
        return Path(f"{path}.idx").stat().st_size
    except OSError:
        return 0
