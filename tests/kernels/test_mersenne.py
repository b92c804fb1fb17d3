"""The word stream equals numpy's, word for word and state for state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.words import next_words, numpy_state
from zindex.errors import ConfigError
from zindex.kernels.mersenne import seed_state, temper_words, twist

SEEDS = st.one_of(st.sampled_from([0, 1, 1234, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))


def numpy_words(generator, count):
    return generator.randint(0, 2**32, size=count, dtype=np.uint32)


@given(seed=SEEDS)
def test_seeding_equals_numpy(seed):
    assert np.array_equal(seed_state(seed), numpy_state(np.random.RandomState(seed)))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_32_bits_is_named(seed):
    with pytest.raises(ConfigError, match=rf"\[0, 2\*\*32\), got {seed}"):
        seed_state(seed)


@given(seed=SEEDS, counts=st.lists(st.integers(0, 1500), max_size=6))
def test_words_and_state_equal_numpy_however_they_are_drawn(seed, counts):
    generator, state = np.random.RandomState(seed), seed_state(seed)
    for count in counts:
        out = np.empty(count, np.uint32)
        next_words(state, out)
        assert np.array_equal(out, numpy_words(generator, count))
        assert np.array_equal(state, numpy_state(generator))


def test_the_python_originals_equal_the_kernels():
    state = seed_state(7)
    python_state = state.copy()
    out, python_out = np.empty(600, np.uint32), np.empty(600, np.uint32)
    with np.errstate(over="ignore"):
        twist(state)
        twist.py_func(python_state)
        temper_words(state, 24, out)
        temper_words.py_func(python_state, 24, python_out)
    assert np.array_equal(out, python_out)
    assert np.array_equal(state, python_state)
