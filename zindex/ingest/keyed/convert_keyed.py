"""Convert keyed files to a Zarr store of records, one task per shard, from row readers."""

import asyncio
import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast, get_args

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int64Array
from zindex.errors import ConfigError, SourceError, check_choice
from zindex.execution.executor import Executor, run_builds, run_together
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard, join_records
from zindex.formats.keyed.schema_presets import TOKEN_KEYS
from zindex.formats.keyed.shards import FileFormat, KeyedFormat, detect_format, read_shards
from zindex.formats.keyed.value_rules import (
    InvalidValueError,
    describe_invalid,
    find_invalid,
)
from zindex.ingest.driver import Workers, open_workers, write_store
from zindex.ingest.keyed.token_lines import open_token_lines
from zindex.ingest.length_source import digest_array, join_digests
from zindex.ingest.records.import_records import import_records, url_arrays, url_layouts, url_spec
from zindex.ingest.records.open_files import open_files
from zindex.ingest.spans import cut_span
from zindex.io.local import local_path
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import Paths
from zindex.store.commit import StorePlan, fingerprint
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import Store
from zindex.store.records import (
    BYTE_GRID,
    KEY,
    KIND,
    LENGTH_SUFFIX,
    URL,
    Form,
    RecordField,
    check_dtypes,
    record_layouts,
)
from zindex.store.shard_files import ShardResult, store_shard

# The identity includes the first bytes of every block of a key of a shard, as for corpora.
_BLOCK_NBYTES, _SAMPLE_NBYTES = 1 << 26, 1 << 16


