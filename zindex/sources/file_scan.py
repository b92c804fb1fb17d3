"""What is found in a file of samples: where they start, and a digest of the content."""

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from zindex.arrays import Int64Array
from zindex.io.file_list import SourceFile

#: Bytes that are hashed together.
BLOCK_NBYTES = 1 << 20
#: Most columns of a table.
MAX_WIDTH = 8

#: Table of a file: shape (samples + 1, columns), int64. The first column has the offset of each
#: sample, and where the last one ends; further columns are those of the format.
Table = Int64Array


class ContentDigest:
    """A fast digest of content, which finds accidental changes but does not resist forgery.

    Each MiB is hashed by its words times random odd weights, modulo 2**64: a single changed word,
    or two swapped ones, always change the sum.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._held = bytearray()

    def add(self, content: bytes | memoryview) -> None:
        """Add bytes; the digest does not depend on how they are divided."""
        if self._held or len(content) % BLOCK_NBYTES:
            self._held += content
            stop = len(self._held) // BLOCK_NBYTES * BLOCK_NBYTES
            if not stop:
                return
            content, self._held = bytes(self._held[:stop]), self._held[stop:]
        self._hash.update(sum_blocks(content))

    def add_sums(self, sums: bytes) -> None:
        """Add whole MiB, after others, by their `sum_blocks`."""
        assert not (sums and self._held)
        self._hash.update(sums)

    def to_int(self) -> int:
        """Return the digest as an int64."""
        whole = self._hash.copy()
        whole.update(self._held)
        return int.from_bytes(whole.digest()[:8], "little", signed=True)


def sum_blocks(content: bytes | memoryview) -> bytes:
    """Return the hashes of whole MiB, 8 bytes each, for `ContentDigest.add_sums`."""
    blocks = np.frombuffer(content, "<u8").reshape(-1, BLOCK_NBYTES // 8)
    return b"".join(np.dot(words, _weights()).tobytes() for words in blocks)


@cache
def _weights() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.PCG64(0).random_raw(BLOCK_NBYTES // 8) | np.uint64(1)


@dataclass
class FileScan:
    """What was found in a file."""

    table: Table
    #: `ContentDigest` of what was read for that.
    digest: int
    #: Whether no damage was left out.
    is_whole: bool = True
    #: The file's time of modification when it was found, in nanoseconds.
    modified: int = 0


def fits_file(table: Table, file: SourceFile) -> bool:
    """Return whether a table may be of a file."""
    offsets = table[:, 0]
    is_inside = offsets[0] >= 0 and offsets[-1] <= (file.nbytes or 0)
    return bool(is_inside and (np.diff(offsets) >= 0).all())
