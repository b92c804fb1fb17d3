"""Values of one key in a Zarr store of records, read by position."""

from collections.abc import Sequence

import numpy as np

from zindex.keyed.columns import Array, Int64Array, Request, put_truth
from zindex.store.rows import RowReader, Spans, read_many


class ZarrColumn:
    """Values of one field of a store of records.

    Parameters
    ----------
    key
        The key.
    values
        The values of all records.
    offsets
        Where records start: one more than there are records; None where nobody knows.
    lengths
        If records are groups, the lengths of their items, as a column of its own.
    """

    def __init__(
        self,
        key: str,
        values: RowReader,
        offsets: RowReader | None,
        lengths: "ZarrColumn | None" = None,
    ) -> None:
        self.key = key
        self.values = values
        self.offsets = offsets
        self.lengths = lengths
        self.dtype = values.dtype
        self.length = len(values)
        self.num_records = None if offsets is None else len(offsets) - 1
        self.has_groups = lengths is not None

    def record_offset(self, start: int, stop: int) -> Int64Array:
        """Return where records ``[start, stop)`` begin, and where the last one ends."""
        assert self.offsets is not None
        return self.offsets.read(start, stop + 1)

    def record_spans(self, records: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where records begin and end."""
        assert self.offsets is not None
        bounds = self.offsets.read_spans(records, records + 2).reshape(-1, 2)
        return bounds[:, 0].copy(), bounds[:, 1].copy()

    def item_lengths(self, records: Int64Array) -> list[Int64Array]:
        """Return the lengths of the items of each of some records."""
        if self.lengths is None:
            starts, stops = self.record_spans(records)
            return list((stops - starts).reshape(-1, 1))
        starts, stops = self.lengths.record_spans(records)
        values = self.lengths.values.read_spans(starts, stops).astype(np.int64, copy=False)
        return np.split(values, np.cumsum(stops - starts)[:-1])

    @staticmethod
    def read_round(requests: Sequence[Request]) -> None:
        """Read spans of the arrays of stores together; see `read_columns`."""
        wanted: list[Spans] = []
        converted: list[tuple[Request, Array]] = []
        for request in requests:
            column, spans = request.column, request.spans
            assert isinstance(column, ZarrColumn)
            target = request.target
            if request.form == "bool" and column.dtype != np.bool_:
                target = np.empty(target.shape, column.dtype)
                converted.append((request, target))
            starts, stops = spans.starts, spans.stops
            if request.shift:
                starts, stops = starts + request.shift, stops + request.shift
            wanted.append(Spans(column.values, starts, stops, target.reshape(-1), spans.places))
        read_many(wanted)
        for request, values in converted:
            put_truth(request, values)
