"""Segments of an edited run: spans of its positions, each drawn from one blend."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions ``[start, stop)`` of the run: positions of one blend from an offset on."""

    start: int
    stop: int
    blend: int
    offset: int


def cut_at(segments: Sequence[Segment], position: int) -> tuple[Segment, ...]:
    """Return the segments of the positions before one.

    Examples
    --------
    >>> cut_at([Segment(0, 5, 0, 0), Segment(5, 9, 0, 7)], 6)[-1]
    Segment(start=5, stop=6, blend=0, offset=7)
    """
    return tuple(
        replace(item, stop=min(item.stop, position)) for item in segments if item.start < position
    )


def skip_positions(
    segments: Sequence[Segment], start: int, stop: int
) -> tuple[tuple[Segment, ...], tuple[tuple[int, int, int], ...]]:
    """Return the segments without positions ``[start, stop)``, and the skipped spans of blends.

    Later positions move down, so that the run has no gap.

    Examples
    --------
    >>> segments, skipped = skip_positions([Segment(0, 9, 0, 0)], 2, 5)
    >>> segments[-1], skipped
    (Segment(start=2, stop=6, blend=0, offset=5), ((0, 2, 5),))
    """
    kept, skipped = list(cut_at(segments, start)), []
    for item in segments:
        first, last = max(item.start, start), min(item.stop, stop)
        if first < last:
            offset = item.offset + first - item.start
            skipped.append((item.blend, offset, offset + last - first))
        first = max(item.start, stop)
        if first < item.stop:
            shift, offset = stop - start, item.offset + first - item.start
            kept.append(Segment(first - shift, item.stop - shift, item.blend, offset))
    return tuple(kept), tuple(skipped)


def fill_positions(
    segments: Sequence[Segment], positions: Sequence[int]
) -> tuple[tuple[Segment, ...], tuple[tuple[int, int, int], ...], dict[int, int]]:
    """Return the segments without the samples at some positions, filled from the end of the run.

    All other samples keep their position, except that the last ones of the run, in their order,
    move to the positions given. The run gets shorter by as many samples.

    Parameters
    ----------
    segments
        The run.
    positions
        Ascending.

    Returns
    -------
    segments, skipped
        The shorter run, and the spans of blends that it no longer has.
    moved
        The former position of each moved sample, by its new one, ascending.

    Examples
    --------
    >>> segments, skipped, moved = fill_positions([Segment(0, 9, 0, 0)], [2, 8])
    >>> [(item.start, item.stop, item.offset) for item in segments], skipped, moved
    ([(0, 2, 0), (2, 3, 7), (3, 7, 3)], ((0, 2, 3), (0, 8, 9)), {2: 7})
    """
    ends = [item.stop for item in segments]
    num_samples = (ends[-1] if ends else 0) - len(positions)
    dropped = set(positions)
    later = (p for p in range(num_samples, num_samples + len(positions)) if p not in dropped)
    moved = dict(zip((p for p in positions if p < num_samples), later, strict=True))

    def own_position(position: int) -> tuple[int, int]:
        item = segments[bisect_right(ends, position)]
        return item.blend, position - item.start + item.offset

    kept: list[Segment] = []
    start = 0
    for position in (*moved, num_samples):
        kept += _between(segments, start, position)
        if position < num_samples:
            kept.append(Segment(position, position + 1, *own_position(moved[position])))
        start = position + 1
    skipped = tuple((b, p, p + 1) for b, p in map(own_position, positions))
    return tuple(kept), skipped, moved


def _between(segments: Sequence[Segment], start: int, stop: int) -> Iterator[Segment]:
    """Yield the segments of the positions of a span."""
    first = bisect_right(segments, start, key=lambda item: item.stop)
    for item in segments[first:]:
        low, high = max(item.start, start), min(item.stop, stop)
        if low >= high:
            break
        yield Segment(low, high, item.blend, item.offset + low - item.start)
