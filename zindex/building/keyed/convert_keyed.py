"""Keyed files to a Zarr store of records: one task for each shard of the store."""

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.executor import Executor, open_executor, run_builds, run_together
from zindex.building.keyed.keyed_source import (
    KeyedSource,
    digest_ranges,
    read_ranges,
    store_ranges,
)
from zindex.building.process_executor import open_processes
from zindex.building.progress import Progress, open_progress
from zindex.building.records.import_records import import_records, url_arrays
from zindex.building.records.record_files import Paths, open_files
from zindex.building.source import join_digests
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.formats.keyed.agreement import check_shards
from zindex.formats.keyed.bin_folder import read_bin_shards
from zindex.formats.keyed.detect import detect_format
from zindex.formats.keyed.h5_file import read_h5_shards
from zindex.formats.keyed.value_ranges import ValueRange
from zindex.sources.damage_log import OnDamage
from zindex.sources.token_lines import TokenLines, open_token_lines
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.local import local_path
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID, KIND, check_dtypes, plan_array
from zindex.store.shard_files import ShardResult, store_shard

Array = npt.NDArray[Any]
FileFormat = Literal["bin", "h5"]
KeyedFormat = Literal["bin", "h5", "jsonl"]

# Blocks of values that one task reads for the identity.
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
    """Convert keyed files into a Zarr store; what is finished already is kept.

    Parameters
    ----------
    source
        A folder of ``h5`` or ``bin`` files, or one ``.h5`` file; of ``jsonl`` also several files,
        folders and brace patterns, here or in an object store.
    target
        Place of the store.
    storage_type
        What the files are; None tells it from their names.
    dtypes
        Of ``jsonl`` the keys to keep, and their dtypes. None keeps what is a list in the first
        line: keys with ``mask`` in their name as bool, with ``reward`` or with fractions as
        float32, others as int32. Other files have their own.
    strict
        Whether the keys of each shard must have the same number of values or of records. If not,
        shards in which they do not match are one record each.
    on_damage
        Of ``jsonl`` whether damaged lines stop the conversion, or are left out and counted.
    restart
        Of ``jsonl`` whether to remove an unfinished conversion that is there.
    grid
        Bytes per chunk and shard of every array, and the codec.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    num_processes
        Processes of this machine that do the work in place of a client; for ``jsonl``, which is
        parsed by Python.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    store
        A store of records: of each key all values, and where each record begins.

    Raises
    ------
    ConfigError
        If a setting does not fit the files, or keys cannot be stored.
    SourceError
        If files are damaged, or shards do not fit together.
    StoreNotFoundError
        If there are no files.
    FingerprintMismatchError
        If something else is at the place already.

    Notes
    -----
    Law: ``export_keyed`` gives back the same files. Memory: one shard of the store, 64 MiB by
    default, per thread, of which there are two more than cores where no client is given; and the
    offsets of all records. Of ``jsonl`` as ``import_records``.
    """
    if client is not None and num_processes is not None:
        raise ConfigError(
            "client (--scheduler) and num_processes (--processes) both say where the work is done; "
            "give one of them"
        )
    kind = _find_format(source, storage_type)
    if kind == "jsonl":
        if not strict:
            raise ConfigError(
                "strict=False (--loose) must come with h5 or bin files, got it for jsonl files; "
                "leave it out, or leave out lines that do not match with on_damage='skip' "
                "(--on-damage skip)"
            )
        lines = open_lines(source, dtypes, on_damage)
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
    root = place_of(target)
    place = open_executor(client) if num_processes is None else open_processes(num_processes)
    with place as executor, open_progress(progress) as shown:
        return run_builds(_convert(_one_path(source), kind, root, strict, grid, executor, shown))


def _find_format(source: Any, storage_type: str | None) -> KeyedFormat:
    """Return what the files are."""
    if storage_type is None:
        storage_type = "jsonl" if _is_lines(source) else detect_format(source)
    return check_format(storage_type, source)


def check_format(storage_type: str, source: Any) -> KeyedFormat:
    """Return a format that can be converted; ConfigError names a source of another one."""
    for known in get_args(KeyedFormat):
        if storage_type == known:
            return cast("KeyedFormat", known)
    raise ConfigError(
        f"storage_type (--kind) must be one of {', '.join(get_args(KeyedFormat))} to be converted, "
        f"got {storage_type!r} for {source}; name other files"
    )


def _is_lines(source: Any) -> bool:
    """Return whether files are named that only lines can be: several, or by their names."""
    if not isinstance(source, (str, os.PathLike)):
        return len(source) > 1
    text = os.fspath(source)
    is_pattern = any(sign in text for sign in "{,") and not os.path.exists(text)
    return is_pattern or (_JSONL.search(text) is not None and not os.path.isdir(text))


