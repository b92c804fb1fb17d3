"""A pair in object storage: its ``.idx`` opened, and Megatron Core's readers of its ``.bin``."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zindex.datasets.object_storage_utils import (
    ObjectStorageConfig,
    cache_index_file,
    get_index_cache_path,
    get_object_storage_access,
)
from zindex.errors import ConfigError, SourceError
from zindex.formats.bin_idx import bin_path, idx_path
from zindex.formats.bin_reader import check_span
from zindex.formats.megatron_readers import TokenArray, _BinReader, _IndexReader
from zindex.store.flat_object import FlatObject
from zindex.store.remote_files import UNKNOWN, open_remote

# What stands for a size that nobody tells: reads end with the object all the same.
_ANY_NBYTES = 1 << 62


class _ObjectBinReader(_BinReader):
    """Read from object storage: exactly what is wanted, or through one kept block.

    Parameters
    ----------
    bin_path
        URL of the ``.bin``.
    object_storage_config
        Whether it is read in blocks.
    nbytes
        The size that it must have; None asks for it.

    Raises
    ------
    SourceError
        If there is no such object.
    """

    def __init__(
        self,
        bin_path: str,
        object_storage_config: ObjectStorageConfig,
        nbytes: int | None = None,
    ) -> None:
        self._bin_path = bin_path
        size = _find_size(bin_path) if nbytes is None else nbytes
        block = object_storage_config.bin_chunk_nbytes
        self._bytes = FlatObject(bin_path, _ANY_NBYTES if size is None else size, np.uint8, block)

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> TokenArray:
        """Return ``count`` items from byte ``offset`` in a fresh array.

        Raises
        ------
        SourceError
            If the span does not lie within the object.
        VerificationError
            If the object is gone or shorter than it was.
        StoreUnavailableError
            If the store does not answer.
        """
        itemsize = np.dtype(dtype).itemsize
        start, count = int(offset), int(count)
        check_span(self._bin_path, len(self._bytes), start, count, itemsize)
        return self._bytes.read(start, start + count * itemsize).view(dtype)


class _S3BinReader(_ObjectBinReader):
    """Read from ``s3://``."""


class _MultiStorageClientBinReader(_ObjectBinReader):
    """Read from ``msc://`` through the multistorageclient package."""


#: The reader of each scheme.
OBJECT_STORAGE_BIN_READERS: dict[str, type[_ObjectBinReader]] = {
    "s3": _S3BinReader,
    "msc": _MultiStorageClientBinReader,
    **dict.fromkeys(("gs", "az", "http", "https"), _ObjectBinReader),
}


def _find_size(url: str) -> int | None:
    """Return the size of an object; None if its client does not tell."""
    found = open_remote(url).look_up()
    if found is None:
        raise SourceError(
            f"both files of a .bin/.idx pair must be in object storage, but there is no {url}; "
            "give the URL of the pair without its suffix"
        )
    return None if found is UNKNOWN else found.nbytes


def open_remote_pair(
    path_prefix: str,
    multimodal: bool,
    object_storage_config: ObjectStorageConfig | None,
    sequences_per_dataset: Sequence[int] | None,
    dtype_code: int | None,
    *,
    is_new: bool,
) -> tuple[_IndexReader, _ObjectBinReader, FlatObject]:
    """Return the readers of a pair in object storage, checked as on a file system.

    Parameters
    ----------
    path_prefix, multimodal, object_storage_config, sequences_per_dataset, dtype_code
        As of an ``IndexedDataset``.
    is_new
        Whether the store is asked for a newer ``.idx`` than the one of which there is a copy. A
        dataset that arrives in another process keeps to the copy that it was made with.

    Returns
    -------
    index, bin_reader, tokens
        Arrays of the ``.idx``, Megatron's reader of the ``.bin``, and the one that batches use.

    Raises
    ------
    ConfigError
        If there is no configuration.
    SourceError
        If an object is missing, or the two contradict the format or each other.
    """
    if object_storage_config is None:
        raise ConfigError(
            f"object_storage_config must be given for a pair in object storage, got None for "
            f"{path_prefix}; pass ObjectStorageConfig(path_to_idx_cache=...)"
        )
    remote, url = idx_path(path_prefix), bin_path(path_prefix)
    local = get_index_cache_path(remote, object_storage_config)
    if is_new or not os.path.exists(local):
        cache_index_file(remote, local)
    index = _IndexReader(local, multimodal, sequences_per_dataset, dtype_code)
    nbytes = index.file.bin_nbytes
    size = _find_size(url) if is_new else None
    if size not in (None, nbytes):
        raise SourceError(
            f"{url} must have {nbytes} bytes, where the last sequence of {remote} ends, but has "
            f"{size}; it is cut, unfinished or of another dataset, so upload the pair again"
        )
    bin_reader = OBJECT_STORAGE_BIN_READERS[get_object_storage_access(path_prefix)]
    return (
        index,
        bin_reader(url, object_storage_config, nbytes),
        FlatObject(url, nbytes, index.dtype, object_storage_config.bin_chunk_nbytes),
    )
