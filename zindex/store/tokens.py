"""Read tokens by position: from a Zarr array, or from a flat file or object such as a ``.bin``."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, DTypeLike
from zindex.errors import SourceError, StoreError, VerificationError
from zindex.formats.bin_idx import HEADER, parse_header
from zindex.io.files import modified_at
from zindex.io.local import read_bytes
from zindex.io.objects import Place
from zindex.io.regular_files import open_regular
from zindex.io.remote_files import RemoteFile, open_remote
from zindex.io.request_threads import wait_for
from zindex.store.checked_json import parse_as
from zindex.store.chunk_cache import cache
from zindex.store.chunk_fetch import REQUEST_NBYTES, Part, Request, coalesce
from zindex.store.open import Store
from zindex.store.reader import LocalReader, forget_open_shards
from zindex.store.rows import RoundReader, RowReader, Spans
from zindex.store.shard import ArrayFiles

#: Key of ``attributes.zindex`` under which a linked store names its ``.bin``.
LINK = "bin"
# Maximum size of responses that one call holds in memory.
_ROUND_NBYTES = 64 << 20


def open_tokens(store: Store) -> RowReader:
    """Return the reader of a token store's tokens, stored or linked.

    Raises
    ------
    StoreError
        If the store holds neither tokens nor a link to them.
    SourceError
        If the ``.bin`` that it links to is missing, of another size or of another corpus.
    """
    if schema.TOKENS.name in store:
        return store[schema.TOKENS.name]
    link = find_link(store.attributes, store.root)
    if link is None:
        raise StoreError(f"{store.root} must hold tokens or name their .bin, it does neither")
    path, nbytes, problem = link
    if problem is not None:
        raise SourceError(
            f"{path} must have {nbytes:,} bytes, as when it was linked to {store.root}, {problem}; "
            "restore it, or convert the corpus again at another place"
        )
    return FlatFile(path, nbytes, store.spec["token_dtype"])


def find_link(facts: dict[str, Any], root: Place) -> tuple[str, int, str | None] | None:
    """Return path and size of the ``.bin`` that a store names, if any, and what is wrong with it.

    A store may come from an untrusted source, and its link can name any file of this machine. A
    link is therefore only followed within the folder of the store, or to a ``.bin`` with an
    ``.idx`` whose header agrees with the store.
    """
    link = facts.get(LINK)
    if not isinstance(link, dict):
        return None
    target = parse_as(_Link, link, f"{root} as {LINK}")
    path, nbytes = target.path, target.nbytes
    if not os.path.isfile(path):
        return path, nbytes, "it is missing"
    if not (_is_below(path, root) or _is_described(path, facts["spec"])):
        return path, nbytes, "it is the .bin of another corpus, or of none: no .idx agrees with it"
    size = os.path.getsize(path)
    return path, nbytes, None if size == nbytes else f"it has {size:,}"


@dataclass(frozen=True, slots=True)
class _Link:
    """The ``.bin`` of a store."""

    path: str
    nbytes: int


def _is_below(path: str, root: Place) -> bool:
    """Return whether a file is in the folder of a store, after resolving symbolic links."""
    return isinstance(root, Path) and Path(path).resolve().is_relative_to(root.resolve().parent)


def _is_described(path: str, spec: dict[str, Any]) -> bool:
    """Return whether an ``.idx`` next to a ``.bin`` has the dtype and counts of a store."""
    prefix, suffix = os.path.splitext(path)
    try:
        descriptor, size = open_regular(f"{prefix}.idx")
        try:
            header = bytes(read_bytes(descriptor, HEADER.size, 0))
            index = parse_header(header, size, f"{prefix}.idx")
        finally:
            os.close(descriptor)
    except (OSError, SourceError):
        return False
    found = {name: getattr(index, name) for name in ("num_sequences", "num_documents")}
    found["token_dtype"] = index.dtype.name
    return suffix == ".bin" and found.items() <= spec.items()


class FlatFile(LocalReader):
    """The values of a local file, in native byte order and without checksums.

    The file is opened at the first read in each process. Supports rounds. Pickles as its arguments.

    Parameters
    ----------
    path
        The file.
    nbytes
        Minimum size when it is opened.
    dtype
        Dtype of the values.
    version
        Its modification time, as returned by `modified_at`: a file that was modified later is an
        error. None is the current one.
    """

    def __init__(
        self, path: str, nbytes: int, dtype: DTypeLike, version: str | None = None
    ) -> None:
        version = modified_at(path) if version is None else version
        super().__init__(path, ArrayFiles.flat_file(path, nbytes, dtype), version)
        # The file may have been replaced since this process last read it.
        forget_open_shards(path)
        self.path = path
        self.file_nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.file_nbytes, self.dtype, self.version)


class FlatObject(RoundReader):
    """The values of an object, in native byte order and without checksums.

    Only the bytes of the spans and of small gaps are requested, concurrently for all spans of all
    objects of a round, and nothing is cached. Pickles as its arguments.

    Parameters
    ----------
    url
        The object.
    nbytes
        Its size.
    dtype
        Dtype of the values.
    block_nbytes
        None, or the size of the blocks that are requested instead, of which the last one is cached:
        for sequential reads with few requests.
    """

    def __init__(
        self, url: str, nbytes: int, dtype: DTypeLike, block_nbytes: int | None = None
    ) -> None:
        super().__init__(ArrayFiles.flat_file(url, nbytes, dtype))
        self.url = url
        self.file_nbytes = nbytes
        self.block_nbytes = block_nbytes
        #: First element of the cached block, and the block.
        self._block: tuple[int, AnyArray] = (0, np.empty(0, self.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.file_nbytes, self.dtype, self.block_nbytes)

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several objects, with all requests made concurrently."""
        results: list[AnyArray] = []
        calls: list[_Call] = []
        for spans in wanted:
            reader = spans.reader
            assert isinstance(reader, FlatObject)
            starts, stops, out, places = spans.resolve()
            copies = sorted(zip(starts.tolist(), stops.tolist(), places.tolist(), strict=True))
            if reader.block_nbytes:
                reader._copy_blocks(copies, out)
            else:
                calls += reader._plan_calls(copies, out)
            results.append(out)
        _run_calls(calls)
        return results

    def _copy_blocks(self, copies: list[tuple[int, int, int]], out: AnyArray) -> None:
        """Copy spans from the cached block or the blocks after it; see `_plan_calls`."""
        for start, stop, place in copies:
            at = start
            while at < stop:
                first, block = self._block
                if not first <= at < first + len(block):
                    first, block = self._block = self._load_blocks(at, stop)
                end = min(stop, first + len(block))
                out[place + at - start : place + end - start] = block[at - first : end - first]
                at = end

    def _load_blocks(self, start: int, stop: int) -> tuple[int, AnyArray]:
        """Return the blocks that a span touches, and their first element."""
        assert self.block_nbytes
        length = max(1, self.block_nbytes // self.dtype.itemsize)
        first = start // length * length
        last = min(-(-stop // length) * length, len(self))
        block = np.empty(last - first, self.dtype)
        _run_calls(list(self._plan_calls([(first, last, 0)], block)))
        return first, block

    def _plan_calls(self, copies: list[tuple[int, int, int]], out: AnyArray) -> Iterator["_Call"]:
        """Yield the requests for spans, given as start, stop and position, ascending by start."""
        itemsize = self.dtype.itemsize
        step = REQUEST_NBYTES // itemsize
        parts = [
            Part(place + first - start, first * itemsize, min(step, stop - first) * itemsize)
            for start, stop, place in copies
            for first in range(start, stop, step)
        ]
        file = open_remote(self.url)
        requests = coalesce(parts)
        for first in range(0, len(requests), file.num_together):
            yield _Call(file, requests[first : first + file.num_together], out, self.dtype)


class _Call(NamedTuple):
    """Requests to one object that one thread makes concurrently."""

    file: RemoteFile
    #: The number of each part is its position in ``out``.
    requests: list[Request]
    out: AnyArray
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the responses."""
        return sum(request.stop - request.start for request in self.requests)

    def run(self) -> None:
        """Make the requests and copy the responses to their destination."""
        grain, url = self.file.grain, self.file.url
        starts = [request.start // grain * grain for request in self.requests]
        stops = [-(-request.stop // grain) * grain for request in self.requests]
        try:
            contents = self.file.read_ranges(starts, stops)
        except FileNotFoundError:
            raise VerificationError(
                f"{url} must be there, as when it was opened, it is gone; restore it"
            ) from None
        cache.count(num_requests=len(contents), nbytes=sum(map(len, contents)))
        for request, first, content in zip(self.requests, starts, contents, strict=True):
            for part in request.parts:
                stored = content[part.offset - first : part.offset - first + part.nbytes]
                if len(stored) != part.nbytes:
                    raise VerificationError(
                        f"{url} must hold {part.nbytes:,} bytes from byte {part.offset:,}, as when "
                        f"it was opened, but it has {len(stored):,}; restore it and open it again"
                    )
                values = np.frombuffer(stored, self.dtype)
                self.out[part.number : part.number + len(values)] = values


def _run_calls(calls: Sequence[_Call]) -> None:
    """Run calls concurrently, with a bounded number of bytes in flight."""
    pending: deque[tuple[Any, int]] = deque()
    nbytes = 0
    if len(calls) == 1:
        calls[0].run()
        return
    for call in calls:
        while pending and nbytes + call.nbytes > _ROUND_NBYTES:
            future, size = pending.popleft()
            wait_for(future)
            nbytes -= size
        pending.append((cache.pool.submit(call.run), call.nbytes))
        nbytes += call.nbytes
    for future, _ in pending:
        wait_for(future)
