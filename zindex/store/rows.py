"""Arrays read by position: what every reader offers, and rounds over many of them at once.

Where the rows come from is the business of the classes in `zindex.store.reader` and beside it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Described(Protocol):
    """What a reader must know of its array."""

    @property
    def name(self) -> str:
        """Name, for messages."""
        ...

    @property
    def length(self) -> int:
        """Rows."""
        ...

    @property
    def num_columns(self) -> int:
        """Values of a row."""
        ...

    @property
    def dtype(self) -> str:
        """Numpy dtype name."""
        ...

    @property
    def chunk_length(self) -> int:
        """Rows that are checked and decoded at once."""
        ...

    @property
    def shard_length(self) -> int:
        """Rows of a file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        ...


class RowReader:
    """An array read by position; it behaves like a read-only numpy array of its rows.

    Subclasses say how rows ``[start, stop)`` get into an array. ``reader[3]``, ``reader[10:20]``
    and ``numpy.asarray(reader)`` read what they name and no more.

    Parameters
    ----------
    layout
        The array's description.
    """

    def __init__(self, layout: Described) -> None:
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

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array read by position is always copied; leave copy out")
        values = self.read(0, len(self))
        return values if dtype is None else values.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return one row, a slice of rows, or what numpy indexing makes of the whole array."""
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

    def read(self, start: int, stop: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return rows ``[start, stop)`` in a fresh array, or in ``out``.

        Parameters
        ----------
        start, stop
            Rows, ``0 <= start <= stop <= len(self)``.
        out
            Shape (stop - start, ...), this dtype, C order; where to put them.

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
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
        out: npt.NDArray[Any] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the rows of many spans, one span after the other.

        Parameters
        ----------
        starts, stops
            Shape (spans,), int64, rows: span i is ``[starts[i], stops[i])``; spans may overlap and
            come in any order.
        out
            Shape (rows, ...), C order, in this dtype or, for one column, int64; where to put them.
        places
            Shape (spans,), int64: the row of ``out`` at which each span goes; one after the other
            if left out. Rows of ``out`` that no span covers stay as they are.

        Raises
        ------
        IndexError
            If a span is outside the array.
        ValueError
            If a place is outside ``out``.
        VerificationError
            If a shard is missing or a chunk fails its checksum.
        """
        check_counts(starts, stops, places)
        lengths = stops - starts
        if len(lengths) and (lengths.min() < 0 or lengths.max() > len(self)):
            self.refuse(starts, stops)
        if places is None:
            places = np.cumsum(lengths) - lengths
        if out is None:
            out = np.empty((int(lengths.sum()), *self.shape[1:]), self.dtype)
        if len(places):
            check_places(int(places.min()), int((places + lengths).max()), len(out))
        for start, stop, place in zip(
            starts.tolist(), stops.tolist(), places.tolist(), strict=True
        ):
            out[place : place + stop - start] = self.read(start, stop)
        return out

    def refuse(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Raise IndexError for the first span that is outside the array, if there is one."""
        wrong = np.flatnonzero((starts < 0) | (stops < starts) | (stops > len(self)))
        if len(wrong):
            raise self._outside(int(starts[wrong[0]]), int(stops[wrong[0]]))

    def _outside(self, start: int, stop: int) -> IndexError:
        """Return the error for rows that are not there."""
        return IndexError(
            f"rows [{start}, {stop}) are outside {self.layout.name} of length {len(self)}"
        )

    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return rows by number: shape (len(rows), ...), in this dtype."""
        return self.read_spans(rows, rows + 1)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows that are known to exist."""
        raise NotImplementedError

    @staticmethod
    def read_round(wanted: Sequence["Spans"]) -> list[npt.NDArray[Any]]:
        """Return the spans of several arrays of this class: what `read_many` calls, class by class.

        Classes that read many arrays better at once than one after the other have their own.
        """
        return [read_array_spans(*spans) for spans in wanted]


def check_counts(
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64] | None,
) -> None:
    """Refuse spans of which there are not as many starts as stops and places."""
    count = len(starts)
    if count != len(stops) or (places is not None and count != len(places)):
        raise ValueError(
            f"starts, stops and places must be as many, got {count}, {len(stops)} and "
            f"{'none' if places is None else len(places)}"
        )


def check_places(first: int, last: int, length: int) -> None:
    """Refuse places outside the array that rows are to be put into."""
    if first < 0 or last > length:
        raise ValueError(
            f"places must put rows into [0, {length}) of out, they reach from {first} to {last}"
        )


class Spans(NamedTuple):
    """What is wanted of one array; see `RowReader.read_spans`."""

    reader: RowReader | npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    out: npt.NDArray[Any] | None = None
    places: npt.NDArray[np.int64] | None = None


def read_many(wanted: Sequence[Spans]) -> list[npt.NDArray[Any]]:
    """Return spans of many arrays in one round: one kernel call, or requests side by side.

    Parameters
    ----------
    wanted
        What is wanted of each array. An array in memory stands for itself.

    Returns
    -------
    rows
        For each of ``wanted`` what `RowReader.read_spans` returns.
    """
    rounds: dict[Any, list[int]] = {}
    for number, spans in enumerate(wanted):
        reader = spans.reader
        way = reader.read_round if isinstance(reader, RowReader) else RowReader.read_round
        rounds.setdefault(way, []).append(number)
    results: dict[int, npt.NDArray[Any]] = {}
    for way, numbers in rounds.items():
        results.update(zip(numbers, way([wanted[number] for number in numbers]), strict=True))
    return [results[number] for number in range(len(wanted))]


def read_array_spans(
    reader: RowReader | npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    out: npt.NDArray[Any] | None = None,
    places: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    """Return the rows of many spans of a reader, or of an array in memory."""
    if isinstance(reader, RowReader):
        return reader.read_spans(starts, stops, out, places)
    lengths = stops - starts
    if places is None:
        places = np.cumsum(lengths) - lengths
    if out is None:
        out = np.empty((int(lengths.sum()), *reader.shape[1:]), reader.dtype)
    for start, stop, place in zip(starts.tolist(), stops.tolist(), places.tolist(), strict=True):
        out[place : place + stop - start] = reader[start:stop]
    return out
