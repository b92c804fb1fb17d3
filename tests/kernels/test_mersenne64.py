"""The 64-bit word stream and the shuffle made of it, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.mersenne64 import next_words64, seed_state64, shuffle_rows64

SEEDS = st.sampled_from([5489, 0, 1, 1235, -4, 2**31 - 2, 2**63 + 7])


def words_of(seed, count):
    out = np.empty(count, np.uint64)
    next_words64(seed_state64(seed), out)
    return out


def test_the_ten_thousandth_word_is_the_one_of_the_cpp_standard():
    # [rand.predef]: the 10000th call of a default-constructed mt19937_64.
    assert words_of(5489, 10_000)[-1] == 9981545732273789042


@given(seed=SEEDS, counts=st.lists(st.integers(0, 700), max_size=5))
def test_words_do_not_depend_on_how_they_are_drawn(seed, counts):
    state, parts = seed_state64(seed), []
    for count in counts:
        parts.append(np.empty(count, np.uint64))
        next_words64(state, parts[-1])
    assert np.concatenate([*parts, []]).astype(np.uint64).size == sum(counts)
    joined = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    assert np.array_equal(joined, words_of(seed, sum(counts)))


@pytest.mark.parametrize("size", [0, 1, 2, 313, 9000])
def test_a_shuffle_swaps_each_position_with_a_word_modulo_its_number(size):
    expected = list(range(size))
    words = iter(words_of(7, max(0, size - 1)).tolist())
    for position in range(size - 1, 0, -1):
        other = next(words) % (position + 1)
        expected[position], expected[other] = expected[other], expected[position]
    values = np.arange(size, dtype=np.uint32)
    rows = np.column_stack([values, values + 1, values + 2])
    shuffle_rows64(values, seed_state64(7))
    assert values.tolist() == expected
    shuffle_rows64(rows, seed_state64(7))
    assert rows[:, 0].tolist() == expected
    assert (rows - rows[:, :1] == [0, 1, 2]).all()