class KeyedSource:
    """All keys of some shards, concatenated.

    Parameters
    ----------
    shards
        From `check_shards`: they have the same keys, and each key has one dtype. Records are kept
        if all keys have the same number of them; otherwise each shard is one record.

    Raises
    ------
    ConfigError
        If a key has the name of another key's lengths, or cannot be stored.
    """

    def __init__(self, shards: Sequence[KeyedShard]) -> None:
        self.names = [shard.name for shard in shards]
        self.has_records = all(
            array.num_records is not None for shard in shards for array in shard.arrays.values()
        )
        keys = list(dict.fromkeys(key for shard in shards for key in shard.arrays))
        self._arrays = {
            key: [shard.arrays.get(key) or _empty(shards, key) for shard in shards] for key in keys
        }
        check_dtypes({key: arrays[0].dtype for key, arrays in self._arrays.items()})
        self._starts = {
            key: list(accumulate((array.length for array in arrays), initial=0))
            for key, arrays in self._arrays.items()
        }
        first = self._arrays[keys[0]]
        self.record_counts = [(a.num_records or 0) if self.has_records else 1 for a in first]
        self.num_records = sum(self.record_counts)
        for key in keys:
            if key in (KEY, URL):
                raise ConfigError(
                    f"a key must not be called {key}, which is reserved in stores of records; "
                    "rename it"
                )
            if f"{key}{LENGTH_SUFFIX}" in keys:
                raise ConfigError(
                    f"a key must not be called {key}{LENGTH_SUFFIX} next to {key}, for the store "
                    f"keeps the lengths of the items of {key} by that name; rename it"
                )
        #: The fields of the store.
        self.fields: list[RecordField] = []
        # The arrays that are not in any file, and the key of each array of values.
        self._offsets: dict[str, Int64Array] = {}
        self._keys: dict[str, str] = {}
        for key in keys:
            self._add_field(key)
        urls = url_arrays(self.names, np.array(self.record_counts, np.int64))
        #: The in-memory arrays.
        self.rows = self._offsets | urls

    def _add_field(self, key: str) -> None:
        """Add the field of a key, and that of the lengths of its items if records are groups."""
        arrays = self._arrays[key]
        numbers = int(Form.NUMBERS)
        field = RecordField(key, self._starts[key][-1], numbers, dtype=arrays[0].dtype)
        self.fields.append(field)
        self._keys[field.value.name] = key
        if not self.has_records:
            self._offsets[field.offset.name] = np.array(self._starts[key])
            return
        records = join_records(arrays)
        self._offsets[field.offset.name] = records.offset
        if records.item_length is not None and records.group_offset is not None:
            lengths = records.item_length
            field = RecordField(f"{key}{LENGTH_SUFFIX}", len(lengths), numbers, dtype="int64")
            self.fields.append(field)
            self._offsets[field.offset.name] = records.group_offset
            self._offsets[field.value.name] = lengths

    def layouts(self, grid: ChunkGrid) -> list[ArrayLayout]:
        """Return the arrays of the store; see `record_layouts`."""
        return record_layouts(self.fields, self.num_records, grid) + url_layouts(self.rows, grid)

    def key_of(self, name: str) -> str:
        """Return the key of an array of values."""
        return self._keys[name]

    def describe(self, error: InvalidValueError, folder: str) -> str:
        """Return the message for an invalid value: its file, and its record there."""
        starts = self._starts[error.key]
        shard = bisect_right(starts, error.position) - 1
        where = f"{os.path.join(folder, self.names[shard])}"
        if self.has_records:
            name = next(field for field in self.fields if field.name == error.key).offset.name
            record = int(np.searchsorted(self._offsets[name], error.position, "right")) - 1
            where = f"record {record - sum(self.record_counts[:shard]):,} of {where}"
        else:
            where = f"value {error.position - starts[shard]:,} of {where}"
        return describe_invalid(error.key, error.value, where)

    def spans(self, name: str, start: int, stop: int) -> list[KeyedArray]:
        """Return the spans of files with rows ``[start, stop)`` of an array of values."""
        key = self._keys[name]
        return [
            self._arrays[key][number].span(first, last)
            for number, first, last, _ in cut_span(self._starts[key], start, stop)
        ]

    def digest_shards(self) -> str:
        """Return the SHA-256, in hex, of the names of the shards, and the lengths of all keys."""
        lengths = {key: [array.length for array in arrays] for key, arrays in self._arrays.items()}
        return fingerprint({"names": self.names, "records": self.record_counts, "lengths": lengths})

    def digest_rows(self) -> dict[str, str]:
        """Return the SHA-256, in hex, of each array of offsets or lengths."""

        def digest(rows: Int64Array) -> str:
            return digest_array(lambda start, stop: rows[start:stop], len(rows))

        return {name: digest(rows) for name, rows in self._offsets.items()}

    def samples(self) -> Iterator[KeyedArray]:
        """Yield the values in the identity: the first ones of every block of every array."""
        for arrays in self._arrays.values():
            for array in arrays:
                itemsize = np.dtype(array.dtype).itemsize
                for start in range(0, array.length, _BLOCK_NBYTES // itemsize):
                    yield array.span(start, min(start + _SAMPLE_NBYTES // itemsize, array.length))


def digest_spans(spans: Sequence[KeyedArray]) -> bytes:
    """Task: the SHA-256 of the values of some spans."""
    digest = hashlib.sha256()
    for span in spans:
        digest.update(span.read(0, span.length).data)
    return digest.digest()


def read_spans(spans: Sequence[KeyedArray], dtype: DTypeLike) -> AnyArray:
    """Return the values of some spans, concatenated."""
    out = np.empty(sum(span.length for span in spans), dtype)
    row = 0
    for span in spans:
        span.read_into(out[row : row + span.length])
        row += span.length
    return out


def store_spans(
    root: Place, layout: ArrayLayout, shard: int, key: str, spans: Sequence[KeyedArray]
) -> ShardResult:
    """Task: one shard of the values of a key, unless it already exists.

    Raises
    ------
    InvalidValueError
        If a token id is negative, or a float is not finite.
    """

    def read() -> AnyArray:
        values = read_spans(spans, layout.dtype)
        wrong = find_invalid(values, is_tokens=key in TOKEN_KEYS)
        if wrong is not None:
            position = layout.shard_bounds(shard)[0] + wrong
            raise InvalidValueError(key, position, values[wrong].item())
        return values

    return store_shard(root, layout, shard, read)


def _empty(shards: Sequence[KeyedShard], key: str) -> KeyedArray:
    """Return the empty array of a key for a shard that lacks it."""
    found = next(shard.arrays[key] for shard in shards if key in shard.arrays)
    return KeyedArray(key, "", found.dtype, np.empty(0, np.int64), np.zeros(1, np.int64))


# Samples of values that one task reads for the identity.
_SAMPLES_PER_TASK = 256
_JSONL = re.compile(r"\.(jsonl|ndjson)(\.\w+)?$")


def convert_keyed(
    source: Paths,
    target: PlaceLike,
    *,
    storage_type: KeyedFormat | None = None,
    dtypes: Mapping[str, DTypeLike] | None = None,
    strict: bool = True,
    on_damage: OnDamage = "error",
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> Store:
    """Convert keyed files into a Zarr store, keeping finished shards.

    Parameters
    ----------
    source
        A folder of ``h5`` or ``bin`` files, or a single ``.h5`` file. For ``jsonl`` also several
        files, folders and brace patterns, local or in an object store.
    target
        Location of the store.
    storage_type
        Format of the files; None detects it from their names.
    dtypes
        For ``jsonl``, the keys to keep, and their dtypes. None keeps the lists of the first line:
        keys with fractions, or with ``reward`` in their name, as float32, with ``mask`` as bool,
        others as int32. Other formats store their dtypes.
    strict
        Whether the keys of each shard must have the same number of values or of records. If not,
        shards in which they differ are one record each.
    on_damage
        For ``jsonl``, whether damaged lines stop the conversion, or are skipped and counted.
    restart
        For ``jsonl``, whether to first remove an unfinished conversion.
    grid
        Bytes per chunk and shard of every array, and the codec.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    num_processes
        Processes to start on this machine instead of using a client; for ``jsonl``, which is parsed
        by Python.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.

    Returns
    -------
    store
        A store of records: for each key all values, and the offset of each record.

    Raises
    ------
    ConfigError
        If a setting does not apply to the files, or keys cannot be stored.
    SourceError
        If files are damaged, shards are inconsistent, a token id is negative, or a float is not
        finite.
    StoreNotFoundError
        If there are no files.
    FingerprintMismatchError
        If the location has other content.

    Notes
    -----
    Law: ``export_keyed`` restores the same files. Memory: one shard of the store, 64 MiB by
    default, per thread (two more than cores without a client), and the offsets of all records. For
    ``jsonl`` as for ``import_records``.
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
    """Return whether the files must be jsonl: there are several, or their names say so."""
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
        return store_spans, root, layout, shard, source.key_of(layout.name), spans

    facts = {"num_skipped": 0, "url_prefix": os.path.join(folder, "")}
    try:
        return await write_store(plan, workers, root.name, task, facts=facts, rows=source.rows)
    except InvalidValueError as error:
        raise SourceError(source.describe(error, folder)) from None
