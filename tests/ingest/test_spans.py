"""Spans of concatenated arrays."""

from zindex.ingest.spans import cut_span


def test_spans_are_cut() -> None:
    assert list(cut_span([0, 3, 3, 5], 1, 9)) == [(0, 1, 3, 0), (2, 0, 2, 2)]
    assert list(cut_span([0, 3, 3, 5], 3, 4)) == [(2, 0, 1, 0)]
    assert list(cut_span([0, 3, 3, 5], 2, 2)) == []
    assert list(cut_span([0, 0], 0, 1)) == []
