"""The write stage of an import: each shard of the store from the streams that overlap it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError
from zindex.ingest.records.read_partitions import MAX_NAMES, ReadResult, Settings
from zindex.ingest.spans import cut_span
from zindex.io.objects import Place
from zindex.store.layout import ArrayLayout
from zindex.store.records import KEY, Form, RecordField, check_fields
from zindex.store.scratch import read_stream
from zindex.store.shard_files import ShardResult, store_shard

#: The arrays of a field, in the order of their streams.
Kind = Literal["value", "offset", "form"]
_KINDS: tuple[Kind, ...] = ("value", "offset", "form")


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The elements of one stream that a shard holds."""

    #: The scratch file; None if its records lack the field.
    name: str | None
    #: Byte offset of the stream in the file, and its bytes.
    base: int
    nbytes: int
    #: The elements of the stream.
    start: int
    stop: int
    #: Values of the field in all earlier scratch files.
    before: int


class RecordTable:
    """The scratch files of all partitions, as fields and as positions of records and values.

    Parameters
    ----------
    results
        The result of each partition, in the order of the source.
    settings
        How the source was read.
    meta_fields
        Fields of the requested metadata.

    Raises
    ------
    SourceError
        If no record has a requested field, or no metadata was joined.
    ConfigError
        If there are more fields than a store can have.
    """

    def __init__(
        self, results: Sequence[ReadResult], settings: Settings, meta_fields: Sequence[str] = ()
    ) -> None:
        self.streams = [item for result in results for item in result.streams]
        self.num_skipped = sum(result.num_skipped for result in results)
        #: Counters of the source itself, by the name of the store's attribute.
        self.counts: Counter[str] = Counter()
        for result in results:
            self.counts.update(dict(result.counts))
        self.record_starts = list(accumulate((s.num_records for s in self.streams), initial=0))
        self.num_records = self.record_starts[-1]
        self._bases = [item.bases() for item in self.streams]
        self._fields = [{field.name: field for field in item.fields} for item in self.streams]
        names = list(dict.fromkeys([KEY, *(name for fields in self._fields for name in fields)]))
        if self.num_records:
            _check_joined(results, meta_fields)
        for name in settings.fields or ():
            if name not in names and self.num_records:
                known = sorted({name for result in results for name in result.names})
                raise SourceError(
                    f"fields (--field) must be among those of the source, got {name!r}, which no "
                    f"record has; there are {known or 'no others'}; name one of them and import "
                    "again with restart=True (--restart)"
                )
        if settings.fields is not None:
            names = [KEY, *(name for name in settings.fields if name in names)]
        check_fields(names[1:])
        self.value_starts = {}
        for name in names:
            counts = (fields[name].num_values if name in fields else 0 for fields in self._fields)
            self.value_starts[name] = list(accumulate(counts, initial=0))
        self.fields = [self._describe(name, settings.dtypes.get(name, "uint8")) for name in names]

    def _describe(self, name: str, dtype: str) -> RecordField:
        """Return the stored arrays of a field."""
        forms = 1 << Form.TEXT if name == KEY and not self.streams else 0
        for fields in self._fields:
            forms |= fields[name].forms if name in fields else 1 << Form.NONE
        present = [form for form in Form if form != Form.NONE and forms >> form & 1]
        form = int(present[0]) if len(present) == 1 else None
        has_forms = form is None or bool(forms & 1)
        return RecordField(name, self.value_starts[name][-1], form, has_forms, dtype)

    def count_of_urls(self, num_urls: int) -> Int64Array:
        """Return the records of each file: shape (num_urls,)."""
        counts = np.zeros(num_urls, np.int64)
        for item in self.streams:
            for number, count in item.urls:
                counts[number] += count
        return counts

    def spans(self, field: RecordField, kind: Kind, start: int, stop: int) -> Iterator[StreamSpan]:
        """Yield the spans of streams that hold elements ``[start, stop)`` of a field's array."""
        value_starts = self.value_starts[field.name]
        bounds = value_starts if kind == "value" else self.record_starts
        at = _KINDS.index(kind)
        for number, first, last, _ in cut_span(bounds, start, stop):
            streams, found = self.streams[number], self._fields[number].get(field.name)
            name, base, nbytes = None, 0, 0
            if found is not None:
                name = streams.name
                base = self._bases[number][field.name][at]
                nbytes = found.sizes(streams.num_records)[at]
            yield StreamSpan(name, base, nbytes, first, last, value_starts[number])
        if start <= bounds[-1] < stop:  # the final bound of the offsets
            yield StreamSpan(None, 0, 0, 0, 1, field.num_values)

    def read(self, root: Place, field: RecordField, kind: Kind, start: int, stop: int) -> AnyArray:
        """Return elements ``[start, stop)`` of a field's array; offsets are int64."""
        spans = list(self.spans(field, kind, start, stop))
        return read_spans(root, kind, np.int64 if kind == "offset" else field.dtype, spans)


def _check_joined(results: Sequence[ReadResult], meta_fields: Sequence[str]) -> None:
    """Check that some record has each requested field of metadata."""
    if any(len(result.names) == MAX_NAMES for result in results):
        return  # there may be more
    for name in meta_fields:
        if not any(name in result.names for result in results):
            raise SourceError(
                f"meta_names (--meta) must name metadata of some sample, no record has {name!r}: "
                "only samples with a member .id get metadata, from the line with their key in the "
                ".meta.jsonl beside their tar; mend these or leave the name out, and import again "
                "with restart=True (--restart)"
            )


def store_stream_shard(
    root: Place, layout: ArrayLayout, shard: int, kind: Kind, spans: tuple[StreamSpan, ...]
) -> ShardResult:
    """Task: one shard of one array of a field, unless it is already there."""
    return store_shard(root, layout, shard, lambda: read_spans(root, kind, layout.dtype, spans))


def read_spans(
    root: Place, kind: Kind, dtype: npt.DTypeLike, spans: Sequence[StreamSpan]
) -> AnyArray:
    """Return the elements of consecutive spans of an array of a field."""
    fill = _fill_offsets if kind == "offset" else _fill_stored
    out = np.zeros(sum(span.stop - span.start for span in spans), dtype)
    row = 0
    for span in spans:
        stop = row + span.stop - span.start
        fill(root, span, out[row:stop])
        row = stop
    return out


def _fill_stored(root: Place, span: StreamSpan, out: AnyArray) -> None:
    """Fill in the values or the forms of a field; a missing field has no values, and form 0."""
    if span.name is not None:
        raw = out.view(np.uint8)
        read_stream(root, span.name, span.base, span.nbytes, span.start * out.itemsize, raw)


def _fill_offsets(root: Place, span: StreamSpan, out: AnyArray) -> None:
    """Fill in the offsets of records, from the lengths of all records before them."""
    out[:] = span.before
    if span.name is None:
        return
    lengths = np.empty(span.stop - 1, np.int64)
    read_stream(root, span.name, span.base, span.nbytes, 0, lengths.view(np.uint8))
    out[:] += lengths[: span.start].sum()
    out[1:] += np.cumsum(lengths[span.start :])
