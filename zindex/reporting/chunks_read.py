"""Chunks of stored arrays that each sample of a run needs, in the rounds of the loader."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.indexing.ensure import MAX_COMPUTED_ROWS
from zindex.inspection.answers.run_order import RunOrder
from zindex.maintenance.edits.index_search import take
from zindex.maintenance.edits.order_sources import (
    CutSource,
    OrderSource,
    SampleParts,
    StreamSource,
)
from zindex.maintenance.edits.packed_source import PackedSource
from zindex.store.chunk_reader import FileReader
from zindex.store.open import Store
from zindex.store.rows import RoundReader
from zindex.store.shard import ArrayFiles
from zindex.store.tokens import open_tokens

#: Rounds of requests of a batch; each depends on the answers of those before it.
ROUNDS = ("blend", "shuffle", "sample", "document", "offset", "tokens")
#: Unit of reads from flat files, which are read by span.
PAGE_NBYTES = 4096
# Maximum distance of rows that share a read.
_NEAR = 512


class ArrayReads(NamedTuple):
    """Chunks of one array, with the sample that needs each; a sample may repeat a chunk."""

    name: str
    #: Index in `ROUNDS`.
    round: int
    #: Files of the array. Chunks of a flat file are pages of `PAGE_NBYTES` and not cached.
    form: ArrayFiles
    #: Shape (reads,) each: row of the sample in the request, and chunk.
    owners: Int64Array
    chunks: Int64Array
    #: Bytes of the rows that the samples need.
    useful_nbytes: int

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk in its file, before compression."""
        return PAGE_NBYTES if self.form.flat else self.form.stride


def find_chunks(
    order: RunOrder, positions: Int64Array, max_computed_rows: int = MAX_COMPUTED_ROWS
) -> list[ArrayReads]:
    """Return the chunks of all stored arrays that samples need.

    Parameters
    ----------
    order
        The run.
    positions
        Shape (positions,), int64, ascending.
    max_computed_rows
        Rows up to which each process computes an index or blend instead of reading it, as in
        ``GPTDatasetConfig``.

    Returns
    -------
    reads
        One entry per array: blend, index and corpus. Arrays that are computed, mapped like an
        ``.idx`` file, or loaded once, like the records of edits, are not listed.
    """
    reads = [*_find_blend_chunks(order, positions, max_computed_rows)]
    sources, places = order.find_draws(positions)
    parts = order.read(positions).parts
    for number in np.unique(sources).tolist():
        rows = np.flatnonzero(sources == number)
        source: Any = order.sources[number]
        plan = source.base.plan if isinstance(source, CutSource) else source.plan
        if plan.num_build_rows > max_computed_rows or isinstance(source, PackedSource):
            reads += _find_index_chunks(source, rows, places[rows])
    datasets = order.dataset_of[sources][parts.owners]
    opened = {int(order.dataset_of[k]): source for k, source in enumerate(order.sources)}
    for dataset in np.unique(datasets).tolist():
        own = SampleParts(*(column[datasets == dataset] for column in parts))
        reads += _find_token_chunks(opened[dataset], own)
    return [read for read in reads if read.owners.size]


def _find_blend_chunks(
    order: RunOrder, positions: Int64Array, max_computed_rows: int
) -> list[ArrayReads]:
    """Return the chunks of the blends of a run."""
    reads = []
    for segment in order.segments if order.plans else ():
        if order.plans[segment.blend].num_build_rows <= max_computed_rows:
            continue
        rows = np.flatnonzero((positions >= segment.start) & (positions < segment.stop))
        own = positions[rows] - segment.start + segment.offset
        arrays = order.open_blend(segment.blend)
        for array in (arrays.dataset_index, arrays.dataset_sample_index):
            reads += _expand("blend", array, rows, own, own + 1)
    return reads


