"""Export a store of keyed tokens to files, one per source file."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, StoreError, check_choice
from zindex.execution.executor import run_builds, run_together
from zindex.formats.keyed.bin_folder import META, write_bin_folder
from zindex.formats.keyed.h5_file import write_h5_file
from zindex.formats.keyed.natural_order import natural_key
from zindex.formats.keyed.shards import KeyedFormat
from zindex.ingest.driver import open_workers
from zindex.io.files import check_room
from zindex.io.local import local_path, make_folder, replacing
from zindex.io.objects import PlaceLike
from zindex.store.open import Store, open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KEY, KIND, LENGTH_SUFFIX, Form, RecordField, read_fields

# Values, and records, per read.
_BLOCK_LENGTH = 1 << 22
_BLOCK_RECORDS = 1 << 6
# Suffixes of files of keyed tokens, and the default name of a shard.
_ENDING = re.compile(r"\.(jsonl|ndjson|json|h5|hdf5)(\.\w+)?$")
_ONLY_SHARD = "data"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key of a store of keyed tokens."""

    name: str
    field: RecordField
    #: The lengths of the items, if records are groups of items.
    lengths: RecordField | None


def export_keyed(
    store_url: PlaceLike | Store,
    target: str | os.PathLike[str],
    *,
    storage_type: KeyedFormat | None = None,
    overwrite: bool = False,
    client: Any = None,
    progress: bool = False,
) -> list[str]:
    """Write a store of keyed tokens as files, one per source file.

    Parameters
    ----------
    store_url
        Path or URL of the store, or the opened store.
    target
        A folder, which must be empty or missing.
    storage_type
        ``"bin"``: a folder of raw arrays per source file; ``"h5"``: an HDF5 file; ``"jsonl"``: a
        file with one record per line, which may also have texts and JSON values. None uses the
        format of the source.
    overwrite
        Whether to replace files of an earlier export.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.

    Returns
    -------
    paths
        The files or folders, in the order of the store.

    Raises
    ------
    ConfigError
        If a field does not fit the format: files other than jsonl hold flat numbers alone, and
        jsonl no bytes. Or if the format is jsonl and the store has no records.
    StoreError
        If the folder contains other files, or the format is jsonl and a number is not finite.
    StoreUnwritableError
        If there is too little room, before anything is written, or a write fails.

    Notes
    -----
    Law: the files convert to the same values, dtypes, records and order, given the dtypes for
    jsonl; lines with texts are read by ``zindex import``. Names that would change the order of
    shards get a numeric prefix.
    """
    store = store_url if isinstance(store_url, Store) else open_store(store_url, kind=KIND)
    kind = _choose_format(store, storage_type)
    keys = stored_keys(store, kind)
    root = str(local_path(target, "a folder of keyed files"))  # workers may run elsewhere
    names = name_shards(_stored_names(store), kind)
    _check_folder(root, [file for name in names for file in _files_of(name, keys, kind)], overwrite)
    if kind != "jsonl":  # whose size is unknown
        needed = sum(store.layouts[key.field.value.name].nbytes for key in keys)
        check_room(Path(root), needed)

    async def main() -> list[str]:
        with workers.shown.step(os.path.basename(root), len(names)) as advance:

            async def one(number: int, name: str) -> str:
                path = os.path.normpath(os.path.join(root, name))
                key = f"export-{store.root.name[:28]}-{number}"
                await workers.executor.run(export_shard, store, number, path, kind, key=key)
                advance(1)
                return path

            return await run_together(one(number, name) for number, name in enumerate(names))

    with open_workers(client, None, progress) as workers:
        return run_builds(main())


def stored_keys(store: Store, kind: KeyedFormat = "bin") -> list[StoredKey]:
    """Return the keys of a store of keyed tokens, or all fields if they can be written as lines.

    Raises
    ------
    ConfigError
        If it has none, or a field that files of this format cannot hold.
    """
    fields = read_fields(store.spec, store.root)
    fields.pop(KEY, None)
    for name, field in fields.items():
        if kind == "jsonl" and field.form == Form.BYTES:
            raise ConfigError(
                f"lines must hold texts, numbers and JSON values, the field {name!r} of "
                f"{store.root} holds bytes, which JSON lacks; read its records in Python"
            )
        if kind != "jsonl" and (field.has_forms or field.form != Form.NUMBERS):
            raise ConfigError(
                f"{store.root} must hold keyed tokens, flat numbers in every record, its field "
                f"{name!r} holds something else; write lines with storage_type (--to) jsonl, or "
                "import the files again with field (--field) and dtypes (--dtype)"
            )
    numbers = {
        name: field
        for name, field in fields.items()
        if field.form == Form.NUMBERS and not field.has_forms
    }
    lengths = {name: numbers.get(f"{name}{LENGTH_SUFFIX}") for name in numbers}
    inner = {field.name for field in lengths.values() if field is not None}
    keys = [
        StoredKey(name, field, lengths.get(name))
        for name, field in fields.items()
        if name not in inner
    ]
    if not keys:
        raise ConfigError(
            f"{store.root} must hold keyed tokens, it has no fields; convert keyed files"
        )
    return keys


