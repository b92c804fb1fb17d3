"""Draws of a blend: marked once, and mapped to samples of sources."""

from typing import Any

import numpy as np
import pytest

from zindex.errors import VerificationError
from zindex.indexing.blend_arrays import BlendArrays, compute_blend_arrays
from zindex.maintenance.edits.consumed import ConsumedTable
from zindex.maintenance.edits.draws import (
    BlendScan,
    PoolTable,
    SegmentTable,
    blocks_of,
    shuffle_cut,
)
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.journal import BlendFacts, ConsumedFacts, RunState, Source
from zindex.plan.segments import Segment, fill_positions


def test_draws_continue_with_the_next_source_of_a_dataset() -> None:
    sources = tuple(
        Source(dataset, 1, num_samples, sequence_length=4, seed=1)
        for dataset, num_samples in [(0, 3), (1, 5), (0, 2), (0, 9)]
    )
    used = (
        ConsumedFacts(0, 1, 1, 1),
        ConsumedFacts(1, 5, 5, 5),
        ConsumedFacts(2, 0, 0, 0),
        ConsumedFacts(3, 4, 4, 4),
    )
    blend = BlendFacts((1, 0), (0.5, 0.5), None, 9, 1, used)
    state = RunState(("a", "b"), (1.0, 1.0), (0, 0), 4, sources, (blend,), (Segment(0, 9, 0, 0),))
    pools = PoolTable(state, 0, ConsumedTable(used))
    found = pools.find(np.ones(7, np.int16), np.arange(7, dtype=np.int32))
    assert found.sources.tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert found.samples.tolist() == [1, 2, 0, 1, 4, 5, 6]
    assert list(pools.rows_of(1)) == [0, 2, 3]
    for source in range(4):
        own = np.flatnonzero(found.sources == source)
        dataset, draws = pools.find_draws(source, found.samples[own])
        assert (dataset, draws.tolist()) == (0 if source == 1 else 1, own.tolist())
    assert pools.find_draws(0, np.array([0, 2]))[1].tolist() == [1]  # the first was consumed
    assert pools.find_draws(9, np.array([0]))[0] == -1
    assert list(pools.rows_of(0)) == [1]


def test_ranges_are_cut_at_multiples() -> None:
    assert list(blocks_of([(3, 9), (10, 10), (12, 14)], 4)) == [(3, 4), (4, 8), (8, 9), (12, 14)]


@pytest.mark.parametrize("windows", [(50,), (10, 11, 50)])
def test_windows_are_shuffled_separately(windows: tuple[int, ...]) -> None:
    source = Source(0, None, 50, sequence_length=4, seed=3, parent=0, windows=windows)
    samples = shuffle_cut(source, 7, "train", np.arange(50))
    start = 0
    for stop in windows:
        assert sorted(samples[start:stop].tolist()) == list(range(start, stop))
        start = stop
    assert samples.tolist() != list(range(50))
    some = np.array([49, 0, 10, 10, 30])
    assert shuffle_cut(source, 7, "train", some).tolist() == samples[some].tolist()
    assert shuffle_cut(source, 8, "train", np.arange(50)).tolist() != samples.tolist()


def test_draws_are_counted_block_by_block() -> None:
    plan = BlendPlan.weighted([3.0, 1.0, 2.0], 200, split="train", order="scalable")
    arrays = compute_blend_arrays(plan)
    scan = BlendScan(arrays, block_length=7)
    found = scan.mark_all([(0, 33), (50, 61)])
    drawn = np.concatenate([arrays.dataset_index[0:33], arrays.dataset_index[50:61]])
    assert found.tolist() == np.bincount(drawn, minlength=3).tolist()
    assert scan.mark_all([(33, 50), (61, 200)]).tolist() == (plan.counts - found).tolist()
    with pytest.raises(VerificationError, match="no sample twice, 5 of 5 positions do"):
        scan.mark_all([(7, 12)])


def test_a_sample_that_is_drawn_twice_is_found() -> None:
    datasets, samples = np.zeros(3, np.int16), np.array([0, 1, 1], np.int32)
    scan = BlendScan(BlendArrays(datasets, samples, np.array([3])))
    with pytest.raises(VerificationError, match="no sample twice, 1 of 3 positions do"):
        scan.mark_all([(0, 3)])


def test_positions_of_a_run_are_mapped_to_blends_and_back() -> None:
    segments: Any = (Segment(0, 12, 0, 0), Segment(12, 20, 1, 3), Segment(20, 25, 0, 14))
    segments, _, _ = fill_positions(segments, [2, 3, 13, 21])
    table = SegmentTable(segments)
    blends, places = table.find(np.arange(21))
    assert len({*zip(blends.tolist(), places.tolist(), strict=True)}) == 21
    for blend in (0, 1):
        own = np.flatnonzero(blends == blend)
        assert np.array_equal(table.invert(blend, places[own]), own)
        assert sorted(table.invert(blend, np.arange(40))) == own.tolist()
    assert table.invert(7, np.arange(3)).tolist() == []