def open_lines(
    source: Paths, dtypes: Mapping[str, npt.DTypeLike] | None, on_damage: OnDamage
) -> TokenLines:
    """Return the records of jsonl files of keyed tokens."""
    files, identity = open_files(source, "jsonl", on_damage=on_damage)
    names = check_dtypes(dtypes) if dtypes else None
    return open_token_lines(files, identity["source"], names, on_damage=on_damage)


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


def read_source(path: str, kind: FileFormat, *, strict: bool) -> tuple[KeyedSource, str]:
    """Return the shards of keyed files, checked, and the folder that their names are below."""
    shards = check_shards(
        read_h5_shards(path) if kind == "h5" else read_bin_shards(path), strict=strict
    )
    # Where keys or records do not match, `check_shards` leaves the records out.
    has_records = all(
        array.num_records is not None for shard in shards for array in shard.arrays.values()
    )
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return KeyedSource(shards, has_records=has_records), os.path.join(folder, "")


async def plan_keyed(
    source: KeyedSource, root: Place, kind: FileFormat, grid: ChunkGrid, executor: Executor
) -> StorePlan:
    """Return the plan of the store of keyed files; samples of their content are read by tasks."""
    samples = list(source.samples())
    batches = [
        samples[start : start + _SAMPLES_PER_TASK]
        for start in range(0, len(samples), _SAMPLES_PER_TASK)
    ]
    digests = await run_together(
        executor.run(digest_ranges, batch, key=f"sample-{root.name[:28]}-{i}")
        for i, batch in enumerate(batches)
    )
    urls = url_arrays(source.names, np.array(source.record_counts, np.int64))
    layouts = source.layouts(grid)
    for array in (schema.URL_TEXT, schema.URL_TEXT_BOUND, schema.URL_RECORD_BOUND):
        values = urls[array.name]
        layouts.append(plan_array(array, len(values), values.dtype.name, grid))
    spec = {
        "num_records": source.num_records,
        "num_urls": len(source.names),
        "url_digest": hashlib.sha256(urls[schema.URL_TEXT.name].tobytes()).hexdigest(),
        "fields": [field.to_json() for field in source.fields],
        "has_records": source.has_records,
        "convert": {
            "storage_type": kind,
            "shard_digest": source.digest_shards(),
            "row_digests": await asyncio.to_thread(source.digest_rows),
            "sample_digest": join_digests(digests),
        },
    }
    return StorePlan(root, KIND, spec, tuple(layouts))


class SourceReader:
    """The rows of every array of the store, from the files."""

    def __init__(self, source: KeyedSource) -> None:
        self.source = source
        self._keys = {field.value.name: field for field in source.fields}
        self._made = dict(source.small_arrays())
        for name, values in url_arrays(
            source.names, np.array(source.record_counts, np.int64)
        ).items():
            self._made[name] = partial(_slice, values)

    def ranges(self, name: str, start: int, stop: int) -> list[ValueRange] | None:
        """Return where values of an array lie in the files; None if they lie in no file."""
        if name in self._made:
            return None
        return self.source.values(self._keys[name].name, start, stop)

    def read(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``[start, stop)`` of an array."""
        ranges = self.ranges(name, start, stop)
        if ranges is None:
            return self._made[name](start, stop)
        return read_ranges(ranges, self._keys[name].dtype, stop - start)


def _slice(values: Array, start: int, stop: int) -> Array:
    """Return rows of an array in memory."""
    return values[start:stop]


async def _convert(
    path: str,
    kind: FileFormat,
    root: Place,
    strict: bool,
    grid: ChunkGrid,
    executor: Executor,
    shown: Progress,
) -> Store:
    """Write every shard of the store, and commit it."""
    source, folder = await asyncio.to_thread(lambda: read_source(path, kind, strict=strict))
    plan = await plan_keyed(source, root, kind, grid, executor)
    try:
        return open_store(root, kind=KIND, expected=plan.fingerprint)
    except StoreNotFoundError:
        plan = await asyncio.to_thread(begin_store, plan)
    reader = SourceReader(source)
    with shown.step(root.name, plan.num_shards) as advance:

        async def one(layout: ArrayLayout, shard: int) -> ShardResult:
            rows = layout.shard_bounds(shard)
            ranges = reader.ranges(layout.name, *rows)
            if ranges is None:  # what it is made of is in this process
                compute = partial(reader.read, layout.name, *rows)
                result = await asyncio.to_thread(store_shard, root, layout, shard, compute)
            else:
                key = f"convert-{root.name[:28]}-{layout.name}-{shard}"
                result = await executor.run(store_ranges, root, layout, shard, ranges, key=key)
            advance(1)
            return result

        results = await run_together(
            one(layout, shard) for layout in plan.layouts for shard in range(layout.num_shards)
        )
    receipts = [result.receipt for result in results]
    facts = {"num_skipped": 0, "url_prefix": folder}
    await asyncio.to_thread(commit_store, plan, receipts, facts)
    return open_store(root, kind=KIND, expected=plan.fingerprint)
