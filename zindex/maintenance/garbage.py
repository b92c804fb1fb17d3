"""Find and remove unused files: old temporary files, unfinished builds, unnamed stores."""

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zindex.config import load_config
from zindex.errors import ConfigError
from zindex.formats.keyed.shards import GROWING_KEY
from zindex.indexing.blend import SHUFFLE_PREFIX
from zindex.indexing.run_plan import plan_run
from zindex.io import files
from zindex.io.objects import PlaceLike, place_of
from zindex.maintenance.edits.journal import JOURNAL_PREFIX
from zindex.plan.build_plan import BuildPlan
from zindex.plan.inverse_plan import InversePlan
from zindex.store.commit import MANIFEST_KEY, PLAN_KEY, ROOT_KEY
from zindex.store.folder_group import write_group
from zindex.store.verify import REPAIR_KEY

_METADATA = os.path.dirname(PLAN_KEY)


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file or directory that no run needs."""

    path: Path
    reason: str
    nbytes: int
    #: Modification time of the file or directory, which a commit changes.
    version: str | None

    def remove(self) -> bool:
        """Remove it; return False if other processes completed or removed it meanwhile."""
        return files.remove_version(self.path, self.version)


def find_garbage(
    folder: PlaceLike, runs: Sequence[str | os.PathLike[str]] = (), *, hours: float = 24.0
) -> list[Garbage]:
    """Return the unused files of a folder.

    Parameters
    ----------
    folder
        A directory of stores in a file system, such as a run's ``index``; includes subfolders, but
        no growing stores.
    runs
        YAML files of all runs that use the folder: stores that none of them uses, as an index, a
        blend or a dataset, are garbage, too. Without runs, or if one of them was edited, finished
        stores are kept, since only its journal names its stores.
    hours
        Minimum age of garbage. A builder touches its plan every few seconds.

    Raises
    ------
    ConfigError
        If the folder is in an object store, or is not a directory.
    """
    root = place_of(folder)
    if not isinstance(root, Path) or not root.is_dir():
        raise ConfigError(
            f"a folder must be a directory to be cleaned, got {folder}; object stores remove old "
            "objects by rules for their life cycle"
        )
    before = time.time() - 3600 * hours
    named = _named_by(runs) if runs else None
    return list(_find_below(root, named, before))


def remove_garbage(found: Iterable[Garbage]) -> list[Garbage]:
    """Remove garbage; return what was removed, and update the Zarr groups of its folders."""
    removed = [item for item in found if item.remove()]
    for folder in sorted({item.path.parent for item in removed}):
        write_group(folder, create=False)
    return removed


def _named_by(runs: Sequence[str | os.PathLike[str]]) -> set[str] | None:
    """Return the real paths of all stores used by runs; None if unknown."""
    named: set[str] = set()
    for path in runs:
        config = load_config(os.fspath(path))
        names = files.list_names(place_of(config.index))
        if any(name.startswith(JOURNAL_PREFIX) for name in names):
            return None
        plans: list[BuildPlan] = [item.plan for item in plan_run(config)]
        plans += [each for each in map(InversePlan.of, plans) if each is not None]
        places = [str(plan.store_plan(config.index).root) for plan in plans]
        named |= {os.path.realpath(place) for place in (*places, *(m.path for m in config.members))}
    return named


def _find_below(path: Path, named: set[str] | None, before: float) -> Iterator[Garbage]:
    """Yield the garbage of a file, or of a directory, which may be a store."""
    if files.exists(path / GROWING_KEY):  # has rules of its own: `zindex.growing.eviction`
        return
    version, names = files.file_version(path), files.list_names(path)
    reason = None
    is_copy = path.match(REPAIR_KEY)  # left behind by a repair that died
    if is_copy or path.name.endswith(".partial") or path.name.startswith(SHUFFLE_PREFIX):
        reason = "temporary files of a killed writer"
    # A store that lost its zarr.json, or whose commit was interrupted, still has its manifest and
    # can be repaired.
    elif _METADATA in names and not any(files.exists(path / n) for n in (ROOT_KEY, MANIFEST_KEY)):
        is_begun = files.exists(path / PLAN_KEY)
        reason = "an unfinished build" if is_begun else "shards without a plan"
    elif _METADATA in names and named is not None and os.path.realpath(path) not in named:
        reason = "a store that no given run names"
    if reason is not None:
        facts = [each.lstat() for each in (path, *path.rglob("*")) if os.path.lexists(each)]
        if max((fact.st_mtime for fact in facts), default=before) < before:
            nbytes = sum(fact.st_size for fact in facts if not stat.S_ISDIR(fact.st_mode))
            yield Garbage(path, reason, nbytes, version)
            return
    for name in sorted(names):
        if not (path / name).is_symlink():
            yield from _find_below(path / name, named, before)
