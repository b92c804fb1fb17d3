"""Base class of low-level datasets, which return sequences of tokens by number."""

import operator
from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array


class SequenceDataset(torch.utils.data.Dataset[Any]):
    """Sequences of tokens by number, and spans of them."""

    path_prefix: str
    multimodal: bool

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of sequences."""

    @abstractmethod
    def _locate(self, idx: int) -> tuple[int, int, int]:
        """Return the number of a sequence from the start, its location, and its length."""

    @abstractmethod
    def _stops(self, start: int, stop: int) -> Int64Array:
        """Return where sequences ``[start, stop)`` stop, in tokens from the first one's start."""

    @abstractmethod
    def _read(self, place: int, offset: int, count: int) -> AnyArray:
        """Return ``count`` tokens from token ``offset`` of a sequence stored at a location."""

    @property
    @abstractmethod
    def _modes(self) -> Any:
        """The mode of each sequence, of a multimodal dataset."""

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
        if not isinstance(idx, slice):
            raise TypeError(
                "a sequence is asked for by a whole number or a slice, not by "
                f"{type(idx).__name__}; convert it with int()"
            )
        start, stop, step = idx.indices(len(self))
        if step != 1:
            raise ValueError(
                f"slices of a dataset must be contiguous, but the step of {idx} is {step}; "
                "ask for the numbers one by one"
            )
        stop = max(start, stop)
        sequences: list[AnyArray] = []
        if start < stop:
            place, stops = self._locate(start)[1], self._stops(start, stop)
            sequences = np.split(self._read(place, 0, int(stops[-1])), stops[:-1])
        return (sequences, self._modes[start:stop]) if self.multimodal else sequences

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Return a span of a sequence: ``length`` tokens (None: all) from token ``offset``.

        Raises
        ------
        IndexError
            If there is no such sequence, or the span is not within it.
        """
        sequence, place, num_tokens = self._locate(operator.index(idx))
        start = operator.index(offset)
        count = num_tokens - start if length is None else operator.index(length)
        if start < 0 or count < 0 or start + count > num_tokens:
            raise IndexError(
                f"a part must lie within its sequence of {num_tokens} tokens, but {count} tokens "
                f"from offset {start} of sequence {idx} of {self.path_prefix} do not; clip it first"
            )
        tokens = self._read(place, start, count)
        return (tokens, self._modes[sequence]) if self.multimodal else tokens

    @property
    @abstractmethod
    def document_indices(self) -> Int64Array:
        """Shape (documents + 1,), int64, first sequence of each document."""

    def get_document_indices(self) -> Int64Array:
        """Return ``document_indices``."""
        return self.document_indices
