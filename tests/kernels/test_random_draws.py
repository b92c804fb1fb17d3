"""Single draws: the same as numpy's legacy generator, in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.mersenne import seed_state
from zindex.kernels.random_draws import (
    MEMORY_LENGTH,
    draw_double,
    draw_geometric,
    draw_shuffle,
    draw_up_to,
    draw_word,
    seed_draws,
)

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
def test_seed_is_numpys(seed: int) -> None:
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    seed_draws(seed, memory)
    np.testing.assert_array_equal(memory[:625], seed_state(seed))


@given(SEEDS, st.lists(st.tuples(st.sampled_from("dugsw"), st.integers(0, 700)), max_size=60))
def test_draws_are_numpys(seed: int, draws: list[tuple[str, int]]) -> None:
    memory, targets = np.empty(MEMORY_LENGTH, np.uint32), np.empty(700, np.uint64)
    seed_draws(seed, memory)
    state = np.random.RandomState(seed)
    for kind, number in draws:
        if kind == "d":
            assert draw_double(memory) == state.random_sample()
        elif kind == "u":
            assert draw_up_to(number, memory) == state.randint(0, number + 1)
        elif kind == "g":
            assert draw_geometric(0.2, memory) == state.geometric(0.2)
        elif kind == "w":
            assert draw_word(memory) == state.randint(0, 2**32, dtype=np.uint32)
        else:
            ours, theirs = np.arange(number), list(range(number))
            draw_shuffle(ours, memory, targets)
            state.shuffle(theirs)
            assert ours.tolist() == theirs


@pytest.mark.parametrize("maximum", [1, 2**31 - 1, 2**31, 2**32 - 2])
def test_large_maxima(maximum: int) -> None:
    memory = np.empty(MEMORY_LENGTH, np.uint32)
    seed_draws(5, memory)
    state = np.random.RandomState(5)
    for _ in range(100):
        assert draw_up_to(maximum, memory) == state.randint(0, maximum + 1)
