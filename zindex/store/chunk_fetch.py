"""Fetch and verify chunks of arrays in object stores, concurrently and through the chunk cache."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.io import object_client
from zindex.io.object_calls import GROUP
from zindex.io.objects import ObjectPath
from zindex.io.request_threads import wait_for
from zindex.store.chunk_cache import Key, cache, is_worth_another_try
from zindex.store.receipts import check_receipt
from zindex.store.shard import REMEDY, ArrayFiles, ShardIndex, decode_chunk, decode_index

#: Chunks at most ``GAP_NBYTES`` apart share a request of at most ``REQUEST_NBYTES``: at 30 ms, the
#: latency of a request equals the transfer of some hundred KiB, but the gap is transferred too.
GAP_NBYTES, REQUEST_NBYTES = 64 << 10, 4 << 20
# Bytes to prefetch for a sequential reader.
_AHEAD_NBYTES = 8 << 20
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteArray:
    """An array of an object store; one object per array, as cache keys compare objects."""

    root: ObjectPath
    form: ArrayFiles
    #: Distinguishes arrays that replace each other at the same location.
    version: str
    #: Whether checksums are verified.
    is_checked: bool

    @property
    def is_compressed(self) -> bool:
        """Whether the index locates chunks; otherwise it only confirms regular positions."""
        return not self.form.chain.plain

    def shard_path(self, shard: int) -> ObjectPath:
        """Return the object of a shard."""
        return _shard_path(self.root, self.form.shard_key(shard))


#: Returns the single object of an array.
remote_array = lru_cache(maxsize=1 << 20)(RemoteArray)


@lru_cache(maxsize=4096)
def _shard_path(root: ObjectPath, key: str) -> ObjectPath:
    """Return the object of a key; parsed once."""
    return root / key


#: An array and its required chunks: shape (chunks,), int64, ascending, numbered across shards.
Need = tuple[RemoteArray, Int64Array]


class Part(NamedTuple):
    """Position of a chunk in its shard, or of any span in its file."""

    number: int
    offset: int
    nbytes: int


class Request(NamedTuple):
    """Bytes ``[start, stop)`` of one file that cover some parts, with small gaps."""

    start: int
    stop: int
    parts: list[Part]


def obtain(needs: Sequence[Need]) -> list[dict[int, AnyArray]]:
    """Return the decoded chunks of several arrays by number.

    Uncompressed chunks are requested at their regular position, without reading the shard's index
    first.

    Raises
    ------
    VerificationError
        If a shard is missing or a chunk fails its checksum.
    StoreUnavailableError
        If the store does not answer.
    """
    keys = [[(array, chunk) for chunk in chunks.tolist()] for array, chunks in needs]
    found, mine = cache.claim(dict.fromkeys(chain.from_iterable(keys)))
    cache.count(num_hits=len(found), num_misses=len(mine))
    if _fetch(mine):
        for array, chunks in needs:
            _fetch_ahead(array, chunks)
    values = found | mine
    broken = [key for key, value in found.items() if is_worth_another_try(value)]
    if broken:
        found, mine = cache.claim(broken)
        _fetch(mine)
        values |= found | mine
    return [{key[1]: _result(values[key]) for key in part} for part in keys]


def _result(value: Any) -> Any:
    """Return the result of a future, or a value itself."""
    return wait_for(value) if isinstance(value, Future) else value


def _fetch(keys: Collection[Key]) -> bool:
    """Request claimed chunks, and return whether they will be cached.

    Other threads receive the results. A long pass over an array must not evict chunks that others
    read repeatedly, so its chunks are not cached.
    """
    try:
        kept: bool = 4 * sum(array.form.chunk_nbytes for array, _ in keys) <= cache.limit
        shards: dict[tuple[RemoteArray, int], list[int]] = {}
        for array, chunk in keys:
            shards.setdefault((array, chunk // array.form.chunks_per_shard), []).append(chunk)
        for (array, shard), chunks in shards.items():
            if not array.is_compressed and (array, shard) not in cache.regular:
                # The index is fetched together with the chunks, and checked before they are used.
                cache.pool.submit(_shard_index, array, shard)
            cache.pool.submit(_fetch_shard, array, shard, sorted(chunks), kept)
    except BaseException as error:
        for key in keys:
            cache.fail(key, error)
        raise
    return kept


def _fetch_shard(array: RemoteArray, shard: int, chunks: list[int], kept: bool) -> None:
    """Request chunks of a shard, nearby ones coalesced, and complete or fail their futures."""
    try:
        index = _shard_index(array, shard) if array.is_compressed else None
        requests = coalesce(_locate(array, chunks, index))
        for first in range(GROUP, len(requests), GROUP):
            cache.pool.submit(_answer, array, shard, requests[first : first + GROUP], kept)
    except BaseException as error:
        for chunk in chunks:
            cache.fail((array, chunk), error)
    else:
        _answer(array, shard, requests[:GROUP], kept)


def _locate(array: RemoteArray, chunks: list[int], index: ShardIndex | None) -> list[Part]:
    """Return the positions of chunks of one shard: by its index, or else regular ones."""
    num_chunks = array.form.chunks_per_shard
    if index is None or not len(index.offsets):
        nbytes = array.form.stride
        return [Part(chunk, chunk % num_chunks * nbytes, nbytes) for chunk in chunks]
    return [
        Part(chunk, int(index.offsets[chunk % num_chunks]), int(index.lengths[chunk % num_chunks]))
        for chunk in chunks
    ]


def coalesce(parts: list[Part]) -> list[Request]:
    """Return requests that cover parts of a file, given in the order of their offsets."""
    requests: list[Request] = []
    for part in parts:
        stop = part.offset + part.nbytes
        if requests:
            last = requests[-1]
            is_near = last.start <= part.offset <= last.stop + GAP_NBYTES
            if is_near and stop - last.start <= REQUEST_NBYTES:
                last.parts.append(part)
                requests[-1] = last._replace(stop=max(stop, last.stop))
                continue
        requests.append(Request(part.offset, stop, [part]))
    return requests


def _answer(array: RemoteArray, shard: int, requests: list[Request], kept: bool) -> None:
    """Make requests concurrently, and complete or fail the futures of their chunks."""
    left = {part.number for request in requests for part in request.parts}
    try:
        contents = _get(array, shard, requests)
        index = _shard_index(array, shard)
        for request, content in zip(requests, contents, strict=True):
            for part in request.parts:
                start = part.offset - request.start
                stored = content[start : start + part.nbytes]
                values = _decode(array, shard, part, stored, index)
                if len(request.parts) > 1 and not values.flags.owndata:
                    values = values.copy()  # a view would keep the whole response alive
                left.remove(part.number)
                cache.complete((array, part.number), values, values.nbytes, kept=kept)
    except BaseException as error:
        for chunk in left:
            cache.fail((array, chunk), error)


def _decode(
    array: RemoteArray, shard: int, part: Part, stored: memoryview, index: ShardIndex
) -> AnyArray:
    """Return the values of a chunk, from its position in the index if that differs."""
    [right] = _locate(array, [part.number], index)
    chunk = part.number % array.form.chunks_per_shard
    if right == part:
        # Bytes may be corrupted in transit, so request them once more.
        with suppress(VerificationError):
            return _decode_stored(array, shard, chunk, stored, index)
    [again] = _get(array, shard, [Request(right.offset, right.offset + right.nbytes, [right])])
    return _decode_stored(array, shard, chunk, again, index)


def _decode_stored(
    array: RemoteArray, shard: int, chunk: int, stored: memoryview, index: ShardIndex
) -> AnyArray:
    """Return the values of the stored bytes of a chunk."""
    check, checksums = array.is_checked, index.checksums
    return decode_chunk(array.form, shard, chunk, stored, check=check, checksums=checksums)


def _get(array: RemoteArray, shard: int, requests: list[Request]) -> list[memoryview]:
    """Return the answers to requests, shorter if the shard ends early."""
    path = array.shard_path(shard)
    starts = [request.start for request in requests]
    try:
        contents = object_client.get_ranges(path, starts, [request.stop for request in requests])
    except FileNotFoundError:
        raise VerificationError(f"shard {path} is missing; {REMEDY}") from None
    cache.count(num_requests=len(contents), nbytes=sum(map(len, contents)))
    return contents


def _shard_index(array: RemoteArray, shard: int) -> ShardIndex:
    """Return a shard's index, fetched once; without positions if its chunks are regular."""
    index: ShardIndex | None = cache.regular.get((array, shard))
    if index is not None:
        return index
    key = (array, -1 - shard)
    found, mine = cache.claim([key])
    if not mine and is_worth_another_try(found[key]):
        found, mine = cache.claim([key])
    if not mine:
        index = _result(found[key])
        assert index is not None
        return index
    try:
        # Another thread may have fetched it since the caller checked.
        index = cache.regular.get((array, shard))
        if index is None:
            try:
                index = _fetch_index(array, shard)
            except VerificationError:
                index = _fetch_index(array, shard)  # as with chunks, request it once more
    except BaseException as error:
        cache.fail(key, error)
        raise
    if len(index.offsets) and index.is_regular(array.form, shard):
        index = cache.regular[array, shard] = replace(index, offsets=_NONE, lengths=_NONE)
    # The index of uncompressed chunks is only read once.
    nbytes = index.offsets.nbytes + index.lengths.nbytes
    cache.complete(key, index, nbytes, kept=array.is_compressed)
    return index


