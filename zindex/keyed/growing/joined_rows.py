"""Arrays that consist of parts in several files and stores, read by position in one round."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import StoreNotFoundError, VerificationError
from zindex.store.layout import ArrayShape
from zindex.store.rows import RoundReader, RowReader, Spans, read_many


class Parts(NamedTuple):
    """The parts of an array, ascending: shape (parts,), int64 each."""

    #: First row of each part in the whole array, and the row after its last one.
    starts: Int64Array
    stops: Int64Array
    #: Row of its own array at which each part starts.
    skips: Int64Array
    #: What is added to the values of each part, if they are offsets.
    shifts: Int64Array


class PartSource(Protocol):
    """Where the parts of an array are."""

    @property
    def view(self) -> object:
        """What determines the parts now."""

    def find_parts(self) -> Parts:
        """Return the parts."""

    def open_parts(self, numbers: list[int]) -> Sequence[RowReader | AnyArray]:
        """Return the arrays of some parts, opened together."""

    def refresh(self, view: object) -> bool:
        """Look for the parts again; return whether they have moved since a view."""


class JoinedRows(RoundReader):
    """One array over several parts.

    Parameters
    ----------
    name, dtype
        For messages, and the dtype of all parts.
    source
        Where the parts are. Rows between two parts, if there are any, cannot be read.
    is_offset
        Whether the rows are offsets of records: a part of n records then has n + 1 rows, and the
        last one is the first of the next part.
    """

    def __init__(
        self, name: str, dtype: str, source: PartSource, *, is_offset: bool = False
    ) -> None:
        stops = source.find_parts().stops
        length = int(stops[-1] if len(stops) else 0) + is_offset
        super().__init__(ArrayShape(name, length, 1, dtype, max(1, length), max(1, length)))
        self.source, self.is_offset = source, is_offset

    @staticmethod
    def read_round(wanted: Sequence[Spans]) -> list[AnyArray]:
        """Return the spans of several joined arrays in one round."""
        sources = [cast("JoinedRows", spans.reader).source for spans in wanted]
        while True:
            views = [source.view for source in sources]
            try:
                return _read_parts(wanted)
            except (StoreNotFoundError, VerificationError):
                pairs = zip(sources, views, strict=True)
                if not any([source.refresh(view) for source, view in pairs]):
                    raise


def _read_parts(wanted: Sequence[Spans]) -> list[AnyArray]:
    """Return the spans of several joined arrays; an error if a part has moved."""
    results: list[AnyArray] = []
    spans_of_parts: list[Spans] = []
    shifted = []
    for spans in wanted:
        reader = cast("JoinedRows", spans.reader)
        starts, stops, out, places = spans.resolve()
        results.append(out)
        target, at = out, places
        if reader.is_offset:  # read one after the other, then shifted and put in their places
            lengths = stops - starts
            at = np.cumsum(lengths) - lengths
            target = np.empty(int(lengths.sum()), np.int64)
        shifts = _divide(reader, Spans(reader, starts, stops, target, at), spans_of_parts)
        if reader.is_offset:
            shifted.append((out, target, shifts, np.repeat(places - at, lengths)))
    read_many(spans_of_parts)
    for out, rows, shifts, moves in shifted:
        out[np.arange(len(rows)) + moves] = rows + shifts
    return results


def _divide(reader: JoinedRows, spans: Spans, found: list[Spans]) -> Int64Array:
    """Divide spans at the borders of parts: copy what is in memory, and add the others to a list.

    Returns
    -------
    shifts
        Shape (rows of all spans,), int64: what to add to each row, if they are offsets.
    """
    _, starts, stops, out, places = spans
    assert out is not None
    assert places is not None
    parts, is_offset = reader.source.find_parts(), int(reader.is_offset)
    ends = parts.stops + is_offset
    first = np.minimum(np.searchsorted(parts.stops, starts, "right"), len(ends) - 1)
    last = np.clip(np.searchsorted(ends, stops, "left"), first, len(ends) - 1)
    counts = np.where(stops > starts, last - first + 1, 0)
    span = np.repeat(np.arange(len(starts)), counts)
    number = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    begin = np.maximum(starts[span], parts.starts[number] + is_offset * (number > first[span]))
    lengths = np.minimum(stops[span], ends[number]) - begin
    kept = lengths > 0
    span, number, begin, lengths = span[kept], number[kept], begin[kept], lengths[kept]
    at = places[span] + begin - starts[span]
    local = begin - parts.starts[number] + parts.skips[number]
    order = np.argsort(number, kind="stable")
    numbers, firsts = np.unique(number[order], return_index=True)
    groups = np.split(order, firsts[1:]) if len(numbers) else []
    for rows, array in zip(groups, reader.source.open_parts(numbers.tolist()), strict=True):
        begins, sizes, targets = local[rows], lengths[rows], at[rows]
        if isinstance(array, RowReader):
            found.append(Spans(array, begins, begins + sizes, out, targets))
            continue
        places_of = zip(begins.tolist(), sizes.tolist(), targets.tolist(), strict=True)
        for start, size, target in places_of:
            out[target : target + size] = array[start : start + size]
    return np.repeat(parts.shifts[number], lengths) if is_offset else parts.shifts