def _find_index_chunks(
    source: OrderSource, rows: Int64Array, places: Int64Array
) -> list[ArrayReads]:
    """Return the chunks of the index of a source, for places in its order."""
    if isinstance(source, PackedSource):
        packed = source.arrays
        samples = source.samples_at(places)
        bounds = take(packed.sample_offset, np.stack([samples, samples + 1], 1).reshape(-1))
        return [
            *_expand("shuffle", packed.stored_shuffle, rows, places, places + 1),
            *_expand("sample", packed.sample_offset, rows, samples, samples + 2),
            *_expand("document", packed.part_index, rows, bounds[::2], bounds[1::2]),
        ]
    reads = []
    samples = source.samples_at(places)
    if isinstance(source, CutSource):
        length = source.base.sequence_length
        spans = source.spans_of(samples)
        rows, stream = rows[spans.owners], source.base
        firsts, lasts = spans.starts // length, -(-spans.stops // length)
    else:
        assert isinstance(source, StreamSource)
        reads += _expand("shuffle", source.arrays.shuffle_index, rows, places, places + 1)
        stream, firsts, lasts = source, samples, samples + 1
    index: Any = stream.arrays.sample_index
    lasts = np.minimum(lasts, len(index) - 1)
    reads += _expand("sample", index, rows, firsts, lasts + 1)
    bounds = take(index, np.concatenate([firsts, lasts]))
    starts, stops = np.split(bounds.reshape(-1, 2)[:, 0], 2)
    return reads + _expand("document", stream.arrays.document_index, rows, starts, stops + 1)


def _find_token_chunks(source: OrderSource, parts: SampleParts) -> list[ArrayReads]:
    """Return the chunks of a corpus that hold spans of documents, and of their offsets."""
    reader, lengths = source.source.reader, parts.stops - parts.starts
    if isinstance(reader, Store):
        offsets: Any = reader[schema.SEQUENCE_OFFSET.name]
        tokens: Any = open_tokens(reader)
        firsts = take(offsets, parts.documents) + parts.starts
        spans = parts.owners, parts.documents, parts.documents + 2
        reads = _expand("offset", offsets, *spans)
        return [*reads, *_expand("tokens", tokens, parts.owners, firsts, firsts + lengths)]
    firsts = _read_near(reader.sequence_offsets, parts.documents) + parts.starts
    dtype = source.source.token_dtype
    form = ArrayFiles.flat_file(f"{source.path}.bin", reader.num_tokens * dtype.itemsize, dtype)
    return [_expand_spans("tokens", form, parts.owners, firsts, firsts + lengths)]


def _expand(
    name: str, array: Any, owners: Int64Array, starts: Int64Array, stops: Int64Array
) -> list[ArrayReads]:
    """Return the chunks of spans of an array; none if it is computed or in memory."""
    if not isinstance(array, FileReader | RoundReader):
        return []
    form = array.layout if isinstance(array.layout, ArrayFiles) else ArrayFiles.of(array.layout)
    return [_expand_spans(name, form, owners, starts, stops)]


def _expand_spans(
    name: str, form: ArrayFiles, owners: Int64Array, starts: Int64Array, stops: Int64Array
) -> ArrayReads:
    """Return the chunks of spans of an array."""
    length = PAGE_NBYTES // form.row_nbytes if form.flat else form.chunk_length
    firsts = starts // length
    counts = -(-np.minimum(stops, form.length) // length) - firsts
    before = np.cumsum(counts) - counts
    chunks = np.arange(int(counts.sum())) - np.repeat(before - firsts, counts)
    useful_nbytes = int((stops - starts).sum()) * form.row_nbytes
    number, owners = ROUNDS.index(name), np.repeat(owners, counts)
    return ArrayReads(name, number, form, owners, chunks, useful_nbytes)


def _read_near(read: Callable[[int, int], AnyArray], rows: Int64Array) -> Int64Array:
    """Return values by row from a function that reads spans, one span for rows near each other."""
    numbers, places = np.unique(rows, return_inverse=True)
    groups = np.split(numbers, np.flatnonzero(np.diff(numbers) > _NEAR) + 1)
    spans = [(own, read(int(own[0]), int(own[-1]) + 1)) for own in groups if own.size]
    found = [np.empty(0, np.int64), *(values[own - own[0]] for own, values in spans)]
    values: Int64Array = np.concatenate(found).astype(np.int64)[places]
    return values
