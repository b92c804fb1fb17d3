"""How an array lies in files: what a reader by position needs to know, whoever wrote them."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from zindex.store.codecs import CRC_NBYTES, CodecChain
from zindex.store.layout import ArrayLayout


@dataclass(frozen=True, slots=True)
class IndexForm:
    """The index of a shard: where it is and what it has."""

    at_start: bool = False
    checked: bool = True


@dataclass(frozen=True, slots=True)
class ArrayFiles:
    """An array that is cut along its first axis into files, and these into inner chunks."""

    name: str
    #: Rows.
    length: int
    num_columns: int
    #: Numpy dtype name, in the machine's byte order.
    dtype: str
    #: Rows of an inner chunk.
    chunk_length: int
    #: Rows of a file, a multiple of it.
    shard_length: int
    chain: CodecChain
    #: None where a file is one chunk and nothing else.
    index: IndexForm | None
    #: A file's path below the root is prefix, number, suffix.
    prefix: str
    suffix: str = ""
    #: Whether columns are an axis, even if there is one.
    has_columns: bool = False
    #: Whether zindex wrote it: then every chunk is there, and it can be repaired.
    ours: bool = False
    #: Whether the root is the one file, which may be longer than the array.
    flat: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return (self.length, self.num_columns) if self.has_columns else (self.length,)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * self.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.length * self.row_nbytes

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the values of an inner chunk."""
        return self.chunk_length * self.row_nbytes

    @property
    def stride(self) -> int:
        """Bytes of a stored inner chunk that is not compressed."""
        return self.chunk_nbytes + CRC_NBYTES * self.chain.checked

    @property
    def base(self) -> int:
        """Byte of a file at which the first inner chunk usually lies."""
        return self.index_nbytes if self.index is not None and self.index.at_start else 0

    @property
    def num_shards(self) -> int:
        """Files of the array."""
        return -(-self.length // self.shard_length)

    @property
    def chunks_per_shard(self) -> int:
        """Entries of a file's index."""
        return self.shard_length // self.chunk_length

    @property
    def index_nbytes(self) -> int:
        """Bytes of a file's index."""
        if self.index is None:
            return 0
        return 16 * self.chunks_per_shard + CRC_NBYTES * self.index.checked

    def shard_bounds(self, shard: int) -> tuple[int, int]:
        """Return the half-open range of rows of a file."""
        start = shard * self.shard_length
        return start, min(start + self.shard_length, self.length)

    def shard_key(self, shard: int) -> str:
        """Return the path of a file below the root."""
        return self.prefix if self.flat else f"{self.prefix}{shard}{self.suffix}"

    def where(self, shard: int) -> str:
        """Name a file in messages."""
        if self.flat:
            return self.name
        key = self.shard_key(shard)
        return f"shard {key}" if self.ours else f"{self.name}/{key}"

    @classmethod
    def of(cls, layout: ArrayLayout) -> "ArrayFiles":
        """Return how an array of a zindex store lies."""
        return _of_layout(layout)


@lru_cache(maxsize=256)
def _of_layout(layout: ArrayLayout) -> ArrayFiles:
    """Return how an array of a zindex store lies: one object for equal layouts."""
    return ArrayFiles(
        name=layout.name,
        length=layout.length,
        num_columns=layout.num_columns,
        dtype=layout.dtype,
        chunk_length=layout.chunk_length,
        shard_length=layout.shard_length,
        chain=CodecChain(("crc32c",) if layout.codec == "none" else (layout.codec, "crc32c")),
        index=IndexForm(),
        prefix=f"{layout.name}/c/",
        suffix="/0" if layout.num_columns > 1 else "",
        has_columns=layout.num_columns > 1,
        ours=True,
    )