def _fetch_index(array: RemoteArray, shard: int) -> ShardIndex:
    """Return the index of a shard, read from the store."""
    path, form = array.shard_path(shard), array.form
    try:
        tail = object_client.get_tail(path, form.tail_nbytes(shard))
    except FileNotFoundError:
        raise VerificationError(f"shard {path} is missing; {REMEDY}") from None
    cache.count(num_requests=1, nbytes=len(tail.content))
    index = decode_index(form, shard, tail.content, tail.nbytes)
    proof = tail.content if form.table else None
    check_receipt(array.root, form, array.version, shard, tail.nbytes, proof)
    return index


def _fetch_ahead(array: RemoteArray, chunks: Int64Array) -> None:
    """Prefetch the next chunks of an array that is read sequentially."""
    # Prefetch no more than the cache holds, or chunks would be evicted before use.
    nbytes = array.form.chunk_nbytes
    limit = min(cache.limit // 4 // nbytes, max(1, _AHEAD_NBYTES // nbytes))
    count = _advance(array, chunks, limit)
    if count:
        first = int(chunks[-1]) + 1
        ahead = range(first, min(first + count, array.form.num_chunks))
        _, mine = cache.claim((array, chunk) for chunk in ahead)
        cache.count(num_ahead=len(mine))
        with suppress(RuntimeError):  # no thread can be started, or the process is exiting
            _fetch(mine)


def _advance(array: RemoteArray, chunks: Int64Array, limit: int) -> int:
    """Record a read of an array; return the chunks to prefetch, doubled per sequential read."""
    if not len(chunks) or int(chunks[-1]) - int(chunks[0]) + 1 != len(chunks):
        return 0
    first, last = int(chunks[0]), int(chunks[-1])
    before, run = cache.runs.get(array, (-2, 0))
    if last == before:
        return 0
    run = run + 1 if first in (before, before + 1) else 0
    cache.runs[array] = last, run
    return min(1 << min(run, 30), limit) if run else 0
