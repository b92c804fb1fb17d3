"""Spans of concatenated arrays."""

import numpy as np

from zindex.ingest.spans import JoinedOffsets, cut_span


def test_spans_are_cut() -> None:
    assert list(cut_span([0, 3, 3, 5], 1, 9)) == [(0, 1, 3, 0), (2, 0, 2, 2)]
    assert list(cut_span([0, 3, 3, 5], 3, 4)) == [(2, 0, 1, 0)]
    assert list(cut_span([0, 3, 3, 5], 2, 2)) == []
    assert list(cut_span([0, 0], 0, 1)) == []


def test_offsets_are_joined() -> None:
    """Three shards, the middle one empty, against the sums of all lengths."""
    parts = [np.array([0, 2, 5]), np.array([0]), np.array([0, 0, 1, 8])]
    counts, totals = [len(part) - 1 for part in parts], [int(part[-1]) for part in parts]
    offsets = JoinedOffsets(counts, totals, parts.__getitem__)
    right = [0, 2, 5, 5, 6, 13]
    for start in range(7):
        for stop in range(start, 7):
            assert offsets.read(start, stop).tolist() == right[start:stop]
    assert offsets.read_lengths(1, 5).tolist() == [3, 0, 1, 7]
