"""Convert keyed files to a Zarr store of records, one task per shard."""

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy.typing as npt

from zindex.errors import ConfigError, check_choice
from zindex.execution.executor import Executor, run_builds, run_together
from zindex.formats.keyed.shards import FileFormat, KeyedFormat, detect_format, read_shards
from zindex.ingest.driver import Workers, open_workers, write_store
from zindex.ingest.keyed.keyed_source import KeyedSource, digest_spans, store_spans
from zindex.ingest.keyed.token_lines import open_token_lines
from zindex.ingest.length_source import join_digests
from zindex.ingest.records.import_records import import_records, url_spec
from zindex.ingest.records.open_files import open_files
from zindex.io.local import local_path
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import Paths
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import Store
from zindex.store.records import BYTE_GRID, KIND, check_dtypes

# Samples of values that one task reads for the identity.
_SAMPLES_PER_TASK = 256
_JSONL = re.compile(r"\.(jsonl|ndjson)(\.\w+)?$")


def convert_keyed(
    source: Paths,
    target: PlaceLike,
    *,
    storage_type: KeyedFormat | None = None,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    strict: bool = True,
    on_damage: OnDamage = "error",
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> Store:
    """Convert keyed files into a Zarr store; finished shards are kept.

    Parameters
    ----------
    source
        A folder of ``h5`` or ``bin`` files, or one ``.h5`` file. For ``jsonl`` also several files,
        folders and brace patterns, local or in an object store.
    target
        Place of the store.
    storage_type
        Format of the files; None detects it from their names.
    dtypes
        For ``jsonl``, the keys to keep, and their dtypes. None keeps the lists of the first line:
        keys with ``mask`` in their name as bool, with ``reward`` or with fractions as float32,
        others as int32. Other formats store their dtypes.
    strict
        Whether the keys of each shard must have the same number of values or of records. If not,
        shards in which they do not match are one record each.
    on_damage
        For ``jsonl``, whether damaged lines stop the conversion, or are skipped and counted.
    restart
        For ``jsonl``, whether to remove an unfinished conversion first.
    grid
        Bytes per chunk and shard of every array, and the codec.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    num_processes
        Processes to start on this machine in place of a client; for ``jsonl``, which is parsed by
        Python.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    store
        A store of records: for each key all values, and the offset of each record.

    Raises
    ------
    ConfigError
        If a setting does not fit the files, or keys cannot be stored.
    SourceError
        If files are damaged, or shards do not fit together.
    StoreNotFoundError
        If there are no files.
    FingerprintMismatchError
        If something else is already there.

    Notes
    -----
    Law: ``export_keyed`` gives back the same files. Memory: one shard of the store, 64 MiB by
    default, per thread (two more than cores without a client), and the offsets of all records. For
    ``jsonl`` as of ``import_records``.
    """
    found = storage_type or ("jsonl" if _is_lines(source) else detect_format(source))
    kind = check_format(found, source)
    if kind == "jsonl":
        if not strict:
            raise ConfigError(
                "strict=False (--loose) must come with h5 or bin files, got it for jsonl files; "
                "leave it out, or leave out lines that do not match with on_damage='skip' "
                "(--on-damage skip)"
            )
        files, identity = open_files(source, "jsonl", on_damage=on_damage)
        names = check_dtypes(dtypes) if dtypes else None
        lines = open_token_lines(files, identity["source"], names, on_damage=on_damage)
        return import_records(
            lines,
            target,
            fields=list(lines.field_dtypes),
            dtypes=lines.field_dtypes,
            on_damage=on_damage,
            restart=restart,
            grid=grid,
            client=client,
            num_processes=num_processes,
            progress=progress,
        )
    if dtypes or on_damage != "error" or restart:
        raise ConfigError(
            "dtypes (--dtype), on_damage (--on-damage) and restart (--restart) must come with "
            f"jsonl files, got one of them for {kind} files; leave it out"
        )
    root, path = place_of(target), _one_path(source)
    with open_workers(client, num_processes, progress) as workers:
        return run_builds(_convert(path, kind, root, strict, grid, workers))


def check_format(storage_type: str, source: Any) -> KeyedFormat:
    """Return a format that can be converted; ConfigError for any other."""
    check_choice(f"storage_type (--kind) of {source}", storage_type, get_args(KeyedFormat))
    return cast("KeyedFormat", storage_type)


def _is_lines(source: Any) -> bool:
    """Return whether the named files must be jsonl: there are several, or their names say so."""
    if not isinstance(source, (str, os.PathLike)):
        return len(source) > 1
    text = os.fspath(source)
    is_pattern = any(sign in text for sign in "{,") and not os.path.exists(text)
    return is_pattern or (_JSONL.search(text) is not None and not os.path.isdir(text))


def _one_path(source: Any) -> str:
    """Return the path of h5 and bin files."""
    if not isinstance(source, (str, os.PathLike)):
        if len(source) != 1:
            raise ConfigError(
                f"h5 and bin files must be named by one folder or file, got {len(source)}; put "
                "them into one folder"
            )
        source = source[0]
    return str(local_path(source, "a folder of keyed files"))


async def plan_keyed(
    source: KeyedSource, root: Place, kind: FileFormat, grid: ChunkGrid, executor: Executor
) -> StorePlan:
    """Return the plan of the store of keyed files; tasks read samples of their content."""
    samples = list(source.samples())
    batches = [
        samples[start : start + _SAMPLES_PER_TASK]
        for start in range(0, len(samples), _SAMPLES_PER_TASK)
    ]
    digests = await run_together(
        executor.run(digest_spans, batch, key=f"sample-{root.name[:28]}-{i}")
        for i, batch in enumerate(batches)
    )
    spec = {
        "num_records": source.num_records,
        **url_spec(source.rows),
        "fields": [field.to_json() for field in source.fields],
        "has_records": source.has_records,
        "convert": {
            "storage_type": kind,
            "shard_digest": source.digest_shards(),
            "row_digests": await asyncio.to_thread(source.digest_rows),
            "sample_digest": join_digests(digests),
        },
    }
    return StorePlan(root, KIND, spec, tuple(source.layouts(grid)))


async def _convert(
    path: str, kind: FileFormat, root: Place, strict: bool, grid: ChunkGrid, workers: Workers
) -> Store:
    """Write every shard of the store, and commit it."""
    source = KeyedSource(await asyncio.to_thread(read_shards, path, kind, strict))
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    plan = await plan_keyed(source, root, kind, grid, workers.executor)

    def task(layout: ArrayLayout, shard: int) -> tuple[Any, ...]:
        spans = source.spans(layout.name, *layout.shard_bounds(shard))
        return store_spans, root, layout, shard, spans

    facts = {"num_skipped": 0, "url_prefix": os.path.join(folder, "")}
    return await write_store(plan, workers, root.name, task, facts=facts, rows=source.rows)
