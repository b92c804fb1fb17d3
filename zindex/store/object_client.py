"""Objects of a store: written once, read in parts, looked up and listed; bounded in time."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zindex.errors import ConfigError, StoreError, StoreUnavailableError
from zindex.store import object_calls
from zindex.store.object_calls import CutShortError, ask, unavailable
from zindex.store.objects import ObjectPath

#: Bytes that one request may write.
MAX_PUT_NBYTES = 5 << 30


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

    for attempt in range(1, object_calls.NUM_ATTEMPTS + 1):
        try:
            ask(path, "written", request, writes=True)
        except FileNotFoundError as error:
            raise unavailable(path, "written", error) from None
        except Exception as error:
            if type(error).__name__ != "AlreadyExistsError":
                raise
            # A store also says this of an object that another writer is about to create.
            if head(path) is not None:
                return False
            time.sleep(object_calls.FIRST_PAUSE * attempt * random.uniform(0.5, 1.0))
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

    return ask(path, "read", request)


def get_tail(path: ObjectPath, nbytes: int) -> Tail:
    """Return the last bytes of an object; FileNotFoundError if there is none."""

    def request(client: Any) -> Tail:
        import obstore

        answer = obstore.get(client, path.key, options={"range": wanted})
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


def get_range(path: ObjectPath, start: int, stop: int) -> memoryview:
    """Return bytes ``[start, stop)`` of an object, fewer where it ends before."""

    def request(client: Any) -> memoryview:
        import obstore

        answer = obstore.get(client, path.key, options={"range": (start, stop)})
        return _whole(answer, min(stop, int(answer.meta["size"])) - start)

    try:
        return ask(path, "read", request)
    except StoreUnavailableError as error:
        if "status 416" in str(error):  # it ends before the start
            return memoryview(b"")
        raise


def get_ranges(path: ObjectPath, starts: list[int], stops: list[int]) -> list[memoryview]:
    """Return several parts of an object, asked for side by side; as of `get_range`."""

    def request(client: Any) -> list[memoryview]:
        import obstore

        # As they are: neighbours have been joined by whoever knows what is between them.
        parts = obstore.get_ranges(client, path.key, starts=starts, ends=stops, coalesce=0)
        return [memoryview(part) for part in parts]

    if len(starts) == 1:
        return [get_range(path, starts[0], stops[0])]
    try:
        parts = ask(path, "read", request)
    except StoreUnavailableError as error:
        if "status 416" not in str(error):
            raise
        parts = [memoryview(b"")] * len(starts)
    # An answer to several says nothing of the object's size: one that is short is asked for alone.
    return [
        part if len(part) == stop - start else get_range(path, start, stop)
        for part, start, stop in zip(parts, starts, stops, strict=True)
    ]


def _whole(answer: Any, nbytes: int) -> memoryview:
    """Return the body of an answer, which must be as long as its header says."""
    content = memoryview(answer.bytes())
    if len(content) != nbytes:
        raise CutShortError(f"{len(content):,} of {nbytes:,} bytes")
    return content


def head(path: ObjectPath) -> Head | None:
    """Return what a store says of an object, or None if there is none."""

    def request(client: Any) -> Any:
        import obstore

        return obstore.head(client, path.key)

    if not path.key:
        return None
    try:
        meta = ask(path, "looked up", request)
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
        found = ask(path, "listed", request)
    except FileNotFoundError as error:
        raise unavailable(path, "listed", error) from None
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
    for key in ask(path, "listed", request):
        yield key[skip:]


def delete(path: ObjectPath) -> None:
    """Remove an object; one that is not there is no error."""

    def request(client: Any) -> None:
        import obstore

        obstore.delete(client, path.key)

    with contextlib.suppress(FileNotFoundError):
        ask(path, "removed", request, writes=True)
