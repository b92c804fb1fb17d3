"""The sequences of a Zarr token store, with the surface of ``IndexedDataset``."""

import operator
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

    def __getitem__(self, idx: Any) -> Any:
        """Return the tokens of a sequence, or of each sequence of a slice.

        Parameters
        ----------
        idx
            A whole number, from the end if negative, or a slice of step 1.

        Returns
        -------
        tokens
            One array, or a list of arrays; if multimodal, with the mode or the modes in a tuple.

        Raises
        ------
        IndexError
            If there is no such sequence.
        ValueError
            If the slice has another step.
        TypeError
            If it is neither a number nor a slice.
        """
        if isinstance(idx, (int, np.integer)):
            return self.get(int(idx))
        return self._get_slice(idx)

    def _read_slice(self, start: int, stop: int) -> list[AnyArray]:
        """Return the tokens of each sequence in ``[start, stop)``, which is not empty."""
        bounds = self.offsets.read(start, stop + 1)
        tokens = self.tokens.read(int(bounds[0]), int(bounds[-1]))
        return np.split(tokens, bounds[1:-1] - bounds[0])

    def _read_modes(self, start: int, stop: int) -> AnyArray:
        """Return the modes of sequences ``[start, stop)``."""
        return self.store[schema.SEQUENCE_MODE.name].read(start, stop)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Return a span of a sequence: ``length`` tokens (None: all) from token ``offset``.

        Raises
        ------
        IndexError
            If there is no such sequence, or the span is not within it.
        """
        sequence = self._position(operator.index(idx))
        bounds = self.offsets.read(sequence, sequence + 2)
        first, last = int(bounds[0]), int(bounds[1])
        start = operator.index(offset)
        count = last - first - start if length is None else operator.index(length)
        self._check_span(idx, last - first, start, count)
        tokens = self.tokens.read(first + start, first + start + count)
        if not self.multimodal:
            return tokens
        return tokens, self.store[schema.SEQUENCE_MODE.name][sequence]

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

    def get_document_indices(self) -> npt.NDArray[np.int64]:
        """Return ``document_indices``."""
        return self.document_indices

    @property
    def sequence_modes(self) -> npt.NDArray[np.int8]:
        """Shape (sequences,), int8; ConfigError where the store has none."""
        self._check_modes()
        return np.asarray(self.store[schema.SEQUENCE_MODE.name])

    def _check_modes(self) -> None:
        """Refuse a store without modes."""
        if schema.SEQUENCE_MODE.name not in self.store:
            raise ConfigError(
                f"a mode for each sequence was asked for, but {self.path_prefix} has none; "
                "open it without multimodal"
            )

    def _position(self, idx: int) -> int:
        """Return the number of a sequence, counted from the start."""
        position = idx + len(self) if idx < 0 else idx
        if not 0 <= position < len(self):
            raise IndexError(
                f"a sequence must lie within [{-len(self)}, {len(self)}), but {idx} was asked of "
                f"{self.path_prefix}; take it modulo the length of the dataset"
            )
        return position
