"""``.bin/.idx`` pairs in object storage under Megatron Core's names: places and ``.idx`` files.

Beside Megatron's ``s3://`` and ``msc://`` there are the other schemes of stores: ``gs://``,
``az://``, ``http://`` and ``https://``. The ``.bin`` is read in `zindex.datasets.bin_readers`.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from zindex.building.source import is_store
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.sources.node_copy import keep_copy
from zindex.store.objects import SCHEMES
from zindex.store.remote_files import MSC_PREFIX, S3_PREFIX, open_remote, split_s3_url

__all__ = [
    "MSC_PREFIX",
    "S3_PREFIX",
    "ObjectStorageConfig",
    "S3Client",
    "S3Config",
    "_is_msc_path",
    "_is_s3_path",
    "_remove_msc_prefix",
    "_remove_s3_prefix",
    "_s3_download_file",
    "_s3_object_exists",
    "cache_index_file",
    "dataset_exists",
    "get_index_cache_path",
    "get_object_storage_access",
    "is_object_storage_path",
    "parse_s3_path",
]

_ACCESS = {f"{scheme}://": scheme for scheme in ("msc", *SCHEMES)}


@dataclass
class ObjectStorageConfig:
    """How a pair in object storage is read.

    Parameters
    ----------
    path_to_idx_cache
        Directory of this node for copies of ``.idx`` files.
    bin_chunk_nbytes
        None: of a ``.bin`` what is wanted is asked for and no more, for reading in shuffled order.
        Otherwise, as Megatron Core does, blocks of so many bytes, of which one is kept.

    Raises
    ------
    ConfigError
        If blocks would be empty.
    """

    path_to_idx_cache: str
    bin_chunk_nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.bin_chunk_nbytes is not None and self.bin_chunk_nbytes < 1:
            raise ConfigError(
                f"bin_chunk_nbytes must be at least 1, got {self.bin_chunk_nbytes}; leave it out "
                "to ask for what is wanted and no more"
            )


#: Megatron Core's older name.
S3Config = ObjectStorageConfig


class S3Client(Protocol):
    """The calls of an S3 client that are made here, in boto3's words."""

    def download_file(self, Bucket: str, Key: str, Filename: str) -> None:  # noqa: N803
        """Write an object to a file."""
        ...

    def upload_file(self, Filename: str, Bucket: str, Key: str) -> None:  # noqa: N803
        """Write a file to an object."""
        ...

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        """Return what the store says of an object."""
        ...

    def get_object(self, Bucket: str, Key: str, Range: str) -> dict[str, Any]:  # noqa: N803
        """Return an object, or a range of it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def is_object_storage_path(path: str | os.PathLike[str] | None) -> bool:
    """Return whether a path is a URL of object storage."""
    return isinstance(path, str) and path.startswith(tuple(_ACCESS))


def get_object_storage_access(path: str) -> str:
    """Return how a URL is reached: ``"s3"``, ``"msc"`` or another scheme.

    Raises
    ------
    ConfigError
        If it is no URL of object storage.
    """
    for prefix, access in _ACCESS.items():
        if path.startswith(prefix):
            return access
    raise ConfigError(
        f"an object must be named by a URL of {', '.join(_ACCESS.values())}, got {path}; name a "
        "pair on a file system without an object storage setting"
    )


def parse_s3_path(path: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` URL; ConfigError if it is none."""
    return split_s3_url(path)


def get_index_cache_path(idx_path: str, object_storage_config: ObjectStorageConfig) -> str:
    """Return where the copy of an ``.idx`` goes: as Megatron Core says for its two schemes.

    Raises
    ------
    ConfigError
        If the path is no URL of object storage.
    """
    access = get_object_storage_access(idx_path)
    # Other schemes have a directory of their own: their buckets may be named like those of S3.
    folder = () if access in ("s3", "msc") else (access,)
    rest = idx_path.removeprefix(f"{access}://").lstrip("/")
    return os.path.join(object_storage_config.path_to_idx_cache, *folder, rest)


def dataset_exists(path_prefix: str, idx_path: str, bin_path: str) -> bool:
    """Return whether both files of a pair are in object storage.

    Raises
    ------
    ConfigError
        If the prefix is no URL of object storage.
    StoreUnavailableError
        If the store does not answer.
    """
    get_object_storage_access(path_prefix)
    return all(open_remote(path).look_up() is not None for path in (idx_path, bin_path))


def cache_index_file(remote_path: str, local_path: str) -> None:
    """Make a local file hold what an object holds, fetched once per node and version.

    Every rank may call it, on every node and at any time: no rank waits for another's call.

    Raises
    ------
    ConfigError
        If the path is no URL of object storage.
    SourceError
        If there is no such object, or it is written meanwhile.
    StoreUnavailableError
        If the store does not answer.
    """
    get_object_storage_access(remote_path)
    try:
        keep_copy(remote_path, local_path)
    except StoreNotFoundError as error:
        raise SourceError(
            f"both files of a .bin/.idx pair must be in object storage, but there is no "
            f"{remote_path}; give the URL of the pair without its suffix"
        ) from error


def find_storage(path: str, config: Any) -> ObjectStorageConfig | None:
    """Return how the pair at a path is read, from a dataset's configuration.

    Parameters
    ----------
    path
        Path or URL of a dataset, as a configuration names it.
    config
        A configuration of datasets, with ``object_storage_cache_path`` if it has one.

    Returns
    -------
    storage
        None for everything that is no pair in object storage: paths, and Zarr stores anywhere.

    Raises
    ------
    ConfigError
        If the configuration does not say where copies and indices go.
    """
    if not is_object_storage_path(path):
        return None
    access = get_object_storage_access(path)
    with suppress(ConfigError):  # what stores cannot be named by, or no client of theirs reaches
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
            f"path_to_cache must be given for {path}, beside which no index can be written, got "
            "None; name a directory that all nodes share, or a URL of s3, gs or az"
        )
    return ObjectStorageConfig(cache)


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
