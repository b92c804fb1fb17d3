"""The sequences of a Zarr token store, with the surface of ``IndexedDataset``."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.arrays import AnyArray
from zindex.datasets.sequences import SequenceDataset
from zindex.errors import ConfigError
from zindex.ingest.length_source import count_tokens
from zindex.store.open import Store, open_store
from zindex.store.rows import RowReader
from zindex.store.tokens import open_tokens


class ZarrIndexedDataset(SequenceDataset):
    """The sequences of a token store by number.

    Opening reads one small file; reads open the other files lazily, in the process that reads. It
    pickles as its path and the store's description, and is safe after ``fork``.

    Parameters
    ----------
    path_prefix
        Path of the store.
    multimodal
        Whether items come with their modes, which the store must then have.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or it is not committed.
    StoreError
        If it is not a token store.
    ConfigError
        If the store has no modes and ``multimodal`` is set.
    """

    def __init__(self, path_prefix: str, multimodal: bool = False) -> None:
        super().__init__()
        self._take(path_prefix, open_store(path_prefix, kind="tokens"), multimodal)

    @classmethod
    def of(cls, path_prefix: str, store: Store) -> "ZarrIndexedDataset":
        """Return the dataset of an open token store."""
        dataset = cls.__new__(cls)
        dataset._take(path_prefix, store, multimodal=False)
        return dataset

    def _take(self, path_prefix: str, store: Store, multimodal: bool) -> None:
        self.path_prefix = path_prefix
        self.multimodal = multimodal
        self.store = store
        #: Tokens of all sequences, and (shape (sequences + 1,), int64) the first token of each.
        self.tokens: RowReader = open_tokens(self.store)
        self.offsets: RowReader = self.store[schema.SEQUENCE_OFFSET.name]
        if multimodal:
            self._check_modes()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        dtype: np.dtype[Any] = np.dtype(self.store.spec["token_dtype"])
        return dtype

    @property
    def length_file(self) -> Store:
        """The token store."""
        return self.store

    def __len__(self) -> int:
        return int(self.store.spec["num_sequences"])

    def _locate(self, idx: int) -> tuple[int, int, int]:
        """Return the number of a sequence from the start, its first token and its length."""
        sequence = idx + len(self) if idx < 0 else idx
        if not 0 <= sequence < len(self):
            raise IndexError(
                f"a sequence must lie within [{-len(self)}, {len(self)}), but {idx} was asked of "
                f"{self.path_prefix}; take it modulo the length of the dataset"
            )
        first, stop = self.offsets.read(sequence, sequence + 2).tolist()
        return sequence, first, stop - first

    def _bounds(self, start: int, stop: int) -> AnyArray:
        """Return the first token of each sequence in ``[start, stop)``, and the end of the last."""
        return self.offsets.read(start, stop + 1)

    def _read(self, first: int, count: int) -> AnyArray:
        """Return a span of the tokens of all sequences."""
        return self.tokens.read(first, first + count)

    @property
    def _modes(self) -> RowReader:
        """The mode of each sequence, read lazily."""
        return self.store[schema.SEQUENCE_MODE.name]

    def count_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of sequences ``[start, stop)``, from two offsets."""
        return count_tokens(self.store, start, stop)

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Shape (sequences,), int32, tokens; read whole at each use."""
        return np.asarray(self.store[schema.SEQUENCE_LENGTH.name])

    @property
    def document_indices(self) -> npt.NDArray[np.int64]:
        """Shape (documents + 1,), int64, first sequence of each document; read at each use."""
        return np.asarray(self.store[schema.DOCUMENT_OFFSET.name])

    @property
    def sequence_modes(self) -> npt.NDArray[np.int8]:
        """Shape (sequences,), int8; ConfigError where the store has none."""
        self._check_modes()
        return np.asarray(self._modes)

    def _check_modes(self) -> None:
        """Refuse a store without modes."""
        if schema.SEQUENCE_MODE.name not in self.store:
            raise ConfigError(
                f"a mode for each sequence was asked for, but {self.path_prefix} has none; "
                "open it without multimodal"
            )