def _choose_format(store: Store, storage_type: KeyedFormat | None) -> KeyedFormat:
    """Return the format of the files to write."""
    if storage_type is None:
        storage_type = store.spec.get("convert", {}).get("storage_type", "jsonl")
    check_choice("storage_type (--to)", storage_type, get_args(KeyedFormat))
    if storage_type == "jsonl" and not store.spec.get("has_records", True):
        raise ConfigError(
            f"{store.root} must know where records begin to be written as lines, it was made of "
            "files without offsets; give another storage_type (--to)"
        )
    return storage_type


def _stored_names(store: Store) -> list[str]:
    """Return the names of the source files of a store, relative to their folder."""
    bounds = store[schema.URL_TEXT_BOUND.name][:].tolist()
    text = store[schema.URL_TEXT.name]
    return [
        str(text.read(start, stop).data, "utf-8", "surrogateescape")
        for start, stop in pairwise(bounds)
    ]


def name_shards(stored: Sequence[str], kind: KeyedFormat) -> list[str]:
    """Return the file or folder of each shard, named so that reading preserves their order.

    Parameters
    ----------
    stored
        Names of the source files.
    kind
        Format to write.

    Raises
    ------
    StoreError
        If a name leads out of the folder.

    Examples
    --------
    >>> name_shards(["shard_9", "shard_10"], "h5"), name_shards(["b.jsonl", "a.jsonl"], "bin")
    (['shard_9.h5', 'shard_10.h5'], ['0-b', '1-a'])
    """
    plain = []
    for name in stored:
        short = os.path.normpath(_ENDING.sub("", name) or _ONLY_SHARD)
        if os.path.isabs(short) or short.split("/")[0] == ".." or "\0" in short:
            raise StoreError(
                f"the files of a store must lie in one folder to be written again, got {name!r}; "
                "convert them from one folder"
            )
        plain.append(_ONLY_SHARD if short == "." and kind != "bin" else short)
    suffix = "" if kind == "bin" else f".{kind}"
    order = [f"{name}/{META}" if kind == "bin" else f"{name}{suffix}" for name in plain]
    order = [name.removeprefix("./") for name in order]
    # Jsonl files are read in the order of their names, others in natural order.
    key = str if kind == "jsonl" else natural_key
    if len(set(order)) < len(order) or order != sorted(order, key=key):
        width = len(str(len(plain) - 1))
        plain = [f"{number:0{width}d}-{name}" for number, name in enumerate(plain)]
    return [f"{name}{suffix}" for name in plain]


def _files_of(name: str, keys: Sequence[StoredKey], kind: KeyedFormat) -> list[str]:
    """Return the files that are written for a shard."""
    if kind != "bin":
        return [name]
    files = [META, *(f"{key.name}.bin" for key in keys)]
    return [os.path.normpath(os.path.join(name, file)) for file in files]


def _check_folder(root: str, written: Sequence[str], overwrite: bool) -> None:
    """Raise if the folder has files that would be replaced, or be read as part of the export."""
    if os.path.exists(root) and not os.path.isdir(root):
        raise StoreError(f"{root} must be a folder, it is a file; choose another place")
    known = set(written)
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.join(folder, file)
            name = os.path.relpath(path, root)
            if name.endswith(".partial"):  # left behind by an interrupted export
                continue
            if name not in known:
                raise StoreError(
                    f"{root} must hold nothing but an earlier export, it holds {name}; choose "
                    "another folder"
                )
            if not overwrite:
                raise StoreError(
                    f"{path} exists; choose another folder or pass overwrite=True (--overwrite)"
                )


