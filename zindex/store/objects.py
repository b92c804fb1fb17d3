"""Places in object stores, such as ``s3://bucket/folder``, as values; no request is made here.

A place never carries credentials: those come from the environment of each process that uses it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from zindex.errors import ConfigError
from zindex.store.local import local_path

#: What object stores are named by; over HTTP they are only read.
SCHEMES = ("s3", "gs", "az", "http", "https")
_READ_ONLY = ("http", "https")
# A bucket, a container, or a host with a port.
_BUCKET = re.compile(r"[A-Za-z0-9._\-\[\]:]+")
# A part of a key: anything but control characters.
_PLAIN = re.compile(r"[^\x00-\x1f]+")


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A key or a prefix of keys in an object store, with as much of ``Path`` as stores need."""

    scheme: str
    #: Bucket or container; over HTTP the host.
    bucket: str
    #: Key below it, without a slash at either end; empty for the bucket itself.
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> "ObjectPath":
        """Return the place that a URL names.

        Raises
        ------
        ConfigError
            If it is no URL of an object store, or carries more than a place.
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
        """The place above; the bucket is its own."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written here."""
        return self.scheme in _READ_ONLY


#: A place on this machine's file systems or in an object store.
Place = Path | ObjectPath
#: What users name one by.
PlaceLike = str | os.PathLike[str] | ObjectPath


def place_of(url: PlaceLike) -> Place:
    """Return the place that a path or a URL names.

    Raises
    ------
    ConfigError
        If the URL has a scheme that is not known, or names a host or credentials.

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
        return local_path(text)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"a store must be a path or a URL of file, {', '.join(SCHEMES)}, got scheme "
            f"{scheme!r}; copy the data to one of them"
        )
    return ObjectPath.parse(text)


def is_remote(url: PlaceLike) -> bool:
    """Return whether a path or URL names a place that is not in a file system."""
    return isinstance(url, ObjectPath) or not isinstance(place_of(url), Path)


def mask(text: str) -> str:
    """Return a text with the users, queries and fragments of its URLs replaced by stars.

    Examples
    --------
    >>> mask("GET https://me:secret@host/key?X-Amz-Signature=secret failed")
    'GET https://***@host/key?*** failed'
    """
    text = re.sub(r"(://)[^/\s?#]*@", r"\1***@", text)
    return re.sub(r"(://[^\s?#]*[?#])[^\s'\"]+", r"\1***", text)


def _split(key: str) -> list[str]:
    """Return the parts of a key, refusing those that lead elsewhere."""
    parts = [part for part in key.split("/") if part]
    for part in parts:
        if part in (".", "..") or not _PLAIN.fullmatch(part):
            raise ConfigError(f"a key must have plain parts, got {part!r} in {key!r}; spell it out")
    return parts
