"""Read and write HDF5 files with a group per key and the datasets ``data_0``, ``data_1``, ...

Each dataset is a record. If a record is a group of items, such as the responses to a prompt, it is
a group ``data_<i>`` of such datasets.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed.declarations import check_key, parse_dtype
from zindex.formats.keyed.keyed_array import (
    KeyedArray,
    KeyedShard,
    import_h5py,
    open_h5,
    sum_lengths,
)
from zindex.formats.keyed.natural_order import list_below, natural_key
from zindex.io.local import replacing

#: Endings of the files' names.
SUFFIXES = (".h5", ".hdf5")
#: The dtype of a key without datasets.
EMPTY_DTYPE = "int64"


def read_h5_shards(path: str | os.PathLike[str]) -> list[KeyedShard]:
    """Read the HDF5 files at or below a path, in natural order of their paths.

    Datasets are in natural order, too: ``data_2`` before ``data_10``.

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


def _read_shard(path: str, name: str) -> KeyedShard:
    """Read one file."""
    h5py = import_h5py()
    with open_h5(path) as file:
        size = os.path.getsize(path)
        arrays = {}
        for key in sorted(file):
            check_key(key, where=path)
            group = _open_child(file, key, where=f"{path}, key {key!r}")
            if not isinstance(group, h5py.h5g.GroupID):
                raise SourceError(
                    f"a key must be a group of datasets, {path} has {key!r} which is none; write "
                    f"it as the dataset /{key}/data_0"
                )
            arrays[key] = _KeyReader(path, key, size).read(h5py.Group(group))
    if not arrays:
        raise SourceError(
            f"{path} must have a group for every key, it has none; write the file again"
        )
    return KeyedShard(name, arrays)


def _open_child(group: Any, name: str, *, where: str) -> Any:
    """Open a child of a group; SourceError if it is a link, which could lead to other files."""
    h5py = import_h5py()
    encoded = name.encode("utf-8", "surrogateescape")
    if group.id.links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
        raise SourceError(f"{where} must be in the file itself, it is a link; copy it there")
    return h5py.h5o.open(group.id, encoded)


@dataclass(slots=True)
class _KeyReader:
    """Collects the positions of the datasets of one key."""

    path: str
    key: str
    #: Bytes of the file.
    size: int
    dtype: str | None = None
    start: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def read(self, group: Any) -> KeyedArray:
        """Read the group of the key."""
        h5py = import_h5py()
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
        offsets = sum_lengths(self.length)
        start, groups = np.array(self.start, np.int64), None
        if is_nested:
            groups = sum_lengths(items_of_record)
        dtype, names = self.dtype or EMPTY_DTYPE, tuple(self.names)
        return KeyedArray(self.key, self.path, dtype, start, offsets, offsets, groups, names)

    def _read_items(self, group: Any, record: str) -> int:
        """Add the datasets of one record, and return their number."""
        names = sorted(group, key=natural_key)
        for name in names:
            place = f"{record}/{name}"
            self._read_dataset(_open_child(group, name, where=self._place(place)), place)
        return len(names)

    def _read_dataset(self, dataset: Any, name: str) -> None:
        """Add one dataset."""
        h5py = import_h5py()
        place = self._place(name)
        # Each attribute is a call of the library, and a file may have a million datasets.
        shape = dataset.shape if isinstance(dataset, h5py.h5d.DatasetID) else None
        if shape is None or len(shape) != 1:
            raise SourceError(
                f"{place} must be a flat dataset, it is something else; write the file again"
            )
        stored = dataset.dtype
        dtype = parse_dtype(stored.name, where=place)
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
        elif start + nbytes > self.size:
            raise SourceError(
                f"{place} must end before byte {self.size:,} where the file does, but it has "
                f"{length:,} values of {dtype} from byte {start:,}; restore the file"
            )
        self.start.append(start)
        self.length.append(length)
        self.names.append(f"{self.key}/{name}")

    def _place(self, name: str) -> str:
        """Return file and dataset for messages."""
        return f"{self.path}, /{self.key}/{name[:80]}"


def write_h5_file(
    path: str | os.PathLike[str],
    values: Mapping[str, Iterable[npt.NDArray[Any] | Sequence[npt.NDArray[Any]]]],
) -> None:
    """Write an HDF5 file of keys, in place of one that is there.

    Parameters
    ----------
    path
        The file; its folder is made if it is missing.
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
    h5py = import_h5py()
    target = os.fspath(path)
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    with replacing(target) as partial, h5py.File(partial, "w", locking="best-effort") as file:
        for key, records in values.items():
            check_key(key, where=target)
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


def _write_record(
    group: Any, name: str, record: npt.NDArray[Any] | Sequence[npt.NDArray[Any]], *, where: str
) -> None:
    """Write a record as a dataset, or its items as datasets of a group."""
    if isinstance(record, np.ndarray):
        if record.ndim != 1:
            raise SourceError(
                f"values must be flat arrays, got shape {record.shape} for {where}; convert them"
            )
        parse_dtype(record.dtype.name, where=where)
        group.create_dataset(name, data=record)
        return
    items = group.create_group(name)
    for i, item in enumerate(record):
        _write_record(items, f"data_{i}", item, where=f"{where}/data_{i}")
