"""Layouts of stored arrays: their shards, inner chunks and Zarr v3 metadata.

Arrays are chunked along their first axis only. A shard is one file and is written by one task: its
inner chunks in order, each followed by its crc32c, then the index of Zarr's ``sharding_indexed``
codec.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError, check_choice
from zindex.schema import ArraySpec

Codec = Literal["none", "zstd"]

#: Default elements per inner chunk, the unit of fetching and verification.
CHUNK_LENGTH = 1 << 16
#: Default elements per shard, the unit of a task. 4 Mi int32 are 16 MiB.
SHARD_LENGTH = 1 << 22
#: A directory stays listable on parallel file systems below this number of shards.
MAX_SHARDS = 10_000


#: Default elements of compressed chunks for short reads: a zstd frame of fewer takes as long.
MIN_COMPRESSED_LENGTH = 1 << 10
#: Chunks of a compressed array with the default chunk length, if they are not longer than that.
MAX_COMPRESSED_CHUNKS = 1 << 23


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Elements along the first axis per inner chunk and per shard, and the codec."""

    #: Whether chunks of short arrays are filled up, too.
    padded: ClassVar[bool] = False

    chunk_length: int = CHUNK_LENGTH
    shard_length: int = SHARD_LENGTH
    codec: Codec = "none"

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or self.shard_length < 1:
            raise ConfigError(
                f"chunk_length and shard_length must be at least 1, got {self.chunk_length} and "
                f"{self.shard_length}; leave them out to use the defaults"
            )
        if self.shard_length % self.chunk_length:
            raise ConfigError(
                f"shard_length must be a multiple of chunk_length, got {self.shard_length} and "
                f"{self.chunk_length}; for example shard_length="
                f"{-(-self.shard_length // self.chunk_length) * self.chunk_length}"
            )
        check_choice("codec", self.codec, get_args(Codec))

    def fit(self, length: int) -> tuple[int, int]:
        """Return the elements per chunk and per shard of an array, whose last chunk is filled up.

        A short array is one chunk of its own length. Of an array of one shard the default chunks
        shrink to be evenly long, by less than one element of padding each.
        """
        chunk_length, shard_length = self.chunk_length, self.shard_length
        while length > shard_length * MAX_SHARDS:
            shard_length *= 2
        num_chunks = max(1, -(-length // chunk_length))
        is_even = length <= shard_length and chunk_length == CHUNK_LENGTH
        if not self.padded and (is_even or num_chunks == 1):
            chunk_length = max(1, -(-length // num_chunks))
        return chunk_length, min(shard_length, num_chunks * chunk_length)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and how arrays are fitted, as JSON values."""
        return asdict(self) | ({} if self.padded else {"padded": False})

    @staticmethod
    def from_json(fields: dict[str, Any]) -> "ChunkGrid":
        """Return the grid that ``to_json`` of this or an earlier version wrote."""
        known = dict(fields)
        return ChunkGrid(**known) if known.pop("padded", True) is False else PaddedGrid(**known)


class PaddedGrid(ChunkGrid):
    """The grid of a store of an earlier version."""

    __slots__ = ()
    padded = True


def fit_chunks(grid: ChunkGrid, length: int, span_length: int) -> ChunkGrid:
    """Return a grid on which random reads of compressed rows decode little else.

    A chunk is decoded as a whole. Chunks of 65,536 tokens are a few percent smaller, but for
    documents of 800 tokens they take 80 times as long to decode as what is read.

    Parameters
    ----------
    grid
        The configured grid; without compression, or with a chunk length other than the default, it
        stays.
    length
        Rows of the array: there are at most `MAX_COMPRESSED_CHUNKS`, as readers keep the position
        of each in memory.
    span_length
        Typical rows of a read.

    Examples
    --------
    >>> fit_chunks(ChunkGrid(codec="zstd"), 10**9, 800).chunk_length
    2048
    """
    if grid.codec == "none" or grid.chunk_length != CHUNK_LENGTH:
        return grid
    chunk_length = MIN_COMPRESSED_LENGTH
    while chunk_length < CHUNK_LENGTH and (
        chunk_length < 2 * span_length or length > chunk_length * MAX_COMPRESSED_CHUNKS
    ):
        chunk_length *= 2
    return replace(grid, chunk_length=chunk_length)


@cache
def name_dtype(dtype: np.dtype[Any]) -> str:
    """Return numpy's name of a dtype, which numpy itself does not cache."""
    return dtype.name


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Size, dtype and chunk grid of an array that is chunked along its first axis."""

    #: Name, also for messages.
    name: str
    #: Elements along the first axis: rows.
    length: int
    #: Values per row.
    num_columns: int
    #: Numpy dtype name in the machine's byte order, such as ``"int32"``.
    dtype: str
    #: Rows per inner chunk, which is verified and decoded as a whole.
    chunk_length: int
    #: Rows per shard, a multiple of ``chunk_length``.
    shard_length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return (self.length,) if self.num_columns == 1 else (self.length, self.num_columns)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * self.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of the values, without checksums and shard indices."""
        return self.length * self.row_nbytes

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the values of an inner chunk."""
        return self.chunk_length * self.row_nbytes

    @property
    def num_shards(self) -> int:
        """Shards of the array."""
        return -(-self.length // self.shard_length)

    @property
    def chunks_per_shard(self) -> int:
        """Entries of a shard's index, present or not."""
        return self.shard_length // self.chunk_length

    def shard_bounds(self, shard: int) -> tuple[int, int]:
        """Return the half-open range of rows of a shard."""
        start = shard * self.shard_length
        return start, min(start + self.shard_length, self.length)


@dataclass(frozen=True, slots=True)
class ArrayLayout(ArrayShape):
    """The array's description in a store of zindex."""

    codec: Codec
    dims: tuple[str, ...]
    unit: str
    description: str

    @classmethod
    def plan(
        cls, spec: ArraySpec, length: int, dtype: npt.DTypeLike, grid: ChunkGrid
    ) -> "ArrayLayout":
        """Return the layout of ``spec`` with ``length`` elements on ``grid``.

        Shards grow by doubling where the grid's own would make more than ``MAX_SHARDS`` files,
        and shrink to the array where the array is smaller.
        """
        dtype_name = name_dtype(np.dtype(dtype))
        shape = spec.name, length, spec.num_columns, dtype_name, *grid.fit(length)
        return cls(*shape, grid.codec, spec.dims, spec.unit, spec.description)

    @property
    def fill_value(self) -> int | float:
        """The value of padding: none that an index holds, so that a leak is detected."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "f":
            return math.nan
        if dtype.kind == "b":
            return False  # there is no third value
        return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max)

    def shard_key(self, shard: int) -> str:
        """Return the key of a shard below the store's root."""
        return f"{self.name}/c/{shard}" + ("/0" if self.num_columns > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"dims": list(self.dims)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ArrayLayout":
        """Return the layout that ``to_json`` wrote."""
        return cls(**(fields | {"dims": tuple(fields["dims"])}))

    def zarr_metadata(self) -> dict[str, Any]:
        """Return the array's Zarr v3 ``zarr.json``."""
        dtype = np.dtype(self.dtype)
        columns = self.shape[1:]
        little = _named("bytes", endian="little")
        inner = [little if dtype.itemsize > 1 else {"name": "bytes"}]
        if self.codec == "zstd":
            inner.append(_named("zstd", level=0, checksum=False))
        sharding = _named(
            "sharding_indexed",
            chunk_shape=[self.chunk_length, *columns],
            codecs=[*inner, {"name": "crc32c"}],
            index_codecs=[little, {"name": "crc32c"}],
            index_location="end",
        )
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": _named("regular", chunk_shape=[self.shard_length, *columns]),
            "chunk_key_encoding": _named("default", separator="/"),
            "fill_value": "NaN" if dtype.kind == "f" else self.fill_value,
            "codecs": [sharding],
            "attributes": {"unit": self.unit, "description": self.description},
            "dimension_names": list(self.dims),
            "storage_transformers": [],
        }


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    """Return an extension point of Zarr metadata."""
    return {"name": name, "configuration": configuration}
