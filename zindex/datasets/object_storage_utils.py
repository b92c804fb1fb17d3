"""``.bin/.idx`` pairs in object storage under Megatron Core's names.

Besides Megatron's ``s3://`` and ``msc://`` it supports the other schemes of stores: ``gs://``,
``az://``, ``http://`` and ``https://``.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zindex.arrays import AnyArray, DTypeLike
from zindex.errors import ConfigError, StoreNotFoundError, check_whole
from zindex.formats.bin_idx import bin_path, check_bin, idx_path, missing_object
from zindex.formats.bin_reader import check_span
from zindex.formats.megatron_readers import _BinReader, _IndexReader
from zindex.ingest.length_source import is_store
from zindex.io.node_copy import keep_copy
from zindex.io.objects import SCHEMES
from zindex.io.remote_files import MSC_PREFIX, S3_PREFIX, UNKNOWN, open_remote, split_s3_url
from zindex.store.tokens import FlatObject

_ACCESS = {f"{scheme}://": scheme for scheme in ("msc", *SCHEMES)}


@dataclass
class ObjectStorageConfig:
    """How to read a pair in object storage.

    Parameters
    ----------
    path_to_idx_cache
        Node-local directory for copies of ``.idx`` files.
    bin_chunk_nbytes
        None requests exactly the bytes of each read, for shuffled reads. Otherwise, as in Megatron
        Core, reads fetch blocks of this size, and the last one is cached.

    Raises
    ------
    ConfigError
        If the block size is not positive.
    """

    path_to_idx_cache: str
    bin_chunk_nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.bin_chunk_nbytes is not None:
            check_whole("bin_chunk_nbytes", self.bin_chunk_nbytes, 1)


#: Megatron Core's older name.
S3Config = ObjectStorageConfig


class S3Client(Protocol):
    """The methods of a boto3 S3 client that are used here."""

    def download_file(self, Bucket: str, Key: str, Filename: str) -> None:  # noqa: N803
        """Write an object to a file."""

    def upload_file(self, Filename: str, Bucket: str, Key: str) -> None:  # noqa: N803
        """Write a file to an object."""

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        """Return the metadata of an object."""

    def get_object(self, Bucket: str, Key: str, Range: str) -> dict[str, Any]:  # noqa: N803
        """Return an object, or a range of it."""

    def close(self) -> None:
        """Close the connections."""


def is_object_storage_path(path: str | os.PathLike[str] | None) -> bool:
    """Return whether a path is a URL of object storage."""
    return isinstance(path, str) and path.startswith(tuple(_ACCESS))


def get_object_storage_access(path: str) -> str:
    """Return the access method of a URL: ``"s3"``, ``"msc"`` or another scheme.

    Raises
    ------
    ConfigError
        If it is not a URL of object storage.
    """
    for prefix, access in _ACCESS.items():
        if path.startswith(prefix):
            return access
    raise ConfigError(
        f"an object must be named by a URL of {', '.join(_ACCESS.values())}, got {path}; name a "
        "pair on a file system without an object storage setting"
    )


def parse_s3_path(path: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` URL; ConfigError for other URLs."""
    return split_s3_url(path)


def get_index_cache_path(idx_path: str, object_storage_config: ObjectStorageConfig) -> str:
    """Return the path of the local copy of an ``.idx``, as in Megatron Core for its two schemes.

    Raises
    ------
    ConfigError
        If the path is not a URL of object storage.
    """
    access = get_object_storage_access(idx_path)
    # Other schemes have separate directories, because their bucket names may collide with S3's.
    folder = () if access in ("s3", "msc") else (access,)
    rest = idx_path.removeprefix(f"{access}://").lstrip("/")
    if ".." in rest.split("/"):
        raise ConfigError(f"the URL of an .idx must not have .. in it, got {idx_path}; resolve it")
    return os.path.join(object_storage_config.path_to_idx_cache, *folder, rest)


def dataset_exists(path_prefix: str, idx_path: str, bin_path: str) -> bool:
    """Return whether both files of a pair are in object storage.

    Raises
    ------
    ConfigError
        If the prefix is not a URL of object storage.
    StoreUnavailableError
        If the store does not answer.
    """
    get_object_storage_access(path_prefix)
    return all(open_remote(path).look_up() is not None for path in (idx_path, bin_path))


