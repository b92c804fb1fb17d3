"""The internal reader and writer classes of Megatron Core's ``IndexedDataset``."""

import errno
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int8Array, Int32Array, Int64Array
from zindex.errors import SourceError, VerificationError
from zindex.formats.bin_idx import IdxArrays, read_idx_file
from zindex.formats.bin_reader import BinFile, MappedBinFile
from zindex.formats.idx_writer import write_index

TokenType: TypeAlias = type[np.number[Any]]

logger = logging.getLogger(__name__)

# A retry does not help a process that is out of descriptors.
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


# Elements of the arrays of an .idx file per read.
_BLOCK_LENGTH = 1 << 12


class _IndexWriter:
    """Write an ``.idx`` file in a ``with`` block; ``write`` is atomic."""

    def __init__(self, idx_path: str, dtype: TokenType) -> None:
        self.idx_path = idx_path
        self.dtype = dtype

    def __enter__(self) -> "_IndexWriter":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _sequence_pointers(self, sequence_lengths: Iterable[int | np.integer[Any]]) -> list[int]:
        """Return the first byte of each sequence, from their lengths."""
        lengths = _as_row(sequence_lengths).astype(np.int64) * np.dtype(self.dtype).itemsize
        pointers: list[int] = (np.cumsum(lengths) - lengths).tolist()
        return pointers

    def write(
        self,
        sequence_lengths: Iterable[int | np.integer[Any]],
        sequence_modes: Iterable[int | np.integer[Any]] | None,
        document_indices: Iterable[int | np.integer[Any]],
    ) -> None:
        """Write lengths, modes (or None), document indices, and the pointers that follow."""
        modes = None if sequence_modes is None else _as_row(sequence_modes)
        lengths, entries = _as_row(sequence_lengths), _as_row(document_indices)
        write_index(self.idx_path, self.dtype, lengths, entries, modes)


