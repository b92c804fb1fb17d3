"""Packing without compiled code, against the kernel of a build."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.packing import SPLIT, count_samples
from zindex.streaming.lengths.best_fit import count_sequences


@given(
    st.lists(st.integers(1, 200), max_size=300),
    st.integers(1, 90),
    st.integers(1, 12),
)
def test_as_many_sequences_as_a_build_packs(
    lengths: list[int], sequence_length: int, max_samples: int
) -> None:
    documents = np.array(lengths, np.int64)
    expected, _, _ = count_samples(documents, sequence_length, 0, max_samples, SPLIT)
    assert count_sequences(documents, sequence_length, max_samples) == expected


def test_lengths_of_one_kind_are_packed_together() -> None:
    lengths = np.repeat(np.arange(1, 400), 100)
    expected, _, _ = count_samples(lengths, 512, 0, 7, SPLIT)
    assert count_sequences(lengths, 512, 7) == expected
