"""Segments of an edited run: cut, skipped, filled from the end."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zindex.plan.segments import Segment, cut_at, fill_positions, skip_positions


def positions_of(segments: Any) -> list[tuple[int, int]]:
    return [
        (item.blend, item.offset + i) for item in segments for i in range(item.stop - item.start)
    ]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5))
def test_exactly_the_skipped_positions_are_missing(cuts: list[tuple[int, int]]) -> None:
    segments: Any = (Segment(0, 12, 0, 0), Segment(12, 20, 1, 3))
    expected, gone = positions_of(segments), []
    for cut in cuts:
        start, stop = sorted(min(bound, len(expected)) for bound in cut)
        segments, skipped = skip_positions(segments, start, stop)
        left_out = [(blend, i) for blend, first, last in skipped for i in range(first, last)]
        assert left_out == expected[start:stop]
        gone += left_out
        del expected[start:stop]
        assert positions_of(segments) == expected
        starts = [item.start for item in segments]
        assert starts == [0, *(item.stop for item in segments)][: len(starts)]
        assert all(item.start < item.stop for item in segments)
    assert len(set(expected) | set(gone)) == 20


def test_segments_are_cut_at_a_position() -> None:
    segments = (Segment(0, 5, 0, 0), Segment(5, 9, 0, 7))
    assert cut_at(segments, 0) == ()
    assert cut_at(segments, 5) == segments[:1]
    assert cut_at(segments, 6) == (segments[0], Segment(5, 6, 0, 7))
    assert cut_at(segments, 9) == segments


@given(st.sets(st.integers(0, 19)), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_dropped_positions_are_filled_from_the_end(
    dropped: set[int], cuts: list[tuple[int, int]]
) -> None:
    segments: Any = (Segment(0, 12, 0, 0), Segment(12, 20, 1, 3))
    for cut in cuts[:2]:
        segments, _ = skip_positions(segments, *sorted(cut))
    before = positions_of(segments)
    gone = sorted(position for position in dropped if position < len(before))
    found, skipped, moved = fill_positions(segments, gone)
    after = positions_of(found)
    assert len(after) == len(before) - len(gone)
    assert sorted([*after, *((blend, start) for blend, start, _ in skipped)]) == sorted(before)
    assert [(blend, start) for blend, start, _ in skipped] == [before[p] for p in gone]
    for position, sample in enumerate(after):
        assert sample == before[moved.get(position, position)]
    assert set(moved) == {position for position in gone if position < len(after)}
    assert [item.start for item in found] == [0, *(item.stop for item in found)][: len(found)]
