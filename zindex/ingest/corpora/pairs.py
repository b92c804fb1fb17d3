"""``.bin/.idx`` pairs as corpora, on file systems and in object storage, found by path or glob."""

import glob
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.bin_idx import IdxFile, bin_path, idx_path, read_idx_file, read_index
from zindex.formats.bin_reader import BinFile
from zindex.ingest.corpora.corpus import COUNTS, Corpus, store_corpus
from zindex.ingest.length_source import is_store
from zindex.io.local import local_path
from zindex.io.node_copy import keep_copy
from zindex.io.remote_files import MSC_PREFIX, UNKNOWN, open_remote
from zindex.store.commit import fingerprint
from zindex.store.open import open_store
from zindex.store.tokens import FlatObject

#: A path, or several of them.
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def is_url(path: str) -> bool:
    """Return whether a path is the URL of an object."""
    return "://" in path and not path.startswith("file://")


@dataclass(frozen=True, slots=True)
class _RemoteIdx(IdxFile):
    """A validated ``.idx`` in object storage; each span is a request."""

    def _fill(self, array: npt.NDArray[Any], offset: int) -> None:
        values = FlatObject(self.path, self.nbytes, np.uint8).read(offset, offset + array.nbytes)
        array.view(np.uint8)[:] = values


def open_pair(path: str, multimodal: bool | None = None) -> Corpus:
    """Open and validate a pair.

    Parameters
    ----------
    path
        Path or object storage URL without suffix.
    multimodal
        True demands a mode for each sequence; None takes them where there are any.

    Raises
    ------
    SourceError
        If a file is missing or damaged.
    """
    if is_url(path):
        prefix = path
        index, versions = _open_remote_idx(path, multimodal)
        version = fingerprint({"versions": versions})
    else:
        prefix = str(local_path(path, "a .bin/.idx pair"))  # workers may run in another directory
        index = read_index(prefix, multimodal=multimodal)
        files = [os.stat(name) for name in (bin_path(prefix), idx_path(prefix))]
        version = fingerprint({"files": [[file.st_size, file.st_mtime_ns] for file in files]})
    facts = {name: getattr(index, name) for name in (*COUNTS, "has_modes")}
    read = partial(_read_pair, prefix, index)
    return Corpus(prefix, index.dtype, read=read, version=version, **facts)


def _read_pair(prefix: str, index: IdxFile, name: str, start: int, stop: int) -> AnyArray:
    """Return rows of an array of a token store from a pair."""
    if name == schema.TOKENS.name:
        path = bin_path(prefix)
        if is_url(path):  # fetched in several concurrent requests
            return FlatObject(path, index.bin_nbytes, index.dtype).read(start, stop)
        offset = start * index.dtype.itemsize
        return BinFile(path, index.bin_nbytes).read(index.dtype, stop - start, offset)
    readers: dict[str, Callable[[int, int], AnyArray]] = {
        schema.SEQUENCE_LENGTH.name: index.sequence_lengths,
        schema.SEQUENCE_OFFSET.name: index.sequence_offsets,
        schema.DOCUMENT_OFFSET.name: index.document_indices,
        schema.SEQUENCE_MODE.name: index.sequence_modes,
    }
    return readers[name](start, stop)


def _open_remote_idx(prefix: str, multimodal: bool | None) -> tuple[IdxFile, list[str]]:
    """Open and validate a pair in object storage; return the ``.idx``, and both files' versions.

    The ``.idx`` is fetched once for validation, into a temporary file.
    """
    url, tokens = idx_path(prefix), bin_path(prefix)
    found = {path: open_remote(path).look_up() for path in (tokens, url)}
    missing = [path for path, head in found.items() if head is None]
    if missing:
        raise SourceError(
            f"both files of a .bin/.idx pair must be in object storage, but there is no "
            f"{missing[0]}; give the URL of the pair without its suffix"
        )
    with tempfile.TemporaryDirectory(prefix="zindex-") as folder:
        copy = Path(folder) / "copy.idx"
        try:
            keep_copy(url, copy)
            index = replace(read_idx_file(str(copy), None, multimodal=multimodal), path=url)
        except StoreNotFoundError as error:
            raise SourceError(f"{url} must stay, it was removed meanwhile; restore it") from error
        except SourceError as error:
            raise SourceError(str(error).replace(str(copy), url)) from error
    size = found[tokens]
    if size is not UNKNOWN and size is not None and size.nbytes != index.bin_nbytes:
        raise SourceError(
            f"{tokens} must have {index.bin_nbytes} bytes, where the last sequence of {url} ends, "
            f"but has {size.nbytes}; it is cut, unfinished or of another dataset, so upload the "
            "pair again"
        )
    versions = [head.version if head is not None else "" for head in found.values()]
    return _RemoteIdx(*astuple(index)), versions


def open_corpus(path: str, multimodal: bool | None = None) -> Corpus:
    """Open a Zarr token store or a pair; see `open_pair`."""
    if not path.startswith(MSC_PREFIX) and is_store(path):
        return store_corpus(open_store(path, kind="tokens"))
    return open_pair(path, multimodal)


def is_glob(path: str) -> bool:
    """Return whether a path is a pattern, and not a pair whose name looks like one."""
    return glob.has_magic(path) and not os.path.exists(f"{path}.idx")


def _list_paths(paths: Paths) -> list[str]:
    """Return a path, or several of them, as texts."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return [os.fspath(path) for path in given]


def expand_prefixes(paths: Paths) -> list[str]:
    """Return the prefixes of the pairs named by paths and globs; globs are sorted.

    Raises
    ------
    SourceError
        If a glob matches no ``.idx`` file, or there is no prefix at all.
    """
    prefixes: list[str] = []
    for path in _list_paths(paths):
        if is_glob(path):
            pattern = path if path.endswith(".idx") else f"{path}.idx"
            matches = sorted(glob.glob(pattern))
            if not matches:
                raise SourceError(f"{path} must match at least one .idx file, it matches none")
            prefixes += [match.removesuffix(".idx") for match in matches]
        else:
            prefixes.append(path.removesuffix(".idx").removesuffix(".bin"))
    if not prefixes:
        raise SourceError("convert needs at least one prefix, got none")
    return prefixes


def find_corpora(sources: Paths) -> list[str]:
    """Return the pairs and stores named by paths, globs and folders, in the given order.

    Parameters
    ----------
    sources
        Paths of pairs without suffix, globs of pairs, Zarr token stores, or folders of pairs or
        stores, which are sorted by name. URLs are returned as they are.

    Raises
    ------
    SourceError
        If a glob or a folder matches nothing, or a folder has one file of a pair only.
    """
    found: list[str] = []
    for path in _list_paths(sources):
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
            f"{folder} must hold .bin/.idx pairs or Zarr token stores, it has none; check the path"
        )
    return [os.path.join(folder, name) for name in found]
