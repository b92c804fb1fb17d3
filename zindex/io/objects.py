"""Paths in object stores, such as ``s3://bucket/folder``, as values.

A path never carries credentials: each process reads them from its environment.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from zindex.errors import ConfigError
from zindex.io.local import local_path

#: Schemes of object stores; HTTP is read-only.
SCHEMES = ("s3", "gs", "az", "http", "https")
_READ_ONLY = ("http", "https")
# A bucket, a container, or a host with a port.
_BUCKET = re.compile(r"[A-Za-z0-9._\-\[\]:]+")
# A part of a key: no control characters.
_PLAIN = re.compile(r"[^\x00-\x1f]+")


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A key or a prefix of keys in an object store, with the parts of ``Path`` that stores need."""

    scheme: str
    #: Bucket or container; the host for HTTP.
    bucket: str
    #: Key without slashes at the ends; empty for the bucket itself.
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> "ObjectPath":
        """Parse a URL.

        Raises
        ------
        ConfigError
            If it is not a URL of an object store, or has a user, query or fragment.
        """
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES:
            raise ConfigError(
                f"an object store must be one of {', '.join(SCHEMES)}, got scheme {scheme!r}"
            )
        bucket, _, key = rest.partition("/")
        if "@" in bucket or "?" in rest or "#" in rest:
            raise ConfigError(
                f"a {scheme}:// URL must be a bucket and a key, got one with a user, a query or a "
                f"fragment: {mask(url)}; credentials belong in the environment, such as "
                "AWS_ACCESS_KEY_ID"
            )
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"a {scheme}:// URL must name a bucket, got {bucket!r}; write {scheme}://bucket/name"
            )
        if scheme in _READ_ONLY:
            key = unquote(key)
        return cls(scheme, bucket, "/".join(_split(key)))

    def __str__(self) -> str:
        key = quote(self.key) if self.scheme in _READ_ONLY else self.key
        return f"{self.scheme}://{self.bucket}" + (f"/{key}" if key else "")

    def __truediv__(self, name: str) -> "ObjectPath":
        key = "/".join((*_split(self.key), *_split(name)))
        return ObjectPath(self.scheme, self.bucket, key)

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        """The parent; a bucket is its own."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def is_read_only(self) -> bool:
        """Whether the store is read-only."""
        return self.scheme in _READ_ONLY


#: A path in a file system or in an object store.
Place = Path | ObjectPath
#: What users may pass for one.
PlaceLike = str | os.PathLike[str] | ObjectPath


def place_of(url: PlaceLike) -> Place:
    """Return the location for a path or URL.

    Raises
    ------
    ConfigError
        If the URL has an unknown scheme, or names a host or credentials.

    Examples
    --------
    >>> str(place_of("s3://bucket/corpora/") / "code.zarr")
    's3://bucket/corpora/code.zarr'
    """
    if isinstance(url, ObjectPath):
        return url
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator or scheme == "file":
        return local_path(url)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"a store must be a path or a URL of file, {', '.join(SCHEMES)}, got scheme "
            f"{scheme!r}; copy the data to one of them"
        )
    return ObjectPath.parse(text)


def is_remote(url: PlaceLike) -> bool:
    """Return whether a path or URL is in an object store."""
    return isinstance(url, ObjectPath) or not isinstance(place_of(url), Path)


def mask(text: str) -> str:
    """Return a text with the users, queries and fragments of its URLs masked.

    Examples
    --------
    >>> mask("GET https://me:secret@host/key?X-Amz-Signature=secret failed")
    'GET https://***@host/key?*** failed'
    """
    text = re.sub(r"(://)[^/\s?#]*@", r"\1***@", text)
    return re.sub(r"(://[^\s?#]*[?#])[^\s'\"]+", r"\1***", text)


def _split(key: str) -> list[str]:
    """Return the parts of a key, and refuse ``.`` and ``..``."""
    parts = [part for part in key.split("/") if part]
    for part in parts:
        if part in (".", "..") or not _PLAIN.fullmatch(part):
            raise ConfigError(f"a key must have plain parts, got {part!r} in {key!r}; spell it out")
    return parts
