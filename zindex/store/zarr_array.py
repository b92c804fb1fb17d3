"""Read any local Zarr array by position.

Its ``zarr.json`` is untrusted: every size in it is checked before use. Arrays of one or two
dimensions that are chunked along the first axis only are read directly from their files;
zarr-python reads the others, with the same interface.
"""

import hashlib
import itertools
import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import StoreError, StoreNotFoundError, VerificationError, check_choice
from zindex.io.local import local_path, read_file
from zindex.io.regular_files import open_file
from zindex.io.system_errors import reading
from zindex.store.checked_json import MAX_SIZE
from zindex.store.chunk_reader import Verify
from zindex.store.codecs import CodecChain, parse_chain, parse_extension
from zindex.store.commit import parse_json
from zindex.store.layout import (
    DATA_TYPES,
    MAX_CHUNK_NBYTES,
    MAX_CHUNKS,
    MAX_SHARD_CHUNKS,
    ArrayShape,
)
from zindex.store.reader import LocalReader, forget_open_shards
from zindex.store.rows import RowReader
from zindex.store.shard import FOREIGN_REMEDY, MISSING, ArrayFiles, IndexForm

_MAX_DIMS = 32
# Supported kinds of numpy dtypes.
_KINDS = "biuf"
_METADATA = "zarr.json"
_KNOWN_KEYS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}


def open_array(path: str | os.PathLike[str], *, verify: Verify = "first") -> RowReader:
    """Open a Zarr array of a local directory, written by any program.

    Parameters
    ----------
    path
        Path or ``file://`` URL of the array's directory.
    verify
        When a chunk with a crc32c is verified: ``"first"``, on first use in a process, ``"always"``
        or ``"never"``. Arrays read by zarr-python are always verified.

    Returns
    -------
    reader
        The array's rows. Reading a missing chunk is an error, although Zarr returns fill values.

    Raises
    ------
    StoreNotFoundError
        If the path is not an array.
    StoreError
        If its metadata are damaged or not supported.
    """
    check_choice("verify", verify, get_args(Verify))
    root = local_path(path, "an array")
    try:
        content = read_file(root / _METADATA)
    except StoreNotFoundError:
        if (root / ".zarray").is_file():
            return ZarrRows(str(root))
        raise
    metadata = _Metadata(parse_json(content, str(root / _METADATA)), root)
    metadata.check()
    form = metadata.array_files()
    if form is None:
        return ZarrRows(str(root))
    forget_open_shards(root)
    return LocalReader(str(root), form, hashlib.sha256(content).hexdigest(), verify)


