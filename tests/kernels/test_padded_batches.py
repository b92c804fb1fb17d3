"""Consecutive samples cut into padded batches, against a naive loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.padded_batches import cut_padded

TERMS = np.array([[0, -1], [1, 2]])


def cut_naively(rows: list[list[int]], capacity: int, max_samples: int) -> list[int]:
    """Return the end of each batch."""
    stops, batch = [], list[list[int]]()
    for number, row in enumerate(rows):
        asked, count, length = np.array([*batch, row]).max(0).tolist()
        tokens = (len(batch) + 1) * (asked + count * length)
        if batch and (tokens > capacity or len(batch) == max_samples):
            stops.append(number)
            batch = []
        batch.append(row)
    return [*stops, len(rows)] if rows else []


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), max_size=40),
    st.integers(1, 200),
    st.integers(1, 6),
)
def test_batches_are_those_of_a_naive_loop(
    rows: list[list[int]], capacity: int, max_samples: int
) -> None:
    widths, expected = (
        np.array(rows, np.int64).reshape(-1, 3),
        cut_naively(rows, capacity, max_samples),
    )
    for cut in (cut_padded, cut_padded.py_func):  # type: ignore[attr-defined]
        stops = np.empty(len(rows), np.int64)
        count = int(cut(widths, TERMS, capacity, max_samples, stops))
        assert stops[:count].tolist() == expected
