"""From draws of a blend to samples of sources."""

import numpy as np
import pytest

from zindex.building.edits.edited import PoolTable, blocks_of, shuffle_cut
from zindex.building.edits.used import UsedTable
from zindex.plan.journal import BlendFacts, RunState, Segment, Source, UsedFacts


def test_draws_go_on_with_the_next_source_of_a_dataset() -> None:
    sources = tuple(
        Source(dataset, 1, num_samples, sequence_length=4, seed=1)
        for dataset, num_samples in [(0, 3), (1, 5), (0, 2), (0, 9)]
    )
    used = (
        UsedFacts(0, 1, 1, 1),
        UsedFacts(1, 5, 5, 5),
        UsedFacts(2, 0, 0, 0),
        UsedFacts(3, 4, 4, 4),
    )
    blend = BlendFacts((1, 0), (0.5, 0.5), None, 9, 1, used)
    state = RunState(("a", "b"), (1.0, 1.0), (0, 0), 4, sources, (blend,), (Segment(0, 9, 0, 0),))
    pools = PoolTable(state, 0, UsedTable(used))
    found = pools.find(np.ones(7, np.int16), np.arange(7, dtype=np.int32))
    assert found.sources.tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert found.samples.tolist() == [1, 2, 0, 1, 4, 5, 6]
    assert list(pools.rows_of(1)) == [0, 2, 3]
    assert list(pools.rows_of(0)) == [1]


def test_ranges_are_cut_at_multiples() -> None:
    assert list(blocks_of([(3, 9), (10, 10), (12, 14)], 4)) == [(3, 4), (4, 8), (8, 9), (12, 14)]


@pytest.mark.parametrize("windows", [(50,), (10, 11, 50)])
def test_windows_are_shuffled_by_themselves(windows: tuple[int, ...]) -> None:
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
