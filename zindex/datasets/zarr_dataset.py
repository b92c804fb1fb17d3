"""The sequences of a Zarr token store, with the interface of ``IndexedDataset``."""

from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int8Array, Int32Array, Int64Array
from zindex.datasets.sequences import SequenceDataset
from zindex.errors import ConfigError, check_number
from zindex.store.open import Store, open_store
from zindex.store.rows import RowReader
from zindex.store.tokens import open_tokens


class ZarrIndexedDataset(SequenceDataset):
    """The sequences of a token store by number.

    Opening reads one small file; other files are opened lazily in the reading process. It pickles
    as its path and the store's description, and is fork-safe.

    Parameters
    ----------
    path_prefix
        Path of the store.
    multimodal
        Whether items come with their modes, which the store must then have.
    store
        The store, if already open.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or it is not committed.
    StoreError
        If it is not a token store.
    ConfigError
        If the store has no modes and ``multimodal`` is set.
    """

    def __init__(
        self, path_prefix: str, multimodal: bool = False, *, store: Store | None = None
    ) -> None:
        super().__init__()
        self.path_prefix = path_prefix
        self.multimodal = multimodal
        self.store = open_store(path_prefix, kind="tokens") if store is None else store
        #: Tokens of all sequences, and (shape (sequences + 1,), int64) the first token of each.
        self.tokens: RowReader = open_tokens(self.store)
        self.offsets: RowReader = self.store[schema.SEQUENCE_OFFSET.name]
        if multimodal:
            self._check_modes()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return self.tokens.dtype

    @property
    def length_file(self) -> Store:
        """The token store."""
        return self.store

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _locate(self, idx: int) -> tuple[int, int, int]:
        """Return the number of a sequence from the start, its first token, and its length."""
        sequence = check_number(idx, len(self), "a sequence", self.path_prefix)
        first, stop = self.offsets.read(sequence, sequence + 2).tolist()
        return sequence, first, stop - first

    def _stops(self, start: int, stop: int) -> Int64Array:
        """Return where sequences ``[start, stop)`` stop, in tokens from the first one's start."""
        bounds = self.offsets.read(start, stop + 1)
        stops: Int64Array = bounds[1:] - bounds[0]
        return stops

    def _read(self, place: int, offset: int, count: int) -> AnyArray:
        """Return ``count`` tokens from token ``offset`` of the sequence that starts at a token."""
        return self.tokens.read(place + offset, place + offset + count)

    @property
    def _modes(self) -> RowReader:
        """The mode of each sequence, read lazily."""
        return self.store[schema.SEQUENCE_MODE.name]

    @property
    def sequence_lengths(self) -> Int32Array:
        """Shape (sequences,), int32, tokens; all are read at each access."""
        return np.asarray(self.store[schema.SEQUENCE_LENGTH.name])

    @property
    def document_indices(self) -> Int64Array:
        """Shape (documents + 1,), int64, first sequence of each document; read at each access."""
        return np.asarray(self.store[schema.DOCUMENT_OFFSET.name])

    @property
    def sequence_modes(self) -> Int8Array:
        """Shape (sequences,), int8; ConfigError where the store has none."""
        self._check_modes()
        return np.asarray(self._modes)

    def _check_modes(self) -> None:
        """Raise if the store has no modes."""
        if schema.SEQUENCE_MODE.name not in self.store:
            raise ConfigError(
                f"a mode for each sequence was asked for, but {self.path_prefix} has none; "
                "open it without multimodal"
            )
