"""Layouts of stored arrays: their shards, inner chunks and Zarr v3 metadata.

Arrays are chunked along their first axis only. A shard is one file, written by one task: its inner
chunks in order, each followed by its crc32c, a table of these checksums, which Zarr ignores, and
the index of Zarr's ``sharding_indexed`` codec.
"""

import math
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from zindex.arrays import DTypeLike
from zindex.errors import ConfigError, StoreError, check_choice, shorten
from zindex.schema import ArraySpec
from zindex.store.checked_json import MAX_SIZE, parse_as

Codec = Literal["none", "zstd"]

#: Default elements per inner chunk, the unit of fetching and verification.
CHUNK_LENGTH = 1 << 16
#: Default elements per shard, the unit of a task. 4 Mi int32 are 16 MiB.
SHARD_LENGTH = 1 << 22
#: Maximum number of shards: larger directories are slow to list on parallel file systems.
MAX_SHARDS = 10_000
#: Maximum size of a chunk, which must be in memory at once.
MAX_CHUNK_NBYTES = 1 << 30
#: Maximum chunks of an array, and of one of its shards: each takes a byte and an index entry.
MAX_CHUNKS, MAX_SHARD_CHUNKS = 1 << 30, 1 << 24
#: Supported data types.
DATA_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_ITEM_NBYTES = {name: np.dtype(name).itemsize for name in DATA_TYPES}
_MAX_ROW_NBYTES = 1 << 16
# Names of folders; they cannot leave the store.
_NAME = re.compile(r"[A-Za-z0-9=][A-Za-z0-9=._-]{0,127}")

#: Default elements of compressed chunks for short reads: smaller zstd frames are not faster.
MIN_COMPRESSED_LENGTH = 1 << 10
#: Maximum chunks of a compressed array with the default chunk length, unless they are longer.
MAX_COMPRESSED_CHUNKS = 1 << 23


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Elements along the first axis per inner chunk and per shard, and the codec."""

    #: Whether chunks of short arrays are padded, too.
    padded: ClassVar[bool] = False
    #: Whether shards have a table of checksums.
    table: ClassVar[bool] = True

    chunk_length: int = CHUNK_LENGTH
    shard_length: int = SHARD_LENGTH
    codec: Codec = "none"

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or self.shard_length < 1:
            raise ConfigError(
                "chunk_length (--chunk-length or --chunk-nbytes) and shard_length "
                "(--shard-length or --shard-nbytes) must be at least 1, got "
                f"{self.chunk_length} and {self.shard_length}; leave them out to use the defaults"
            )
        if self.shard_length % self.chunk_length:
            example = -(-self.shard_length // self.chunk_length) * self.chunk_length
            raise ConfigError(
                "shard_length (--shard-length or --shard-nbytes) must be a multiple of "
                "chunk_length (--chunk-length or --chunk-nbytes), got "
                f"{self.shard_length} and {self.chunk_length}; for example {example}"
            )
        check_choice("codec", self.codec, get_args(Codec))

    def fit(self, length: int) -> tuple[int, int]:
        """Return the elements per chunk and per shard of an array, whose last chunk is padded.

        A short array is a single chunk of its own length. In an array of one shard, default chunks
        are shortened to equal lengths, with less than one element of padding each.
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
        fitted = {} if self.padded else {"padded": False}
        return asdict(self) | fitted | ({"table": True} if self.table else {})

    @staticmethod
    def from_json(fields: dict[str, Any]) -> "ChunkGrid":
        """Return the grid that ``to_json`` of this or an earlier version wrote."""
        known = dict(fields)
        is_padded, has_table = known.pop("padded", True), known.pop("table", False)
        kind = PaddedGrid if is_padded is not False else ChunkGrid if has_table else PlainGrid
        return parse_as(kind, known, "the chunk grid of a store")


class PlainGrid(ChunkGrid):
    """The grid of a store of format version 1."""

    __slots__ = ()
    table = False


class PaddedGrid(PlainGrid):
    """The grid of a store of an even earlier version."""

    __slots__ = ()
    padded = True


