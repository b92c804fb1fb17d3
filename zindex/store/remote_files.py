"""Whole files that others wrote into object stores, such as a ``.bin``, by ranges of their bytes.

Most schemes are served by the client that stores use. Beside it there are boto3, for ``s3://``
where that client is not installed or cannot follow a fork, and the multistorageclient package,
which alone knows what the profile of an ``msc://`` URL means.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from zindex.errors import ConfigError, StoreUnavailableError
from zindex.store import object_client
from zindex.store.chunk_fetch import GROUP
from zindex.store.object_calls import is_usable
from zindex.store.object_client import Head
from zindex.store.objects import ObjectPath

S3_PREFIX = "s3://"
MSC_PREFIX = "msc://"

#: What is said of a file whose client tells neither its size nor its version.
UNKNOWN = Head(-1, "")

# Requests through boto3 begin and end at multiples of it: each costs milliseconds of Python, and
# neighbours of what is read may be read in the same round.
_BOTO_NBYTES = 1 << 18
_NOT_FOUND = ("404", "NoSuchKey", "NotFound")


class RemoteFile(Protocol):
    """A file of an object store, as one of the clients reaches it."""

    @property
    def url(self) -> str:
        """Its URL."""
        ...

    @property
    def grain(self) -> int:
        """Bytes of which ranges that are asked for are multiples."""
        ...

    @property
    def num_together(self) -> int:
        """Ranges that one call asks for side by side."""
        ...

    def look_up(self) -> Head | None:
        """Return what the store says of the file: `UNKNOWN` if nothing, None if there is none."""
        ...

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return ranges of bytes, fewer where the file ends; FileNotFoundError if there is none."""
        ...

    def download(self, path: str) -> bool:
        """Write the whole file to a path, where the client has a way of its own to."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A file that the client of stores reaches."""

    url: str
    grain: int = 1
    num_together: int = GROUP

    @property
    def path(self) -> ObjectPath:
        """Its place."""
        return ObjectPath.parse(self.url)

    def look_up(self) -> Head | None:
        """Return what the store says of the file."""
        return object_client.head(self.path)

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return ranges of bytes, asked for side by side."""
        return object_client.get_ranges(self.path, starts, stops)

    def download(self, path: str) -> bool:
        """Do nothing: it is read by ranges."""
        return False


@dataclass(frozen=True, slots=True)
class BotoFile:
    """A file of S3 that boto3 reaches, with the credentials and settings that it finds."""

    url: str
    grain: int = _BOTO_NBYTES
    num_together: int = 1

    def look_up(self) -> Head | None:
        """Return what the store says of the file."""
        found = self._ask(lambda client, **where: client.head_object(**where))
        if found is None:
            return None
        nbytes, version = found.get("ContentLength"), found.get("ETag")
        if nbytes is None or version is None:
            return UNKNOWN
        return Head(int(nbytes), f"{version} {found.get('LastModified')}")

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return ranges of bytes, one after the other."""
        return [self._read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def download(self, path: str) -> bool:
        """Write the whole file to a path, in several requests at a time."""

        def request(client: Any, **where: str) -> bool:
            client.download_file(where["Bucket"], where["Key"], path)
            return True

        if self._ask(request) is None:
            raise FileNotFoundError(self.url)
        return True

    def _read(self, start: int, stop: int) -> memoryview:
        """Return one range."""

        def request(client: Any, **where: str) -> Any:
            return client.get_object(**where, Range=f"bytes={start}-{stop - 1}")["Body"].read()

        content = self._ask(request)
        if content is None:
            raise FileNotFoundError(self.url)
        return memoryview(content)

    def _ask(self, request: Callable[..., Any]) -> Any:
        """Return boto3's answer, which has been tried again as it is set to; None if not found."""
        boto3 = importlib.import_module("boto3")
        exceptions = importlib.import_module("botocore.exceptions")
        bucket, key = split_s3_url(self.url)
        try:
            client = _boto_client(os.getpid(), boto3.client)
            return request(client, Bucket=bucket, Key=key)
        except exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in _NOT_FOUND:
                return None
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
    """Return the client of a process: one that was made before a fork shares its connections."""
    return make("s3")


@dataclass(frozen=True, slots=True)
class MscFile:
    """A file that the multistorageclient package reaches."""

    url: str
    grain: int = 1
    num_together: int = 1

    def look_up(self) -> Head | None:
        """Return what the store says of the file."""
        client, path = self._resolve()
        if not hasattr(client, "info"):
            return UNKNOWN
        try:
            found = client.info(path)
        except FileNotFoundError:
            return None
        return Head(int(found.content_length), f"{found.etag} {found.last_modified}")

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return ranges of bytes, one after the other."""
        client, path = self._resolve()
        make_range = _import_msc(self.url).types.Range
        ranges = [
            make_range(offset=start, size=stop - start)
            for start, stop in zip(starts, stops, strict=True)
        ]
        return [memoryview(client.read(path=path, byte_range=part)) for part in ranges]

    def download(self, path: str) -> bool:
        """Write the whole file to a path."""
        _import_msc(self.url).download_file(self.url, path)
        return True

    def _resolve(self) -> tuple[Any, str]:
        """Return the client of the URL's profile, which the package keeps, and the path in it."""
        client, path = _import_msc(self.url).resolve_storage_client(self.url)
        return client, path


def _import_msc(url: str) -> Any:
    """Return the multistorageclient package."""
    try:
        return importlib.import_module("multistorageclient")
    except ImportError as error:
        raise ConfigError(
            f"{url} needs the multistorageclient package, which is not installed; "
            "run pip install multi-storage-client, or name the object by s3://, gs:// or az://"
        ) from error


def open_remote(url: str) -> RemoteFile:
    """Return a file of an object store, through the client that can reach it from this process.

    Parameters
    ----------
    url
        A URL of ``s3``, ``msc``, ``gs``, ``az``, ``http`` or ``https``.

    Raises
    ------
    ConfigError
        If it names no object, or needs a package that is not installed.
    """
    if url.startswith(MSC_PREFIX):
        _import_msc(url)
        return MscFile(url)
    if url.startswith(S3_PREFIX) and find_spec("boto3") is not None and not _is_served(url):
        return BotoFile(url)
    ObjectPath.parse(url)
    return ObjectFile(url)


def _is_served(url: str) -> bool:
    """Return whether the client of stores can ask for an object from this process."""
    try:
        ObjectPath.parse(url)
    except ConfigError:
        return False
    return is_usable()


def split_s3_url(url: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` URL, as they stand there.

    Raises
    ------
    ConfigError
        If it is no such URL.
    """
    if not url.startswith(S3_PREFIX):
        raise ConfigError(f"an object of S3 must be named by s3://bucket/key, got {url}")
    bucket, _, key = url.removeprefix(S3_PREFIX).partition("/")
    return bucket, key
