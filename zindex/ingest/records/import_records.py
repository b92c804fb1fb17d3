"""Import tar and jsonl files to a ragged Zarr store with random access to records.

The first stage parses each partition of the source once, into scratch files in the store. The sums
of their counts are the positions of all records; the second stage writes each shard from the
scratch files that overlap it. Both stages keep finished work, so an interrupted import resumes.
"""

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, DTypeLike, Int64Array
from zindex.errors import SourceError
from zindex.execution.executor import run_builds
from zindex.ingest.driver import Claim, Workers, open_workers, write_store
from zindex.ingest.records.open_files import open_files
from zindex.ingest.records.partitions import read_source
from zindex.ingest.records.read_partitions import MAX_NAMES, ReadResult, Settings, read_partition
from zindex.ingest.spans import cut_span
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.sources.sample_files import SampleFiles
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import Store
from zindex.store.records import (
    BYTE_GRID,
    KEY,
    KIND,
    Form,
    RecordField,
    check_dtypes,
    check_fields,
    plan_array,
    record_layouts,
)
from zindex.store.scratch import end_import, read_stream
from zindex.store.shard_files import ShardResult, store_shard
from zindex.text.encoded_files import EncodedFiles

#: The arrays of a field, in the order of their streams.
Kind = Literal["value", "offset", "form"]
KINDS: tuple[Kind, ...] = ("value", "offset", "form")


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The elements of one stream that are part of a shard."""

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
        at = KINDS.index(kind)
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
    """Check that each requested field of metadata occurs in some record."""
    if any(len(result.names) == MAX_NAMES for result in results):
        return  # there may be more
    for name in meta_fields:
        if not any(name in result.names for result in results):
            raise SourceError(
                f"meta_names (--meta) must name metadata of some sample, no record has {name!r}: "
                "only samples with a member .id get metadata, from the line with their key in the "
                ".meta.jsonl next to their tar; fix these or leave the name out, and import again "
                "with restart=True (--restart)"
            )


def store_stream_shard(
    root: Place, layout: ArrayLayout, shard: int, kind: Kind, spans: tuple[StreamSpan, ...]
) -> ShardResult:
    """Task: one shard of one array of a field, unless it already exists."""
    return store_shard(root, layout, shard, lambda: read_spans(root, kind, layout.dtype, spans))


def read_spans(root: Place, kind: Kind, dtype: DTypeLike, spans: Sequence[StreamSpan]) -> AnyArray:
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


logger = logging.getLogger(__name__)


def import_records(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | SampleFiles,
    target: PlaceLike,
    *,
    kind: Literal["jsonl", "tar"] | None = None,
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, DTypeLike] | None = None,
    meta_names: Sequence[str] = (),
    include_dirs: str | None = None,
    part_nbytes: int | None = None,
    on_damage: Literal["error", "skip"] = "error",
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> Store:
    """Import the records of tar or jsonl files into a ragged Zarr store, in the source's order.

    Parameters
    ----------
    source
        Files, folders or brace patterns separated by commas, local or in an object store, or a list
        of them; or opened files, which keep their own settings.
    target
        Location of the store.
    kind
        Format of the files; None detects it from their names.
    fields
        Fields to keep, in this order; None keeps all, in the order of their first record.
    dtypes
        Dtype of fields that are flat lists of numbers, such as token ids: they are read as arrays.
        Floats are rounded to it; null is a missing value.
    meta_names
        Fields of the sidecars of tar files to join; see ``TarFiles``.
    include_dirs
        Additional folders to read; see ``TarFiles``.
    part_nbytes
        Bytes per part of a file; has no effect on the store.
    on_damage
        ``"error"`` stops at the first damage; ``"skip"`` skips damaged records and counts them in
        the attribute ``num_skipped``.
    restart
        Whether to remove an unfinished import instead of resuming it; otherwise one of other
        content is an error. No other import to this location may be running. A finished store is
        kept.
    grid
        Bytes per chunk and shard of every array, and the codec; the default is 64 KiB and 64 MiB,
        uncompressed.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``. Lines are
        parsed by Python, one at a time per process: give workers one thread each.
    num_processes
        Processes to start on this machine instead of using a client; the calling script must guard
        its work with ``if __name__ == "__main__":``. 1 is this process; 0 is one per core, or this
        process for less than a MiB.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.

    Returns
    -------
    store
        The opened store; ``zindex.datasets.record_dataset.RecordDataset`` is the torch dataset.

    Raises
    ------
    ConfigError
        If a setting does not apply to the files, or there are more than 64 fields.
    SourceError
        If a file is damaged, no record has a requested field, or no metadata was joined.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If the location has other content.

    Notes
    -----
    Law: record i of the store equals record i of the source as the streaming datasets read it: null
    at the top level of a line becomes an empty text. Cost: the source is read once and written
    twice, first to ``_zindex/scratch`` in the store, which is removed after the commit. Memory:
    about 100 MiB per thread, and twice the largest record.
    """
    kept = None if fields is None else list(dict.fromkeys(fields))
    settings = Settings(kept, check_dtypes(dtypes or {}), on_damage == "skip")
    opened, identity = open_files(
        source,
        kind,
        meta_names=meta_names,
        include_dirs=include_dirs,
        part_nbytes=part_nbytes,
        on_damage=on_damage,
    )
    claim = Claim(place_of(target), identity | asdict(settings))
    with open_workers(client, num_processes, progress, read_partition, source=opened) as workers:
        work = _Import(opened, claim, settings, grid, workers)
        return run_builds(claim.run(work.find, work.make, restart=restart))


@dataclass(frozen=True, slots=True)
class _Import:
    """One import."""

    source: SampleFiles
    claim: Claim
    settings: Settings
    grid: ChunkGrid
    workers: Workers

    def find(self) -> Store | None:
        """Return the committed store, or None; another store is an error."""
        other = "records of another source, or imported with other settings"
        return self.claim.find_store(lambda store: store.spec.get("import"), other)

    async def make(self) -> Store:
        """Read the source, write all shards, and commit."""
        root = self.claim.root
        results = await read_source(
            self.source, self.claim, self.workers, self.settings, stage="import", verb="read"
        )
        meta_fields = [name.lower() for name in self.claim.identity["meta_names"]]
        table = RecordTable(results, self.settings, meta_fields)
        prefix, urls = _split_prefix(self.source.urls)
        rows = url_arrays(urls, table.count_of_urls(len(urls)))
        arrays: dict[str, tuple[RecordField, Kind]] = {}
        for field in table.fields:
            arrays[field.value.name] = field, "value"
            arrays[field.offset.name] = field, "offset"
            arrays[field.form_array.name] = field, "form"

        def task(layout: ArrayLayout, shard: int) -> tuple[Any, ...]:
            field, kind = arrays[layout.name]
            spans = tuple(table.spans(field, kind, *layout.shard_bounds(shard)))
            return store_stream_shard, root, layout, shard, kind, spans

        layouts = record_layouts(table.fields, table.num_records, self.grid)
        spec = {
            "num_records": table.num_records,
            **url_spec(rows),
            "fields": [field.to_json() for field in table.fields],
            "import": self.claim.identity,
        }
        plan = StorePlan(root, KIND, spec, (*layouts, *url_layouts(rows, self.grid)))
        facts = {"num_skipped": table.num_skipped, "url_prefix": prefix, **table.counts}
        own: dict[str, Any] = {"stage": "gather", "facts": facts, "rows": rows}
        if isinstance(self.source, EncodedFiles):
            own["keep"] = self.source.keep_tokenizer
        store = await write_store(plan, self.workers, f"{root.name}: write", task, **own)
        if not table.num_records:
            logger.warning(
                "%s has no records: its source has none, or only damaged ones (skipped: %s)",
                root,
                f"{table.num_skipped:,}",
            )
        await asyncio.to_thread(end_import, root)
        return store


def _split_prefix(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common folder of all files, and their names relative to it."""
    common = os.path.commonprefix(list(urls))  # noqa: RUF071  it is cut at a slash below
    prefix = common[: common.rfind("/") + 1]
    return prefix, [url.removeprefix(prefix) for url in urls]


