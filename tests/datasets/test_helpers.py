"""The functions under the names of Megatron's compiled helpers; `tests/oracle` compares them."""

import logging

import numpy as np
import pytest

from zindex.datasets.helpers import (
    build_blending_indices,
    build_blocks_mapping,
    build_exhaustive_blending_indices,
    build_mapping,
    build_sample_idx,
    build_sample_idx_int64,
)
from zindex.errors import ConfigError, PlanError

BOUNDS = np.array([0, 3, 4, 8])
LENGTHS = np.array([5, 6, 7, 9, 3, 3, 3, 3], np.int32)
TITLES = np.array([0, 1, 2], np.int32)


def test_mappings_that_megatron_core_gave():
    rows = build_mapping(BOUNDS, LENGTHS, 2, 100, 10, 0.1, 42, False, 1)
    expected = [[0, 3, 10], [3, 4, 10], [0, 3, 9], [4, 8, 10], [3, 4, 6], [4, 8, 10]]
    assert rows.tolist() == expected
    rows = build_mapping(BOUNDS, LENGTHS, 1, 100, 10, 0, 42, False, 2)
    assert rows.tolist() == [[4, 8, 10], [0, 3, 10]]


def test_an_epoch_without_samples_is_not_repeated():
    rows = build_mapping(BOUNDS, LENGTHS, 2**31 - 2, 100, 10, 0.1, 42, False, 5)
    assert rows.shape == (0, 3)


def test_numbers_out_of_range_are_named():
    with pytest.raises(ConfigError, match=r"at least 2 tokens .* got 1 and 0"):
        build_mapping(BOUNDS, LENGTHS, 1, 100, 1, 0, 42, False, 1)
    with pytest.raises(ConfigError, match=r"share of short ones in \[0, 1\], got 10 and 1\.5"):
        build_mapping(BOUNDS, LENGTHS, 1, 100, 10, 1.5, 42, False, 1)
    with pytest.raises(ConfigError, match=r"a seed in .* got 2147483648 and 100"):
        build_mapping(BOUNDS, LENGTHS, 1, 100, 10, 0, 2**31, False, 1)
    with pytest.raises(ConfigError, match=r"runs of the 4 sentences, got bounds from 0 to 8"):
        build_mapping(BOUNDS, LENGTHS[:4], 1, 100, 10, 0, 1, False, 1)
    with pytest.raises(ConfigError, match=r"each of the 3 documents, got 10 and 2"):
        build_blocks_mapping(BOUNDS, LENGTHS, TITLES[:2], 1, 100, 10, 42, False, False)
    with pytest.raises(PlanError, match=r"at least 1 and documents .* got 4, 0 documents and 0"):
        build_sample_idx(LENGTHS, BOUNDS[:0], 4, 1, 0)


def test_a_blend_fills_the_arrays_it_is_given():
    datasets, numbers = np.full(8, -1, np.int16), np.full(8, -1, np.int64)
    build_blending_indices(datasets, numbers, np.array([0.5, 0.25, 0.25]), 3, 6, False)
    assert datasets.tolist() == [0, 1, 2, 0, 0, 1, -1, -1]
    build_exhaustive_blending_indices(datasets, numbers, np.array([3, 1, 4]), 3)
    assert datasets.tolist() == [2, 0, 1, 2, 0, 2, 0, 2]
    assert numbers.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([2.0, 1.0], [0] * 8), ([0.0, 0.0], [0, 1] * 4), ([0.5, 0.25, 0.0, 0.25], [0, 1, 3, 0] * 2)],
)
def test_weights_outside_the_unit_interval(weights, expected):
    """As Megatron Core's helpers gave them."""
    datasets, numbers = np.empty(8, np.int16), np.empty(8, np.int64)
    build_blending_indices(datasets, numbers, np.array(weights), len(weights), 8, False)
    assert datasets.tolist() == expected
    seen = [expected[:position].count(which) for position, which in enumerate(expected)]
    assert numbers.tolist() == seen
    with pytest.raises(PlanError, match=r"weights must be finite .* got \[nan  1\.\]"):
        build_blending_indices(datasets, numbers, np.array([np.nan, 1.0]), 2, 8, False)


def test_large_corpora_need_int64():
    assert build_sample_idx(LENGTHS, BOUNDS[:3], 4, 1, 18).dtype == np.int32
    assert build_sample_idx_int64(LENGTHS, BOUNDS[:3], 4, 1, 18).dtype == np.int64


def test_verbose_logs_the_result(caplog):
    datasets, numbers = np.empty(6, np.int16), np.empty(6, np.int64)
    with caplog.at_level(logging.INFO):
        build_mapping(BOUNDS, LENGTHS, 1, 100, 10, 0, 42, True, 2)
        build_blocks_mapping(BOUNDS, LENGTHS, TITLES, 1, 100, 10, 42, True, False)
        build_blending_indices(datasets, numbers, np.array([0.5, 0.5]), 2, 6, True)
    assert "to 2 samples" in caplog.text
    assert "to 2 blocks" in caplog.text
    assert "blended 6 samples" in caplog.text
