"""Write, find and verify shards: one file each, written by one task."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import StoreUnavailableError, StoreUnreadableError, VerificationError
from zindex.io import files, object_client
from zindex.io.objects import ObjectPath, Place
from zindex.io.regular_files import open_file
from zindex.io.request_threads import map_in_threads
from zindex.io.system_errors import reading
from zindex.store.chunk_fetch import Part, coalesce
from zindex.store.codecs import CRC_NBYTES, Buffer, checksum, most_nbytes
from zindex.store.layout import ArrayLayout
from zindex.store.shard import (
    REMEDY,
    ArrayFiles,
    Receipt,
    decode_chunk,
    decode_index,
    encode_shard,
    read_index,
)

#: Function of the row of a chunk's first value, and its values without padding.
Inspect = Callable[[int, AnyArray], None]

# Attribute of an object that holds the checksum of its receipt.
_CHECKSUM = "zindexcrc32c"
# Threads that write the shards of one array: enough to keep a disk busy.
_NUM_WRITERS = 4


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Result of a task for one shard."""

    receipt: Receipt
    #: False if a valid shard was found and nothing was written.
    written: bool


def store_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    compute: Callable[[], AnyArray],
    *,
    cached: bool = True,
    whole: bool = False,
) -> ShardResult:
    """Return the receipt of a shard; compute and write it only if no valid one exists.

    A damaged shard is replaced. ``cached`` is as of `files.write_once`, ``whole`` as of
    `find_receipt`.
    """
    found = find_receipt(root, layout, shard, whole=whole)
    if found is not None:
        return ShardResult(found, written=False)
    return write_shard(root, layout, shard, compute(), cached=cached, whole=whole)


def write_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    values: AnyArray,
    *,
    cached: bool = True,
    whole: bool = False,
) -> ShardResult:
    """Write one shard, or replace a damaged one; see ``encode_shard`` for ``values``."""
    buffers, receipt = encode_shard(layout, shard, values)
    path = root / layout.shard_key(shard)
    facts = {_CHECKSUM: str(receipt.crc32c)}
    if files.write_once(path, buffers, cached=cached, facts=facts):
        return ShardResult(receipt, written=True)
    found = find_receipt(root, layout, shard, whole=whole)
    # Another version of a compressor may write other bytes for the same values. The bytes of the
    # first writer are kept: a commit may be about to record their receipt.
    if found is not None and (found == receipt or layout.codec != "none"):
        return ShardResult(found, written=False)
    files.write_once(path, buffers, replace=True, cached=cached, facts=facts)
    return ShardResult(receipt, written=True)


def replace_shard(
    root: Place, layout: ArrayLayout, receipt: Receipt, buffers: list[Buffer]
) -> None:
    """Write an encoded shard, replacing an existing one."""
    path = root / layout.shard_key(receipt.shard)
    files.write_once(path, buffers, replace=True, facts={_CHECKSUM: str(receipt.crc32c)})


def store_all_shards(
    root: Place,
    layout: ArrayLayout,
    values: AnyArray,
    *,
    shards: Iterable[int] | None = None,
    whole: bool = False,
) -> list[ShardResult]:
    """Store all shards of an in-memory array concurrently; return their results in order.

    If given, ``shards`` yields their numbers, in any order, as soon as their values are final.
    """

    def store(shard: int) -> ShardResult:
        start, stop = layout.shard_bounds(shard)
        return store_shard(root, layout, shard, lambda: values[start:stop], whole=whole)

    numbers = range(layout.num_shards) if shards is None else shards
    results = map_in_threads(min(_NUM_WRITERS, layout.num_shards), store, numbers)
    return sorted(results, key=lambda result: result.receipt.shard)


def find_receipt(
    root: Place, layout: ArrayLayout, shard: int, *, whole: bool = False
) -> Receipt | None:
    """Return the receipt of a stored shard, or None if it is missing or damaged.

    The shard index and its checksum are verified; inner chunks are verified when they are read, or
    now with ``whole``, since a build that rereads some of its shards must not fail on them.
    """
    if whole:
        found = check_shard(root, layout, shard)
        return found if isinstance(found, Receipt) else None
    path = root / layout.shard_key(shard)
    form = ArrayFiles.of(layout)
    try:
        if isinstance(path, ObjectPath):
            return _find_object(path, form, shard)
        return _find_file(path, replace(form, gathered=True), shard)
    except (FileNotFoundError, VerificationError):
        return None
    except StoreUnreadableError as error:
        if error.errno != errno.EISDIR:
            raise
        return None


