"""Mock documents of Megatron Core's ``MockGPTDataset``."""

from functools import cached_property
from typing import Any

import numpy as np

from zindex.arrays import Int32Array, Int64Array


class MockGPTLowLevelDataset:
    """Mock documents that count 1, 2, 3, ... below the vocabulary size and end with the end token.

    Equal to Megatron Core's: document lengths are drawn from ``numpy.random.default_rng(seed)``,
    lazily, and not pickled.

    Parameters
    ----------
    tokenizer
        Has ``vocab_size`` and ``eod``.
    """

    #: Seed of the lengths.
    seed: int = 0

    #: Number of documents.
    size: int = 100000

    #: Exclusive upper bound of the lengths of documents.
    max_sequence_length: int = 4096

    def __init__(self, tokenizer: Any) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.eod_token = tokenizer.eod

    @cached_property
    def sequence_lengths(self) -> Int32Array:
        """Shape (size,), int32, tokens with the end token."""
        generator = np.random.default_rng(seed=self.seed)
        return generator.integers(
            low=1, high=self.max_sequence_length, size=self.size, dtype=np.int32
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "sequence_lengths"}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> Int64Array:
        """Return the tokens of a document: shape (length,), int64."""
        return self.get(idx)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Int64Array:
        """Return a span of a document: ``length`` tokens (None: all) from token ``offset``.

        Notes
        -----
        Law: equal to a slice of the document; a span beyond its end is shorter. Cost: proportional
        to the tokens returned.
        """
        whole = int(self.sequence_lengths[idx])
        count = whole - int(offset) if length is None else int(length)
        start, stop, _ = slice(int(offset), int(offset) + count).indices(whole)
        tokens = np.arange(start + 1, max(start, stop) + 1, dtype=np.int64)
        tokens %= self.vocab_size
        if start < stop == whole:
            tokens[-1] = self.eod_token
        return tokens
