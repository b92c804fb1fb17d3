"""The grouped shuffle equals ``RandomState.shuffle`` and the ten lines that define it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.words import next_words, numpy_state
from zindex.kernels import legacy_shuffle as module
from zindex.kernels.legacy_shuffle import draw_targets, legacy_shuffle
from zindex.kernels.mersenne import seed_state, temper_words

DTYPES = [np.int32, np.uint32, np.int64, np.uint64]


def naive_target(draw_word, position):
    mask = 2 ** int(position).bit_length() - 1
    while True:
        word = draw_word()
        if position > 2**32 - 1:
            word = word << 32 | draw_word()
        if word & mask <= position:
            return word & mask


def word_drawer(state):
    def draw():
        out = np.empty(1, np.uint32)
        next_words(state, out)
        return int(out[0])

    return draw


def naive_shuffle(values, state):
    draw = word_drawer(state)
    for position in range(len(values) - 1, 0, -1):
        target = naive_target(draw, position)
        values[position], values[target] = values[target], values[position]


def test_every_small_size_equals_numpy_in_one_long_run():
    generator, state = np.random.RandomState(1234), seed_state(1234)
    for size in range(2001):
        expected, values = np.arange(size, dtype=np.int32), np.arange(size, dtype=np.int32)
        generator.shuffle(expected)
        legacy_shuffle(values, state)
        assert np.array_equal(values, expected), size
    assert np.array_equal(state, numpy_state(generator))


@pytest.mark.parametrize("dtype", [*DTYPES, np.int8, np.uint16])
def test_every_integer_dtype_is_shuffled_alike(dtype):
    generator, state = np.random.RandomState(3), seed_state(3)
    expected = np.arange(100).astype(dtype)
    values = expected.copy()
    generator.shuffle(expected)
    legacy_shuffle(values, state)
    assert np.array_equal(values, expected)
    assert values.dtype == dtype


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    block=st.integers(1, 400),
    dtype=st.sampled_from(DTYPES),
)
def test_the_size_of_the_blocks_changes_nothing(seed, sizes, block, dtype):
    generator, state = np.random.RandomState(seed), seed_state(seed)
    for size in sizes:
        expected = np.arange(size).astype(dtype)
        values = expected.copy()
        generator.shuffle(expected)
        words = np.empty(624, np.uint32)
        temper_words(state, 0, words)
        module._shuffle(values, 1, state, words, np.empty(block, np.uint64))
        assert np.array_equal(values, expected)
    assert np.array_equal(state, numpy_state(generator))


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (4096, np.int32),  # one block less one target
        (4097, np.int64),  # exactly one block
        (4098, np.uint32),
        (2**16 + 3, np.uint16),
        (2**20 + 1, np.int64),
        (5_000_000, np.int32),
        pytest.param(10**8, np.int32, marks=pytest.mark.slow),
    ],
)
def test_large_sizes_equal_numpy(size, dtype):
    generator, state = np.random.RandomState(99), seed_state(99)
    for _ in range(2):
        expected, values = np.arange(size).astype(dtype), np.arange(size).astype(dtype)
        generator.shuffle(expected)
        legacy_shuffle(values, state)
        assert np.array_equal(values, expected)
    assert np.array_equal(state, numpy_state(generator))


@pytest.mark.parametrize("cuts", [[0], [1], [0, 1, 2], [5000], [4096, 8191, 9000]])
def test_values_are_final_from_where_a_shuffle_stops(cuts):
    expected, values = np.arange(9001), np.arange(9001)
    whole_state, state = seed_state(4), seed_state(4)
    legacy_shuffle(expected, whole_state)
    stop = values.size
    for cut in [*reversed(cuts), 0]:
        legacy_shuffle(values[:stop], state, cut)
        assert np.array_equal(values[cut:], expected[cut:])
        stop = cut
    assert np.array_equal(values, expected)
    assert np.array_equal(state, whole_state)


def test_the_python_originals_equal_the_naive_shuffle(monkeypatch):
    for name in ("_shuffle", "swap_targets", "draw_targets"):
        monkeypatch.setattr(module, name, getattr(module, name).py_func)
    monkeypatch.setattr(module, "prefetch", lambda values, target: values[target])
    for size in (0, 1, 2, 3, 40, 300):
        expected, values = np.arange(size), np.arange(size)
        naive_state, state = seed_state(8), seed_state(8)
        naive_shuffle(expected, naive_state)
        legacy_shuffle(values, state)
        assert np.array_equal(values, expected)
        assert np.array_equal(state, naive_state)


@pytest.mark.parametrize("top", [5, 2**20 + 100, 2**31 + 50, 2**32 + 3, 2**32 + 700, 2**40])
def test_targets_equal_the_naive_draws_on_both_sides_of_32_bits(top):
    state, naive_state = seed_state(5), seed_state(5)
    words = np.empty(624, np.uint32)
    temper_words(state, 0, words)
    targets = np.empty(min(top, 1500), np.uint64)
    draw_targets(state, words, top, targets)
    draw = word_drawer(naive_state)
    assert targets.tolist() == [naive_target(draw, top - k) for k in range(targets.size)]
    assert np.array_equal(state, naive_state)
