"""What corpora by position share: each is its own index and its own tokens."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class CorpusByPosition(ABC):
    """At once the ``index`` and the ``tokens`` that a conversion asks for."""

    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens of all sequences."""

    @property
    def index(self) -> Self:
        """Sequences and documents: this object."""
        return self

    @property
    def tokens(self) -> Self:
        """Tokens by position: this object."""
        return self

    @property
    def bin_nbytes(self) -> int:
        """Bytes of all tokens."""
        return self.num_tokens * self.dtype.itemsize

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset`` of the tokens."""
        itemsize, nbytes = self.dtype.itemsize, count * np.dtype(dtype).itemsize
        start, stop = offset // itemsize, -(-(offset + nbytes) // itemsize)
        skipped = offset - start * itemsize
        raw = self._read_tokens(start, stop).view(np.uint8)
        return raw[skipped : skipped + nbytes].view(dtype)

    @abstractmethod
    def _read_tokens(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the tokens ``[start, stop)``, in their own dtype."""


class PartedCorpus(CorpusByPosition):
    """Parts one after the other.

    A subclass sets where each part begins, and reads of one part at a time.
    """

    #: Where the tokens, sequences and documents of each part begin, and where the last ones end.
    _tokens: list[int]
    _sequences: list[int]
    _documents: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self._tokens[-1]

    @property
    def num_sequences(self) -> int:
        """Stored runs of tokens."""
        return self._sequences[-1]

    @property
    def num_documents(self) -> int:
        """Documents."""
        return self._documents[-1]

    def sequence_lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of sequences ``[start, stop)``, int32."""
        out = np.empty(stop - start, np.int32)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            out[place : place + last - first] = self._part_lengths(number, first, last)
        return out

    def sequence_pointers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of sequences ``[start, stop)``, int64."""
        out = np.empty(stop - start, np.int64)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            pointers = self._part_pointers(number, first, last)
            before = self._tokens[number] * self.dtype.itemsize
            np.add(pointers, before, out=out[place : place + last - first])
        return out

    def document_indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return entries ``[start, stop)`` of the document indices, int64."""
        out = np.full(stop - start, self.num_sequences, np.int64)
        for number, first, last, place in cut_span(self._documents, start, stop):
            entries = self._part_documents(number, first, last)
            np.add(entries, self._sequences[number], out=out[place : place + last - first])
        return out

    def _read_tokens(self, start: int, stop: int) -> npt.NDArray[Any]:
        out = np.empty(stop - start, self.dtype)
        for number, first, last, place in cut_span(self._tokens, start, stop):
            self._fill_tokens(number, first, out[place : place + last - first])
        return out

    @abstractmethod
    def _part_lengths(self, number: int, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of a part's sequences ``[start, stop)``."""

    @abstractmethod
    def _part_pointers(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of a part's sequences ``[start, stop)`` within it."""

    @abstractmethod
    def _part_documents(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the sequence of the part at which each of its documents begins."""

    @abstractmethod
    def _fill_tokens(self, number: int, start: int, out: npt.NDArray[Any]) -> None:
        """Fill an array with a part's tokens from ``start`` on."""


def cut_span(bounds: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield what of each part lies within a span of all of them.

    Parameters
    ----------
    bounds
        Where each part begins, and where the last one ends.
    start, stop
        The span; what of it is behind the last part is left out.

    Yields
    ------
    number, first, last, place
        A part, its elements ``[first, last)``, and where they are in the span.
    """
    at = start
    number = max(0, bisect_right(bounds, start) - 1)
    while at < stop and number < len(bounds) - 1:
        end = min(stop, bounds[number + 1])
        if at < end:
            yield number, at - bounds[number], end - bounds[number], at - start
            at = end
        number += 1
