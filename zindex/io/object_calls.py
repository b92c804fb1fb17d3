"""Clients of object stores, retries of requests, and their errors.

The only importer of obstore's clients. Each client belongs to one process: obstore's threads do not
survive ``fork``, so a child that inherited a used client gets an error instead of a deadlock.
Credentials, endpoints and trusted certificates are read from the environment (``AWS_*``,
``GOOGLE_*``, ``AZURE_*``, ``SSL_CERT_FILE``).
"""

import os
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, TypeVar

from zindex.errors import ConfigError, ForkedStoreError, StoreUnavailableError
from zindex.io.backoff import Backoff
from zindex.io.objects import ObjectPath, mask
from zindex.io.request_threads import call, pause
from zindex.lazy import need
from zindex.wording import count_noun

R = TypeVar("R")

#: Timeouts of one request in seconds: reads are small, but a written shard may be large.
READ_TIMEOUT, WRITE_TIMEOUT = 20.0, 120.0
#: Seconds after which a request is not retried, and maximum number of attempts.
TOTAL_DEADLINE, NUM_ATTEMPTS = 120.0, 20
#: Backoff in seconds.
FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
#: Requests that one thread makes concurrently: obstore runs at most ten.
GROUP = 10
_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
# Variables that override the address of the store.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)


class CutShortError(Exception):
    """A response that is shorter than its header says."""


class _Clients:
    """The clients of this process: one per bucket and direction."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[tuple[str, str, bool], Any] = {}
        self.is_inherited = False

    def get(self, path: ObjectPath, *, writes: bool) -> Any:
        """Return a client, created at its first use."""
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
        """Drop all clients; new ones read the environment again."""
        with self.lock:
            self.clients.clear()

    def after_fork(self) -> None:
        """Disable the parent's clients in a child, which must not even free them."""
        self.lock = threading.Lock()
        self.is_inherited = self.is_inherited or bool(self.clients)


_clients = _Clients()
_has_obstore = find_spec("obstore") is not None
os.register_at_fork(after_in_child=_clients.after_fork)


def may_fork() -> bool:
    """Return whether a child forked now can use object stores."""
    return not (_clients.clients or _clients.is_inherited)


def is_usable() -> bool:
    """Return whether this process can have a client for object stores."""
    return _has_obstore and not _clients.is_inherited


#: To be called after credentials in the environment have changed.
forget_clients = _clients.forget


def _make_client(path: ObjectPath, *, writes: bool) -> Any:
    """Return a client of obstore for a whole bucket."""
    need("obstore", f"the object store of {path}", "zindex[cloud]")
    from obstore import store
    from obstore.exceptions import BaseError

    timeout = WRITE_TIMEOUT if writes else READ_TIMEOUT
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout)}
    options["connect_timeout"] = timedelta(seconds=min(5.0, timeout))
    prefix = _ENVIRONMENT.get(path.scheme)
    for name in _CLIENT_OPTIONS:
        value = os.environ.get(f"{prefix}_{name.upper()}")
        if prefix is not None and value is not None:
            options[name] = value
    for name in _ENDPOINTS.get(path.scheme, ()):
        endpoint = os.environ.get(name, "")
        if endpoint.startswith("http://") and "allow_http" not in options:
            raise ConfigError(
                f"{name} must be https:// unless {prefix}_ALLOW_HTTP is true, got "
                f"{mask(endpoint)}; set {prefix}_ALLOW_HTTP=true to send data without encryption"
            )
    no_retries: Any = {"max_retries": 0}  # `ask` retries, with one deadline for all attempts
    make: Any = store.from_url
    if path.is_read_only:
        make, options["allow_http"] = store.HTTPStore, path.scheme == "http"
    url = f"{path.scheme}://{path.bucket}"
    try:
        return make(url, client_options=options, retry_config=no_retries)
    except BaseError as error:
        raise ConfigError(
            f"{path} needs the settings of its store in the environment: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """Return a short reason for an error, without addresses, bodies or secrets."""
    text = str(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    status = re.search(r"status code: (\d+[ \w]*)", text)
    if status is not None:
        return f"status {status[1].strip()}" + (f", {code[1]}" if code is not None else "")
    if isinstance(error, CutShortError):
        return text
    certificate = re.search(r"InvalidCertificate\(\s*(\w+)", text)
    if certificate is not None:
        return f"a certificate that is not trusted ({certificate[1]})"
    first = text.partition("\n")[0].rpartition(" - ")[2].partition(": ")
    words = first[2] if first[0].startswith(("HTTP error", "Generic")) else "".join(first)
    return words.partition(" (http")[0].partition(" http")[0].strip() or type(error).__name__


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error."""
    found = re.search(r"status code: (\d+)", str(error))
    return None if found is None else int(found[1])


def unavailable(
    path: ObjectPath, action: str, error: Exception, *, seconds: float = 0.0, num_tries: int = 1
) -> StoreUnavailableError:
    """Return the error for a request that failed permanently."""
    name = type(error).__name__
    if "InvalidCertificate" in str(error):
        remedy = "name the file of its authority in SSL_CERT_FILE, or check the address"
    elif name in ("PermissionDeniedError", "UnauthenticatedError") or _status(error) in (401, 403):
        remedy = "check the credentials in the environment and what they allow"
    elif "Range request not supported" in str(error):
        remedy = "the server must answer requests for ranges; choose another one, or copy the file"
    elif _status(error) == 501:
        remedy = "the store must support conditional writes: PUT with If-None-Match"
    elif "NoSuchBucket" in str(error) or isinstance(error, FileNotFoundError):
        remedy = "create the bucket, or check its name"
    else:
        remedy = "check the network and the endpoint, and run again to go on from there"
    return StoreUnavailableError(
        f"{path} must be {action}, {count_noun(num_tries, 'try', 'tries')} in "
        f"{seconds:.1f} s gave {_reason(error)}; {remedy}"
    )


def ask(path: ObjectPath, action: str, request: Callable[[Any], R], *, writes: bool = False) -> R:
    """Return the response to a request, retrying transient errors.

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
    backoff = Backoff(FIRST_PAUSE, _LONGEST_PAUSE, timeout=TOTAL_DEADLINE, sleep=pause)
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            return call(request, client)
        except (FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except (exceptions.BaseError, CutShortError) as error:
            seconds, status = backoff.elapsed, _status(error) or 0
            is_final = isinstance(error, refused) or attempt == NUM_ATTEMPTS or status == 501
            is_final |= 400 <= status < 500 and status not in (408, 409, 429)
            if is_final or not backoff.wait():
                raise unavailable(path, action, error, seconds=seconds, num_tries=attempt) from None
    raise AssertionError("the last attempt returns or raises")
