"""Arrays that consist of parts in several files and stores, read by position in one round."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import StoreNotFoundError, VerificationError
from zindex.store.layout import ArrayShape
from zindex.store.reader import count_spans
from zindex.store.rows import RoundReader, RowReader, Spans, count_from, read_many


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
    requests: list[Spans] = []
    # Complete the result of each of ``wanted``, once the requests are answered.
    finish: list[Callable[[list[AnyArray]], AnyArray]] = []
    for spans in wanted:
        reader = cast("JoinedRows", spans.reader)
        parts = reader.source.find_parts()
        is_single = len(parts.starts) == 1 and not (reader.is_offset and spans.out is not None)
        array = reader.source.open_parts([0])[0] if is_single else None
        if isinstance(array, RowReader):  # which reads on its own
            reader.refuse(spans.starts, spans.stops)
            move = int(parts.skips[0] - parts.starts[0])
            shift = int(parts.shifts[0]) if reader.is_offset else 0
            finish.append(partial(_take, len(requests), shift))
            starts, stops = spans.starts + move, spans.stops + move
            requests.append(spans._replace(reader=array, starts=starts, stops=stops))
        else:
            finish.append(_divide(reader, parts, spans, requests))
    answers = read_many(requests)
    count_spans(requests)
    return [complete(answers) for complete in finish]


def _take(number: int, shift: int, answers: list[AnyArray]) -> AnyArray:
    return answers[number] + shift if shift else answers[number]


def _divide(
    reader: JoinedRows, parts: Parts, spans: Spans, requests: list[Spans]
) -> Callable[[list[AnyArray]], AnyArray]:
    """Divide spans at the borders of parts; copy what is in memory, and request the rest.

    Returns
    -------
    complete
        Returns the rows, once the requests are answered.
    """
    starts, stops, out, places = spans.resolve()
    is_offset, target, at = int(reader.is_offset), out, places
    if is_offset:  # read one after the other, then shifted and put in their places
        lengths = stops - starts
        at = np.cumsum(lengths) - lengths
        target = np.empty(int(lengths.sum()), np.int64)
    ends = parts.stops + is_offset
    first = np.minimum(np.searchsorted(parts.stops, starts, "right"), len(ends) - 1)
    last = np.clip(np.searchsorted(ends, stops, "left"), first, len(ends) - 1)
    counts = np.where(stops > starts, last - first + 1, 0)
    span = np.repeat(np.arange(len(starts)), counts)
    number = count_from(first, counts)
    begin = np.maximum(starts[span], parts.starts[number] + is_offset * (number > first[span]))
    sizes = np.minimum(stops[span], ends[number]) - begin
    kept = sizes > 0
    span, number, begin, sizes = span[kept], number[kept], begin[kept], sizes[kept]
    targets = at[span] + begin - starts[span]
    begin += parts.skips[number] - parts.starts[number]
    opened = np.unique(number).tolist()
    arrays = dict(zip(opened, reader.source.open_parts(opened), strict=True))
    for part, array in arrays.items():
        if isinstance(array, RowReader):
            rows = np.flatnonzero(number == part)
            firsts = begin[rows]
            requests.append(Spans(array, firsts, firsts + sizes[rows], target, targets[rows]))
            arrays[part] = None
    pieces = zip(number.tolist(), begin.tolist(), sizes.tolist(), targets.tolist(), strict=True)
    for part, start, size, place in pieces:
        array = arrays[part]
        if array is not None:
            target[place : place + size] = array[start : start + size]
    if not is_offset:
        return lambda answers: out
    shifts = np.repeat(parts.shifts[number], sizes)
    moves = count_from(places, stops - starts)

    def complete(answers: list[AnyArray]) -> AnyArray:
        out[moves] = target + shifts
        return out

    return complete