def url_arrays(urls: Sequence[str], counts: Int64Array) -> dict[str, AnyArray]:
    """Return the arrays with the source file of each record.

    Parameters
    ----------
    urls
        The files.
    counts
        Shape (files,), int64: records of each file.
    """
    names = [url.encode("utf-8", "surrogateescape") for url in urls]
    bounds = list(accumulate(map(len, names), initial=0))
    return {
        schema.URL_TEXT.name: np.frombuffer(b"".join(names), np.uint8),
        schema.URL_TEXT_BOUND.name: np.array(bounds, np.int64),
        schema.URL_RECORD_BOUND.name: np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
    }


def url_layouts(rows: Mapping[str, AnyArray], grid: ChunkGrid) -> list[ArrayLayout]:
    """Return the layouts of `url_arrays`."""
    return [
        plan_array(array, len(rows[array.name]), rows[array.name].dtype.name, grid)
        for array in (schema.URL_TEXT, schema.URL_TEXT_BOUND, schema.URL_RECORD_BOUND)
    ]


def url_spec(rows: Mapping[str, AnyArray]) -> dict[str, Any]:
    """Return the entries of a store's spec for `url_arrays`."""
    return {
        "num_urls": len(rows[schema.URL_RECORD_BOUND.name]) - 1,
        "url_digest": hashlib.sha256(rows[schema.URL_TEXT.name].tobytes()).hexdigest(),
    }
