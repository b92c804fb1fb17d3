"""Import tar and jsonl files to a ragged Zarr store with random access to records.

The first stage parses each partition of the source once, into scratch files in the store. The
sums of their counts are the positions of all records; the second stage writes each shard from the
scratch files that overlap it. Both stages keep finished work, so an import that died is resumed.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.execution.executor import run_builds
from zindex.ingest.driver import Claim, Workers, open_workers, write_store
from zindex.ingest.records.open_files import open_files
from zindex.ingest.records.partitions import read_source
from zindex.ingest.records.read_partitions import Settings, read_partition
from zindex.ingest.records.write_shards import Kind, RecordTable, store_stream_shard
from zindex.io.objects import PlaceLike, place_of
from zindex.sources.sample_files import SampleFiles
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import Store
from zindex.store.records import (
    BYTE_GRID,
    KIND,
    RecordField,
    check_dtypes,
    plan_array,
    record_layouts,
)
from zindex.store.scratch import end_import

logger = logging.getLogger(__name__)


def import_records(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | SampleFiles,
    target: PlaceLike,
    *,
    kind: Literal["jsonl", "tar"] | None = None,
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
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
        Place of the store.
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
        Further folders to read; see ``TarFiles``.
    part_nbytes
        Bytes of a part of a file; they do not change the store.
    on_damage
        ``"error"`` stops at the first damage; ``"skip"`` skips damaged records and counts them in
        the attribute ``num_skipped``.
    restart
        Whether to remove an unfinished import rather than resume it; one of other content would be
        an error. No other import may be running there. A finished store is kept.
    grid
        Bytes per chunk and shard of every array, and the codec; the default is 64 KiB and 64 MiB,
        uncompressed.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``. Lines are
        parsed by Python, one at a time per process: give workers one thread each.
    num_processes
        Processes to start on this machine in place of a client; the calling script must guard its
        work with ``if __name__ == "__main__":``. 1 is this process; 0 is one per core, or this
        process for less than a MiB.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    store
        The opened store; ``zindex.datasets.record_dataset.RecordDataset`` is the torch dataset.

    Raises
    ------
    ConfigError
        If a setting does not fit the files, or there are more than 64 fields.
    SourceError
        If a file is damaged, no record has a requested field, or no metadata was joined.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If there is something else at the place.

    Notes
    -----
    Law: record i of the store equals record i of the source as the streaming datasets read it: null
    at the top level of a line is an empty text. Cost: the source is read once and written twice,
    first to ``_zindex/scratch`` in the store, which is removed after the commit. Memory: about
    100 MiB per thread, and twice the largest record.
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
        store = await write_store(
            plan, self.workers, f"{root.name}: write", task, stage="gather", facts=facts, rows=rows
        )
        if not table.num_records:
            logger.warning(
                "%s has no records: its source has none, or only damaged ones (left out: %s)",
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