def cache_index_file(remote_path: str, local_path: str) -> None:
    """Copy an object to a local file, once per node and version.

    Any rank on any node may call it at any time: no rank waits for another one to call it.

    Raises
    ------
    ConfigError
        If the path is not a URL of object storage.
    SourceError
        If there is no such object, or it changes during the copy.
    StoreUnavailableError
        If the store does not answer.
    """
    get_object_storage_access(remote_path)
    try:
        keep_copy(remote_path, local_path)
    except StoreNotFoundError as error:
        raise missing_object(remote_path) from error


def find_storage(path: str, config: Any) -> ObjectStorageConfig | None:
    """Return how to read the pair at a path, from a dataset's configuration.

    Parameters
    ----------
    path
        Path or URL of a dataset, as a configuration names it.
    config
        A configuration of datasets, with ``object_storage_cache_path`` if it has one.

    Returns
    -------
    storage
        None for local paths and for Zarr stores.

    Raises
    ------
    ConfigError
        If the configuration does not name the directories of copies and indices.
    """
    if not is_object_storage_path(path):
        return None
    access = get_object_storage_access(path)
    with suppress(ConfigError):  # not the URL of a store, or its client is missing
        if is_store(path):
            return None
    cache = getattr(config, "object_storage_cache_path", None)
    if cache is None:
        raise ConfigError(
            f"object_storage_cache_path must be given for a .bin/.idx pair in object storage, got "
            f"None for {path}; name a directory of each node for copies of the .idx "
            "(--object-storage-cache-path)"
        )
    if access in ("msc", "http", "https") and not config.path_to_cache:
        raise ConfigError(
            f"path_to_cache must be given for {path}, next to which no index can be written, got "
            "None; name a directory that all nodes share, or a URL of s3, gs or az"
        )
    return ObjectStorageConfig(cache)


# Size of an object whose client does not report it; reads end with the object anyway.
_ANY_NBYTES = 1 << 62


class _ObjectBinReader(_BinReader):
    """Read from object storage: exactly the requested bytes, or through one cached block.

    Parameters
    ----------
    bin_path
        URL of the ``.bin``.
    object_storage_config
        Whether it is read in blocks.
    nbytes
        Expected size; None queries it.

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

    def read(self, dtype: DTypeLike, count: int, offset: int) -> AnyArray:
        """Return ``count`` items from byte ``offset`` in a fresh array.

        Raises
        ------
        SourceError
            If the span is not within the object.
        VerificationError
            If the object is missing or shorter than before.
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
    """Return the size of an object; None if its client does not report it."""
    found = open_remote(url).look_up()
    if found is None:
        raise missing_object(url)
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
        Whether to look for a newer ``.idx`` than the local copy. A dataset that was unpickled in
        another process keeps its original copy.

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
    # A node's copy is private and never truncated, so its processes share a memory map of it.
    index = _IndexReader(local, multimodal, sequences_per_dataset, dtype_code, mmap=True)
    nbytes = index.file.bin_nbytes
    check_bin(url, _find_size(url) if is_new else None, nbytes, remote)
    bin_reader = OBJECT_STORAGE_BIN_READERS[get_object_storage_access(path_prefix)]
    return (
        index,
        bin_reader(url, object_storage_config, nbytes),
        FlatObject(url, nbytes, index.dtype, object_storage_config.bin_chunk_nbytes),
    )


def _is_s3_path(path: str) -> bool:
    return path.startswith(S3_PREFIX)


def _is_msc_path(path: str) -> bool:
    return path.startswith(MSC_PREFIX)


def _remove_s3_prefix(path: str) -> str:
    return path.removeprefix(S3_PREFIX)


def _remove_msc_prefix(path: str) -> str:
    return path.removeprefix(MSC_PREFIX)


def _s3_download_file(client: S3Client, s3_path: str, local_path: str) -> None:
    """Write an object to a file with a client of boto3's kind."""
    os.makedirs(os.path.dirname(local_path), exist_ok=True)
    bucket, key = parse_s3_path(s3_path)
    client.download_file(bucket, key, local_path)


def _s3_object_exists(client: S3Client, path: str) -> bool:
    """Return whether an object exists, asked with a client of boto3's kind."""
    bucket, key = parse_s3_path(path)
    try:
        client.head_object(Bucket=bucket, Key=key)
    except Exception as error:
        response = getattr(error, "response", None)  # that of botocore's ClientError
        if response is None or str(response["Error"]["Code"]) != "404":
            raise
        return False
    return True
