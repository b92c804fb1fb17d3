"""The values of generations: small ones in one file each, large and compacted ones in Zarr stores.

A file holds, for each stored field, its values and the length of each record, each padded to eight
bytes. The commit has the digest of the file. A process keeps the files that it has read in memory,
up to a limit; stores are read by position.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.formats.keyed.keyed_array import sum_lengths
from zindex.growing.fields import FieldValues, GrowingSchema
from zindex.growing.history import Append, Home
from zindex.ingest.records.import_records import url_arrays, url_layouts, url_spec
from zindex.io import files
from zindex.io.fork_locks import fork_safe_lock
from zindex.io.objects import Place
from zindex.io.request_threads import map_in_threads
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID, KIND, record_layouts
from zindex.store.rows import RowReader
from zindex.store.shard_files import store_all_shards

FILES_KEY = "_zindex/files"
#: Prefix of the folders of Zarr stores.
STORE_PREFIX = "records-"
#: Larger generations are written as Zarr stores.
MAX_FILE_NBYTES = 32 << 20
#: Bytes of files that a process keeps in memory.
MEMORY_NBYTES = 512 << 20

_ALIGNMENT = 8
_NUM_THREADS = 16


class FieldArrays(NamedTuple):
    """Values of one stored field, and the offset of each record in them."""

    values: RowReader | AnyArray
    offsets: RowReader | AnyArray


def file_path(root: Place, name: str) -> Place:
    """Return the location of the file of a generation."""
    return root / FILES_KEY / f"{name}.bin"


def store_path(root: Place, name: str) -> Place:
    """Return the location of the Zarr store of generations."""
    return root / f"{STORE_PREFIX}{name}"


def home_path(root: Place, home: Append | Home) -> Place:
    """Return the location of the file, or of the store, of generations."""
    return (store_path if home.is_store else file_path)(root, home.name)


def write_file(root: Place, name: str, fields: Sequence[FieldValues]) -> tuple[int, str]:
    """Write the file of a generation; return its bytes and its digest."""
    buffers: list[bytes | memoryview] = []
    for array in (array for field in fields for array in field):
        content = np.ascontiguousarray(array).view(np.uint8).data
        buffers += (content, bytes(-len(content) % _ALIGNMENT))
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    path = file_path(root, name)
    files.make_folder(path.parent)
    files.write_once(path, buffers)
    files.sync_directory(path.parent)
    return sum(map(len, buffers)), digest.hexdigest()


def read_file(
    root: Place, home: Home, schema: GrowingSchema, num_records: int, num_values: Sequence[int]
) -> list[FieldArrays]:
    """Return the values of a file, after verifying its digest.

    Raises
    ------
    StoreNotFoundError
        If it does not exist.
    VerificationError
        If it is not the file that was committed.
    """
    path = file_path(root, home.name)
    content = files.read_file(path, limit=1 << 40)
    if len(content) != home.nbytes or hashlib.sha256(content).hexdigest() != home.digest:
        raise VerificationError(
            f"{path} must have the {home.nbytes:,} bytes that were committed, it has "
            f"{len(content):,}, or others; restore it from a copy"
        )
    start, found = 0, []
    sizes = [np.dtype(dtype).itemsize for _, dtype, _ in schema.fields]
    needed = sum(-(-size * n // _ALIGNMENT) for size, n in zip(sizes, num_values, strict=True))
    if _ALIGNMENT * (needed + num_records * len(sizes)) != len(content):
        raise VerificationError(f"{path} must hold the values that its commit counts; restore it")
    for (_, dtype, _), count in zip(schema.fields, num_values, strict=True):
        values = np.frombuffer(content, dtype, count, start)
        start += values.nbytes + -values.nbytes % _ALIGNMENT
        lengths = np.frombuffer(content, np.int64, num_records, start)
        start += lengths.nbytes
        found.append(FieldArrays(values, sum_lengths(lengths)))
    return found


def describe_records(
    schema: GrowingSchema, fields: Sequence[FieldArrays]
) -> tuple[dict[str, Any], tuple[ArrayLayout, ...], dict[str, RowReader | AnyArray]]:
    """Return records as a record store: its description, its layouts, and its arrays by name."""
    num_records = len(fields[0].offsets) - 1
    described = schema.record_fields([len(field.values) for field in fields])
    rows = url_arrays([""], np.array([num_records], np.int64))
    arrays: dict[str, RowReader | AnyArray] = {**rows}
    for each, values in zip(described, fields, strict=True):
        arrays |= {each.value.name: values.values, each.offset.name: values.offsets}
    layouts = [*record_layouts(described, num_records, BYTE_GRID), *url_layouts(rows, BYTE_GRID)]
    described_fields = [each.to_json() for each in described]
    spec = {"num_records": num_records, **url_spec(rows), "fields": described_fields}
    return spec, tuple(layouts), arrays


def write_records(
    root: Place,
    name: str,
    schema: GrowingSchema,
    fields: Sequence[FieldArrays],
    identity: Mapping[str, object],
) -> Store:
    """Write records as a Zarr store with the commit protocol of all stores.

    Parameters
    ----------
    root, name
        The growing store, and the name of the new one.
    schema, fields
        The stored fields, in their order; offsets start at 0.
    identity
        What else determines the values.
    """
    spec, layouts, arrays = describe_records(schema, fields)
    spec |= {"growing": dict(identity)}
    plan = begin_store(StorePlan(store_path(root, name), KIND, spec, layouts))

    def write(layout_number: int) -> list[object]:
        layout = plan.layouts[layout_number]
        values: AnyArray = arrays[layout.name]  # type: ignore[assignment]  # sliced like an array
        return list(store_all_shards(plan.root, layout, values))

    results = map_in_threads(files.num_writers(root), write, range(len(plan.layouts)))
    receipts = [result.receipt for each in results for result in each]  # type: ignore[attr-defined]
    commit_store(plan, receipts)
    return open_store(plan.root, kind=KIND, expected=plan.fingerprint)


class HomeReader:
    """The files and stores of a growing store that this process has opened.

    Parameters
    ----------
    root, schema
        The growing store.
    """

    def __init__(self, root: Place, schema: GrowingSchema) -> None:
        self.root, self.schema = root, schema
        self._lock = fork_safe_lock()
        # By name, the bytes in memory and the arrays; the least recently used first.
        self._opened: OrderedDict[str, tuple[int, list[FieldArrays]]] = OrderedDict()
        self._nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return HomeReader, (self.root, self.schema)

    def open(self, homes: Iterable[Home], rows: Int64Array) -> dict[str, list[FieldArrays]]:
        """Return the arrays of each stored field by the names of homes, read concurrently.

        Parameters
        ----------
        homes
            The homes.
        rows
            The table of generations; see `History.rows`.
        """
        found, missing = {}, []
        with self._lock:
            for home in homes:
                kept = self._opened.get(home.name)
                if kept is None:
                    missing.append(home)
                else:
                    self._opened.move_to_end(home.name)
                    found[home.name] = kept[1]
        is_local = files.num_writers(self.root) == 1
        num_threads = 1 if is_local else min(_NUM_THREADS, len(missing))
        read = map_in_threads(num_threads, lambda home: self._read(home, rows), missing)
        return found | {home.name: arrays for home, arrays in zip(missing, read, strict=True)}

    def _read(self, home: Home, rows: Int64Array) -> list[FieldArrays]:
        """Open one home."""
        if home.is_store:
            store = open_store(store_path(self.root, home.name), kind=KIND, expected=home.digest)
            described = self.schema.record_fields([0] * len(self.schema.fields))
            arrays = [FieldArrays(store[f.value.name], store[f.offset.name]) for f in described]
        else:
            _, num_records, _, *num_values = rows[home.start].tolist()
            arrays = read_file(self.root, home, self.schema, num_records, num_values)
        nbytes = 0 if home.is_store else home.nbytes
        with self._lock:
            if home.name not in self._opened:
                self._opened[home.name] = nbytes, arrays
                self._nbytes += nbytes
            while self._nbytes > MEMORY_NBYTES and len(self._opened) > 1:
                self._nbytes -= self._opened.popitem(last=False)[1][0]
        return arrays

    def forget(self, kept: Iterable[str]) -> None:
        """Release what was opened, except the homes of these names."""
        with self._lock:
            for name in self._opened.keys() - set(kept):
                self._nbytes -= self._opened.pop(name)[0]
