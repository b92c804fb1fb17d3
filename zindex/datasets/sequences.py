"""The base of low-level datasets, which return sequences of tokens by number."""

from abc import abstractmethod
from typing import Any

import torch

from zindex.arrays import AnyArray


class SequenceDataset(torch.utils.data.Dataset[Any]):
    """Sequences of tokens by number, and spans of them."""

    path_prefix: str
    multimodal: bool

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of sequences."""

    @abstractmethod
    def _read_slice(self, start: int, stop: int) -> list[AnyArray]:
        """Return the tokens of each sequence in ``[start, stop)``, which is not empty."""

    @abstractmethod
    def _read_modes(self, start: int, stop: int) -> AnyArray:
        """Return the modes of sequences ``[start, stop)``."""

    def _get_slice(self, index: Any) -> Any:
        """Return the sequences of a contiguous slice, read at once."""
        if not isinstance(index, slice):
            raise TypeError(
                "a sequence is asked for by a whole number or a slice, not by "
                f"{type(index).__name__}; convert it with int()"
            )
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError(
                f"slices of a dataset must be contiguous, but the step of {index} is {step}; "
                "ask for the numbers one by one"
            )
        stop = max(start, stop)
        sequences = self._read_slice(start, stop) if start < stop else []
        return (sequences, self._read_modes(start, stop)) if self.multimodal else sequences

    def _check_span(self, sequence: int, num_tokens: int, start: int, count: int) -> None:
        """Refuse a span of tokens that is not within its sequence."""
        if start < 0 or count < 0 or start + count > num_tokens:
            raise IndexError(
                f"a part must lie within its sequence of {num_tokens} tokens, but {count} tokens "
                f"from offset {start} of sequence {sequence} of {self.path_prefix} do not; clip it "
                "first"
            )
