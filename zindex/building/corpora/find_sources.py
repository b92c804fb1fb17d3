"""Which corpora are meant by paths, globs and folders."""

import os
from collections.abc import Iterable

from zindex.building.convert import expand_prefixes
from zindex.building.source import is_store
from zindex.errors import SourceError


def find_sources(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[str]:
    """Return the pairs and stores that paths, globs and folders name, in their order.

    Parameters
    ----------
    sources
        Paths of ``.bin/.idx`` pairs without suffix, globs of such, Zarr token stores, or folders of
        pairs or stores, which are taken by name; URLs stay as they are.

    Raises
    ------
    SourceError
        If a glob or a folder has none, or a folder has a file whose other half is missing.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    found: list[str] = []
    for item in given:
        path = os.fspath(item)
        if "://" in path or is_store(path):
            found.append(path)
        elif os.path.isdir(path) and not os.path.exists(f"{path}.idx"):
            found += _list_folder(path)
        else:
            found += expand_prefixes(path)
    if not found:
        raise SourceError("at least one corpus must be named, got none; name pairs or stores")
    return found


def _list_folder(folder: str) -> list[str]:
    """Return the pairs of a folder by name, or its stores if it has no pairs."""
    names = sorted(os.listdir(folder))
    halves = {suffix: {n[:-4] for n in names if n.endswith(suffix)} for suffix in (".bin", ".idx")}
    alone = sorted(halves[".bin"] ^ halves[".idx"])
    if alone:
        has = ".bin" if alone[0] in halves[".bin"] else ".idx"
        raise SourceError(
            f"every .bin of a folder must have its .idx, but {folder} has {alone[0]}{has} alone; "
            "restore the other file, or name the pairs one by one"
        )
    found = sorted(halves[".idx"]) or [name for name in names if is_store(f"{folder}/{name}")]
    if not found:
        raise SourceError(
            f"{folder} must hold .bin/.idx pairs or Zarr token stores, it holds none; check the "
            "path"
        )
    return [os.path.join(folder, name) for name in found]
