"""Spread values that each belong to a whole record over the tokens of windows."""

from collections.abc import Sequence

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError
from zindex.formats.keyed.value_rules import describe_invalid, find_invalid
from zindex.keyed.columns import read_columns
from zindex.keyed.field_reads import FieldRead
from zindex.keyed.file_values import ColumnRead, CopySpans
from zindex.keyed.store import KeyedStore
from zindex.keyed.windows import WindowSpans, divide_spans
from zindex.store.rows import count_from


def spread_records(store: KeyedStore, reads: Sequence[FieldRead], bounds: Int64Array) -> None:
    """Fill targets with the value of the record of each token.

    Parameters
    ----------
    store
        The store, for messages.
    reads
        Of columns with one value per record; their spans are those of tokens.
    bounds
        Shape (records + 1,), int64, tokens: first token of each record, and the end of the last.

    Raises
    ------
    SourceError
        If a float is not finite.
    """
    wanted: list[ColumnRead] = []
    spread: list[tuple[FieldRead, AnyArray, Int64Array, Int64Array, Int64Array]] = []
    for read in reads:
        (starts, stops, places), shift = read.spans, read.shift
        whole = WindowSpans(np.arange(len(starts)), places, starts + shift, stops - starts)
        pieces = divide_spans(whole, bounds)
        records = np.searchsorted(bounds, pieces.starts, "right") - 1
        values = np.empty(len(records), read.array.dtype)
        own = CopySpans(records, records + 1, np.arange(len(records)))
        wanted.append(read.column.read(own, values))
        spread.append((read, values, records, places[pieces.rows] + pieces.offsets, pieces.lengths))
    read_columns(wanted)
    for read, values, records, first, lengths in spread:
        wrong = find_invalid(values, is_tokens=False)
        if wrong is not None:
            where = f"record {records[wrong]:,} of {store.path}"
            raise SourceError(describe_invalid(read.field.key, values[wrong].item(), where))
        read.array.reshape(-1)[count_from(first, lengths)] = np.repeat(values, lengths)
