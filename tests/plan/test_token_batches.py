"""Windows divided into batches of a token budget, against sums and naive batches."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, PlanError
from zindex.plan.token_batches import (
    Layout,
    SampleSizes,
    TokenBudget,
    check_sizes,
    divide_window,
)

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def batches_of(sizes: SampleSizes, budget: TokenBudget) -> list[list[int]]:
    samples, stops = divide_window(sizes, budget)
    return [part.tolist() for part in np.split(samples, stops[:-1])]


def groups(rows: list[tuple[int, int, int]]) -> SampleSizes:
    """Sizes of a prompt and some responses: tokens of the prompt, responses, tokens of each."""
    widths = np.array(rows)
    tokens = np.array([count * (asked + length) for asked, count, length in rows])
    return SampleSizes(tokens, widths, np.array([[0, -1], [1, 2]]), tokens)


def padded_tokens(rows: list[tuple[int, int, int]]) -> int:
    asked, count, length = np.array(rows).max(0).tolist()
    return len(rows) * (asked + count * length)


@given(LENGTHS, st.integers(40, 130), st.sampled_from(["packed", "padded"]), st.integers(1, 9))
def test_every_sample_is_in_one_batch_within_the_budget(
    lengths: list[int], max_tokens: int, layout: Layout, max_samples: int
) -> None:
    sizes = SampleSizes.of_lengths(np.array(lengths))
    found = batches_of(sizes, TokenBudget(max_tokens, layout, max_samples))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        own = [lengths[sample] for sample in batch]
        assert batch == sorted(batch)
        assert 1 <= len(batch) <= max_samples
        assert (sum(own) if layout == "packed" else len(own) * max(own)) <= max_tokens
    if layout == "packed" and max_samples * 40 > max_tokens:
        least = max(1, -(-sum(lengths) // max_tokens))
        assert len(found) <= 2 * least + len(lengths) / max_samples + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=30
    ),
    st.integers(60, 200),
)
def test_padded_groups_have_the_size_of_their_tensors(
    rows: list[tuple[int, int, int]], max_tokens: int
) -> None:
    sizes = groups(rows)
    assert sizes.padded.tolist() == [padded_tokens([row]) for row in rows]
    found = batches_of(sizes, TokenBudget(max_tokens, "padded"))
    assert sorted(i for batch in found for i in batch) == list(range(len(rows)))
    assert all(padded_tokens([rows[i] for i in batch]) <= max_tokens for batch in found)


def test_batches_of_a_window_have_nearly_equal_tokens() -> None:
    lengths = np.random.default_rng(0).integers(1, 900, 4000)
    sizes = SampleSizes.of_lengths(lengths)
    packed = batches_of(sizes, TokenBudget(8192))
    sums = np.array([lengths[batch].sum() for batch in packed])
    assert len(packed) == -(-lengths.sum() // 8192)
    assert sums.min() > 0.999 * sums.max()
    # All have about the same mix of lengths.
    counts = np.array([len(batch) for batch in packed])
    assert counts.max() - counts.min() <= 3
    # Half of them only fit best-fit decreasing.
    large = SampleSizes.of_lengths(np.array([60, 50, 50, 40, 35, 35, 30]))
    assert len(batches_of(large, TokenBudget(100))) == 3
    padded = batches_of(sizes, TokenBudget(8192, "padded"))
    areas = np.array([len(batch) * lengths[batch].max() for batch in padded])
    assert len(padded) < 1.06 * len(packed)
    # A batch that could not take another sample has most of the capacity.
    assert sorted(areas)[1] > 0.85 * 8192
    # As many batches, but not one that is nearly empty.
    few = SampleSizes.of_lengths(np.full(9, 10))
    assert [len(batch) for batch in batches_of(few, TokenBudget(80))] == [5, 4]


def test_sizes() -> None:
    sizes = groups([(2, 3, 4), (1, 1, 9)])
    merged = sizes.merge(np.array([0]))
    assert (merged.tokens.tolist(), merged.widths.tolist()) == ([28], [[2, 3, 9]])
    assert sizes.take(np.array([1])).padded.tolist() == [10]
    assert sizes.measure("packed").tolist() == [18, 10]
    one, other = (SampleSizes.of_lengths(np.array(x)) for x in ([1, 2], [2, 1]))
    assert one.digest() != other.digest()
    assert one.digest() == SampleSizes.of_lengths(np.array([1, 2], np.int16)).digest()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"max_samples": 0}, "max_samples must be a whole number of at least 1, got 0"),
        ({"window": 2.5}, "window must be a whole number of at least 1, got 2.5"),
        ({"layout": "flat"}, "layout must be one of packed, padded, got 'flat'"),
    ],
)
def test_invalid_budgets(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TokenBudget(**({"max_tokens": 8} | settings))


def test_long_samples_are_refused() -> None:
    sizes = SampleSizes.of_lengths(np.array([3, 90, 5, 100]))
    with pytest.raises(
        PlanError, match=r"hold every sample of a\.zarr, got 2 that are longer, up "
    ):
        check_sizes(sizes, TokenBudget(89), "a.zarr")
    check_sizes(sizes, TokenBudget(100, "padded"), "a.zarr")
