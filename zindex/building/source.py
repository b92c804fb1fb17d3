"""Where the lengths of a dataset's sequences come from: a Zarr token store or a ``.idx`` file."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import StoreNotFoundError
from zindex.formats.bin_idx import IdxFile, read_index
from zindex.plan.index_plan import SourceFacts
from zindex.store.commit import PLAN_KEY, ROOT_KEY
from zindex.store.local import local_path
from zindex.store.open import Store, open_store

#: Lengths per block of the digest; part of the format.
DIGEST_BLOCK = 1 << 22
#: Bytes of lengths that a process keeps for the next task of the same dataset.
_HELD_NBYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class LengthSource:
    """The sequence lengths of one dataset, readable by span; pickles as a few fields."""

    path: str
    facts: SourceFacts
    reader: Store | IdxFile

    def lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the lengths of sequences ``[start, stop)``: shape (stop - start,), int32."""
        if isinstance(self.reader, Store):
            return self.reader[schema.SEQUENCE_LENGTH.name].read(start, stop)
        return self.reader.sequence_lengths(start, stop)

    def count_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of sequences ``[start, stop)`` from their offsets."""
        if start >= stop:
            return 0
        if isinstance(self.reader, Store):
            offsets = self.reader[schema.SEQUENCE_OFFSET.name]
            return int(offsets[stop]) - int(offsets[start])
        first = int(self.reader.sequence_pointers(start, start + 1)[0])
        last = int(self.reader.sequence_pointers(stop - 1, stop)[0])
        last_length = int(self.reader.sequence_lengths(stop - 1, stop)[0])
        return (last - first) // self.reader.dtype.itemsize + last_length


def is_store(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a zindex store, finished or begun."""
    root = local_path(path)
    return (root / ROOT_KEY).exists() or (root / PLAN_KEY).exists()


def open_source(path: str | os.PathLike[str], *, require_bin: bool = True) -> LengthSource:
    """Open a dataset by the path of its Zarr store or the prefix of its ``.bin/.idx`` pair.

    Parameters
    ----------
    path
        Store path, or prefix without ``.idx``.
    require_bin
        Whether a prefix must have its ``.bin``; an index can be built without.

    Raises
    ------
    StoreNotFoundError
        If there is neither.
    SourceError
        If the ``.idx`` is not valid.
    """
    text = os.fspath(path)
    if is_store(text):
        store = open_store(text, kind="tokens")
        facts = SourceFacts(
            store.spec["length_digest"], store.spec["num_sequences"], store.spec["num_tokens"]
        )
        return LengthSource(text, facts, store)
    if not Path(f"{text}.idx").exists():
        raise StoreNotFoundError(
            f"no dataset at {text}: neither a zindex store nor {text}.idx exists; "
            "check the path, or convert the corpus first"
        )
    index = read_index(text, require_bin=require_bin)
    digests = [digest_block(index, block) for block in range(num_blocks(index.num_sequences))]
    return LengthSource(
        text, SourceFacts(join_digests(digests), index.num_sequences, index.num_tokens), index
    )


def num_blocks(num_sequences: int) -> int:
    """Return the number of blocks whose digests make up a length digest."""
    return -(-num_sequences // DIGEST_BLOCK)


def digest_block(index: IdxFile, block: int) -> bytes:
    """Return the SHA-256 of one block of lengths as little-endian int32."""
    start = block * DIGEST_BLOCK
    stop = min(start + DIGEST_BLOCK, index.num_sequences)
    return hashlib.sha256(index.sequence_lengths(start, stop).data).digest()


def join_digests(digests: Iterable[bytes]) -> str:
    """Return the SHA-256, in hex, of digests in order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


class _HeldLengths:
    """Lengths that this process read lately, so that its next task need not read them again.

    Document order is random, so a task needs the lengths of the whole split: 4 bytes a document,
    once per process whatever the number of its threads.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as in a new process."""
        self.lock = threading.Lock()
        self.locks: dict[tuple[str, int, int], threading.Lock] = {}
        self.arrays: OrderedDict[tuple[str, int, int], npt.NDArray[np.int32]] = OrderedDict()

    def get(self, source: LengthSource, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the lengths of sequences ``[start, stop)``, reading them at most once."""
        key = (source.facts.length_digest, start, stop)
        with self.lock:
            own_lock = self.locks.setdefault(key, threading.Lock())
        with own_lock:
            with self.lock:
                found = self.arrays.get(key)
                if found is not None:
                    self.arrays.move_to_end(key)
                    return found
            values = source.lengths(start, stop)
            with self.lock:
                self.arrays[key] = values
                while len(self.arrays) > 1 and self._nbytes() > _HELD_NBYTES:
                    dropped, _ = self.arrays.popitem(last=False)
                    self.locks.pop(dropped, None)
        return values

    def drop(self, source: LengthSource) -> None:
        """Forget a dataset whose build is over."""
        with self.lock:
            for key in [key for key in self.arrays if key[0] == source.facts.length_digest]:
                del self.arrays[key]
                self.locks.pop(key, None)

    def _nbytes(self) -> int:
        return sum(values.nbytes for values in self.arrays.values())


_held = _HeldLengths()
os.register_at_fork(after_in_child=_held.reset)
held_lengths = _held.get
drop_lengths = _held.drop
