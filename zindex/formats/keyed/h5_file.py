"""Read and write HDF5 files with a group per key and the datasets ``data_0``, ``data_1``, ...

Each dataset is a record. If a record is a group of items, such as the responses to a prompt, it is
a group ``data_<i>`` of such datasets.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed import keyed_array
from zindex.formats.keyed.natural_order import list_below, natural_key
from zindex.io.local import make_folder, read_into, replacing, write_from

#: Suffixes of the files.
SUFFIXES = (".h5", ".hdf5")
#: The dtype of a key without datasets.
EMPTY_DTYPE = "int64"


def read_h5_shards(path: str | os.PathLike[str]) -> list[keyed_array.KeyedShard]:
    """Read the HDF5 files at or below a path, in natural order of their paths.

    Datasets are also in natural order: ``data_2`` before ``data_10``.

    Parameters
    ----------
    path
        A file, or a folder.

    Raises
    ------
    StoreNotFoundError
        If there is no such file or folder, or none below it that ends in ``.h5`` or ``.hdf5``.
    SourceError
        If a file is not valid.
    ConfigError
        If h5py is not installed.
    """
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return [_read_shard(root, os.path.basename(root))]
    names = []
    if os.path.isdir(root):
        names = [name for name in list_below(root) if name.endswith(SUFFIXES)]
    if not names:
        raise StoreNotFoundError(
            f"there must be a file that ends in {' or '.join(SUFFIXES)} at or below {root}, there "
            "is none; check the path"
        )
    return [_read_shard(os.path.join(root, name), name) for name in names]


def _read_shard(path: str, name: str) -> keyed_array.KeyedShard:
    """Read one file."""
    h5py = keyed_array.import_h5py()
    with keyed_array.open_h5(path) as file:
        status = os.stat(path)
        arrays = {}
        for key in sorted(file):
            keyed_array.check_key(key, where=path)
            group = _open_child(file, key, where=f"{path}, key {key!r}")
            if not isinstance(group, h5py.h5g.GroupID):
                raise SourceError(
                    f"a key must be a group of datasets, {path} has {key!r} which is none; write "
                    f"it as the dataset /{key}/data_0"
                )
            arrays[key] = _KeyReader(path, key, status).read(h5py.Group(group))
    if not arrays:
        raise SourceError(
            f"{path} must have a group for every key, it has none; write the file again"
        )
    return keyed_array.KeyedShard(name, arrays)


def _open_child(group: Any, name: str, *, where: str) -> Any:
    """Open a child of a group; SourceError for a link, which could lead to other files."""
    h5py = keyed_array.import_h5py()
    encoded = name.encode("utf-8", "surrogateescape")
    if group.id.links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
        raise SourceError(f"{where} must be in the file itself, it is a link; copy it there")
    return h5py.h5o.open(group.id, encoded)


@dataclass(slots=True)
class _KeyReader:
    """Collects the positions of the datasets of one key."""

    path: str
    key: str
    status: os.stat_result
    dtype: str | None = None
    start: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def read(self, group: Any) -> keyed_array.KeyedArray:
        """Read the group of the key."""
        h5py = keyed_array.import_h5py()
        items_of_record = []
        is_nested: bool | None = None
        for name in sorted(group, key=natural_key):
            child = _open_child(group, name, where=self._place(name))
            if is_nested is None:
                is_nested = isinstance(child, h5py.h5g.GroupID)
            if is_nested != isinstance(child, h5py.h5g.GroupID):
                raise SourceError(
                    f"the records of a key must all be datasets or all be groups of datasets, "
                    f"{self._place(name)} is not like those before; write the file again"
                )
            if is_nested:
                items_of_record.append(self._read_items(h5py.Group(child), name))
            else:
                self._read_dataset(child, name)
        offsets = keyed_array.sum_lengths(self.length)
        start, groups = np.array(self.start, np.int64), None
        if is_nested:
            groups = keyed_array.sum_lengths(items_of_record)
        dtype, names = self.dtype or EMPTY_DTYPE, tuple(self.names)
        read = self.key, self.path, dtype, start, offsets, offsets, groups, names
        return keyed_array.KeyedArray(*read, self.status.st_mtime_ns)

    def _read_items(self, group: Any, record: str) -> int:
        """Add the datasets of one record, and return their number."""
        names = sorted(group, key=natural_key)
        for name in names:
            place = f"{record}/{name}"
            self._read_dataset(_open_child(group, name, where=self._place(place)), place)
        return len(names)

    def _read_dataset(self, dataset: Any, name: str) -> None:
        """Add one dataset."""
        h5py = keyed_array.import_h5py()
        place = self._place(name)
        # Each attribute is a library call, and a file may have a million datasets.
        shape = dataset.shape if isinstance(dataset, h5py.h5d.DatasetID) else None
        if shape is None or len(shape) != 1:
            raise SourceError(
                f"{place} must be a flat dataset, it is something else; write the file again"
            )
        stored = dataset.dtype
        dtype = keyed_array.parse_dtype(stored.name, where=place)
        if self.dtype not in {None, dtype}:
            raise SourceError(
                f"all datasets of a key must have one dtype, {place} has {dtype} after "
                f"{self.dtype}; write the file again"
            )
        self.dtype = dtype
        created = dataset.get_create_plist()
        layout = created.get_layout()
        if created.get_external_count() or layout == h5py.h5d.VIRTUAL:
            raise SourceError(
                f"{place} must be in the file itself, its values are in other files; copy them"
            )
        length = int(shape[0])
        nbytes = length * stored.itemsize
        is_plain = layout == h5py.h5d.CONTIGUOUS and stored.isnative
        # HDF5 may report an offset for data that was never written.
        is_written = is_plain and dataset.get_storage_size() == nbytes
        start = dataset.get_offset() if is_written else None
        if length == 0:
            start = 0
        elif start is None:
            start = -1
        elif start + nbytes > self.status.st_size:
            raise SourceError(
                f"{place} must end before byte {self.status.st_size:,} where the file does, but "
                f"it has {length:,} values of {dtype} from byte {start:,}; restore the file"
            )
        self.start.append(start)
        self.length.append(length)
        self.names.append(f"{self.key}/{name}")

    def _place(self, name: str) -> str:
        """Return file and dataset for messages."""
        return f"{self.path}, /{self.key}/{name[:80]}"


def write_h5_file(
    path: str | os.PathLike[str],
    values: Mapping[str, Iterable[AnyArray | Sequence[AnyArray]]],
) -> None:
    """Write an HDF5 file of keys, replacing an existing one.

    Parameters
    ----------
    path
        The file; its folder is created if missing.
    values
        For each key its records, which may be lazy: flat arrays, or sequences of flat arrays if a
        record is a group of items.

    Raises
    ------
    SourceError
        If a key, a dtype or a shape is not valid.
    ConfigError
        If h5py is not installed.
    """
    target = os.fspath(path)
    make_folder(Path(target).parent)
    with replacing(target) as partial, _create_h5(partial) as (file, output):
        for key, records in values.items():
            keyed_array.check_key(key, where=target)
            group = file.create_group(key)
            shapes, dtypes = set[bool](), set[str]()
            for i, record in enumerate(records):
                where = f"{target}, /{key}/data_{i}"
                items = [record] if isinstance(record, np.ndarray) else record
                shapes.add(items is record)
                dtypes.update(item.dtype.name for item in items)
                if len(shapes) > 1 or len(dtypes) > 1:
                    raise SourceError(
                        "the records of a key must have one dtype, and all be flat or all be "
                        f"groups, {where} is not like those before; convert it"
                    )
                _write_record(group, f"data_{i}", record, where=where)
                if output.error is not None:
                    raise output.error


@contextmanager
def _create_h5(path: str) -> Iterator[tuple[Any, "_Output"]]:
    """Create an HDF5 file, and raise the system errors of its writes."""
    h5py = keyed_array.import_h5py()
    output = _Output(path)
    try:
        with h5py.File(output, "w") as file:
            yield file, output
    finally:
        os.close(output.descriptor)
        if output.error is not None:
            raise output.error


class _Output(io.RawIOBase):
    """A file whose writes never fail for HDF5, which would crash the process on a full disk."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        self.position = self.size = 0
        #: The first system error; nothing is written after it.
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_CUR: self.position, os.SEEK_END: self.size}
        self.position = offset + starts.get(whence, 0)
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        values = np.frombuffer(buffer, np.uint8)
        self._attempt(read_into, values, self.position)
        self.position += values.size
        return values.size

    def write(self, buffer: Any) -> int:
        values = np.frombuffer(buffer, np.uint8)
        self._attempt(write_from, values, self.position)
        self.position += values.size
        self.size = max(self.size, self.position)
        return values.size

    def truncate(self, size: int | None = None) -> int:
        self.size = self.position if size is None else size
        self._attempt(os.ftruncate, self.size)
        return self.size

    def _attempt(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            if self.error is None:
                call(self.descriptor, *args)
        except OSError as error:
            self.error = error


def _write_record(
    group: Any, name: str, record: AnyArray | Sequence[AnyArray], *, where: str
) -> None:
    """Write a record as a dataset, or its items as datasets of a group."""
    if isinstance(record, np.ndarray):
        if record.ndim != 1:
            raise SourceError(
                f"values must be flat arrays, got shape {record.shape} for {where}; convert them"
            )
        keyed_array.parse_dtype(record.dtype.name, where=where)
        group.create_dataset(name, data=record)
        return
    items = group.create_group(name)
    for i, item in enumerate(record):
        _write_record(items, f"data_{i}", item, where=f"{where}/data_{i}")
