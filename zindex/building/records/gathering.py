"""The second stage of an import: every shard of the store from the streams that cover it."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex.building.records.reading import MAX_NAMES, PortionResult, Settings
from zindex.errors import SourceError
from zindex.store.layout import ArrayLayout
from zindex.store.objects import Place
from zindex.store.records import KEY, Form, RecordField, check_fields
from zindex.store.scratch import read_stream
from zindex.store.shard_files import ShardResult, store_shard

#: The arrays of a field, in the order of their streams.
Kind = Literal["value", "offset", "form"]
_KINDS: tuple[Kind, ...] = ("value", "offset", "form")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one file of streams gives to a shard."""

    #: The file; None where the records of a segment lack the field.
    name: str | None
    #: Where the stream lies in the file, and its bytes.
    base: int
    nbytes: int
    #: Elements of the segment that the shard holds.
    start: int
    stop: int
    #: Values of the field in all segments before.
    before: int


class Gathered:
    """All that was read of a source.

    Parameters
    ----------
    results
        Of every portion, in the order of the source.
    settings
        How they were read.
    meta_fields
        Fields that metadata was asked for.

    Raises
    ------
    SourceError
        If a field that was asked for is in no record, or metadata was joined to none.
    ConfigError
        If there are more fields than a store can have.
    """

    def __init__(
        self,
        results: Sequence[PortionResult],
        settings: Settings,
        meta_fields: Sequence[str] = (),
    ) -> None:
        self.segments = [segment for result in results for segment in result.segments]
        self.num_skipped = sum(result.num_skipped for result in results)
        #: What the source itself counted, by the store's attribute for it.
        self.counts: Counter[str] = Counter()
        for result in results:
            self.counts.update(dict(result.counts))
        counts = (segment.num_records for segment in self.segments)
        self.record_starts = list(accumulate(counts, initial=0))
        self.num_records = self.record_starts[-1]
        self._bases = [segment.bases() for segment in self.segments]
        self._parts = [{part.name: part for part in segment.fields} for segment in self.segments]
        names = list(dict.fromkeys([KEY, *(name for parts in self._parts for name in parts)]))
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
        self.value_starts = {
            name: list(
                accumulate(
                    (parts[name].num_values if name in parts else 0 for parts in self._parts),
                    initial=0,
                )
            )
            for name in names
        }
        dtypes = dict(settings.dtypes)
        self.fields = [self._describe(name, dtypes.get(name, "uint8")) for name in names]

    def _describe(self, name: str, dtype: str) -> RecordField:
        """Return what is stored of a field."""
        forms = 1 << Form.TEXT if name == KEY and not self.segments else 0
        for parts in self._parts:
            forms |= parts[name].forms if name in parts else 1 << Form.NONE
        present = [form for form in Form if form != Form.NONE and forms >> form & 1]
        return RecordField(
            name,
            self.value_starts[name][-1],
            int(present[0]) if len(present) == 1 else None,
            has_forms=len(present) != 1 or bool(forms & 1),
            dtype=dtype,
        )

    def count_of_urls(self, num_urls: int) -> npt.NDArray[np.int64]:
        """Return the records of each file: shape (num_urls,)."""
        counts = np.zeros(num_urls, np.int64)
        for segment in self.segments:
            for number, count in segment.urls:
                counts[number] += count
        return counts

    def pieces(self, field: RecordField, kind: Kind, start: int, stop: int) -> Iterator[Piece]:
        """Yield what elements ``[start, stop)`` of an array of a field are made of, in order."""
        value_starts = self.value_starts[field.name]
        bounds = value_starts if kind == "value" else self.record_starts
        number = max(0, bisect_right(bounds, start) - 1)
        while start < stop and number < len(self.segments):
            end = min(stop, bounds[number + 1])
            part = self._parts[number].get(field.name)
            if start < end:
                name, base, nbytes = None, 0, 0
                if part is not None:
                    name = self.segments[number].name
                    base = self._bases[number][field.name][_KINDS.index(kind)]
                    sizes = part.sizes(self.segments[number].num_records)
                    nbytes = sizes[_KINDS.index(kind)]
                first = bounds[number]
                before = value_starts[number]
                yield Piece(name, base, nbytes, start - first, end - first, before)
                start = end
            number += 1
        if start < stop:  # the bound behind the last record
            yield Piece(None, 0, 0, 0, 1, field.num_values)


def _check_joined(results: Sequence[PortionResult], meta_fields: Sequence[str]) -> None:
    """Check that metadata that was asked for is in some record."""
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


def store_gathered_shard(
    root: Place, layout: ArrayLayout, shard: int, kind: Kind, pieces: tuple[Piece, ...]
) -> ShardResult:
    """Task: one shard of one array of a field, unless it is there already."""
    fill = {"value": _fill_values, "offset": _fill_offsets, "form": _fill_forms}[kind]

    def compute() -> npt.NDArray[Any]:
        start, stop = layout.shard_bounds(shard)
        out = np.zeros(stop - start, layout.dtype)
        row = 0
        for piece in pieces:
            stop = row + piece.stop - piece.start
            fill(root, piece, out[row:stop])
            row = stop
        return out

    return store_shard(root, layout, shard, compute)


def _fill_values(root: Place, piece: Piece, out: npt.NDArray[Any]) -> None:
    """Fill in the values of a field."""
    assert piece.name is not None  # or it would have none
    raw = out.view(np.uint8)
    read_stream(root, piece.name, piece.base, piece.nbytes, piece.start * out.itemsize, raw)


def _fill_offsets(root: Place, piece: Piece, out: npt.NDArray[Any]) -> None:
    """Fill in the places at which records start, from the lengths of all records before."""
    out[:] = piece.before
    if piece.name is None:
        return
    lengths = np.empty(piece.stop - 1, np.int64)
    read_stream(root, piece.name, piece.base, piece.nbytes, 0, lengths.view(np.uint8))
    out[:] += lengths[: piece.start].sum()
    out[1:] += np.cumsum(lengths[piece.start :])


def _fill_forms(root: Place, piece: Piece, out: npt.NDArray[Any]) -> None:
    """Fill in the forms of records; of those without the field they are zeros already."""
    if piece.name is not None:
        read_stream(root, piece.name, piece.base, piece.nbytes, piece.start, out)
