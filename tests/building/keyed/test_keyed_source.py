"""Shards as one array: values by range, and offsets as if they had been joined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.building.keyed.keyed_source import JoinedOffsets, KeyedSource, read_ranges
from zindex.errors import ConfigError
from zindex.formats.keyed.shards import KeyedArray, KeyedShard


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=6))
def test_offsets_of_shards_are_those_of_all_records(lengths: list[list[int]]) -> None:
    parts = [np.cumsum([0, *part]) for part in lengths]
    joined = JoinedOffsets(
        list(map(len, lengths)), [int(part[-1]) for part in parts], parts.__getitem__
    )
    expected = np.cumsum([0, *(item for part in lengths for item in part)])
    assert len(joined) == len(expected)
    for start in range(len(expected) + 1):
        for stop in range(start, len(expected) + 1):
            assert joined.read(start, stop).tolist() == expected[start:stop].tolist()


def keyed_array(key: str, path: str, length: int, **offsets: np.ndarray) -> KeyedArray:
    return KeyedArray(key, path, "int16", np.zeros(1, np.int64), np.array([length]), **offsets)


def test_arrays_of_groups_and_of_plain_records(tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/x"
    np.arange(6, dtype=np.int16).tofile(path)
    items = np.array([0, 1, 1, 6])
    grouped = keyed_array("x", path, 6, item_offset=items, group_offset=np.array([0, 2, 3]))
    plain = keyed_array("x", path, 6, item_offset=np.array([0, 4, 6]))
    shards = [KeyedShard("a", {"x": grouped}), KeyedShard("b", {"x": plain})]
    source = KeyedSource(shards, has_records=True)
    assert [field.name for field in source.fields] == ["x", "x_length"]
    assert [field.num_values for field in source.fields] == [12, 5]
    assert source.num_records == 4
    rows = {name: read(0, 5).tolist() for name, read in source.small_arrays().items()}
    assert rows == {
        "x_offset": [0, 1, 6, 10, 12],
        "x_length_value": [1, 0, 5, 4, 2],
        "x_length_offset": [0, 2, 3, 4, 5],
    }
    for start in range(13):
        for stop in range(start, 13):
            found = read_ranges(source.values("x", start, stop), "int16", stop - start)
            assert found.tolist() == [i % 6 for i in range(start, stop)]
    whole = KeyedSource(shards, has_records=False)
    assert [field.name for field in whole.fields] == ["x"]
    assert whole.small_arrays()["x_offset"](0, 3).tolist() == [0, 6, 12]
    with pytest.raises(ConfigError, match="a key must not be called x_length beside x"):
        KeyedSource([KeyedShard("a", {"x": plain, "x_length": plain})], has_records=True)


def test_a_key_that_shards_lack_has_no_values_there() -> None:
    one, other = (keyed_array(key, "", 3) for key in "xy")
    shards = [KeyedShard("a", {"x": one}), KeyedShard("b", {"y": other})]
    source = KeyedSource(shards, has_records=False)
    rows = {name: read(0, 3).tolist() for name, read in source.small_arrays().items()}
    assert rows == {"x_offset": [0, 3, 3], "y_offset": [0, 0, 3]}
