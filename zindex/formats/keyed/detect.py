"""Which format a path of keyed tokens has, by the names of its files."""

import os
from urllib.parse import unquote, urlsplit

from zindex.errors import ConfigError, StoreNotFoundError
from zindex.formats.keyed.bin_folder import META
from zindex.formats.keyed.h5_file import SUFFIXES
from zindex.formats.keyed.natural_order import list_below

_ENDING = {**dict.fromkeys(SUFFIXES, "h5"), ".jsonl": "jsonl"}


def detect_format(path: object) -> str:
    """Return ``"h5"``, ``"bin"``, ``"zarr"`` or ``"jsonl"``: the format of the files at a path.

    A folder is ``"zarr"`` if it has a ``zarr.json`` itself, or will have one when its store is
    finished, ``"h5"`` with any ``.h5`` or ``.hdf5`` file below it, ``"bin"`` with ``.bin`` files
    and a ``meta.json`` below it, and ``"jsonl"`` if there is none of these but a ``.jsonl`` file.
    What is in an object store is ``"zarr"``, for
    the others are read from file systems alone.

    Parameters
    ----------
    path
        A file, a folder, or the place of a store in an object store.

    Raises
    ------
    StoreNotFoundError
        If nothing is there, or nothing of these.
    ConfigError
        If a file has another ending, or a folder has two formats.
    """
    # A place in an object store is a URL, or an object of a layer above this one.
    place = os.fspath(path) if isinstance(path, str | os.PathLike) else "://"
    scheme, separator, _ = place.partition("://")
    if separator and scheme != "file":
        return "zarr"
    place = unquote(urlsplit(place).path) if separator else os.path.expanduser(place)
    if os.path.isfile(place):
        name = _ENDING.get(os.path.splitext(place)[1])
        if name is None:
            raise ConfigError(
                f"Unsupported file format: a file must end in {', '.join(_ENDING)}, got {place!r}; "
                "give such a file, or the folder of a store"
            )
        return name
    found = _formats_below(place) if os.path.isdir(place) else []
    if not found:
        raise StoreNotFoundError(
            f"No supported data files found: {place!r} must be a folder with zarr.json, "
            f"{' or '.join(SUFFIXES)} files, or .bin files and {META}; check the path"
        )
    if len(found) > 1:
        raise ConfigError(
            f"a folder must have files of one format, {place!r} has {' and '.join(found)}; give "
            f"storage_type={found[0]!r} (--kind {found[0]}) or another of them"
        )
    return found[0]


def _formats_below(folder: str) -> list[str]:
    """Return the formats that have files in a folder, best first; JSON lines only on their own."""
    names = list_below(folder)
    endings = {os.path.splitext(name)[1] for name in names}
    found = ["zarr"] if "zarr.json" in names else []
    if endings & set(SUFFIXES):
        found.append("h5")
    if ".bin" in endings and any(os.path.basename(name) == META for name in names):
        found.append("bin")
    if not found and any(name.startswith("_zindex/") for name in names):
        return ["zarr"]  # one that is not finished, which whoever opens it says
    return found or (["jsonl"] if ".jsonl" in endings else [])
