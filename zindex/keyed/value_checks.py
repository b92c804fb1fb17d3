"""Check the values that a batch reads: token ids of the vocabulary, and finite floats."""

from collections.abc import Mapping, Sequence

import numpy as np

from zindex.arrays import BoolArray
from zindex.errors import SourceError
from zindex.formats.keyed.value_rules import describe_invalid
from zindex.keyed.field_reads import FieldRead
from zindex.keyed.store import KeyedStore

_ALL_IDS = 1 << 63


def check_values(
    store: KeyedStore, reads: Sequence[FieldRead], pad_id: int, largest: Mapping[int, int]
) -> None:
    """Check what was read; the dataset's padding between the spans is allowed.

    Parameters
    ----------
    store, reads, pad_id
        The store, what was read of it, and the padding of token ids.
    largest
        The result of `zindex.keyed.columns.read_columns` for these reads.

    Raises
    ------
    SourceError
        If a token id is not one of the vocabulary, or a float is not finite; with the key and the
        record.
    """
    limit = _ALL_IDS if store.num_ids is None else store.num_ids
    for number, read in enumerate(reads):
        array = read.array
        if 0 <= largest.get(number, -1) < limit:
            continue
        if array.dtype.kind == "f":
            is_valid = bool(np.isfinite(array).all())
        elif read.field.values == "ids":
            # In targets all but the last of a row are inputs, too; as unsigned numbers, negative
            # ones are the largest. A single row may hold several spans.
            is_new = read.field.shift and (len(array) > 1 or len(read.spans.starts) == 1)
            new = array[..., -read.field.shift :] if is_new else array
            is_valid = not new.size or int(new.view(np.uint64).max()) < limit
        else:
            continue
        if not is_valid:
            _refuse(store, read, pad_id, limit)


def _refuse(store: KeyedStore, read: FieldRead, pad_id: int, limit: int) -> None:
    """Raise for the first invalid value within the spans of a read, if any."""
    flat = read.array.reshape(-1)
    wrong: BoolArray = ~np.isfinite(flat) if flat.dtype.kind == "f" else flat.view("u8") >= limit
    wrong &= flat != read.field.pad_of(pad_id)
    starts, stops, places = read.spans
    for place in np.flatnonzero(wrong).tolist():
        span = int(np.searchsorted(places, place, "right")) - 1
        position = int(starts[span]) + place - int(places[span])
        if position >= int(stops[span]):
            continue
        position += read.shift
        value, column = flat[place].item(), read.column
        if column.dtype == np.uint64 and value < 0:
            value += 1 << 64
        where = f"value {position:,} of {store.path}"
        if column.num_records is not None:
            bounds = column.record_offset(0, column.num_records)
            record = int(np.searchsorted(bounds, position, "right")) - 1
            where = f"record {record:,} of {store.path}"
        key = read.field.key
        raise SourceError(describe_invalid(key, value, where, store.num_ids))
