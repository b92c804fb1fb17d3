"""Rows of values, collected part by part."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.invert import collect_rows


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(0, 50),
    st.randoms(use_true_random=False),
    st.sampled_from([(np.uint32, np.uint8, np.uint32), (np.int32, np.int32, np.int64)]),
)
def test_rows_of_every_value(num_values, num_occurrences, first_value, random, dtypes):
    order = [first_value + k for k in range(num_values)] * num_occurrences
    random.shuffle(order)
    values = np.array(order, dtypes[0])
    low = random.randrange(num_values)
    high = random.randrange(low, num_values) + 1
    counts = np.zeros(high - low, dtypes[1])
    rows = np.zeros((high - low, num_occurrences), dtypes[2])
    cut = random.randrange(len(order) + 1)
    for start, stop in ((0, cut), (cut, len(order))):
        assert collect_rows(values[start:stop], start, first_value + low, counts, rows)
    wanted = [np.flatnonzero(values == first_value + k).tolist() for k in range(low, high)]
    assert rows.tolist() == wanted
    assert (counts == num_occurrences).all()


def test_a_value_that_occurs_too_often():
    counts, rows = np.zeros(2, np.uint8), np.zeros((2, 1), np.uint32)
    assert not collect_rows(np.array([5, 6, 5], np.uint32), 0, 5, counts, rows)
    assert collect_rows(np.array([4, 7, 2**32 - 1], np.uint32), 0, 5, np.zeros(2, np.uint8), rows)
