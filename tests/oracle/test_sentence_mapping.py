"""Mappings of sentences and the other helpers, against megatron-core's compiled ones."""

import numpy as np
import pytest

from zindex.datasets import helpers


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("megatron.core.datasets.helpers_cpp")
    from megatron.core.datasets import helpers as module

    return module


def draw_corpus(rng):
    """Return the bounds of a split's documents, and the lengths of all sentences."""
    counts = rng.choice([0, 1, 2, 3, 5, 8, 30], rng.integers(1, 40))
    counts[rng.integers(len(counts))] += 1
    bounds = np.concatenate([[0], np.cumsum(counts)])
    lengths = rng.integers(0, rng.choice([10, 60, 520]), bounds[-1]).astype(np.int32)
    lengths[rng.random(len(lengths)) < 0.01] = 600
    start, stop = sorted(rng.integers(0, len(counts) + 1, 2))
    if start == stop:
        start, stop = 0, len(counts)
    return bounds[start : stop + 1], lengths


def assert_same(ours, expected, what):
    assert ours.dtype == expected.dtype, what
    assert np.array_equal(ours, expected), what


@pytest.mark.parametrize("seed", range(300))
def test_mappings_equal_megatron_cores(theirs, seed):
    rng = np.random.default_rng(seed)
    bounds, lengths = draw_corpus(rng)
    target = int(rng.choice([2, 5, 30, 128]))
    epochs, most = int(rng.choice([1, 2, 7])), int(rng.choice([0, 1, 10, 60, 10_000]))
    key = int(rng.choice([1, 42, 1234, 2**31 - 2]))
    share, least = float(rng.choice([0, 0.1, 0.5, 1, 0.66])), int(rng.choice([1, 2, 3]))
    wanted = (bounds, lengths, epochs, most, target, share, key, False, least)
    assert_same(helpers.build_mapping(*wanted), theirs.build_mapping(*wanted), wanted[2:])
    titles = rng.integers(0, target, len(bounds) - 1).astype(np.int32)
    single = bool(rng.integers(2))
    blocks = (bounds, lengths, titles, epochs, most, target, key, False, single)
    expected = theirs.build_blocks_mapping(*blocks)
    assert_same(helpers.build_blocks_mapping(*blocks), expected, blocks[3:])


@pytest.mark.parametrize("seed", range(100))
def test_sample_indices_equal_megatron_cores(theirs, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, rng.choice([5, 50]), rng.integers(1, 30)).astype(np.int32)
    sizes[-1] += 3
    epochs = int(rng.integers(1, 4))
    order = np.concatenate([rng.permutation(len(sizes)) for _ in range(epochs)]).astype(np.int32)
    rest = (int(rng.integers(2, 20)), epochs, int(sizes.sum()))
    for drop_last in (True, False):
        for extra_token in (0, 1):
            wanted = (sizes, order, *rest, drop_last, extra_token)
            for name in ("build_sample_idx_int32", "build_sample_idx_int64"):
                expected = getattr(theirs, name)(*wanted)
                assert_same(getattr(helpers, name)(*wanted), expected, wanted[2:])


def test_blends_equal_megatron_cores(theirs):
    shares, sizes = np.array([0.5, 0.3, 0.2]), np.array([30, 5, 65])
    ours = np.zeros(100, np.int16), np.zeros(100, np.int64)
    expected = np.zeros(100, np.int16), np.zeros(100, np.int64)
    for name, *rest in (
        ("build_blending_indices", shares, 3, 90, False),
        ("build_exhaustive_blending_indices", sizes, 3),
    ):
        getattr(helpers, name)(*ours, *rest)
        getattr(theirs, name)(*expected, *rest)
        assert_same(ours[0], expected[0], name)
        assert_same(ours[1], expected[1], name)
