"""Read, write, look up and list objects, with timeouts and retries."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zindex.errors import ConfigError, SourceError, StoreError, StoreUnavailableError
from zindex.io import object_calls
from zindex.io.backoff import Backoff
from zindex.io.object_calls import CutShortError, ask, unavailable
from zindex.io.objects import ObjectPath

#: Maximum bytes of one write request.
MAX_PUT_NBYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class Head:
    """Metadata of an object."""

    nbytes: int
    #: Changes whenever the object is written.
    version: str
    #: Time of modification, in seconds since 1970; 0 if unknown.
    modified: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last bytes of an object."""

    content: bytes
    #: Size of the whole object.
    nbytes: int
    #: Attributes that its writer set.
    facts: Mapping[str, str]


def put(
    path: ObjectPath,
    buffers: Sequence[bytes | bytearray | memoryview],
    *,
    replace: bool = False,
    facts: Mapping[str, str] | None = None,
) -> bool:
    """Write an object atomically; return whether this call is known to have created it.

    Parameters
    ----------
    path
        The object.
    buffers
        Contents, in order.
    replace
        Whether to replace an existing object, which is kept otherwise.
    facts
        Attributes of the object, in letters and digits.

    Notes
    -----
    A single create-only request, since multipart uploads are not create-only on every store. If the
    response is lost, the next attempt finds an object, which the caller reads back and compares.
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
            "choose a smaller shard_length (--shard-length or --shard-nbytes)"
        )
    content = b"".join(buffers)
    mode = "overwrite" if replace else "create"

    def request(client: Any) -> None:
        attributes = dict(facts) if facts else None
        client.put(path.key, content, mode=mode, use_multipart=False, attributes=attributes)

    backoff = Backoff(object_calls.FIRST_PAUSE, 5 * object_calls.FIRST_PAUSE)
    for _ in range(object_calls.NUM_ATTEMPTS):
        try:
            ask(path, "written", request, writes=True)
            return True
        except FileNotFoundError as error:
            raise unavailable(path, "written", error) from None
        except Exception as error:
            if type(error).__name__ != "AlreadyExistsError":
                raise
            # A store also reports this while another writer is creating the object.
            if head(path) is not None:
                return False
            backoff.wait()
    raise StoreUnavailableError(
        f"{path} must be written, the store says that it exists and shows nothing; run again"
    )


def get(path: ObjectPath, *, limit: int) -> bytes:
    """Return the content of a small object; FileNotFoundError if it does not exist."""
    return get_whole(path, limit=limit)[0]


def get_whole(path: ObjectPath, *, limit: int) -> tuple[bytes, Head]:
    """Return the content of a small object and its metadata; errors as of `get`."""

    def request(client: Any) -> tuple[bytes, Head]:
        answer = client.get(path.key)
        if answer.meta["size"] > limit:
            raise StoreError(
                f"{path} must hold at most {limit} bytes, it holds {answer.meta['size']}; "
                "it is not ours"
            )
        return bytes(answer.bytes()), _head(answer.meta)

    return ask(path, "read", request)


def get_tail(path: ObjectPath, nbytes: int) -> Tail:
    """Return the last bytes of an object; FileNotFoundError if it does not exist."""

    def request(client: Any) -> Tail:
        answer = client.get(path.key, options={"range": wanted})
        facts = {str(name): str(value) for name, value in answer.attributes.items()}
        size = int(answer.meta["size"])
        return Tail(bytes(_whole(answer, min(nbytes, size))), size, facts)

    wanted: Any = {"suffix": nbytes}
    if path.scheme == "az":  # Azure has no suffix ranges
        found = head(path)
        if found is None:
            raise FileNotFoundError(str(path))
        wanted = (max(0, found.nbytes - nbytes), found.nbytes)
    return ask(path, "read", request)


def get_range(path: ObjectPath, start: int, stop: int, *, of: Head | None = None) -> memoryview:
    """Return bytes ``[start, stop)`` of an object, fewer at its end.

    Parameters
    ----------
    path, start, stop
        The object, and the range.
    of
        Metadata that the object must have; None accepts any.

    Raises
    ------
    SourceError
        If it has other metadata.
    FileNotFoundError
        If it does not exist.
    """

    def request(client: Any) -> memoryview:
        answer = client.get(path.key, options={"range": (start, stop)})
        if of is not None and _head(answer.meta) != of:
            raise _changed(path)
        return _whole(answer, min(stop, int(answer.meta["size"])) - start)

    try:
        return ask(path, "read", request)
    except StoreUnavailableError as error:
        if "status 416" not in str(error):
            raise
        if of is not None and start < of.nbytes:
            raise _changed(path) from None
        return memoryview(b"")  # the object ends before the start


def _changed(path: ObjectPath) -> SourceError:
    return SourceError(
        f"{path} must stay as it is while it is read, it was written meanwhile; restore it, or "
        "open the source again"
    )


def get_ranges(path: ObjectPath, starts: list[int], stops: list[int]) -> list[memoryview]:
    """Return several ranges of an object, requested concurrently; as of `get_range`."""

    def request(client: Any) -> list[memoryview]:
        # Not coalesced here: callers have already joined neighbours.
        parts = client.get_ranges(path.key, starts=starts, ends=stops, coalesce=0)
        return [memoryview(part) for part in parts]

    if len(starts) == 1:
        return [get_range(path, starts[0], stops[0])]
    try:
        parts = ask(path, "read", request)
    except StoreUnavailableError as error:
        if "status 416" not in str(error):
            raise
        parts = [memoryview(b"")] * len(starts)
    # This response lacks the object's size, so a short range is requested again separately.
    return [
        part if len(part) == stop - start else get_range(path, start, stop)
        for part, start, stop in zip(parts, starts, stops, strict=True)
    ]


def _whole(answer: Any, nbytes: int) -> memoryview:
    """Return the body of a response after checking its length."""
    content = memoryview(answer.bytes())
    if len(content) != nbytes:
        raise CutShortError(f"{len(content):,} of {nbytes:,} bytes")
    return content


def head(path: ObjectPath) -> Head | None:
    """Return the metadata of an object, or None if it does not exist."""
    meta = _look_up(path)
    return None if meta is None else _head(meta)


def modified_seconds(path: ObjectPath) -> float | None:
    """Return the modification time of an object in seconds since 1970; None if it is missing."""
    meta = _look_up(path)
    return None if meta is None else float(meta["last_modified"].timestamp())


def _look_up(path: ObjectPath) -> Mapping[str, Any] | None:
    """Return what the store has on an object, or None if it does not exist."""
    if not path.key:
        return None
    try:
        meta: Mapping[str, Any] = ask(path, "looked up", lambda client: client.head(path.key))
    except FileNotFoundError:
        return None
    return meta


def _head(meta: Mapping[str, Any]) -> Head:
    """Return the metadata of an object from a response."""
    modified = meta["last_modified"]
    return Head(int(meta["size"]), f"{meta['e_tag']} {modified}", modified.timestamp())


def list_names(path: ObjectPath) -> set[str]:
    """Return the names directly below a place; none over HTTP, which cannot list."""
    if path.is_read_only:
        return set()
    try:
        found = ask(path, "listed", lambda client: client.list_with_delimiter(path.key or None))
    except FileNotFoundError as error:
        raise unavailable(path, "listed", error) from None
    keys = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
    return {str(key).rstrip("/").rpartition("/")[2] for key in keys}


def iterate_keys(path: ObjectPath) -> Iterator[str]:
    """Yield the keys below a place, relative to it; none over HTTP, which cannot list."""

    def request(client: Any) -> list[str]:
        return [str(item["path"]) for page in client.list(path.key) for item in page]

    if path.is_read_only:
        return
    skip = len(path.key) + 1 if path.key else 0
    for key in ask(path, "listed", request):
        yield key[skip:]


def copy(path: ObjectPath, target: ObjectPath) -> None:
    """Copy an object within its bucket on the server, replacing an existing one."""
    ask(path, "copied", lambda client: client.copy(path.key, target.key), writes=True)


def delete(path: ObjectPath) -> None:
    """Remove an object, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        ask(path, "removed", lambda client: client.delete(path.key), writes=True)
