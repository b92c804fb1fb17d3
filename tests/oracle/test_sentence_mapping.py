"""Mappings of sentences and sample indices, against megatron-core's compiled helpers."""

from functools import partial

import numpy as np
import pytest

from zindex.datasets import helpers
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.formats.idx_writer import write_index
from zindex.indexing.ensure import build_store
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import MappingArrays, plan_mapping
from zindex.ingest.length_source import open_source
from zindex.store.layout import ChunkGrid


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


def draw_settings(rng):
    """Return epochs, most samples, target, share of short ones, seed and least sentences."""
    epochs, most = int(rng.choice([1, 2, 7])), int(rng.choice([0, 1, 10, 60, 10_000]))
    target, share = int(rng.choice([2, 5, 30, 128])), float(rng.choice([0, 0.1, 0.5, 1, 0.66]))
    return (
        epochs,
        most,
        target,
        share,
        int(rng.choice([1, 42, 1234, 2**31 - 2, 2**31 - 1])),
        rng.integers(1, 4),
    )


def test_mappings_of_300_corpora_equal_megatron_cores(theirs):
    for seed in range(300):
        rng = np.random.default_rng(seed)
        bounds, lengths = draw_corpus(rng)
        epochs, most, target, share, key, least = draw_settings(rng)
        wanted = (bounds, lengths, epochs, most, target, share, key, False, least)
        assert_same(helpers.build_mapping(*wanted), theirs.build_mapping(*wanted), seed)


def test_blocks_of_300_corpora_equal_megatron_cores(theirs):
    for seed in range(300):
        rng = np.random.default_rng(seed)
        bounds, lengths = draw_corpus(rng)
        epochs, most, target, _, key, least = draw_settings(rng)
        titles = rng.integers(0, target, len(bounds) - 1).astype(np.int32)
        wanted = (bounds, lengths, titles, epochs, most, target, key, False, least == 1)
        expected = theirs.build_blocks_mapping(*wanted)
        assert_same(helpers.build_blocks_mapping(*wanted), expected, seed)


def test_sample_indices_equal_megatron_cores(theirs):
    for seed in range(100):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(0, rng.choice([5, 50]), rng.integers(1, 30)).astype(np.int32)
        sizes[-1] += 3
        epochs = int(rng.integers(1, 4))
        order = np.concatenate([rng.permutation(len(sizes)) for _ in range(epochs)])
        rest = (int(rng.integers(2, 20)), epochs, int(sizes.sum()))
        for drop_last in (True, False):
            for extra_token in (0, 1):
                wanted = (sizes, order.astype(np.int32), *rest, drop_last, extra_token)
                for name in ("build_sample_idx_int32", "build_sample_idx_int64"):
                    expected = getattr(theirs, name)(*wanted)
                    assert_same(getattr(helpers, name)(*wanted), expected, seed)


def test_blends_by_any_weights_equal_megatron_cores(theirs):
    for seed in range(50):
        rng = np.random.default_rng(seed)
        weights = rng.choice([0, 0.1, 0.25, 0.5, 1, 1.5, -1], int(rng.integers(1, 6)))
        both = [(np.zeros(40, np.int16), np.zeros(40, np.int64)) for _ in range(2)]
        for module, arrays in zip((helpers, theirs), both, strict=True):
            module.build_blending_indices(*arrays, weights, len(weights), 40, False)
        for ours, expected in zip(*both, strict=True):
            assert_same(ours, expected, weights)


def compare_stored(theirs, folder, seed):
    """Build the mappings of a corpus's split in a store, cut small, and compare them."""
    rng = np.random.default_rng(seed)
    counts = rng.choice([0, 1, 2, 3, 5, 8, 30], rng.integers(2, 40))
    counts[0] += 3
    bounds = np.concatenate([[0], np.cumsum(counts)])
    lengths = rng.integers(0, rng.choice([10, 60, 520]), bounds[-1]).astype(np.int32)
    titles = rng.integers(0, 2, len(counts)).astype(np.int32)
    write_index(folder / "a.idx", np.uint16, lengths, bounds)
    write_index(folder / "t.idx", np.uint16, titles, np.arange(len(counts) + 1))
    source = SentenceSource(*(open_source(folder / name, require_bin=False) for name in "at"))
    _, _, target, share, key, least = draw_settings(rng)
    start, stop = 0, int(rng.integers(1, len(counts) + 1))
    if rng.integers(2):
        start, stop = stop - 1, len(counts)
    common = {
        "split": "train",
        "max_sequence_length": target,
        "seed": key,
        "num_requested": int(rng.choice([0, 1, 30, 400])) or None,
        "grid": ChunkGrid(16, 64),
        "partition_length": int(rng.choice([1, 20, 1000])),
    }
    epochs = 1 if common["num_requested"] is None else 2**31 - 2
    given = (epochs, common["num_requested"] or 2**40, target)
    part = bounds[start : stop + 1]
    for kind in ("sentences", "blocks"):
        if kind == "sentences":
            own = {"short_sequence_probability": share, "min_num_sentences": int(least)}
            build = partial(theirs.build_mapping, part, lengths)
            rest = (share, key, False, least)
        else:
            own = {"kind": kind, "min_num_sentences": 1 + seed % 2}
            build = partial(theirs.build_blocks_mapping, part, lengths, titles[start:stop])
            rest = (key, False, not seed % 2)
        if not len(build(1, 2**40, target, *rest)):
            continue  # Megatron would look for a sample in billions of epochs
        expected = build(*given, *rest)
        used = source if kind == "blocks" else SentenceSource(source.sentences)
        plan = plan_mapping(used, range(start, stop), **common, **own)
        store = run_builds(build_store(plan, used, folder / kind, SerialExecutor())).store
        assert_same(np.asarray(MappingArrays.open(store).sample_index), expected, (seed, kind))


def test_stored_mappings_equal_megatron_cores(theirs, tmp_path):
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        compare_stored(theirs, tmp_path / str(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_stored_mappings_of_300_corpora_equal_megatron_cores(theirs, tmp_path, seed):
    compare_stored(theirs, tmp_path, 1000 + seed)