def _find_file(path: Path, form: ArrayFiles, shard: int) -> Receipt:
    """Return the receipt of a shard in a file system."""
    with reading(path), open_file(path, buffering=0) as stream:
        number = stream.fileno()
        nbytes = os.fstat(number).st_size
        index, proof = read_index(number, form, shard, nbytes)
    index.chunk_ends(form, shard, nbytes)
    assert proof is not None
    return Receipt(form.name, shard, nbytes, checksum(proof))


def _find_object(path: ObjectPath, form: ArrayFiles, shard: int) -> Receipt:
    """Return the receipt of a shard in an object store, usually with one request.

    Without a table, the checksums of its chunks are spread over the object, so an attribute holds
    theirs. Copies may lack the attribute; then the whole object is read.
    """
    tail = object_client.get_tail(path, form.tail_nbytes(shard))
    ends = decode_index(form, shard, tail.content, tail.nbytes).chunk_ends(form, shard, tail.nbytes)
    if form.table:
        return Receipt(form.name, shard, tail.nbytes, checksum(tail.content))
    noted = tail.facts.get(_CHECKSUM, "")
    if noted.isdecimal():
        return Receipt(form.name, shard, tail.nbytes, int(noted))
    content = object_client.get_range(path, 0, tail.nbytes)
    proof = b"".join(bytes(content[end - CRC_NBYTES : end]) for end in ends)
    return Receipt(form.name, shard, tail.nbytes, checksum(proof + tail.content))


def check_shard(
    root: Place,
    layout: ArrayLayout,
    shard: int,
    committed: Receipt | None = None,
    *,
    inspect: Inspect | None = None,
) -> Receipt | str:
    """Read a whole shard; return its receipt, or a description of the problem.

    Parameters
    ----------
    root, layout, shard
        The shard.
    committed
        Its receipt in the manifest, if any: a file of another size is not read. It is not compared
        with the returned one.
    inspect
        Called with the values of each intact chunk.
    """
    path = root / layout.shard_key(shard)
    try:
        nbytes = files.file_nbytes(path)
        if nbytes is None:
            return "is missing"
        if committed is not None and nbytes != committed.nbytes:
            return f"has {nbytes:,} bytes, {committed.nbytes:,} were committed"
        return _check_bytes(path, nbytes, layout, shard, inspect)
    except VerificationError as error:
        return str(error).removesuffix(f"; {REMEDY}")
    except StoreUnavailableError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _check_bytes(
    path: Place, nbytes: int, layout: ArrayLayout, shard: int, inspect: Inspect | None
) -> Receipt:
    """Return the receipt of a shard of a given size."""
    form = ArrayFiles.of(layout)
    tail = _read_exactly(path, max(0, nbytes - form.tail_nbytes(shard)), nbytes)
    index = decode_index(form, shard, tail, nbytes)
    index.chunk_ends(form, shard, nbytes)  # raises unless the chunks fill the shard
    most = form.chunk_nbytes if form.chain.plain else most_nbytes(form.chunk_nbytes)
    wrong = np.flatnonzero(index.lengths[index.lengths > 0] > most + CRC_NBYTES)
    if wrong.size:
        raise VerificationError(
            f"chunk {wrong[0]} of {form.where(shard)} must have at most {most:,} bytes"
        )
    spans = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    parts = [Part(chunk, *span) for chunk, span in enumerate(spans) if span[1] > 0]
    checksums: list[bytes] = []
    damaged: list[str] = []
    first, stop = layout.shard_bounds(shard)
    for request in coalesce(parts):
        content = memoryview(_read_exactly(path, request.start, request.stop))
        for part in request.parts:
            stored = content[part.offset - request.start :][: part.nbytes]
            checksums.append(bytes(stored[-CRC_NBYTES:]))
            try:
                values = decode_chunk(form, shard, part.number, stored, checksums=index.checksums)
            except VerificationError as error:
                damaged.append(str(error).removesuffix(f"; {REMEDY}"))
                continue
            if inspect is not None:
                row = first + part.number * layout.chunk_length
                inspect(row, values[: stop - row])
    if damaged:
        others = f", as do {len(damaged) - 1} others" if len(damaged) > 1 else ""
        raise VerificationError(f"{damaged[0]}{others}")
    proof = tail if form.table else b"".join(checksums) + tail
    return Receipt(layout.name, shard, nbytes, checksum(proof))


def _read_exactly(path: Place, start: int, stop: int) -> bytes:
    """Return bytes ``[start, stop)`` of a file."""
    content = files.read_range(path, start, stop)
    if len(content) < stop - start:
        raise VerificationError(f"it ends {stop - start - len(content):,} bytes early")
    return bytes(content)
