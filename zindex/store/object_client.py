"""Requests to object stores: bounded in time, tried again, and with errors that name the place.

The only importer of obstore. Clients belong to the process that made them: obstore's threads do
not survive ``fork``, so a child that inherited a used client is refused instead of hanging.
Credentials and endpoints are read from the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``).
"""

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from zindex.errors import ConfigError, ForkedStoreError, StoreError, StoreUnavailableError
from zindex.store.objects import ObjectPath

R = TypeVar("R")

#: Seconds that one request may take: what is read is small, a shard that is written need not be.
READ_TIMEOUT, WRITE_TIMEOUT = 20.0, 120.0
#: Seconds after which no request is tried again, and how often one is tried at most.
TOTAL_DEADLINE, NUM_ATTEMPTS = 120.0, 5
#: Bytes that one request may write.
MAX_PUT_NBYTES = 5 << 30
# Requests that a store answers with 5xx or 429 are first tried again by obstore itself.
_NUM_RETRIES, _RETRY_TIMEOUT = 6, 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)


@dataclass(frozen=True, slots=True)
class Head:
    """What a store says of an object."""

    nbytes: int
    #: Changes whenever the object is written.
    version: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The last bytes of an object."""

    content: bytes
    #: Size of the whole object.
    nbytes: int
    #: What its writer said of it.
    facts: Mapping[str, str]


class _CutShortError(Exception):
    """An answer that ends too early, though it does not look like it."""


class _Clients:
    """The clients of this process: one for each bucket and direction."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[tuple[str, str, bool], Any] = {}
        self.is_inherited = False

    def get(self, path: ObjectPath, *, writes: bool) -> Any:
        """Return a client, made at its first use."""
        if self.is_inherited:
            raise ForkedStoreError(
                f"{path} cannot be used here: this process was forked from one that had used an "
                "object store; start worker processes with multiprocessing_context='forkserver' "
                "or 'spawn', or open object stores only in the workers"
            )
        key = (path.scheme, path.bucket, writes)
        with self.lock:
            if key not in self.clients:
                self.clients[key] = _make_client(path, writes=writes)
            return self.clients[key]

    def forget(self) -> None:
        """Make clients anew, from the environment as it is then."""
        with self.lock:
            self.clients.clear()

    def after_fork(self) -> None:
        """Refuse in a child what its parent has used; it must not even be let go of."""
        self.lock = threading.Lock()
        self.is_inherited = self.is_inherited or bool(self.clients)


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.after_fork)

#: Called after a change of credentials in the environment.
forget_clients = _clients.forget


def check_usable(path: ObjectPath) -> None:
    """Raise ForkedStoreError in a process where object stores cannot be used."""
    _clients.get(path, writes=False)