def fit_chunks(grid: ChunkGrid, length: int, span_length: int) -> ChunkGrid:
    """Return a grid on which random reads of compressed rows decode little more than these rows.

    A chunk is decoded as a whole. Chunks of 65,536 tokens are a few percent smaller, but reading a
    document of 800 tokens decodes 80 times as many.

    Parameters
    ----------
    grid
        The configured grid; returned unchanged without compression or with an explicit chunk
        length.
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


def parse_layouts(rows: Any, where: object) -> tuple["ArrayLayout", ...]:
    """Return the layouts that a file describes: those of ``to_json``, checked.

    Raises
    ------
    StoreError
        If a layout is invalid, or two arrays have the same name.
    """
    layouts = parse_as(tuple[ArrayLayout, ...], rows, f"the arrays of {where}")
    if len({layout.name for layout in layouts}) < len(layouts):
        raise StoreError(f"{where} must name each array once; it was not written by zindex")
    for layout in layouts:
        layout.check()
    return layouts


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
    #: Whether shards have a table of checksums; those of format version 1 have none.
    table: bool = False

    @classmethod
    def plan(cls, spec: ArraySpec, length: int, dtype: DTypeLike, grid: ChunkGrid) -> "ArrayLayout":
        """Return the layout of ``spec`` with ``length`` elements on ``grid``.

        Shards grow by doubling where the grid's own would make more than ``MAX_SHARDS`` files,
        and shrink to the array where the array is smaller.
        """
        dtype_name = name_dtype(np.dtype(dtype))
        shape = spec.name, length, spec.num_columns, dtype_name, *grid.fit(length)
        return cls(*shape, grid.codec, spec.dims, spec.unit, spec.description, grid.table)

    @property
    def fill_value(self) -> int | float:
        """The value of padding, which never occurs in an index, so that a leak is detected."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "f":
            return math.nan
        if dtype.kind == "b":
            return False  # booleans have no third value
        return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max)

    def shard_key(self, shard: int) -> str:
        """Return the key of a shard below the store's root."""
        return f"{self.name}/c/{shard}" + ("/0" if self.num_columns > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = asdict(self) | {"dims": list(self.dims)}
        if not self.table:
            del fields["table"]  # the original spelling
        return fields

    def check(self) -> None:
        """Raise if no array of a store can have this layout, before its sizes are used."""
        row_nbytes = _ITEM_NBYTES.get(self.dtype, 0) * self.num_columns
        length, chunk, shard = self.length, self.chunk_length, self.shard_length
        most = MAX_SIZE if self.codec == "none" else MAX_CHUNK_NBYTES
        if not (_NAME.fullmatch(self.name) and len(self.dims) == len(self.shape)):
            must = "have a name of letters, digits and =._-, and one for each dimension"
        elif not (0 < row_nbytes <= _MAX_ROW_NBYTES and 0 <= length * row_nbytes <= MAX_SIZE):
            must = f"hold at most {MAX_SIZE:,} bytes of numbers of a known dtype"
        elif (
            not 0 < chunk <= shard or shard % chunk or shard > MAX_SIZE or chunk * row_nbytes > most
        ):
            must = f"have shards of whole chunks of at most {most:,} bytes"
        elif shard > chunk * MAX_SHARD_CHUNKS or length > min(
            chunk * MAX_CHUNKS, shard * MAX_SHARDS
        ):
            must = (
                f"have at most {MAX_SHARD_CHUNKS:,} chunks in each of at most {MAX_SHARDS:,} "
                f"shards, and {MAX_CHUNKS:,} in all"
            )
        else:
            return
        raise StoreError(
            f"array {shorten(self.name)} of a store must {must}, got {length} rows of "
            f"{self.num_columns} {shorten(self.dtype)}, {chunk} in a chunk and {shard} in a shard; "
            "leave out the chunk grid, or restore the store if it was built without one"
        )

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
    """Return a metadata extension point of Zarr."""
    return {"name": name, "configuration": configuration}
