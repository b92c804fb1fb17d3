"""Megatron's ``.bin/.idx`` pairs under Megatron Core's names, checked on every open."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from zindex.arrays import AnyArray, Int8Array, Int32Array, Int64Array
from zindex.datasets.object_storage_utils import (
    OBJECT_STORAGE_BIN_READERS,
    ObjectStorageConfig,
    S3Config,
    _MultiStorageClientBinReader,
    _S3BinReader,
    dataset_exists,
    is_object_storage_path,
    open_remote_pair,
)
from zindex.datasets.sequences import SequenceDataset
from zindex.errors import ConfigError, SourceError, VerificationError, check_whole
from zindex.formats.bin_idx import MAGIC as _INDEX_HEADER
from zindex.formats.bin_idx import IdxFile, bin_path, idx_path
from zindex.formats.bin_writer import PairWriter, convert_tokens
from zindex.formats.megatron_readers import (
    _BinReader,
    _FileBinReader,
    _IndexReader,
    _IndexWriter,
    _MMapBinReader,
)
from zindex.formats.token_dtypes import DType
from zindex.io.files import modified_at
from zindex.store.rows import RowReader
from zindex.store.tokens import FlatFile

__all__ = [
    "OBJECT_STORAGE_BIN_READERS",
    "_INDEX_HEADER",
    "DType",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "ObjectStorageConfig",
    "S3Config",
    "_BinReader",
    "_FileBinReader",
    "_IndexReader",
    "_IndexWriter",
    "_MMapBinReader",
    "_MultiStorageClientBinReader",
    "_S3BinReader",
    "get_bin_path",
    "get_idx_path",
]

TokenType: TypeAlias = type[np.number[Any]]

# Attributes that are opened on demand instead of pickled.
_OPENED = ("index", "bin_reader", "tokens")


class IndexedDataset(SequenceDataset):
    """The sequences of a ``.bin/.idx`` pair by number, with Megatron Core's interface.

    Both files are checked completely on open. The dataset pickles as its constructor's arguments,
    and is reopened on first use after unpickling; a forked child uses the files of its parent.
    Items are new arrays or, with ``mmap``, read-only views of the file.

    Parameters
    ----------
    path_prefix
        Path or URL of the pair without ``.idx``.
    multimodal
        Whether items come with their modes, which the file must then have.
    mmap
        Whether both files are memory-mapped, which saves copying single items and shares the arrays
        of the ``.idx`` among processes; but if a file is truncated while open, the process is
        killed by SIGBUS. By default the ``.bin`` is read by position and the arrays of the ``.idx``
        are loaded into memory, where a truncated file raises an error. Not supported for object
        storage.
    object_storage_config, s3_config
        For a pair in object storage: where to cache its ``.idx``, and how to read its ``.bin``.
    fast_cache_load
        Whether a local pair with ``sequences_per_dataset`` is opened, and checked, on first use.
    sequences_per_dataset
        The sequences and ``document_indices`` entries that the file must have.
    dtype_code
        Accepted for Megatron's callers, and ignored: the code in the file decides.

    Raises
    ------
    SourceError
        If a file is missing, is invalid, or contradicts the other file or the given counts.
    ConfigError
        If the pair is in object storage without a configuration for it, or the reverse.
    """

    index: _IndexReader
    bin_reader: _BinReader
    #: The tokens of all sequences by position, for batches.
    tokens: RowReader

    def __init__(
        self,
        path_prefix: str,
        multimodal: bool = False,
        mmap: bool = False,
        object_storage_config: ObjectStorageConfig | None = None,
        s3_config: ObjectStorageConfig | None = None,
        fast_cache_load: bool = False,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
    ) -> None:
        super().__init__()
        storage = object_storage_config or s3_config
        counts = (sequences_per_dataset, dtype_code)
        self.initialize(path_prefix, multimodal, mmap, storage, fast_cache_load, *counts)

    def initialize(
        self,
        path_prefix: str,
        multimodal: bool,
        mmap: bool,
        object_storage_config: ObjectStorageConfig | None,
        fast_cache_load: bool = False,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
    ) -> None:
        """Open a pair, with the arguments of the constructor."""
        self.path_prefix = path_prefix
        self.multimodal = multimodal
        self.mmap = mmap
        self.object_storage_config = object_storage_config
        self.fast_cache_load = fast_cache_load
        self.sequences_per_dataset = sequences_per_dataset
        self.dtype_code = dtype_code
        self._versions: tuple[Any, Any] | None = None
        if self._is_remote or not (fast_cache_load and sequences_per_dataset):
            self._open(is_new=True)

    @property
    def _is_remote(self) -> bool:
        """Whether the pair is in object storage."""
        is_given = self.object_storage_config is not None
        return is_given or is_object_storage_path(self.path_prefix)

    def _open(self, *, is_new: bool) -> None:
        """Open the pair: after unpickling, with the copy of a remote ``.idx`` that it had."""
        prefix, counts = self.path_prefix, (self.sequences_per_dataset, self.dtype_code)
        if self._is_remote:
            self.index, self.bin_reader, self.tokens = open_remote_pair(
                prefix, self.multimodal, self.object_storage_config, *counts, is_new=is_new
            )
            return
        path = bin_path(prefix)
        self.index = _IndexReader(idx_path(prefix), self.multimodal, *counts, path, mmap=self.mmap)
        versions = modified_at(idx_path(prefix)), modified_at(path)
        if is_new or self._versions is None:
            self._versions = versions
        elif versions != self._versions:
            raise VerificationError(
                f"{idx_path(prefix)} and its .bin must be as they were when the dataset was "
                "opened, they were changed since; open it again"
            )
        nbytes = self.index.file.bin_nbytes
        self.bin_reader = (
            _MMapBinReader(path, nbytes) if self.mmap else _FileBinReader(path, nbytes=nbytes)
        )

    def __getattr__(self, name: str) -> Any:
        """Open a pair on first use, and the tokens of a local one on theirs."""
        if name not in _OPENED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "tokens" and "index" in self.__dict__:
            nbytes = self.index.file.bin_nbytes
            assert self._versions is not None
            path, version = bin_path(self.path_prefix), self._versions[1]
            self.tokens = FlatFile(path, nbytes, self.index.dtype, version)
        else:
            self._open(is_new=False)
        return getattr(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OPENED}

    def __len__(self) -> int:
        if self.sequences_per_dataset and "index" not in self.__dict__:
            return int(self.sequences_per_dataset[0])
        return len(self.index)

    def __getitem__(self, idx: Any) -> Any:
        """Return the tokens of a sequence, or of each sequence of a slice; see the base class."""
        if not isinstance(idx, (int, np.integer)):
            return super().__getitem__(idx)
        # A whole sequence needs none of the checks of a span.
        pointer, length, mode = self.index[int(idx)]
        tokens = self.bin_reader.read(self.index.dtype, int(length), int(pointer))
        return tokens if mode is None else (tokens, mode)

    def _locate(self, idx: int) -> tuple[int, int, int]:
        """Return the number of a sequence, its first byte, and its length in tokens."""
        pointer, length, _ = self.index[idx]
        return idx, int(pointer), int(length)

    def _stops(self, start: int, stop: int) -> Int64Array:
        """Return where sequences ``[start, stop)`` stop, in tokens from the first one's start."""
        return np.cumsum(self.index.lengths[start:stop], dtype=np.int64)

    def _read(self, place: int, offset: int, count: int) -> AnyArray:
        """Return ``count`` tokens from token ``offset`` of the sequence that starts at a byte."""
        index = self.index
        return self.bin_reader.read(index.dtype, count, place + offset * index.dtype_size)

    @property
    def _modes(self) -> AnyArray | None:
        """The mode of each sequence, None unless the dataset was opened as multimodal."""
        return self.index.sequence_modes

    @property
    def length_file(self) -> IdxFile:
        """The checked ``.idx`` file."""
        return self.index.file

    def find_bounds(self, numbers: Int64Array) -> tuple[Int64Array, Int32Array]:
        """Return the first token of sequences among all of the ``.bin``, and their lengths."""
        index = self.index
        return index.pointers[numbers] // index.dtype_size, index.lengths[numbers]

    @property
    def sequence_lengths(self) -> Int32Array:
        """Shape (sequences,), int32, tokens."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> Int64Array:
        """Shape (documents + 1,), int64, first sequence of each document."""
        return self.index.document_indices

    def set_document_indices(self, document_indices: Int64Array) -> None:
        """Replace ``document_indices`` in this object; the file and its pickles keep theirs."""
        self.index.document_indices = document_indices

    @property
    def sequence_modes(self) -> Int8Array:
        """Shape (sequences,), int8; ConfigError unless the dataset was opened as multimodal."""
        if self.index.sequence_modes is None:
            raise ConfigError(
                f"sequence_modes needs multimodal=True, but {self.path_prefix} was opened with "
                "multimodal=False; open it again with the modes"
            )
        return self.index.sequence_modes

    @staticmethod
    def exists(path_prefix: str) -> bool:
        """Return whether both files of the pair exist, on a file system or in object storage."""
        paths = idx_path(path_prefix), bin_path(path_prefix)
        if is_object_storage_path(path_prefix):
            return dataset_exists(path_prefix, *paths)
        return all(map(os.path.exists, paths))


class IndexedDatasetBuilder(PairWriter):
    """Write a ``.bin/.idx`` pair with Megatron Core's interface.

    Tokens may be torch tensors, numpy arrays, lists of numbers or lists of decimal strings. A value
    that does not fit the dtype is an error, and the call then writes nothing. Both files get their
    final names in ``finalize``.

    Parameters
    ----------
    bin_path
        Path of the ``.bin`` file.
    dtype
        Token dtype.
    multimodal
        Whether each sequence has a mode.
    """

    def __init__(
        self, bin_path: str, dtype: TokenType = np.int32, multimodal: bool = False
    ) -> None:
        super().__init__(bin_path, dtype, has_modes=multimodal)
        self.multimodal = multimodal

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Append one sequence to the current document; ``end_document`` ends it."""
        self.append(_as_values(tensor), modes=[mode])

    def add_document(
        self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None
    ) -> None:
        """Append a document of several sequences.

        Parameters
        ----------
        tensor
            The tokens of all its sequences.
        lengths
            Tokens of each sequence, in sum all tokens. An empty list appends an empty document.
        modes
            Mode of each sequence; zeros by default.

        Raises
        ------
        SourceError
            If the lengths do not add up or a token does not fit.
        """
        self.append(_as_values(tensor), lengths, modes)
        self.end_document()

    def add_documents(
        self,
        documents: Any,
        modes: Sequence[int] | None = None,
        eod_token: int | None = None,
        chunk_size: int = 1_000_000,
    ) -> None:
        """Append many documents of one sequence each.

        Parameters
        ----------
        documents
            An awkward array of documents by tokens, or a sequence of token sequences.
        modes
            Mode of each document; zeros by default.
        eod_token
            Token appended to each document; an empty document becomes this token alone.
        chunk_size
            Documents converted at a time.

        Raises
        ------
        SourceError
            If a token does not fit, or the modes are not one per document.
        """
        check_whole("chunk_size", chunk_size, 1)
        if modes is not None and len(modes) != len(documents):
            raise SourceError(
                f"each of the {len(documents)} documents must have one mode, but "
                f"there are {len(modes)}; give one for each document"
            )
        for start in range(0, len(documents), chunk_size):
            span = slice(start, start + chunk_size)
            tokens, lengths = self._convert_documents(documents[span], eod_token)
            first = len(self.sequence_lengths)
            self.append(tokens, lengths, None if modes is None else modes[span])
            self.append_document_ends(first + 1 + np.arange(lengths.size))

    def _convert_documents(
        self, documents: Any, eod_token: int | None
    ) -> tuple[AnyArray, Int64Array]:
        """Return the concatenated tokens of documents, and the length of each."""
        owner = self.bin_path
        if type(documents).__module__.partition(".")[0] == "awkward":
            import awkward

            lengths = np.asarray(awkward.num(documents, axis=1), np.int64)
            flat = np.asarray(awkward.flatten(documents, axis=1))
            tokens = convert_tokens(flat, self.dtype, owner=owner)
        else:
            rows = [convert_tokens(_as_values(row), self.dtype, owner=owner) for row in documents]
            lengths = np.array([row.size for row in rows], np.int64)
            tokens = np.concatenate([np.empty(0, self.dtype), *rows])
        if eod_token is None:
            return tokens, lengths
        eod = convert_tokens([eod_token], self.dtype, owner=f"{owner} (eod_token)")
        return np.insert(tokens, np.cumsum(lengths), eod), lengths + 1

    def add_index(self, path_prefix: str) -> None:
        """Append another pair; SourceError if it is damaged or of another dtype."""
        self.append_pair(path_prefix)


def get_idx_path(path_prefix: str) -> str:
    """Return the path of the index file of a pair."""
    return idx_path(path_prefix)


def get_bin_path(path_prefix: str) -> str:
    """Return the path of the token file of a pair."""
    return bin_path(path_prefix)


def _as_values(tokens: Any) -> Any:
    """Return a tensor's values as an array, and anything else unchanged."""
    return tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else tokens
