"""The datasets of a run, opened: here, or by tasks where there is much to check.

A ``.idx`` file is read to its last element before it is trusted. For trillions of tokens these are
tens of gigabytes, which all nodes together read sooner than one.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from zindex.building.executor import Executor, run_together
from zindex.building.source import LengthSource, open_source
from zindex.store.objects import is_remote

#: Bytes of ``.idx`` files that one process checks by itself: about a tenth of a second's work.
FEW_NBYTES = 1 << 28
#: Bytes and files of one task.
TASK_NBYTES, TASK_FILES = 1 << 28, 64
# Threads that open datasets: most of the time goes into waiting for the file system.
_NUM_OPENERS = 8
# Before permutations that are computed ahead: everything else waits for the datasets.
_FIRST = 3


def open_here(paths: Sequence[str], *, require_bin: bool = True) -> list[LengthSource]:
    """Return the opened datasets, several opened at a time; errors as of `open_source`."""
    with ThreadPoolExecutor(_NUM_OPENERS, thread_name_prefix="zindex-open") as pool:
        return list(pool.map(lambda path: open_source(path, require_bin=require_bin), paths))


def has_much_to_check(paths: Iterable[str]) -> bool:
    """Return whether the ``.idx`` files of datasets are worth tasks of their own."""
    return sum(map(_idx_nbytes, paths)) > FEW_NBYTES


async def open_by_tasks(paths: Sequence[str], executor: Executor) -> list[LengthSource]:
    """Return the opened datasets, ``.idx`` files checked by tasks, many small ones by each.

    Parameters
    ----------
    paths
        Of stores and of pairs without their suffix.
    executor
        Where the tasks run; its workers see the same files.

    Raises
    ------
    StoreNotFoundError, SourceError
        As of `open_source`.
    """
    pairs = [path for path in paths if _idx_nbytes(path)]

    async def one(number: int, part: list[str]) -> list[LengthSource]:
        # Workers may run in another directory.
        places = [os.path.abspath(path) for path in part]
        found = await executor.run(open_pairs, places, key=f"check-{number}", priority=_FIRST)
        return [replace(source, path=path) for source, path in zip(found, part, strict=True)]

    parts = enumerate(_cut(pairs))
    opened = [
        source for part in await run_together(one(*item) for item in parts) for source in part
    ]
    by_path = dict(zip(pairs, opened, strict=True))
    others = [path for path in paths if path not in by_path]
    by_path |= zip(others, open_here(others), strict=True)
    return [by_path[path] for path in paths]


def open_pairs(paths: Sequence[str]) -> list[LengthSource]:
    """Task: open pairs, one after the other."""
    return [open_source(path) for path in paths]


def _cut(pairs: Sequence[str]) -> list[list[str]]:
    """Return runs of pairs, each the work of one task."""
    parts: list[list[str]] = []
    nbytes = 0
    for path in pairs:
        nbytes += _idx_nbytes(path)
        if not parts or nbytes > TASK_NBYTES or len(parts[-1]) == TASK_FILES:
            parts.append([])
            nbytes = _idx_nbytes(path)
        parts[-1].append(path)
    return parts


def _idx_nbytes(path: str) -> int:
    """Return the size of a pair's ``.idx`` file; 0 if there is none."""
    if is_remote(path):
        return 0
    try:
        return Path(f"{path}.idx").stat().st_size
    except OSError:
        return 0
