"""Histograms of lengths: their bins, sums and quantiles, and what limits cut off."""

import json
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.text.length_histogram import LengthHistogram, bin_bounds, number_bins

any_lengths = st.lists(
    st.one_of(st.integers(0, 70), st.integers(0, 5000), st.integers(0, (1 << 52) - 1)), max_size=40
)


def test_bins_tile_all_lengths() -> None:
    stop = 0
    for number in range(600):
        start, after = bin_bounds(number)
        assert start == stop
        assert number_bins(np.array([start, after - 1])).tolist() == [number, number]
        assert after - start == 1 or (after - start) * 32 < start
        stop = after
    powers = 1 << np.arange(52)
    assert [bin_bounds(number)[1] for number in number_bins(powers).tolist()] == [*(powers + 1)]


@given(any_lengths, any_lengths, any_lengths)
def test_sums_are_exact_in_any_order(a: list[int], b: list[int], c: list[int]) -> None:
    whole = LengthHistogram.of(a + b + c)
    x, y, z = map(LengthHistogram.of, (a, b, c))
    assert LengthHistogram.union([z, LengthHistogram.union([x, y])]) == whole
    assert LengthHistogram.union([x, y, z]) == whole
    assert (whole.num_samples, whole.num_tokens) == (len(a + b + c), sum(a + b + c))
    assert LengthHistogram.from_json(json.loads(json.dumps(asdict(whole)))) == whole


@given(any_lengths.filter(bool), st.floats(0, 1))
def test_quantiles_are_within_a_bin(lengths: list[int], share: float) -> None:
    found = LengthHistogram.of(lengths).quantile(share)
    true = sorted(lengths)[max(0, int(np.ceil(share * len(lengths))) - 1)]
    assert abs(found - true) <= true / 32
    histogram = LengthHistogram.of(lengths)
    assert (histogram.quantile(0), histogram.quantile(1)) == (min(lengths), max(lengths))
    assert histogram.shortest == min(lengths)


@given(any_lengths, st.one_of(st.integers(1, 64), st.sampled_from([1 << k for k in range(40)])))
def test_cutting_is_exact_at_powers_of_two(lengths: list[int], limit: int) -> None:
    histogram = LengthHistogram.of(lengths)
    assert histogram.kept_tokens(limit) == sum(min(length, limit) for length in lengths)
    assert histogram.longer_samples(limit) == sum(length > limit for length in lengths)


@given(any_lengths)
def test_costs_of_limits(lengths: list[int]) -> None:
    costs = list(LengthHistogram.of(lengths).limit_costs())
    assert sum(item.count for item in costs) == len(lengths)
    for item in costs:
        longer = [length for length in lengths if length > item.most]
        assert item.num_longer == len(longer)
        assert item.num_lost == sum(longer) - item.most * len(longer)
    if costs:
        assert costs[0].count
        assert costs[-1].count
        assert costs[-1].num_longer == 0


@given(any_lengths)
def test_counts_of_equal_lengths(lengths: list[int]) -> None:
    counts = Counter(lengths)
    assert LengthHistogram.of([*counts], [*counts.values()]) == LengthHistogram.of(lengths)


@given(any_lengths, st.integers(1, 10_000))
def test_cutting_elsewhere_is_within_a_bin(lengths: list[int], limit: int) -> None:
    histogram = LengthHistogram.of(lengths)
    true = sum(min(length, limit) for length in lengths)
    assert abs(histogram.kept_tokens(limit) - true) <= true / 32


def test_longer_samples_are_counted() -> None:
    histogram = LengthHistogram.of([1, 5, 63, 64, 64, 200, 3000])
    assert [histogram.longer_samples(limit) for limit in (4, 5, 64, 128, 4096)] == [6, 5, 2, 2, 0]


def test_drawn_lengths_represent_all() -> None:
    lengths = np.repeat([3, 10, 1000], [60, 30, 10])
    drawn = LengthHistogram.of(lengths).draw(10)
    assert drawn.tolist() == [3] * 6 + [10] * 3 + [1000]
    assert LengthHistogram.of(lengths).draw(100).tolist() == lengths.tolist()


def test_nothing_has_no_lengths() -> None:
    empty = LengthHistogram.union([])
    assert empty == LengthHistogram.of([])
    assert (empty.num_samples, empty.quantile(0.5), empty.kept_tokens(7)) == (0, 0, 0)
    assert empty.draw(3).tolist() == []


@pytest.mark.parametrize(
    ("length", "number"), [(0, 0), (1, 1), (64, 64), (65, 65), (128, 96), (129, 97), (256, 128)]
)
def test_numbers_of_bins(length: int, number: int) -> None:
    assert number_bins(np.array([length])).tolist() == [number]
