"""HDF5 files of keys."""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from zindex.errors import ConfigError, SourceError, StoreNotFoundError, StoreUnwritableError
from zindex.formats.keyed import h5_file
from zindex.formats.keyed.h5_file import read_h5_shards, write_h5_file
from zindex.formats.keyed.keyed_array import KeyedArray
from zindex.io.local import write_from


def values_of(array: KeyedArray) -> list[list[int]]:
    """Return the extents of an array: raw bytes where its place is known, else by h5py."""
    content = Path(array.path).read_bytes()
    found = []
    assert array.names is not None
    with h5py.File(array.path) as file:
        places = zip(array.names, array.span_start, np.diff(array.value_offset), strict=True)
        for name, start, length in places:
            stored = file[name]
            if start >= 0:
                raw = np.frombuffer(content, stored.dtype.newbyteorder("<"), length, start)
                assert raw.tolist() == stored[:].tolist()
            found.append(stored[:].tolist())
    return found


def write(path: Path, **groups: list[Any]) -> None:
    """Write a file by h5py alone, each group with its datasets ``data_0``, ``data_1``, ..."""
    with h5py.File(path, "w") as file:
        for key, datasets in groups.items():
            group = file.create_group(key)
            for i, values in enumerate(datasets):
                group.create_dataset(f"data_{i}", data=values)


def test_twelve_datasets_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    records = [np.arange(100 * i, 100 * i + i, dtype="i4") for i in range(12)]
    write(tmp_path / "data_0.h5", sequence=records, loss_mask=[r % 2 == 0 for r in records])
    (shard,) = read_h5_shards(tmp_path)
    sequence = shard.arrays["sequence"]
    assert sequence.names == tuple(f"sequence/data_{i}" for i in range(12))
    assert values_of(sequence) == [r.tolist() for r in records]
    assert (sequence.span_start >= 0).all()
    assert sequence.item_offset is not None
    assert np.diff(sequence.item_offset).tolist() == list(range(12))
    assert (sequence.dtype, shard.arrays["loss_mask"].dtype) == ("int32", "bool")
    assert values_of(shard.arrays["loss_mask"])[3] == [True, False, True]