class _Metadata:
    """The metadata of an array: checked, and translated to `ArrayFiles`."""

    def __init__(self, fields: Mapping[str, Any], root: Path) -> None:
        self.fields = fields
        self.root = root

    def require(self, holds: bool, must: str, got: Any) -> None:
        """Raise an error about the metadata unless a condition holds."""
        if not holds:
            raise StoreError(f"{self.root / _METADATA} must {must}, got {str(got)[:80]}; check it")

    def check(self) -> None:
        """Reject metadata that no numeric array can have."""
        fields = self.fields
        kind = fields.get("zarr_format"), fields.get("node_type")
        must = "describe an array of Zarr format 3"
        self.require(kind == (3, "array"), must, f"format {kind[0]!r} and {kind[1]!r}")
        for key in fields.keys() - _KNOWN_KEYS:
            value = fields[key]
            is_optional = isinstance(value, dict) and not value.get("must_understand", 1)
            self.require(is_optional, "have no extension that must be understood", key)
        transformers, data_type = fields.get("storage_transformers"), fields.get("data_type")
        self.require(not transformers, "have no storage transformers", transformers)
        self.require(data_type in DATA_TYPES, f"have a data type of {DATA_TYPES}", data_type)
        self.shape = self._sizes(fields.get("shape"), "shape", least=0)
        num_dims = len(self.shape)
        self.require(1 <= num_dims <= _MAX_DIMS, f"have 1 to {_MAX_DIMS} dimensions", num_dims)
        itemsize = np.dtype(data_type).itemsize
        is_small = math.prod(self.shape) * itemsize <= MAX_SIZE
        self.require(is_small, "have fewer than 2**62 bytes of values", list(self.shape))
        self.grid = self._chunk_shape(fields.get("chunk_grid"), "chunk_grid")
        self._limit_chunks([-(-n // c) for n, c in zip(self.shape, self.grid, strict=True)])
        self.codecs: Any = fields.get("codecs")
        is_list = isinstance(self.codecs, list) and len(self.codecs) > 0
        self.require(is_list, "have a list of codecs", self.codecs)
        self.sharding = self._sharding()
        nbytes = math.prod(self.inner) * itemsize
        self.chain = parse_chain(self.inner_codecs, itemsize=itemsize, ndim=num_dims)
        fits = nbytes <= MAX_CHUNK_NBYTES or (self.chain is not None and not self.chain.steps)
        self.require(fits, f"have chunks of at most {MAX_CHUNK_NBYTES:,} bytes", f"{nbytes:,}")

    def _limit_chunks(self, counts: Sequence[int]) -> None:
        """Reject more chunks than an array may have, given their number along each axis."""
        count = math.prod(counts)
        self.require(count <= MAX_CHUNKS, f"have at most {MAX_CHUNKS:,} chunks", f"{count:,}")

    def _sizes(self, value: Any, what: str, *, least: int) -> tuple[int, ...]:
        """Return a list of sizes as a tuple."""
        are_sizes = isinstance(value, list) and all(
            type(size) is int and least <= size <= MAX_SIZE for size in value
        )
        self.require(are_sizes, f"have a {what} of whole numbers of at least {least}", value)
        return tuple(value)

    def _chunk_shape(self, value: Any, what: str) -> tuple[int, ...]:
        """Return the chunk shape of a regular grid or of a codec."""
        name, settings = parse_extension(value)
        is_regular = what != "chunk_grid" or name == "regular"
        self.require(is_regular, "have a regular chunk grid", value)
        shape = self._sizes(settings.get("chunk_shape"), f"chunk shape in {what}", least=1)
        num_dims = len(self.shape)
        self.require(len(shape) == num_dims, f"have chunks of {num_dims} dimensions", list(shape))
        return shape

    def _sharding(self) -> dict[str, Any] | None:
        """Return the settings of a leading sharding codec, and check its chunks."""
        name, settings = parse_extension(self.codecs[0])
        self.inner, self.inner_codecs = self.grid, self.codecs
        if name != "sharding_indexed":
            return None
        self.inner = self._chunk_shape(self.codecs[0], name)
        self.inner_codecs = settings.get("codecs")
        is_list = isinstance(self.inner_codecs, list)
        self.require(is_list, "list the codecs of inner chunks", self.inner_codecs)
        is_multiple = not any(map(operator.mod, self.grid, self.inner))
        must = f"have shards that are multiples of {list(self.inner)}"
        self.require(is_multiple, must, self.grid)
        per_shard = math.prod(self.grid) // math.prod(self.inner)
        must = f"have at most {MAX_SHARD_CHUNKS:,} chunks in a shard"
        self.require(per_shard <= MAX_SHARD_CHUNKS, must, per_shard)
        self._limit_chunks([-(-self.shape[0] // self.grid[0]), per_shard])
        return settings

    def array_files(self) -> ArrayFiles | None:
        """Return how the files hold the array, or None if only zarr-python can read it."""
        columns = self.shape[1:]
        affixes = self._affixes()
        index = None
        if self.sharding is not None:
            index = self._index_form(self.sharding)
            if index is None or len(self.codecs) > 1:
                return None
        one_axis = len(self.shape) <= 2 and self.grid[1:] == columns == self.inner[1:]
        if not one_axis or self.chain is None or affixes is None or 0 in columns:
            return None
        name, dtype, num_columns = str(self.root), str(self.fields["data_type"]), math.prod(columns)
        shape = name, self.shape[0], num_columns, dtype, self.inner[0], self.grid[0]
        return ArrayFiles(*shape, self.chain, index, *affixes, has_columns=bool(columns))

    def _affixes(self) -> tuple[str, str] | None:
        """Return the prefix and suffix of a file's number in its path."""
        name, settings = parse_extension(self.fields.get("chunk_key_encoding"))
        separator = settings.get("separator", "/" if name == "default" else ".")
        if name not in ("default", "v2") or separator not in ("/", "."):
            return None
        suffix = f"{separator}0" * (len(self.shape) - 1)
        return ("" if name == "v2" else f"c{separator}"), suffix

    def _index_form(self, settings: dict[str, Any]) -> IndexForm | None:
        """Return the form of the shards' index, or None if it is not supported here."""
        codecs = settings.get("index_codecs")
        if not isinstance(codecs, list):
            return None
        chain = parse_chain(codecs, itemsize=8, ndim=len(self.shape) + 1)
        where = settings.get("index_location", "end")
        if chain not in (CodecChain(), CodecChain(("crc32c",))) or where not in ("start", "end"):
            return None
        return IndexForm(at_start=where == "start", checked=chain.checked)


class ZarrRows(RowReader):
    """The rows of a local array, read by zarr-python: some hundred microseconds per span.

    Parameters
    ----------
    path
        Directory of the array.

    Raises
    ------
    StoreError
        If zarr-python cannot open it, or it is not a numeric array with at least one dimension.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._array = _open(path)
        shape, dtype = self._array.shape, self._array.dtype
        if not shape or dtype.kind not in _KINDS:
            raise StoreError(
                f"{path} must hold an array of numbers with rows, got {dtype} of shape {shape}"
            )
        #: Shape of a file's values.
        self._grid: tuple[int, ...] = self._array.shards or self._array.chunks
        if not all(self._grid):
            raise StoreError(f"{path} must have chunks of at least 1, got {self._grid}; check it")
        self._found: set[tuple[int, ...]] = set()
        name, num_columns = dtype.newbyteorder("=").name, math.prod(shape[1:])
        lengths = self._array.chunks[0], self._grid[0]
        super().__init__(ArrayShape(path, shape[0], num_columns, name, *lengths))
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        if start == stop or not out.size:
            return
        self._find_files(start, stop)
        try:
            out[...] = self._array[start:stop]
        except Exception as error:
            raise VerificationError(
                f"rows [{start}, {stop}) of {self.path} cannot be read by zarr-python: {error}; "
                f"{FOREIGN_REMEDY}"
            ) from error

    def _find_files(self, start: int, stop: int) -> None:
        """Raise if files of the rows are missing: zarr-python would return fill values."""
        along = range(start // self._grid[0], -(-stop // self._grid[0]))
        others = [
            range(-(-size // part))
            for size, part in zip(self.shape[1:], self._grid[1:], strict=True)
        ]
        for numbers in itertools.product(along, *others):
            if numbers in self._found:
                continue
            file = os.path.join(self.path, self._array.metadata.encode_chunk_key(numbers))
            if not os.path.isfile(file):
                raise VerificationError(f"file {file} is missing; {FOREIGN_REMEDY}")
            if self._array.shards:
                self._check_index(file, numbers)
            self._found.add(numbers)

    def _check_index(self, file: str, numbers: tuple[int, ...]) -> None:
        """Raise if a shard lacks a chunk, if its index has one of the usual codecs."""
        (codec,) = self._array.metadata.codecs
        names = [type(step).__name__ for step in codec.index_codecs]
        if names not in (["BytesCodec", "Crc32cCodec"], ["BytesCodec"]):
            return
        chunks = self._array.chunks
        counts = [outer // inner for outer, inner in zip(self._grid, chunks, strict=True)]
        nbytes = 16 * math.prod(counts)
        end = 4 * (len(names) - 1)
        with reading(Path(file)), open_file(file) as stream:
            # An enumeration in zarr 3.1, a text from 3.4 on.
            location = getattr(codec.index_location, "value", codec.index_location)
            if location == "end":
                stream.seek(-min(nbytes + end, os.path.getsize(file)), os.SEEK_END)
            stored = stream.read(nbytes)
        index = np.frombuffer(stored, "<u8", len(stored) // 16 * 2)
        present = tuple(
            slice(-(-min(outer, size - outer * number) // inner))
            for outer, size, number, inner in zip(
                self._grid, self.shape, numbers, chunks, strict=True
            )
        )
        if len(stored) < nbytes or (index.reshape(*counts, 2)[present] == MISSING).any():
            raise VerificationError(f"shard {file} lacks a chunk; {FOREIGN_REMEDY}")


def _open(path: str) -> Any:
    """Return the array, opened by zarr-python."""
    import zarr

    try:
        array = zarr.open_array(path, mode="r")
        # Newer versions can also treat a missing chunk of a shard as an error.
        if hasattr(array, "with_config") and zarr.config.get("array.read_missing_chunks", None):
            config: Any = {"read_missing_chunks": False}
            array = array.with_config(config)
    except Exception as error:
        raise StoreError(f"{path} cannot be opened by zarr-python: {error}; check it") from error
    return array