def _make_client(path: ObjectPath, *, writes: bool) -> Any:
    """Return a client of obstore for a whole bucket."""
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise ConfigError(
            f"{path} is in an object store, which needs the extra 'cloud'; "
            "run pip install 'zindex[cloud]'"
        ) from error
    timeout = WRITE_TIMEOUT if writes else READ_TIMEOUT
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout)}
    options["connect_timeout"] = timedelta(seconds=min(5.0, timeout))
    prefix = _ENVIRONMENT.get(path.scheme)
    for name in _CLIENT_OPTIONS:
        value = os.environ.get(f"{prefix}_{name.upper()}")
        if prefix is not None and value is not None:
            options[name] = value
    retries = {
        "max_retries": _NUM_RETRIES,
        "retry_timeout": timedelta(seconds=min(_RETRY_TIMEOUT, TOTAL_DEADLINE)),
        "backoff": {
            "init_backoff": timedelta(seconds=_FIRST_PAUSE),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE),
            "base": 2,
        },
    }
    try:
        if path.is_read_only:
            options["allow_http"] = path.scheme == "http"
            url = f"{path.scheme}://{path.bucket}"
            return store.HTTPStore(url, client_options=options, retry_config=retries)
        bucket = f"{path.scheme}://{path.bucket}"
        return store.from_url(bucket, client_options=options, retry_config=retries)
    except BaseError as error:
        raise ConfigError(
            f"{path} needs the settings of its store in the environment: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """Return in a few words what went wrong: no addresses, no bodies, nothing that is secret."""
    text = str(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    status = re.search(r"status code: (\d+[ \w]*)", text)
    if status is not None:
        return f"status {status[1].strip()}" + (f", {code[1]}" if code is not None else "")
    if isinstance(error, _CutShortError):
        return text
    first = text.partition("\n")[0].rpartition(" - ")[2].partition(": ")
    words = first[2] if first[0].startswith(("HTTP error", "Generic")) else "".join(first)
    return words.partition(" (http")[0].partition(" http")[0].strip() or type(error).__name__


def _status(error: Exception) -> int | None:
    """Return the HTTP status that an error came with."""
    found = re.search(r"status code: (\d+)", str(error))
    return None if found is None else int(found[1])


def _unavailable(
    path: ObjectPath, action: str, error: Exception, *, seconds: float = 0.0, num_tries: int = 1
) -> StoreUnavailableError:
    """Return the error to raise for a request that failed for good."""
    name = type(error).__name__
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        remedy = "check the credentials in the environment and what they allow"
    elif "NoSuchBucket" in str(error) or isinstance(error, FileNotFoundError):
        remedy = "create the bucket, or check its name"
    else:
        remedy = "check the network and the endpoint, and run again to go on from there"
    return StoreUnavailableError(
        f"{path} must be {action}, {num_tries} {'try' if num_tries == 1 else 'tries'} in "
        f"{seconds:.1f} s gave {_reason(error)}; {remedy}"
    )


def _ask(path: ObjectPath, action: str, request: Callable[[Any], R], *, writes: bool = False) -> R:
    """Return the answer to a request, which is tried again while that can help.

    FileNotFoundError and obstore's AlreadyExistsError pass through.
    """
    client = _clients.get(path, writes=writes)
    from obstore import exceptions

    refused = (
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        exceptions.NotSupportedError,
        exceptions.InvalidPathError,
    )
    begin = time.monotonic()
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            return request(client)
        except (FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except (exceptions.BaseError, _CutShortError) as error:
            seconds = time.monotonic() - begin
            status = _status(error)
            is_final = status is not None and 400 <= status < 500 and status not in (408, 409, 429)
            is_last = attempt == NUM_ATTEMPTS or seconds >= TOTAL_DEADLINE
            if isinstance(error, refused) or is_final or is_last:
                raise _unavailable(
                    path, action, error, seconds=seconds, num_tries=attempt
                ) from None
        # Jitter keeps thousands of workers from asking again in the same instant.
        pause = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
        time.sleep(pause * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt returns or raises")


def put(
    path: ObjectPath,
    buffers: Sequence[bytes | bytearray | memoryview],
    *,
    replace: bool = False,
    facts: Mapping[str, str] | None = None,
) -> bool:
    """Write an object whole or not at all; return whether this call is known to have created it.

    Parameters
    ----------
    path
        The object.
    buffers
        Contents, in order.
    replace
        Whether to put this content in place of an existing one; otherwise that stays.
    facts
        What to keep beside the content, in letters and digits.

    Notes
    -----
    One request, create-only: multipart uploads are not, on every store. Where its answer is lost,
    the next attempt finds an object, which the caller reads back and compares.
    """
    if path.is_read_only:
        raise ConfigError(
            f"{path} cannot be written: over {path.scheme} stores are only read; write to s3://, "
            "gs://, az:// or a path"
        )
    nbytes = sum(map(len, buffers))
    if nbytes > MAX_PUT_NBYTES:
        raise ConfigError(
            f"an object must have at most {MAX_PUT_NBYTES:,} bytes, {path} has {nbytes:,}; "
            "choose a smaller shard_length"
        )
    content = b"".join(buffers)
    mode = "overwrite" if replace else "create"

    def request(client: Any) -> None:
        import obstore

        attributes = dict(facts) if facts else None
        obstore.put(
            client, path.key, content, mode=mode, use_multipart=False, attributes=attributes
        )

    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            _ask(path, "written", request, writes=True)
        except FileNotFoundError as error:
            raise _unavailable(path, "written", error) from None
        except Exception as error:
            if type(error).__name__ != "AlreadyExistsError":
                raise
            # A store also says this of an object that another writer is about to create.
            if head(path) is not None:
                return False
            time.sleep(_FIRST_PAUSE * attempt * random.uniform(0.5, 1.0))
        else:
            return True
    raise StoreUnavailableError(
        f"{path} must be written, the store says that it exists and shows nothing; run again"
    )


def get(path: ObjectPath, *, limit: int) -> bytes:
    """Return the content of a small object; FileNotFoundError if there is none."""

    def request(client: Any) -> bytes:
        import obstore

        answer = obstore.get(client, path.key)
        if answer.meta["size"] > limit:
            raise StoreError(
                f"{path} must hold at most {limit} bytes, it holds {answer.meta['size']}; "
                "it is not ours"
            )
        return bytes(answer.bytes())

    return _ask(path, "read", request)


def get_tail(path: ObjectPath, nbytes: int) -> Tail:
    """Return the last bytes of an object; FileNotFoundError if there is none."""

    def request(client: Any) -> Tail:
        import obstore

        answer = obstore.get(client, path.key, options={"range": {"suffix": nbytes}})
        facts = {str(name): str(value) for name, value in answer.attributes.items()}
        size = int(answer.meta["size"])
        return Tail(bytes(_whole(answer, min(nbytes, size))), size, facts)

    if path.scheme == "az":  # Azure has no suffix ranges
        found = head(path)
        if found is None:
            raise FileNotFoundError(str(path))
        content = bytes(get_range(path, max(0, found.nbytes - nbytes), found.nbytes))
        return Tail(content, found.nbytes, {})
    return _ask(path, "read", request)


def get_range(path: ObjectPath, start: int, stop: int) -> memoryview:
    """Return bytes ``[start, stop)`` of an object, fewer where it ends before."""

    def request(client: Any) -> memoryview:
        import obstore

        answer = obstore.get(client, path.key, options={"range": (start, stop)})
        return _whole(answer, min(stop, int(answer.meta["size"])) - start)

    try:
        return _ask(path, "read", request)
    except StoreUnavailableError as error:
        if "status 416" in str(error):  # it ends before the start
            return memoryview(b"")
        raise


def _whole(answer: Any, nbytes: int) -> memoryview:
    """Return the body of an answer, which must be as long as its header says."""
    content = memoryview(answer.bytes())
    if len(content) != nbytes:
        raise _CutShortError(f"{len(content):,} of {nbytes:,} bytes")
    return content


def head(path: ObjectPath) -> Head | None:
    """Return what a store says of an object, or None if there is none."""

    def request(client: Any) -> Any:
        import obstore

        return obstore.head(client, path.key)

    if not path.key:
        return None
    try:
        meta = _ask(path, "looked up", request)
    except FileNotFoundError:
        return None
    return Head(int(meta["size"]), f"{meta['e_tag']} {meta['last_modified']}")


def list_names(path: ObjectPath) -> set[str]:
    """Return the names directly below a place; over HTTP none can be listed."""

    def request(client: Any) -> Any:
        import obstore

        return obstore.list_with_delimiter(client, path.key or None)

    if path.is_read_only:
        return set()
    try:
        found = _ask(path, "listed", request)
    except FileNotFoundError as error:
        raise _unavailable(path, "listed", error) from None
    keys = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
    return {str(key).rstrip("/").rpartition("/")[2] for key in keys}


def iterate_keys(path: ObjectPath) -> Iterator[str]:
    """Yield the keys below a place, taken from there; over HTTP none can be listed."""

    def request(client: Any) -> list[str]:
        import obstore

        return [str(item["path"]) for page in obstore.list(client, path.key) for item in page]

    if path.is_read_only:
        return
    skip = len(path.key) + 1 if path.key else 0
    for key in _ask(path, "listed", request):
        yield key[skip:]


def delete(path: ObjectPath) -> None:
    """Remove an object; one that is not there is no error."""

    def request(client: Any) -> None:
        import obstore

        obstore.delete(client, path.key)

    with contextlib.suppress(FileNotFoundError):
        _ask(path, "removed", request, writes=True)
