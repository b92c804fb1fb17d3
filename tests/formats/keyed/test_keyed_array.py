"""Spans of values equal slices of all values."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from zindex.errors import SourceError
from zindex.formats.keyed.h5_file import read_h5_shards
from zindex.formats.keyed.keyed_array import KeyedArray


def check_all(array: KeyedArray, values: np.ndarray) -> None:
    for start in range(len(values) + 1):
        for stop in range(start, len(values) + 1):
            part = pickle.loads(pickle.dumps(array.span(start, stop)))
            assert part.read(0, part.length).tolist() == values[start:stop].tolist()
            middle = (stop - start) // 2
            assert part.read(middle, part.length).tolist() == values[start + middle : stop].tolist()


@pytest.mark.parametrize("dtype", ["int32", "float64", "uint8"])
def test_any_span_of_raw_values(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.bin"
    content = np.arange(30).astype(dtype)
    path.write_bytes(content.tobytes())
    starts, lengths = np.array([3, 0, 9, 9, 20]), np.array([2, 3, 0, 4, 1])
    offsets = np.cumsum([0, *lengths])
    array = KeyedArray("x", str(path), dtype, starts * content.itemsize, offsets)
    pairs = zip(starts, lengths, strict=True)
    check_all(array, np.concatenate([content[first : first + count] for first, count in pairs]))


def test_any_span_of_chunked_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/data_0"] = np.arange(4, dtype=np.int16)
        file.create_dataset("x/data_1", data=np.arange(4, 9, dtype=np.int16), compression="gzip")
        file.create_dataset("x/data_2", data=np.array([9, 10], ">i2"))
    [shard] = read_h5_shards(tmp_path / "a.h5")
    assert (shard.arrays["x"].span_start < 0).tolist() == [False, True, True]
    check_all(shard.arrays["x"], np.arange(11))


def test_a_span_carries_its_own_values_only() -> None:
    names = tuple(f"x/data_{i}" for i in range(1000))
    offsets = np.arange(1001)
    array = KeyedArray("x", "x.h5", "int8", offsets[:-1], offsets, offsets, None, names)
    part = array.span(500, 503)
    assert part.names == ("x/data_500", "x/data_501", "x/data_502")
    assert part.item_offset is None
    assert len(pickle.dumps(part)) < 1000


def test_files_that_changed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(8))
    array = KeyedArray("x", str(path), "int32", np.array([0]), np.array([0, 3]))
    with pytest.raises(SourceError, match=r"must hold 2 values of x from byte 4 on, it ends"):
        array.read(1, 3)
    path.unlink()
    with pytest.raises(SourceError, match=r"x\.bin must still be there, as when its shard was"):
        array.read(1, 3)


def test_booleans_are_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "mask.bin"
    path.write_bytes(bytes([0, 1, 7]))
    array = KeyedArray("mask", str(path), "bool", np.array([0]), np.array([0, 3]))
    check_all(KeyedArray("mask", str(path), "bool", np.array([0]), np.array([0, 2])), np.arange(2))
    with pytest.raises(SourceError, match="must hold 0 or 1 for each boolean of mask, it holds 7"):
        array.read(0, 3)
