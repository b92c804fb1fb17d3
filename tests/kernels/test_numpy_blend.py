"""Blends drawn in numpy equal those of the kernel, which equals the definition."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernels.test_blend import KINDS, draw, make_weights, zeros
from zindex.kernels import numpy_blend
from zindex.kernels.numpy_blend import blend_in_numpy


def assert_equals_kernel(shares: np.ndarray, num_positions: int, **settings: int) -> None:
    is_exhaustive = shares.dtype == np.int64
    weights = shares / float(shares.sum()) if is_exhaustive else shares
    counts = zeros(shares.size)
    got = np.empty(num_positions, np.int16), np.empty(num_positions, np.int64)
    blend_in_numpy(shares, weights, counts, *got, **settings)
    expected = draw(
        weights, zeros(shares.size), 0, num_positions, shares if is_exhaustive else None
    )
    for ours, theirs in zip((*got, counts), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    num_positions=st.integers(0, 300),
    is_exhaustive=st.booleans(),
    block=st.sampled_from([1, 100, 1 << 20]),
)
@example(sizes=[60] * 12, num_positions=300, is_exhaustive=True, block=300)
def test_any_shares(sizes: list[int], num_positions: int, is_exhaustive: bool, block: int) -> None:
    shares = np.array(sizes)
    if is_exhaustive:
        assert_equals_kernel(shares, int(shares.sum()), block_length=block)
    else:
        assert_equals_kernel(shares / shares.sum(), num_positions, block_length=block)


@pytest.mark.parametrize("datasets", [2, 10, 300])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warm_up", [0, 32])
def test_guesses_of_all_kinds(kind: str, datasets: int, warm_up: int) -> None:
    weights = make_weights(kind, datasets, 7)
    assert_equals_kernel(weights, 20_000, warm_up=warm_up)
    sizes = np.maximum(weights * 20_000, 1).astype(np.int64)
    assert_equals_kernel(sizes, 19_000, warm_up=warm_up)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_kernel_draws_what_stays_uncertain(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    firsts = []

    def blend_range(shares, counts, start, datasets, samples):  # type: ignore[no-untyped-def]
        firsts.append(start)
        kernel(shares, counts, start, datasets, samples)

    kernel = numpy_blend.blend_range
    monkeypatch.setattr(numpy_blend, "blend_range", blend_range)
    # Between draws of the rare ones a guess stays wrong.
    assert_equals_kernel(make_weights("giant", 10, 7), 100_000, max_rounds=rounds)
    (first,) = firsts
    assert 0 < first < 100_000