class LazyArray:
    """An array of an ``.idx`` file, loaded into memory in blocks, each on first use.

    Parameters
    ----------
    read
        Fills an array with elements from an offset on.
    dtype, length
        Of the array.
    """

    def __init__(self, read: Callable[[AnyArray, int], None], dtype: str, length: int) -> None:
        self._read = read
        self._values = np.empty(length, dtype)
        # Single elements are read from the bytes, and arrays of numbers from the array.
        self._missing = bytearray(b"\1") * (-(-length // _BLOCK_LENGTH))
        self._is_missing = np.frombuffer(self._missing, np.bool_)

    def __getitem__(self, where: Any) -> Any:
        """Return an element, those of a slice without a step, or those of an array of numbers.

        Numbers are not negative.
        """
        if type(where) is int:
            if self._missing[where // _BLOCK_LENGTH]:
                self._load(slice(where // _BLOCK_LENGTH, where // _BLOCK_LENGTH + 1))
        elif isinstance(where, slice):
            start, stop, _ = where.indices(len(self._values))
            if start < stop:
                self._load(slice(start // _BLOCK_LENGTH, -(-stop // _BLOCK_LENGTH)))
        else:
            self._load(where // _BLOCK_LENGTH)
        return self._values[where]

    def _load(self, blocks: Any) -> None:
        """Load the missing ones among some blocks."""
        if not self._is_missing[blocks].any():
            return
        is_chosen = np.zeros_like(self._is_missing)  # np.unique would import numpy.ma
        is_chosen[blocks] = True
        missing = np.flatnonzero(is_chosen & self._is_missing)
        # Neighbouring blocks are read together.
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
            start = int(run[0]) * _BLOCK_LENGTH
            self._read(self._values[start : (int(run[-1]) + 1) * _BLOCK_LENGTH], start)
        self._is_missing[missing] = False


class _IndexReader:
    """The arrays of a checked ``.idx`` file, loaded lazily.

    Elements by number are loaded in blocks; an array that is accessed as a whole is loaded
    completely.

    Parameters
    ----------
    idx_path
        The ``.idx`` file.
    multimodal
        Whether the file must have modes, which are then loaded.
    sequences_per_dataset
        The expected numbers of sequences and ``document_indices`` entries in the header.
    dtype_code
        Accepted for compatibility with Megatron; the header's code decides.
    bin_path
        The ``.bin`` whose size is also checked, or None.
    mmap
        Whether the arrays are read-only views of a memory map instead.
    """

    #: Shape (sequences,), int32, tokens.
    sequence_lengths: Int32Array
    #: Shape (sequences,), int64, bytes from the start of the ``.bin``.
    sequence_pointers: Int64Array
    #: Shape (documents + 1,), int64, first sequence of each document.
    document_indices: Int64Array
    #: Shape (sequences,), int8, or None unless multimodal.
    sequence_modes: Int8Array | None

    def __init__(
        self,
        idx_path: str,
        multimodal: bool,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
        bin_path: str | None = None,
        *,
        mmap: bool = False,
    ) -> None:
        self._version = None if mmap else _find_version(idx_path)
        self.file = read_idx_file(idx_path, bin_path, multimodal=multimodal or None)
        self.dtype: TokenType = self.file.dtype.type
        self.dtype_size = self.file.dtype.itemsize
        self.sequence_count = self.file.num_sequences
        self.document_count = self.file.num_documents + 1
        counts = (self.sequence_count, self.document_count)
        if sequences_per_dataset and tuple(sequences_per_dataset) != counts:
            raise SourceError(
                f"sequences_per_dataset must agree with the file, but says "
                f"{tuple(sequences_per_dataset)} where {idx_path} counts {counts}; "
                "count again or leave it out"
            )
        if mmap:
            vars(self).update(self.file.map_arrays()._asdict())
        #: The first two arrays, loaded lazily unless they are mapped.
        self.lengths: Any = self.sequence_lengths if mmap else self._lazy("sequence_lengths")
        self.pointers: Any = self.sequence_pointers if mmap else self._lazy("sequence_pointers")
        if not multimodal:
            self.sequence_modes = None

    def __getattr__(self, name: str) -> Any:
        """Return a whole array."""
        if name not in IdxArrays._fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        parts = {"sequence_lengths": self.lengths, "sequence_pointers": self.pointers}
        array = (parts.get(name) or self._lazy(name))[:]
        array.flags.writeable = False
        vars(self)[name] = array
        return array

    def _lazy(self, name: str) -> LazyArray:
        """Return a lazy array."""

        def read(array: AnyArray, start: int) -> None:
            self.file.read_into(array, name, start)
            if _find_version(self.file.path) != self._version:
                raise VerificationError(
                    f"{self.file.path} must stay as it was opened, it was replaced or written "
                    "since; open the dataset again"
                )

        dtype, _, length = self.file.spans[name]
        return LazyArray(read, dtype, length)

    def __len__(self) -> int:
        return self.sequence_count

    def __getitem__(self, idx: int) -> tuple[np.int64, np.int32, np.int8 | None]:
        """Return pointer, length and mode (None unless multimodal) of a sequence."""
        count = self.sequence_count
        if not -count <= idx < count:
            raise IndexError(
                f"a sequence must lie within [{-len(self)}, {len(self)}), but {idx} was asked of "
                f"{self.file.path}; take it modulo the length of the dataset"
            )
        idx = int(idx) % count
        mode = None if self.sequence_modes is None else self.sequence_modes[idx]
        return self.pointers[idx], self.lengths[idx], mode


class _BinReader(ABC):
    """Reader of the tokens of an ``IndexedDataset``."""

    @abstractmethod
    def read(self, dtype: DTypeLike, count: int, offset: int) -> AnyArray:
        """Return ``count`` items of the dtype from byte ``offset`` of the ``.bin``."""


class _MMapBinReader(MappedBinFile, _BinReader):
    """Read through a memory map: read-only views, no copy.

    Parameters
    ----------
    bin_path
        The ``.bin`` file.
    nbytes
        Expected size of the file, or None.
    """

    def __init__(self, bin_path: str, nbytes: int | None = None) -> None:
        super().__init__(bin_path, nbytes)

    @property
    def _bin_buffer(self) -> memoryview:
        """The bytes of the file, by Megatron Core's name."""
        return self.content.data


class _FileBinReader(_BinReader):
    """Read by position into new arrays, and retry when the file system fails.

    The file is opened lazily; each copy, pickled or not, opens it again.

    Parameters
    ----------
    bin_path
        The ``.bin`` file.
    num_max_retries
        Maximum number of retries; a truncated file is not retried.
    sleep_duration_start
        Seconds before the first retry, doubled before each later one.
    nbytes
        Expected size of the file, or None.
    """

    def __init__(
        self,
        bin_path: str,
        num_max_retries: int = 3,
        sleep_duration_start: int = 10,
        nbytes: int | None = None,
    ) -> None:
        self._bin_path = bin_path
        self._file = BinFile(bin_path, nbytes)
        self.num_max_retries = num_max_retries
        self.sleep_duration_start = sleep_duration_start

    def __reduce__(self) -> tuple[type["_FileBinReader"], tuple[str, int, int, int | None]]:
        settings = (self.num_max_retries, self.sleep_duration_start, self._file.nbytes)
        return type(self), (self._bin_path, *settings)

    @property
    def _fd(self) -> int | None:
        """The open descriptor, by Megatron Core's name; None while there is none."""
        return self._file.descriptor

    def read(self, dtype: DTypeLike, count: int, offset: int) -> AnyArray:
        """Return ``count`` items from byte ``offset``; the last OSError if all retries fail.

        Reads that fail for lack of descriptors are not retried.
        """
        pause = self.sleep_duration_start
        for attempt in range(1, self.num_max_retries + 1):
            try:
                return self._file.read(dtype, count, offset)
            except OSError as error:
                self._file.close()
                if error.errno in _OUT_OF_DESCRIPTORS:
                    raise
                logger.warning(
                    "read %d of %d of %s failed (%s); retrying in %d seconds",
                    attempt,
                    self.num_max_retries + 1,
                    self._bin_path,
                    str(error),  # handlers that keep records would also keep the traceback
                    pause,
                )
            # Outside the except block nothing keeps the failed read's descriptor open.
            time.sleep(pause)
            pause *= 2
        return self._file.read(dtype, count, offset)


def _find_version(path: str) -> tuple[int, int, int] | None:
    """Return a value that changes if a file is replaced or written; None if it is missing."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def _as_row(values: Iterable[Any]) -> AnyArray:
    """Return any iterable of whole numbers as an array."""
    return np.asarray(values if isinstance(values, (Sequence, np.ndarray)) else list(values))