def test_a_full_disk_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 itself would crash the process."""
    records = {key: [np.arange(i) for i in range(90)] for key in "ab"}
    path = tmp_path / "a.h5"
    write_h5_file(path, records)
    old = path.read_bytes()
    for number in range(0, 400, 17):
        calls = count()

        def fail(*arguments: Any, calls: Any = calls, number: int = number) -> None:
            if next(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_from(*arguments)

        monkeypatch.setattr(h5_file, "write_from", fail)
        with pytest.raises(StoreUnwritableError, match="No space left on device; make room"):
            write_h5_file(path, records)
        assert path.read_bytes() == old
        assert os.listdir(tmp_path) == ["a.h5"]


def test_files_in_natural_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/d_10.h5", "b/d_9.hdf5", "a/d_11.h5", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, k=[np.arange(3)])
    assert [shard.name for shard in read_h5_shards(tmp_path)] == [
        "a/d_11.h5", "b/d_9.hdf5", "b/d_10.h5"
    ]  # fmt: skip
    # A file that is named itself may end in anything.
    assert read_h5_shards(tmp_path / "c.txt")[0].name == "c.txt"


def test_only_plain_datasets_have_a_place(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=1024) as file:
        group = file.create_group("k")
        numbers = np.arange(300, dtype="<i4")
        group.create_dataset("data_0", data=numbers)
        group.create_dataset("data_1", data=numbers, chunks=(100,))
        group.create_dataset("data_2", data=numbers, compression="gzip")
        group.create_dataset("data_3", data=numbers.astype(">i4"))
        group.create_dataset("data_4", shape=(7,), dtype="<i4")
        group.create_dataset("data_5", data=numbers[:0])
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        h5py.h5d.create(group.id, b"data_6", h5py.h5t.STD_I32LE, space, compact)
        group["data_7"] = group["data_0"]
    array = read_h5_shards(tmp_path)[0].arrays["k"]
    starts = array.span_start.tolist()
    assert [start >= 0 for start in starts] == [True, *[False] * 4, True, False, True]
    assert starts[0] == starts[7]
    assert values_of(array)[3] == list(range(300))
    assert array.dtype == "int32"


def test_records_of_several_items(tmp_path: Path) -> None:
    responses = [[np.arange(i + j) for j in range(11)] for i in range(3)]
    rewards = [np.ones(11, "f4"), np.zeros(11, "f4"), np.zeros(0, "f4")]
    responses[2] = []
    write_h5_file(tmp_path / "a.h5", {"responses": responses, "rewards": rewards, "none": []})
    arrays = read_h5_shards(tmp_path)[0].arrays
    array = arrays["responses"]
    assert array.group_offset is not None
    assert array.group_offset.tolist() == [0, 11, 22, 22]
    assert array.names is not None
    assert array.names[10:12] == ("responses/data_0/data_10", "responses/data_1/data_0")
    assert values_of(array) == [item.tolist() for record in responses for item in record]
    assert (array.num_records, arrays["rewards"].num_records) == (3, 3)
    assert (arrays["none"].num_records, arrays["none"].length) == (0, 0)


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "k/data_0", (3,))
    file.create_group("k").create_virtual_dataset("data_0", layout)


def external(file: h5py.File) -> None:
    raw = [("/etc/passwd", 0, 12)]
    file.create_group("k").create_dataset("data_0", (3,), "i4", external=raw)


def set_at(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.__setitem__(name, value)


def mixed(file: h5py.File) -> None:
    file["k/data_0"] = np.arange(3)
    file["k/data_1/data_0"] = np.arange(3)


def two_dtypes(file: h5py.File) -> None:
    file["k/data_0"] = np.arange(3)
    file["k/data_1"] = np.arange(3, dtype="i4")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (set_at("k", np.arange(3)), r"a key must be a group .*a\.h5 has 'k' .* /k/data_0"),
        (set_at("k/data_0", 7), r"a\.h5, /k/data_0 must be a flat dataset"),
        (set_at("k/data_0", np.zeros((2, 2))), r"data_0 must be a flat dataset, it is some"),
        (set_at("k/data_0/data_0/data_0", np.arange(2)), r"/k/data_0/data_0 must be a flat data"),
        (set_at("k/data_0", h5py.Empty("i4")), r"/k/data_0 must be a flat dataset"),
        (set_at("k/data_0", ["text"]), r"dtypes .*, got 'object' in \S+, /k/data_0"),
        (set_at("k", h5py.SoftLink("/other")), r"key 'k' must be in the file itself, it is a link"),
        (set_at("k/data_0", h5py.ExternalLink("b.h5", "/k")), r"/k/data_0 must be in the file its"),
        (virtual, r"/k/data_0 must be in the file itself, its values are in other files"),
        (external, r"/k/data_0 must be in the file itself, its values are in other files"),
        (mixed, r"all be groups of datasets, \S+ /k/data_1 is not like those before"),
        (two_dtypes, r"one dtype, \S+ /k/data_1 has int32 after int64"),
        (lambda file: None, r"must have a group for every key, it has none"),
    ],
)
def test_invalid_files(tmp_path: Path, make: Callable[[h5py.File], None], message: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(SourceError, match=message):
        read_h5_shards(tmp_path)


def test_no_hdf5(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"no such thing")
    with pytest.raises(SourceError, match=r"a\.h5 must be a sound HDF5 file, it .*signature"):
        read_h5_shards(tmp_path)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    write(tmp_path / "whole.h5", k=[np.arange(3), np.arange(4)], m=[np.ones(3, bool)])
    whole = (tmp_path / "whole.h5").read_bytes()
    bad = tmp_path / "bad.h5"
    rng = np.random.default_rng(8)
    for _ in range(300):
        content = bytearray(whole)
        at = int(rng.integers(len(content)))
        content[at] ^= int(rng.integers(1, 256))
        bad.write_bytes(content[: int(rng.integers(1, len(content)))] if at % 3 == 0 else content)
        try:
            (shard,) = read_h5_shards(bad)
        except SourceError:
            continue
        for array in shard.arrays.values():
            ends = array.span_start + np.diff(array.value_offset) * np.dtype(array.dtype).itemsize
            assert ends.max(initial=0) <= len(content)


def test_values_behind_the_end_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.h5", k=[np.arange(300, dtype="i4")])
    # HDF5 itself refuses such places from its version 2.0 on.
    status = os.stat(tmp_path / "a.h5")
    short = os.stat_result((*status[:6], 1500, *status[7:]))
    monkeypatch.setattr(h5_file.os, "stat", lambda path: short)
    with pytest.raises(SourceError, match=r"data_0 must end before byte 1,500 .* 300 values of in"):
        read_h5_shards(tmp_path / "a.h5")


def test_places_without_files(tmp_path: Path) -> None:
    message = r"ends in \.h5 or \.hdf5 at or below \S+, there is none"
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreNotFoundError, match=message):
            read_h5_shards(path)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.h5", k=[np.arange(3)])
    monkeypatch.setitem(sys.modules, "h5py", None)
    for work in (lambda: read_h5_shards(tmp_path), lambda: write_h5_file(tmp_path / "b.h5", {})):
        with pytest.raises(ConfigError, match=r"h5py, which is not installed; .* zindex\[keyed\]"):
            work()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([np.zeros((2, 2))], r"flat arrays, got shape \(2, 2\) for \S+ /k/data_0;"),
        ([[np.zeros((2, 2))]], r"\S+ /k/data_0/data_0;"),
        ([np.zeros(2, "c8")], r"got 'complex64' in \S+a\.h5, /k/data_0"),
    ],
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, records: list[Any], message: str
) -> None:
    write(tmp_path / "a.h5", k=[np.arange(3)])
    before = shutil.copy(tmp_path / "a.h5", tmp_path / "copy")
    with pytest.raises(SourceError, match=message):
        write_h5_file(tmp_path / "a.h5", {"k": records})
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "copy"]
    assert (tmp_path / "a.h5").read_bytes() == Path(before).read_bytes()


@pytest.mark.parametrize(
    "records",
    [
        [np.zeros(2, "i4"), np.zeros(2, "i8")],
        [[np.zeros(2, "i4"), np.zeros(2, "i8")]],
        [[np.zeros(2, "i4")], np.zeros(2, "i4")],
    ],
)
def test_records_that_could_not_be_read_back_are_not_written(
    tmp_path: Path, records: list[Any]
) -> None:
    with pytest.raises(SourceError, match="must have one dtype, and all be flat or all be groups"):
        write_h5_file(tmp_path / "a.h5", {"k": records})
    assert list(tmp_path.iterdir()) == []


def test_written_as_upstream_writes(tmp_path: Path) -> None:
    records = [np.arange(i, dtype="i4") for i in range(12)]
    write_h5_file(tmp_path / "sub/a.h5", {"sequence": records})
    with h5py.File(tmp_path / "sub/a.h5") as file:
        assert [file[f"sequence/data_{i}"][:].tolist() for i in range(12)] == [
            record.tolist() for record in records
        ]
        plain = file["sequence/data_11"]
        assert (plain.chunks, plain.compression, dict(plain.attrs)) == (None, None, {})
    with pytest.raises(SourceError, match="a key must be the name of a file"):
        write_h5_file(tmp_path / "b.h5", {"a/b": records})
