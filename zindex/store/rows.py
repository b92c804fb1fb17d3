"""Positional readers: the interface of all readers, and rounds that read many arrays at once."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int64Array
from zindex.store.layout import ArrayShape


class RowReader:
    """An array read by position; it behaves like a read-only numpy array of its rows.

    Subclasses implement `_read`. ``reader[3]``, ``reader[10:20]`` and ``numpy.asarray(reader)``
    read only these rows.

    Parameters
    ----------
    layout
        The array's description.
    """

    def __init__(self, layout: ArrayShape) -> None:
        self.layout = layout
        self.dtype: np.dtype[Any] = np.dtype(layout.dtype)
        self.shape: tuple[int, ...] = layout.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return self.layout.length * self.layout.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.layout.nbytes

    def __len__(self) -> int:
        return self.layout.length

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.layout.name} {self.shape} {self.dtype}>"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        if copy is False:
            raise ValueError("an array read by position is always copied; leave copy out")
        values = self.read(0, len(self))
        return values if dtype is None else values.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return one row or a slice of rows; any other index is applied to the whole array."""
        row, column = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if isinstance(row, (int, np.integer)):
            position = int(row) + (len(self) if row < 0 else 0)
            if not 0 <= position < len(self):
                raise IndexError(
                    f"index {row} is out of range for {self.layout.name} of length {len(self)}"
                )
            return self.read(position, position + 1)[(0, *column)]
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step > 0:
                return self.read(start, max(start, stop))[(slice(None, None, step), *column)]
        return np.asarray(self)[index]

    def read(self, start: int, stop: int, out: AnyArray | None = None) -> AnyArray:
        """Return rows ``[start, stop)`` in a new array, or in ``out``.

        Parameters
        ----------
        start, stop
            Rows, ``0 <= start <= stop <= len(self)``.
        out
            Shape (stop - start, ...), this dtype, C order: the destination.

        Raises
        ------
        IndexError
            If the rows are outside the array.
        ValueError
            If ``out`` has another shape, dtype or order.
        VerificationError
            If a shard is missing or a chunk fails its checksum.
        """
        if not 0 <= start <= stop <= len(self):
            raise self._outside(start, stop)
        shape = (stop - start, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(
                f"out must be a C-ordered array of shape {shape} and {self.dtype}, got "
                f"{out.shape} and {out.dtype}; leave it out to get a fresh one"
            )
        self._read(start, stop, out)
        return out

    def read_spans(
        self,
        starts: Int64Array,
        stops: Int64Array,
        out: AnyArray | None = None,
        places: Int64Array | None = None,
    ) -> AnyArray:
        """Return the rows of many spans, concatenated.

        Parameters
        ----------
        starts, stops
            Shape (spans,), int64, rows: span i is ``[starts[i], stops[i])``; spans may overlap and
            have any order.
        out
            Shape (rows, ...), C order, in this dtype or, for one column, int64: the destination.
        places
            Shape (spans,), int64: the row of ``out`` at which each span starts; None concatenates.
            Rows of ``out`` not covered by a span are left unchanged.

        Raises
        ------
        IndexError
            If a span is outside the array.
        ValueError
            If a position is outside ``out``.
        VerificationError
            If a shard is missing or a chunk fails its checksum.
        """
        return self.read_round([Spans(self, starts, stops, out, places)])[0]

    def refuse(self, starts: Int64Array, stops: Int64Array) -> None:
        """Raise IndexError for the first span outside the array, if any."""
        wrong = np.flatnonzero((starts < 0) | (stops < starts) | (stops > len(self)))
        if len(wrong):
            raise self._outside(int(starts[wrong[0]]), int(stops[wrong[0]]))

    def _outside(self, start: int, stop: int) -> IndexError:
        """Return the error for rows outside the array."""
        return IndexError(
            f"rows [{start}, {stop}) are outside {self.layout.name} of length {len(self)}"
        )

    def take(self, rows: Int64Array) -> AnyArray:
        """Return rows by number: shape (len(rows), ...), in this dtype."""
        return self.read_spans(rows, rows + 1)

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        """Fill ``out`` with rows inside the array."""
        raise NotImplementedError

    @staticmethod
    def read_round(wanted: Sequence["Spans"]) -> list[AnyArray]:
        """Return the spans of several arrays of this class; `read_many` calls it per class."""
        return [read_one_by_one(spans) for spans in wanted]


class RoundReader(RowReader):
    """An array whose class reads many arrays at once; subclasses implement `read_round`."""

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        span = np.array([start], np.int64), np.array([stop], np.int64)
        self.read_round([Spans(self, *span, out)])


class Spans(NamedTuple):
    """Spans to read of one array; see `RowReader.read_spans`."""

    reader: RowReader | AnyArray
    starts: Int64Array
    stops: Int64Array
    out: AnyArray | None = None
    places: Int64Array | None = None

    def resolve(self) -> tuple[Int64Array, Int64Array, AnyArray, Int64Array]:
        """Return starts, stops, ``out`` and ``places``, filled in and, for a reader, checked."""
        reader, starts, stops, out, places = self
        starts, stops = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
        is_placed = isinstance(reader, RowReader) and (places is not None or out is not None)
        if isinstance(reader, RowReader):
            check_counts(starts, stops, places)
            reader.refuse(starts, stops)
        lengths = stops - starts
        ends = np.cumsum(lengths)
        if out is None:
            out = np.empty((int(ends[-1]) if len(ends) else 0, *reader.shape[1:]), reader.dtype)
        places = ends - lengths if places is None else np.asarray(places, np.int64)
        if is_placed and len(places):
            check_places(int(places.min()), int((places + lengths).max()), len(out))
        return starts, stops, out, places


def check_counts(starts: Int64Array, stops: Int64Array, places: Int64Array | None) -> None:
    """Raise unless starts, stops and places have equal lengths."""
    count = len(starts)
    if count != len(stops) or (places is not None and count != len(places)):
        raise ValueError(
            f"starts, stops and places must be as many, got {count}, {len(stops)} and "
            f"{'none' if places is None else len(places)}"
        )


def check_places(first: int, last: int, length: int) -> None:
    """Raise if positions are outside the destination."""
    if first < 0 or last > length:
        raise ValueError(
            f"places must put rows into [0, {length}) of out, they reach from {first} to {last}"
        )


def read_one_by_one(spans: Spans) -> AnyArray:
    """Return the rows of spans, read one by one; the array may be in memory."""
    reader = spans.reader
    starts, stops, out, places = spans.resolve()
    read = reader.read if isinstance(reader, RowReader) else None
    for start, stop, place in zip(starts.tolist(), stops.tolist(), places.tolist(), strict=True):
        rows = reader[start:stop] if read is None else read(start, stop)
        out[place : place + stop - start] = rows
    return out


def read_many(wanted: Sequence[Spans]) -> list[AnyArray]:
    """Return spans of many arrays in one round: one kernel call, or concurrent requests.

    Parameters
    ----------
    wanted
        The spans of each array, which may also be in memory.

    Returns
    -------
    rows
        For each of ``wanted``, the result of `RowReader.read_spans`.
    """
    rounds: dict[Any, list[int]] = {}
    for number, spans in enumerate(wanted):
        reader = spans.reader
        read_round = reader.read_round if isinstance(reader, RowReader) else RowReader.read_round
        rounds.setdefault(read_round, []).append(number)
    results: dict[int, AnyArray] = {}
    for read_round, numbers in rounds.items():
        rows = read_round([wanted[number] for number in numbers])
        results.update(zip(numbers, rows, strict=True))
    return [results[number] for number in range(len(wanted))]


def address_of(array: AnyArray) -> int:
    """Return the address of a writable array in C order, in a third of numpy's time.

    It is 0 if the array is empty.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(cast("Any", array))) if array.size else 0


def count_from(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """Return runs of consecutive integers, concatenated: ``counts[i]`` of them from ``starts[i]``.

    Examples
    --------
    >>> count_from(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    numbers = np.repeat(starts - np.cumsum(counts) + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers
