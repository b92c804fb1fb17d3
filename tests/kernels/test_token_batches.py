"""Samples cut into padded batches, and put into even ones, against naive loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels._jit import interpret
from zindex.kernels.token_batches import cut_padded, fit_evenly

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


@given(
    st.lists(st.integers(1, 20), max_size=40).map(lambda found: sorted(found, reverse=True)),
    st.integers(1, 9),
    st.integers(15, 90),
    st.integers(1, 12),
)
def test_the_batch_with_the_fewest_tokens_is_next(
    tokens: list[int], num_batches: int, capacity: int, max_samples: int
) -> None:
    batches: list[list[int]] = [[] for _ in range(num_batches)]
    expected: list[int] | None = []
    for length in tokens:
        left = [i for i, batch in enumerate(batches) if len(batch) < max_samples]
        chosen = min(left, key=lambda i: (sum(batches[i]), i), default=None)
        if chosen is None or sum(batches[chosen]) + length > capacity:
            expected = None
            break
        batches[chosen].append(length)
        assert expected is not None
        expected.append(chosen)
    for fit in (fit_evenly, interpret(fit_evenly)):
        batch_of = np.empty(len(tokens), np.int32)
        lengths = np.array(tokens, np.int64)
        is_done = bool(fit(lengths, num_batches, capacity, max_samples, batch_of))
        assert is_done == (expected is not None)
        if is_done:
            assert batch_of.tolist() == expected
