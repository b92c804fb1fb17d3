"""Read and search the arrays of an index by value, and the lengths of documents."""

from collections.abc import Callable
from functools import partial

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.ingest.length_source import LengthSource
from zindex.io.request_threads import map_in_threads
from zindex.store.open import Store
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.tokens import FlatFile

# Rows of a stored array that are searched per read.
_BLOCK = 1 << 20
# Maximum number of value runs for which comparing a block with each is faster than a search.
_MAX_RUNS = 8
_NUM_THREADS = 4
# Rows that are read at once, about a page.
_BLOCK_ROWS = 512

#: An array of an index, stored or in memory.
Rows = RowReader | AnyArray


def take(array: Rows, rows: Int64Array) -> Int64Array:
    """Return rows of an array by number, as int64."""
    [found] = read_many([Spans(array, rows, rows + 1)])
    return found.astype(np.int64)


def search(array: Rows, values: Int64Array) -> Int64Array:
    """Return the rows whose value is in ``values``, ascending; ``values`` must be ascending."""
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1) if len(values) else []
    ends = [(int(run[0]), int(run[-1])) for run in runs]

    def search_block(start: int) -> Int64Array:
        block = array[start : start + _BLOCK]
        if len(runs) > _MAX_RUNS:
            is_found = np.isin(block, values)
        else:
            is_found = np.zeros(len(block), np.bool_)
            # Plain integers, so that numpy does not convert the block.
            for low, high in ends:
                is_found |= block == low if low == high else (block >= low) & (block <= high)
        return start + np.flatnonzero(is_found)

    starts = range(0, len(array) if runs else 0, _BLOCK)
    found = map_in_threads(min(_NUM_THREADS, max(1, len(starts))), search_block, starts)
    return np.concatenate([np.empty(0, np.int64), *found])


def open_lengths(source: LengthSource) -> Callable[[Int64Array], Int64Array]:
    """Return the function from documents to their lengths, in tokens, which keeps files open."""
    if isinstance(source.reader, Store):
        return partial(take, source.reader[schema.SEQUENCE_LENGTH.name])
    index = source.reader
    dtype, first, size = index.spans["sequence_lengths"]
    # Read as bytes, because the lengths of an .idx are not aligned.
    file, width = FlatFile(index.path, index.nbytes, np.uint8), np.dtype(dtype).itemsize

    def read(documents: Int64Array) -> Int64Array:
        if len(documents) and not 0 <= documents.min() <= documents.max() < size:
            raise IndexError(f"documents up to {documents.max()} are outside the {size} of {file}")
        starts = first + width * documents
        return file.read_spans(starts, starts + width).view(dtype).astype(np.int64)

    return read


def search_sorted(boundaries: Rows, values: Int64Array, most: int) -> Int64Array:
    """Return the first row whose first column is at least each value; few rows are read.

    Parameters
    ----------
    boundaries
        Shape (rows, columns); the first column ascends about evenly from 0.
    values, most
        Shape (values,), int64: what to find, and about the largest value of the column.

    Notes
    -----
    Cost: a few rounds of two rows per value, as the even course predicts a row to within a few
    square roots of the number of rows; then one round of about a page, or a row per value.
    """
    # Each row is among some, and the column has some values just before and after these.
    rows = np.stack([np.zeros_like(values), np.full_like(values, len(boundaries))])
    course = np.stack([np.zeros_like(values), np.full_like(values, max(most, 1))])
    is_even = np.ones(len(values), np.bool_)
    most_rows = max(1, _BLOCK_ROWS // max(1, len(values)))
    while (own := np.flatnonzero(rows[1] - rows[0] > most_rows)).size:
        (low, high), (first, last), value = rows[:, own], course[:, own], values[own]
        share = np.clip((value - first) / np.maximum(last - first, 1), 0, 1)
        guess = low + np.where(is_even[own], share, 0.5) * (high - low)
        reach = np.where(is_even[own], 2 * np.sqrt(high - low), 0)
        probes = np.clip([guess - reach, guess + reach], low + 1, high - 1).astype(np.int64)
        found = take(boundaries, probes.reshape(-1) - 1)[:, 0].reshape(probes.shape)
        num_before = (found < value).sum(axis=0)
        ends = np.stack([num_before, num_before + 1])
        rows[:, own] = np.take_along_axis(np.stack([low, *probes, high]), ends, axis=0)
        course[:, own] = np.take_along_axis(np.stack([first, *found, last]), ends, axis=0)
        is_even[own] = 2 * (rows[1] - rows[0])[own] <= high - low
    [block] = read_many([Spans(boundaries, *rows)])
    sizes = rows[1] - rows[0]
    is_before = block[:, 0] < np.repeat(values, sizes)
    owners = np.repeat(np.arange(len(values)), sizes)
    positions: Int64Array = rows[0] + np.bincount(owners[is_before], minlength=len(values))
    return positions
