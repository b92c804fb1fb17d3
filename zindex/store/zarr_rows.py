"""Arrays that only zarr-python can read, behind the interface of all readers."""

import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zindex.errors import StoreError, VerificationError
from zindex.store.local import reading
from zindex.store.rows import RowReader
from zindex.store.shard import FOREIGN_REMEDY

_KINDS = "biuf"
_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, slots=True)
class _Description:
    """What zarr-python says of an array."""

    name: str
    length: int
    num_columns: int
    dtype: str
    chunk_length: int
    shard_length: int
    shape: tuple[int, ...]
    nbytes: int


class ZarrRows(RowReader):
    """The rows of a local array, read by zarr-python: some hundred microseconds for each span.

    Parameters
    ----------
    path
        Directory of the array.

    Raises
    ------
    StoreError
        If zarr-python cannot open it, or it is no array of numbers with at least one dimension.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._array = _open(path)
        shape, dtype = self._array.shape, self._array.dtype
        if not shape or dtype.kind not in _KINDS:
            raise StoreError(
                f"{path} must hold an array of numbers with rows, got {dtype} of shape {shape}"
            )
        #: Of each file: along an axis one number for each part.
        self._grid: tuple[int, ...] = self._array.shards or self._array.chunks
        if not all(self._grid):
            raise StoreError(f"{path} must have chunks of at least 1, got {self._grid}; check it")
        self._found: set[tuple[int, ...]] = set()
        super().__init__(
            _Description(
                name=path,
                length=shape[0],
                num_columns=math.prod(shape[1:]),
                dtype=dtype.newbyteorder("=").name,
                chunk_length=self._array.chunks[0],
                shard_length=self._grid[0],
                shape=shape,
                nbytes=math.prod(shape) * dtype.itemsize,
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
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
        """Refuse rows of files that are missing: zarr-python would make up their values."""
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
        """Refuse a shard that lacks a chunk, as far as its index is one of the usual kind."""
        (codec,) = self._array.metadata.codecs
        names = [type(step).__name__ for step in codec.index_codecs]
        if names not in (["BytesCodec", "Crc32cCodec"], ["BytesCodec"]):
            return
        chunks = self._array.chunks
        counts = [outer // inner for outer, inner in zip(self._grid, chunks, strict=True)]
        nbytes = 16 * math.prod(counts)
        end = 4 * (len(names) - 1)
        with reading(Path(file)), open(file, "rb") as stream:
            if codec.index_location.value == "end":
                stream.seek(-min(nbytes + end, os.path.getsize(file)), os.SEEK_END)
            stored = stream.read(nbytes)
        index = np.frombuffer(stored, "<u8", len(stored) // 16 * 2)
        present = tuple(
            slice(-(-min(outer, size - outer * number) // inner))
            for outer, size, number, inner in zip(
                self._grid, self.shape, numbers, chunks, strict=True
            )
        )
        if len(stored) < nbytes or (index.reshape(*counts, 2)[present] == _MISSING).any():
            raise VerificationError(f"shard {file} lacks a chunk; {FOREIGN_REMEDY}")


def _open(path: str) -> Any:
    """Return the array, opened by zarr-python."""
    try:
        array = zarr.open_array(path, mode="r")
        # Only newer versions know this: then a chunk that a shard lacks is an error too.
        if hasattr(array, "with_config") and zarr.config.get("array.read_missing_chunks", None):
            config: Any = {"read_missing_chunks": False}
            array = array.with_config(config)
    except Exception as error:
        raise StoreError(f"{path} cannot be opened by zarr-python: {error}; check it") from error
    return array
