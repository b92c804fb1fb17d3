"""``.bin/.idx`` pairs as corpora, on file systems and in object storage: find, open, count."""

import glob
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import SourceError, StoreNotFoundError
from zindex.execution.executor import Executor, open_executor, run_builds, run_together
from zindex.formats import bin_idx
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
class _RemoteIdx(bin_idx.IdxFile):
    """A validated ``.idx`` in object storage; each span is one request."""

    def read_into(self, array: AnyArray, name: str, start: int) -> None:
        """Fill an array with elements from ``start`` on of an array of ``spans``."""
        offset = self.spans[name][1] + start * array.itemsize
        values = FlatObject(self.path, self.nbytes, np.uint8).read(offset, offset + array.nbytes)
        array.view(np.uint8)[:] = values


def open_pair(path: str, multimodal: bool | None = None) -> Corpus:
    """Open and validate a pair.

    Parameters
    ----------
    path
        Path or object storage URL without suffix.
    multimodal
        True requires a mode for each sequence; None keeps modes if present.

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
        prefix = str(local_path(path, "a .bin/.idx pair"))  # workers may run elsewhere
        index = bin_idx.read_index(prefix, multimodal=multimodal)
        files = [os.stat(name) for name in (bin_idx.bin_path(prefix), bin_idx.idx_path(prefix))]
        version = fingerprint({"files": [[file.st_size, file.st_mtime_ns] for file in files]})
    facts = {name: getattr(index, name) for name in (*COUNTS, "has_modes")}
    read = partial(_read_pair, prefix, index)
    return Corpus(prefix, index.dtype, read=read, version=version, **facts)


def _read_pair(prefix: str, index: bin_idx.IdxFile, name: str, start: int, stop: int) -> AnyArray:
    """Return rows of an array of a token store from a pair."""
    if name == schema.TOKENS.name:
        path = bin_idx.bin_path(prefix)
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


def _open_remote_idx(prefix: str, multimodal: bool | None) -> tuple[bin_idx.IdxFile, list[str]]:
    """Open and validate a pair in object storage; return the ``.idx``, and both files' versions.

    The ``.idx`` is fetched once for validation, into a temporary file.
    """
    url, tokens = bin_idx.idx_path(prefix), bin_idx.bin_path(prefix)
    found = {path: open_remote(path).look_up() for path in (tokens, url)}
    missing = [path for path, head in found.items() if head is None]
    if missing:
        raise bin_idx.missing_object(missing[0])
    with tempfile.TemporaryDirectory(prefix="zindex-") as folder:
        copy = Path(folder) / "copy.idx"
        try:
            keep_copy(url, copy)
            index = replace(bin_idx.read_idx_file(str(copy), None, multimodal=multimodal), path=url)
        except StoreNotFoundError as error:
            raise SourceError(f"{url} must stay, it was removed meanwhile; restore it") from error
        except SourceError as error:
            raise SourceError(str(error).replace(str(copy), url)) from error
    size = found[tokens]
    if size is not UNKNOWN and size is not None:
        bin_idx.check_bin(tokens, size.nbytes, index.bin_nbytes, url)
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
    """Return a path, or several of them, as texts; both files of a pair are one path."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    texts = [os.fspath(path) for path in given]
    indices = {path[:-4] for path in texts if path.endswith(".idx")}
    return [path for path in texts if not (path.endswith(".bin") and path[:-4] in indices)]


def expand_prefixes(paths: Paths) -> list[str]:
    """Return the prefixes of the pairs named by paths and globs; globs are sorted.

    Raises
    ------
    SourceError
        If a glob matches no ``.idx`` file, or no prefix is given.
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
        stores, which are sorted by name. URLs are returned unchanged.

    Raises
    ------
    SourceError
        If a glob or a folder matches nothing, or a folder has only one file of a pair.
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


Counts = tuple[int, int]


def count_sequences(paths: Paths, *, client: Any = None) -> dict[str, Counts]:
    """Return the sequences of corpora and the entries of their document indices.

    Parameters
    ----------
    paths
        Paths or URLs of ``.bin/.idx`` pairs without suffix or of Zarr token stores, as given to a
        training job; globs of pairs; or folders of pairs or stores.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.

    Returns
    -------
    counts
        For each path, as given or found, its entry in the file of Megatron Core's
        ``--per-dataset-sequences-path``: sequences, and documents + 1.

    Raises
    ------
    SourceError
        If an ``.idx`` is missing or damaged, or no path is given.

    Notes
    -----
    An ``.idx`` on a file system is validated completely, with one task per file. For one in object
    storage, only the header and the size are read.
    """
    names = list(dict.fromkeys(find_corpora(paths)))

    async def main(executor: Executor) -> list[Counts]:
        # Workers may have another working directory.
        places = [name if is_url(name) else str(local_path(name)) for name in names]
        return await run_together(
            executor.run(count_one, place, key=f"count-{os.path.basename(place)[:28]}-{number}")
            for number, place in enumerate(places)
        )

    with open_executor(client) as executor:
        return dict(zip(names, run_builds(main(executor)), strict=True))


def count_one(path: str) -> Counts:
    """Task: count one corpus; errors as of `count_sequences`."""
    if not path.startswith(MSC_PREFIX) and is_store(path):
        spec = open_store(path, kind="tokens").spec
        return spec["num_sequences"], spec["num_documents"] + 1
    if is_url(path):
        url = bin_idx.idx_path(path)
        file = open_remote(url)
        found = file.look_up()
        if found is None:
            raise SourceError(f"there must be an .idx at {url}, there is none; check the URL")
        [head] = file.read_ranges([0], [bin_idx.HEADER.size])
        index = bin_idx.parse_header(bytes(head[: bin_idx.HEADER.size]), found.nbytes, url)
    else:
        index = bin_idx.read_index(path, require_bin=False)
    return index.num_sequences, index.num_documents + 1
