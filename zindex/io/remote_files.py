"""Read byte ranges of foreign objects, such as a ``.bin``, through one of three clients.

Most schemes use the client of stores. For ``s3://``, boto3 replaces it if it is not installed or
was used before a fork; ``msc://`` URLs need the multistorageclient package and its profiles.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar

from zindex.errors import ConfigError, StoreUnavailableError
from zindex.io import object_client
from zindex.io.object_calls import GROUP, is_usable
from zindex.io.object_client import Head
from zindex.io.objects import ObjectPath
from zindex.lazy import need

S3_PREFIX = "s3://"
MSC_PREFIX = "msc://"

#: Metadata of a file whose client reports neither size nor version.
UNKNOWN = Head(-1, "")

# Alignment of requests through boto3: each request costs milliseconds of Python, and neighbouring
# spans are often read in the same round.
_BOTO_NBYTES = 1 << 18
_NOT_FOUND = ("404", "NoSuchKey", "NotFound")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of an object store, with its client."""

    url: str
    #: Alignment of requested ranges, in bytes.
    grain: ClassVar[int] = 1
    #: Ranges that one call requests concurrently.
    num_together: ClassVar[int] = 1

    def look_up(self) -> Head | None:
        """Return its metadata: `UNKNOWN` if not reported, None if it does not exist."""
        raise NotImplementedError

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return a byte range, shorter at the end; FileNotFoundError if it does not exist."""
        raise NotImplementedError

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return byte ranges, requested one by one; as of `read_range`."""
        return [self.read_range(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def download(self, path: str) -> bool:
        """Write the whole file to a path, if the client has a method for it; return whether."""
        return False


class ObjectFile(RemoteFile):
    """A file read by the client of stores."""

    num_together = GROUP

    def look_up(self) -> Head | None:
        """Return its metadata."""
        return object_client.head(ObjectPath.parse(self.url))

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return a byte range."""
        return object_client.get_range(ObjectPath.parse(self.url), start, stop)

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return byte ranges, requested concurrently."""
        return object_client.get_ranges(ObjectPath.parse(self.url), starts, stops)


class BotoFile(RemoteFile):
    """A file of S3 read by boto3, with its own credentials and settings."""

    grain = _BOTO_NBYTES

    def look_up(self) -> Head | None:
        """Return its metadata."""
        try:
            found = self._ask(lambda client, **where: client.head_object(**where))
        except FileNotFoundError:
            return None
        nbytes, version = found.get("ContentLength"), found.get("ETag")
        if nbytes is None or version is None:
            return UNKNOWN
        return Head(int(nbytes), f"{version} {found.get('LastModified')}")

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return a byte range."""
        span = f"bytes={start}-{stop - 1}"
        return memoryview(
            self._ask(lambda client, **where: client.get_object(**where, Range=span)["Body"].read())
        )

    def download(self, path: str) -> bool:
        """Write the whole file to a path, with concurrent requests."""
        self._ask(lambda client, Bucket, Key: client.download_file(Bucket, Key, path))  # noqa: N803
        return True

    def _ask(self, request: Callable[..., Any]) -> Any:
        """Return boto3's answer, after its own retries; FileNotFoundError if not found."""
        boto3 = importlib.import_module("boto3")
        exceptions = importlib.import_module("botocore.exceptions")
        bucket, key = split_s3_url(self.url)
        try:
            client = _boto_client(os.getpid(), boto3.client)
            return request(client, Bucket=bucket, Key=key)
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in _NOT_FOUND:
                raise FileNotFoundError(self.url) from None
            if code in ("416", "InvalidRange"):
                return b""
            raise _boto_refused(self.url, code) from error
        except exceptions.BotoCoreError as error:
            raise _boto_refused(self.url, type(error).__name__) from error


def _boto_refused(url: str, reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{url} must be readable, boto3 got {reason}; check the network, the endpoint and the "
        "credentials that boto3 finds"
    )


@lru_cache(maxsize=2)
def _boto_client(process: int, make: Callable[[str], Any]) -> Any:
    """Return the client of a process: after a fork it would share connections."""
    return make("s3")


class MscFile(RemoteFile):
    """A file read by the multistorageclient package."""

    def look_up(self) -> Head | None:
        """Return its metadata."""
        client, path = _import_msc(self.url).resolve_storage_client(self.url)
        if not hasattr(client, "info"):
            return UNKNOWN
        try:
            found = client.info(path)
        except FileNotFoundError:
            return None
        return Head(int(found.content_length), f"{found.etag} {found.last_modified}")

    def read_range(self, start: int, stop: int) -> memoryview:
        """Return a byte range."""
        package = _import_msc(self.url)
        client, path = package.resolve_storage_client(self.url)
        span = package.types.Range(offset=start, size=stop - start)
        return memoryview(client.read(path=path, byte_range=span))

    def download(self, path: str) -> bool:
        """Write the whole file to a path."""
        _import_msc(self.url).download_file(self.url, path)
        return True


def _import_msc(url: str) -> Any:
    """Return the multistorageclient package."""
    remedy = "multi-storage-client, or name the object by s3://, gs:// or az://"
    return need("multistorageclient", url, remedy)


def open_remote(url: str) -> RemoteFile:
    """Return a file of an object store, with a client that works in this process.

    Parameters
    ----------
    url
        A URL of ``s3``, ``msc``, ``gs``, ``az``, ``http`` or ``https``.

    Raises
    ------
    ConfigError
        If it does not name an object, or needs a package that is not installed.
    """
    if url.startswith(MSC_PREFIX):
        _import_msc(url)
        return MscFile(url)
    if url.startswith(S3_PREFIX) and find_spec("boto3") is not None and not _is_served(url):
        return BotoFile(url)
    ObjectPath.parse(url)
    return ObjectFile(url)


def _is_served(url: str) -> bool:
    """Return whether the client of stores can read an object in this process."""
    try:
        ObjectPath.parse(url)
    except ConfigError:
        return False
    return is_usable()


def split_s3_url(url: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` URL, verbatim.

    Raises
    ------
    ConfigError
        If it is not such a URL.
    """
    if not url.startswith(S3_PREFIX):
        raise ConfigError(f"an object of S3 must be named by s3://bucket/key, got {url}")
    bucket, _, key = url.removeprefix(S3_PREFIX).partition("/")
    return bucket, key
