"""Chunks of arrays in object stores: from memory, or fetched side by side and verified."""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.errors import VerificationError
from zindex.store import object_client
from zindex.store.chunk_cache import Key, cache, is_worth_another_try, settle
from zindex.store.codecs import CRC_NBYTES
from zindex.store.layout import ArrayLayout
from zindex.store.objects import ObjectPath
from zindex.store.request_threads import NUM_THREADS, DaemonPool
from zindex.store.shard import REMEDY, ShardIndex, decode_chunk, decode_index, index_nbytes

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

#: Chunks whose distance is at most the first share a request of at most the second: at 30 ms a
#: request takes the time of some hundred KiB, but the bytes between are paid for too.
GAP_NBYTES, REQUEST_NBYTES = 64 << 10, 4 << 20
# Bytes that are fetched ahead of a reader that goes on and on.
_AHEAD_NBYTES = 8 << 20
#: Requests that one thread makes at a time: obstore makes no more than ten of them side by side.
GROUP = 10


@dataclass(frozen=True, slots=True)
class RemoteArray:
    """One stored array: where it is, how it is cut, and whether its checksums are looked at."""

    root: ObjectPath
    layout: ArrayLayout
    version: str
    is_checked: bool

    @property
    def number(self) -> int:
        """What stands for it in this process."""
        return cache.number(self)

    @property
    def is_compressed(self) -> bool:
        """Whether only a shard's index tells where its chunks lie; otherwise it confirms it."""
        return self.layout.codec != "none"

    @property
    def num_chunks(self) -> int:
        """Chunks that hold its values."""
        return -(-self.layout.length // self.layout.chunk_length)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return self.layout.chunk_length * self.layout.row_nbytes

    def shard_path(self, shard: int) -> ObjectPath:
        """Return the object of a shard."""
        return _shard_path(self.root, self.layout.shard_key(shard))


@lru_cache(maxsize=4096)
def _shard_path(root: ObjectPath, key: str) -> ObjectPath:
    """Return the object of a key, spelt out once."""
    return root / key


class Need(NamedTuple):
    """Chunks of one array that are needed."""

    array: RemoteArray
    #: Shape (chunks,), int64, ascending; numbered through all shards.
    chunks: Int64Array


class Part(NamedTuple):
    """Where a chunk lies in its shard, or a part in its file."""

    chunk: int
    offset: int
    nbytes: int


class Request(NamedTuple):
    """Bytes ``[start, stop)`` of one file that hold some parts, and perhaps others between."""

    start: int
    stop: int
    parts: list[Part]


class _Group(NamedTuple):
    """Requests to one shard that a thread makes side by side."""

    array: RemoteArray
    shard: int
    requests: list[Request]


def obtain(needs: Sequence[Need]) -> list[dict[int, AnyArray]]:
    """Return the decoded chunks of several arrays by number.

    Chunks that are not compressed are asked for where they must lie, without a look into the
    shard's index before.

    Raises
    ------
    VerificationError
        If a shard is missing or a chunk fails its checksum.
    StoreUnavailableError
        If the store does not answer.
    """
    numbers = [need.array.number for need in needs]
    arrays = {number: need.array for number, need in zip(numbers, needs, strict=True)}
    keys = [
        [(number, chunk) for chunk in need.chunks.tolist()]
        for number, need in zip(numbers, needs, strict=True)
    ]
    found, mine = cache.claim(list(dict.fromkeys(key for part in keys for key in part)))
    kept = _fetch(arrays, list(mine))
    if kept:
        for number, need in zip(numbers, needs, strict=True):
            _fetch_ahead(number, need)
    values = found | mine
    broken = [key for key, value in found.items() if is_worth_another_try(value)]
    if broken:
        found, mine = cache.claim(broken, counted=False)
        _fetch(arrays, list(mine))
        values |= found | mine
    return [{key[1]: settle(values[key]) for key in part} for part in keys]


def _fetch(arrays: dict[int, RemoteArray], keys: list[Key]) -> bool:
    """Ask for chunks that were promised, and return whether they will be kept.

    Other threads take the answers. A long pass over an array must not push out what others come
    back to, so its chunks are handed over and forgotten.
    """
    try:
        kept = 4 * sum(arrays[number].chunk_nbytes for number, _ in keys) <= cache.limit
        for group in _plan_requests(arrays, keys):
            cache.pool.submit(_answer, group, kept)
    except BaseException as error:
        for key in keys:
            cache.break_promise(key, error)
        raise
    return kept


def _plan_requests(arrays: dict[int, RemoteArray], keys: list[Key]) -> list[_Group]:
    """Return the requests for chunks: those near each other in a shard come together.

    Promises of chunks in a shard whose index cannot be had are broken.
    """
    shards: dict[tuple[int, int], list[int]] = {}
    for number, chunk in sorted(keys):
        shard = chunk // arrays[number].layout.chunks_per_shard
        shards.setdefault((number, shard), []).append(chunk)
    indices = _shard_indices(arrays, [key for key in shards if arrays[key[0]].is_compressed])
    for number, shard in shards:
        if not arrays[number].is_compressed and (number, shard) not in cache.regular:
            # Comes with the chunks, not before them, and is looked at before they are taken.
            cache.pool.submit(_check_order, arrays[number], number, shard)
    groups: list[_Group] = []
    for key, chunks in shards.items():
        array, shard, index = arrays[key[0]], key[1], indices.get(key)
        if isinstance(index, Exception):
            for chunk in chunks:
                cache.break_promise((key[0], chunk), index)
            continue
        requests = coalesce(_locate(array, chunks, index))
        cuts = range(0, len(requests), GROUP)
        groups += [_Group(array, shard, requests[cut : cut + GROUP]) for cut in cuts]
    return groups


def _locate(array: RemoteArray, chunks: list[int], index: ShardIndex | None) -> list[Part]:
    """Return where chunks of one shard lie; without its index, where they lie if uncompressed."""
    num_chunks = array.layout.chunks_per_shard
    if index is None:
        nbytes = array.chunk_nbytes + CRC_NBYTES
        return [Part(chunk, chunk % num_chunks * nbytes, nbytes) for chunk in chunks]
    return [
        Part(chunk, int(index.offsets[chunk % num_chunks]), int(index.lengths[chunk % num_chunks]))
        for chunk in chunks
    ]


def coalesce(parts: list[Part]) -> list[Request]:
    """Return the requests that bring parts of a file, which come in the order of their offsets."""
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


def _answer(group: _Group, kept: bool) -> None:
    """Make a group of requests, and keep the promises of its chunks or break them."""
    array, shard, requests = group
    number = array.number
    left = {part.chunk for request in requests for part in request.parts}
    try:
        contents = _get(array, shard, requests)
        index = None if array.is_compressed else _check_order(array, number, shard)
        for request, content in zip(requests, contents, strict=True):
            for part in request.parts:
                start = part.offset - request.start
                stored = content[start : start + part.nbytes]
                values = _decode(array, shard, part, stored, index)
                if len(request.parts) > 1 and not values.flags.owndata:
                    values = values.copy()  # or it would hold on to the whole answer
                left.remove(part.chunk)
                cache.keep_promise((number, part.chunk), values, values.nbytes, kept=kept)
    except BaseException as error:
        for chunk in left:
            cache.break_promise((number, chunk), error)


def _decode(
    array: RemoteArray, shard: int, part: Part, stored: memoryview, index: ShardIndex | None
) -> AnyArray:
    """Return the values of a chunk; an index that is given says where it really is."""
    right = part if index is None else _locate(array, [part.chunk], index)[0]
    if right == part:
        # Bytes may also be lost on their way; those that come again are what the store has.
        with suppress(VerificationError):
            return _decode_stored(array, shard, part.chunk, stored)
    [again] = _get(array, shard, [Request(right.offset, right.offset + right.nbytes, [right])])
    return _decode_stored(array, shard, part.chunk, again)


def _decode_stored(array: RemoteArray, shard: int, chunk: int, stored: memoryview) -> AnyArray:
    """Return the values of the stored bytes of a chunk."""
    layout = array.layout
    body = len(stored) - CRC_NBYTES
    if not array.is_checked and not array.is_compressed and body == array.chunk_nbytes:
        values = np.frombuffer(stored[:body], layout.dtype)
        return values if layout.num_columns == 1 else values.reshape(-1, layout.num_columns)
    return decode_chunk(layout, shard, chunk % layout.chunks_per_shard, stored)


def _get(array: RemoteArray, shard: int, requests: list[Request]) -> list[memoryview]:
    """Return what requests to a shard bring, fewer bytes where it ends before."""
    path = array.shard_path(shard)
    starts = [request.start for request in requests]
    try:
        contents = object_client.get_ranges(path, starts, [request.stop for request in requests])
    except FileNotFoundError:
        raise VerificationError(f"shard {path} is missing; {REMEDY}") from None
    cache.count_requests(len(contents), sum(map(len, contents)))
    return contents


def _shard_indices(
    arrays: dict[int, RemoteArray], keys: list[tuple[int, int]]
) -> dict[tuple[int, int], ShardIndex | Exception]:
    """Return the indices of several shards, or why there is none.

    Those that are not kept are fetched side by side.
    """
    found = cache.find([(number, -1 - shard) for number, shard in keys])
    indices: dict[tuple[int, int], ShardIndex | Exception]
    indices = {(number, -1 - shard): index for (number, shard), index in found.items()}
    missing = [key for key in keys if key not in indices]

    def fetch(key: tuple[int, int]) -> ShardIndex | Exception:
        try:
            index = _shard_index(arrays[key[0]], *key)
        except Exception as error:
            return error
        assert index is not None
        return index

    if missing:
        # Threads of their own: those of the pool may all wait for what would wait for them.
        with closing(DaemonPool(min(len(missing), NUM_THREADS))) as pool:
            indices.update(zip(missing, pool.map(fetch, missing), strict=True))
    return indices


def _shard_index(array: RemoteArray, number: int, shard: int) -> ShardIndex | None:
    """Return where the chunks of a shard lie, fetched once; None where that is known without it."""
    key = (number, -1 - shard)
    found, mine = cache.claim([key], counted=False)
    if not mine and is_worth_another_try(found[key]):
        found, mine = cache.claim([key], counted=False)
    if not mine:
        known: ShardIndex | None = settle(found[key])
        return known
    index: ShardIndex | None = None
    try:
        # Another thread may have found out since the caller asked.
        if (number, shard) not in cache.regular:
            try:
                index = _fetch_index(array, shard)
            except VerificationError:
                index = _fetch_index(array, shard)  # as with chunks: once more
    except BaseException as error:
        cache.break_promise(key, error)
        raise
    if index is not None and not array.is_compressed and _is_regular(array, shard, index):
        cache.regular.add((number, shard))
        index = None
    # That of chunks which are not compressed is looked at once.
    nbytes = 0 if index is None else index.offsets.nbytes + index.lengths.nbytes
    cache.keep_promise(key, index, nbytes, kept=array.is_compressed)
    return index


def _fetch_index(array: RemoteArray, shard: int) -> ShardIndex:
    """Return the index of a shard as it is in the store now."""
    path = array.shard_path(shard)
    try:
        tail = object_client.get_tail(path, index_nbytes(array.layout))
    except FileNotFoundError:
        raise VerificationError(f"shard {path} is missing; {REMEDY}") from None
    cache.count_requests(1, len(tail.content))
    return decode_index(array.layout, shard, tail.content, tail.nbytes)


def _check_order(array: RemoteArray, number: int, shard: int) -> ShardIndex | None:
    """Return the index of a shard whose chunks do not lie one after the other; None if they do."""
    return None if (number, shard) in cache.regular else _shard_index(array, number, shard)


def _is_regular(array: RemoteArray, shard: int, index: ShardIndex) -> bool:
    """Return whether the chunks of a shard lie one after the other, not compressed."""
    start, stop = array.layout.shard_bounds(shard)
    count = -(-(stop - start) // array.layout.chunk_length)
    nbytes = array.chunk_nbytes + CRC_NBYTES
    expected = np.arange(count) * nbytes
    is_long = (index.lengths[:count] == nbytes).all()
    return bool(is_long and (index.offsets[:count] == expected).all())


def _fetch_ahead(number: int, need: Need) -> None:
    """Ask for the next chunks of an array that is read in order."""
    array, chunks = need
    # No more than what is kept, or it would be gone before it is needed.
    room = cache.limit // 4 // array.chunk_nbytes
    count = _advance(number, chunks, min(room, max(1, _AHEAD_NBYTES // array.chunk_nbytes)))
    if count:
        first = int(chunks[-1]) + 1
        ahead = range(first, min(first + count, array.num_chunks))
        keys = cache.claim_ahead([(number, chunk) for chunk in ahead])
        if keys:
            try:
                cache.pool.submit(_fetch, {number: array}, keys)
            except RuntimeError as error:  # no thread can be had, or the process ends
                for key in keys:
                    cache.break_promise(key, error)


def _advance(number: int, chunks: Int64Array, limit: int) -> int:
    """Note one read of an array; return how many chunks to fetch ahead: more as it goes on."""
    if not len(chunks) or int(chunks[-1]) - int(chunks[0]) + 1 != len(chunks):
        return 0
    first, last = int(chunks[0]), int(chunks[-1])
    before, run = cache.runs.get(number, (-2, 0))
    if last == before:
        return 0
    run = run + 1 if first in (before, before + 1) else 0
    cache.runs[number] = last, run
    return min(1 << min(run, 30), limit) if run else 0
