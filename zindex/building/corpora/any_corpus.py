"""What a conversion needs of a corpus, whether it is a ``.bin/.idx`` pair or was just tokenised."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class SequenceIndex(Protocol):
    """The lengths of a corpus's sequences, and which of them make up a document."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        ...

    @property
    def num_sequences(self) -> int:
        """Stored runs of tokens."""
        ...

    @property
    def num_documents(self) -> int:
        """Documents; ``document_indices`` has one entry more."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences together."""
        ...

    @property
    def has_modes(self) -> bool:
        """Whether there is a mode for each sequence."""
        ...

    @property
    def bin_nbytes(self) -> int:
        """Bytes of all tokens."""
        ...

    def sequence_lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of sequences ``[start, stop)``."""
        ...

    def sequence_pointers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of sequences ``[start, stop)``."""
        ...

    def document_indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return entries ``[start, stop)`` of the document indices."""
        ...

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return the modes of sequences ``[start, stop)``."""
        ...


class TokenSpans(Protocol):
    """The tokens of a corpus by position."""

    @property
    def path(self) -> str:
        """Where they are."""
        ...

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset``."""
        ...


class AnyCorpus(Protocol):
    """A corpus by position; it pickles as a few fields."""

    @property
    def prefix(self) -> str:
        """What tasks are called by."""
        ...

    @property
    def index(self) -> SequenceIndex:
        """Its sequences and documents."""
        ...

    @property
    def tokens(self) -> TokenSpans:
        """Its tokens."""
        ...
