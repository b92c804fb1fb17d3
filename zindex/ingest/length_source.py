"""Read the sequence lengths of a dataset from a Zarr token store or an ``.idx`` file."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int32Array
from zindex.errors import StoreNotFoundError
from zindex.formats.bin_idx import IdxFile, read_index
from zindex.io import files
from zindex.io.objects import ObjectPath, PlaceLike, is_remote, place_of
from zindex.io.request_threads import map_in_threads
from zindex.io.system_errors import reading
from zindex.plan.build_plan import SourceFacts
from zindex.store.commit import PLAN_KEY, ROOT_KEY
from zindex.store.open import Store, open_store
from zindex.store.rows import RowReader
from zindex.store.tokenizer_note import TokenizerNote, read_note

logger = logging.getLogger(__name__)

#: Lengths per block of the digest; part of the format.
DIGEST_BLOCK = 1 << 22
# Threads that read the shards of one array.
_NUM_READERS = 2


@dataclass(frozen=True, slots=True)
class LengthSource:
    """The sequence lengths of one dataset, readable by span; pickles as a few fields."""

    path: str
    facts: SourceFacts
    reader: Store | IdxFile

    @classmethod
    def of(cls, path: str, reader: Store | IdxFile) -> "LengthSource":
        """Return the source of an opened dataset; an ``.idx`` file is digested here."""
        if isinstance(reader, Store):
            spec = reader.spec
            facts = SourceFacts(spec["length_digest"], spec["num_sequences"], spec["num_tokens"])
            return cls(path, facts, reader)
        # Workers may have another working directory.
        index = replace(reader, path=os.path.abspath(reader.path))
        digest = digest_array(index.sequence_lengths, index.num_sequences)
        return cls(path, SourceFacts(digest, index.num_sequences, index.num_tokens), index)

    def lengths(self, start: int, stop: int) -> Int32Array:
        """Return the lengths of sequences ``[start, stop)``: shape (stop - start,), int32."""
        if isinstance(self.reader, Store):
            return _read_concurrently(self.reader[schema.SEQUENCE_LENGTH.name], start, stop)
        return self.reader.sequence_lengths(start, stop)

    def count_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of sequences ``[start, stop)`` from their offsets."""
        return count_tokens(self.reader, start, stop)

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        if isinstance(self.reader, Store):
            return np.dtype(str(self.reader.spec["token_dtype"]))
        return self.reader.dtype

    def read_note(self) -> TokenizerNote | None:
        """Return the description of the dataset's tokenizer; None if unknown, as for pairs."""
        return read_note(self.reader.root) if isinstance(self.reader, Store) else None


def count_tokens(reader: Store | IdxFile, start: int, stop: int) -> int:
    """Return the tokens of sequences ``[start, stop)`` of an opened dataset from their offsets."""
    if start >= stop:
        return 0
    if isinstance(reader, Store):
        if start == 0 and stop == reader.spec["num_sequences"]:
            return int(reader.spec["num_tokens"])
        offsets = reader[schema.SEQUENCE_OFFSET.name]
        return int(offsets[stop]) - int(offsets[start])
    if start == 0 and stop == reader.num_sequences:
        return reader.num_tokens
    first, last = (reader.sequence_offsets(row, row + 1)[0] for row in (start, stop))
    return int(last - first)


def _read_concurrently(reader: RowReader, start: int, stop: int) -> Int32Array:
    """Return rows of an array, reading its shards concurrently, as one core is memory-bound."""
    step = reader.layout.shard_length
    if stop > len(reader) or stop - start <= step:
        return reader.read(start, stop)
    out = np.empty(stop - start, np.int32)
    bounds = [start, *range((start // step + 1) * step, stop, step), stop]

    def read(first: int, last: int) -> None:
        reader.read(first, last, out[first - start : last - start])

    map_in_threads(_NUM_READERS, read, bounds[:-1], bounds[1:])
    return out


def is_store(path: PlaceLike) -> bool:
    """Return whether a path is a zindex store, committed or unfinished."""
    root = place_of(path)
    if isinstance(root, Path):
        with reading(root):
            if not root.is_dir():
                return False
    return files.exists(root / ROOT_KEY) or files.exists(root / PLAN_KEY)


def open_source(path: PlaceLike, *, require_bin: bool = True) -> LengthSource:
    """Open a dataset by the path of its Zarr store or the prefix of its ``.bin/.idx`` pair.

    Parameters
    ----------
    path
        Store path, or prefix without ``.idx``.
    require_bin
        Whether a prefix must have its ``.bin``; an index can be built without it.

    Raises
    ------
    StoreNotFoundError
        If there is no dataset.
    SourceError
        If the ``.idx`` is not valid.
    """
    text = str(path) if isinstance(path, ObjectPath) else os.fspath(path)
    if is_store(text):
        return LengthSource.of(text, open_store(text, kind="tokens"))
    if is_remote(text):
        raise StoreNotFoundError(
            f"no zindex store at {text}; check the URL, or convert the corpus to it: .bin/.idx "
            "pairs are read from file systems only"
        )
    if not Path(f"{text}.idx").exists():
        raise StoreNotFoundError(
            f"no dataset at {text}: neither a zindex store nor {text}.idx exists; "
            "check the path, or convert the corpus first"
        )
    return LengthSource.of(text, read_index(text, require_bin=require_bin))


def num_blocks(num_sequences: int) -> int:
    """Return the number of blocks whose digests make up a length digest."""
    return -(-num_sequences // DIGEST_BLOCK)


def digest_rows(read: Callable[[int, int], AnyArray], num_rows: int, block: int) -> bytes:
    """Return the SHA-256 of one block of an array's rows, given ``read(start, stop)``."""
    start = block * DIGEST_BLOCK
    return hashlib.sha256(read(start, min(start + DIGEST_BLOCK, num_rows)).data).digest()


def digest_array(read: Callable[[int, int], AnyArray], num_rows: int) -> str:
    """Return the SHA-256, in hex, of the digests of all blocks of an array's rows."""
    blocks = range(num_blocks(num_rows))
    num_threads = min(_NUM_READERS, len(blocks))
    return join_digests(map_in_threads(num_threads, partial(digest_rows, read, num_rows), blocks))


def join_digests(digests: Iterable[bytes]) -> str:
    """Return the SHA-256, in hex, of concatenated digests."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def warn_of_duplicates(paths: Iterable[str]) -> None:
    """Log a warning for each corpus that two paths name."""
    first: dict[str, str] = {}
    for path in paths:
        real = path if "://" in path else os.path.realpath(path)
        if real in first:
            logger.warning(
                "%s and %s are the same corpus, whose documents count twice; leave one out if "
                "that is not intended",
                *(first[real], path),
            )
        first.setdefault(real, path)