def export_shard(store: Store, number: int, path: str, kind: KeyedFormat) -> None:
    """Task: write the records of one source file.

    Parameters
    ----------
    store
        The store.
    number
        Number of the source file.
    path, kind
        Path and format to write.
    """
    first, last = store[schema.URL_RECORD_BOUND.name].read(number, number + 2).tolist()
    shard = _Shard(store, stored_keys(store, kind), first, last)
    make_folder(Path(path).parent)
    if kind == "bin":
        shard.write_bin(path)
    elif kind == "h5":
        write_h5_file(path, {key.name: shard.records(key) for key in shard.keys})
    else:
        shard.write_lines(path)


class _Shard:
    """The records of one file.

    Parameters
    ----------
    store, keys
        The store, and its keys.
    first, last
        Its range of records.
    """

    def __init__(self, store: Store, keys: Sequence[StoredKey], first: int, last: int) -> None:
        self.store, self.keys, self.first, self.last = store, keys, first, last

    def write_bin(self, folder: str) -> None:
        """Write a folder of raw arrays."""
        items, groups = {}, {}
        if self.store.spec.get("has_records", True):
            for key in self.keys:
                offsets = self._offsets(key.lengths or key.field)
                if key.lengths is not None:
                    groups[key.name] = offsets - offsets[0]
                    lengths = self.store[key.lengths.value.name].read(offsets[0], offsets[-1])
                    offsets = np.concatenate(([0], np.cumsum(lengths)))
                items[key.name] = offsets - offsets[0]
        write_bin_folder(
            folder,
            {key.name: self._values(key.field) for key in self.keys},
            dtypes={key.name: key.field.dtype for key in self.keys},
            item_offset=items,
            group_offset=groups,
        )

    def _offsets(self, field: RecordField) -> Int64Array:
        """Return the offsets of the records among the values of a field."""
        return self.store[field.offset.name].read(self.first, self.last + 1)

    def _values(self, field: RecordField) -> Iterator[AnyArray]:
        """Yield all values of a field, block by block."""
        reader, offsets = self.store[field.value.name], self.store[field.offset.name]
        start, stop = int(offsets[self.first]), int(offsets[self.last])
        for row in range(start, stop, _BLOCK_LENGTH):
            yield reader.read(row, min(row + _BLOCK_LENGTH, stop))

    def records(self, key: StoredKey) -> Iterator[AnyArray | list[AnyArray]]:
        """Yield the values of each record; for groups, a list with the values of each item."""
        values = self._rows(key.field)
        if key.lengths is None:
            yield from values
            return
        for row, lengths in zip(values, self._rows(key.lengths), strict=True):
            yield np.split(row, np.cumsum(lengths))[:-1]

    def _rows(self, field: RecordField) -> Iterator[AnyArray]:
        """Yield the values of a field in each record."""
        reader, bounds = self.store[field.value.name], self.store[field.offset.name]
        for first in range(self.first, self.last, _BLOCK_RECORDS):
            offsets = bounds.read(first, min(first + _BLOCK_RECORDS, self.last) + 1)
            values = reader.read(int(offsets[0]), int(offsets[-1]))
            yield from np.split(values, offsets[1:-1] - offsets[0])

    def write_lines(self, path: str) -> None:
        """Write one JSON object per line."""
        with replacing(path) as partial, open(partial, "x", encoding="utf-8") as file:
            encode = json.JSONEncoder(
                separators=(",", ":"), default=np.ndarray.tolist, allow_nan=False
            ).encode
            for number, record in enumerate(self._read_records(), self.first):
                where = f"record {number:,} of {self.store.root}"
                try:
                    file.write(encode(record) + "\n")
                except ValueError:
                    raise StoreError(
                        f"numbers of lines must be finite, {where} has NaN or an infinity, which "
                        "JSON lacks; give another storage_type (--to)"
                    ) from None
                except TypeError:
                    raise StoreError(
                        f"lines must hold texts, numbers and JSON values, {where} has bytes, which "
                        "JSON lacks; read the records in Python"
                    ) from None

    def _read_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records, whose groups are lists of items."""
        reader = RecordReader(self.store)
        names = [field.name for key in self.keys for field in (key.field, key.lengths) if field]
        for first in range(self.first, self.last, _BLOCK_RECORDS):
            rows = range(first, min(first + _BLOCK_RECORDS, self.last))
            for record in reader.read_many(rows, names):
                for key in self.keys:
                    if key.lengths is not None:
                        lengths = record.pop(key.lengths.name)
                        record[key.name] = np.split(record[key.name], np.cumsum(lengths))[:-1]
                yield record
