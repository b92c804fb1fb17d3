"""A ``.bin/.idx`` pair in object storage as a corpus: spans of both files, asked for by tasks."""

import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.bin_idx import IdxFile, bin_path, idx_path, read_idx_file
from zindex.sources.node_copy import keep_copy
from zindex.store.flat_object import FlatObject
from zindex.store.remote_files import UNKNOWN, open_remote


class RemoteIndex(IdxFile):
    """A checked ``.idx`` in object storage, of which each span is a request."""

    __slots__ = ()

    def _fill(self, array: npt.NDArray[Any], offset: int) -> int:
        values = FlatObject(self.path, self.nbytes, np.uint8).read(offset, offset + array.nbytes)
        array.view(np.uint8)[:] = values
        return array.nbytes


@dataclass(frozen=True, slots=True)
class RemotePair:
    """A validated pair in object storage; pickles as these few fields."""

    prefix: str
    """URL without suffix."""
    index: RemoteIndex
    """Its ``.idx``."""
    versions: tuple[str, str]
    """What the store says of ``.bin`` and ``.idx``, which changes when they are written."""

    @property
    def tokens(self) -> "RemoteTokens":
        """Reader of the ``.bin``."""
        return RemoteTokens(bin_path(self.prefix), self.index.bin_nbytes)


@dataclass(frozen=True, slots=True)
class RemoteTokens:
    """The ``.bin`` of a pair in object storage, by position."""

    path: str
    """Its URL."""
    nbytes: int
    """Its size."""

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset``, asked for in several requests at a time."""
        stop = offset + count * np.dtype(dtype).itemsize
        return FlatObject(self.path, self.nbytes, np.uint8).read(offset, stop).view(dtype)


def open_remote_pair(prefix: str, *, multimodal: bool | None = None) -> RemotePair:
    """Return a pair in object storage, checked as one on a file system.

    Parameters
    ----------
    prefix
        URL without suffix, of any scheme of `zindex.store.remote_files.open_remote`.
    multimodal
        True demands a mode for each sequence; None takes them where there are any.

    Raises
    ------
    SourceError
        If an object is missing, or the two contradict the format or each other.
    StoreUnavailableError
        If the store does not answer.

    Notes
    -----
    The ``.idx`` is fetched once for the check, to a temporary file that is removed after it.
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
            checked = read_idx_file(str(copy), None, multimodal=multimodal)
        except StoreNotFoundError as error:
            raise SourceError(f"{url} must stay, it was removed meanwhile; restore it") from error
        except SourceError as error:
            raise SourceError(str(error).replace(str(copy), url)) from error
    index = RemoteIndex(
        **{item.name: getattr(checked, item.name) for item in fields(checked)} | {"path": url}
    )
    size = found[tokens]
    if size is not UNKNOWN and size is not None and size.nbytes != index.bin_nbytes:
        raise SourceError(
            f"{tokens} must have {index.bin_nbytes} bytes, where the last sequence of {url} ends, "
            f"but has {size.nbytes}; it is cut, unfinished or of another dataset, so upload the "
            "pair again"
        )
    versions = [head.version if head is not None else "" for head in found.values()]
    return RemotePair(prefix, index, (versions[0], versions[1]))
