"""Concatenated shards: values by span, and offsets."""

import numpy as np
import pytest

from zindex.errors import ConfigError
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard
from zindex.ingest.keyed.convert_keyed import KeyedSource, read_spans


def keyed_array(key: str, path: str, length: int, **offsets: np.ndarray) -> KeyedArray:
    return KeyedArray(key, path, "int16", np.zeros(1, np.int64), np.array([0, length]), **offsets)


def test_arrays_of_groups_and_of_plain_records(tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/x"
    np.arange(6, dtype=np.int16).tofile(path)
    items = np.array([0, 1, 1, 6])
    grouped = keyed_array("x", path, 6, item_offset=items, group_offset=np.array([0, 2, 3]))
    plain = keyed_array("x", path, 6, item_offset=np.array([0, 4, 6]))
    shards = [KeyedShard("a", {"x": grouped}), KeyedShard("b", {"x": plain})]
    source = KeyedSource(shards)
    assert [field.name for field in source.fields] == ["x", "x_length"]
    assert [field.num_values for field in source.fields] == [12, 5]
    assert source.num_records == 4
    names = ["x_offset", "x_length_value", "x_length_offset"]
    assert {name: source.rows[name].tolist() for name in names} == {
        "x_offset": [0, 1, 6, 10, 12],
        "x_length_value": [1, 0, 5, 4, 2],
        "x_length_offset": [0, 2, 3, 4, 5],
    }
    for start in range(13):
        for stop in range(start, 13):
            found = read_spans(source.spans("x_value", start, stop), "int16")
            assert found.tolist() == [i % 6 for i in range(start, stop)]
    loose = [KeyedShard(name, {"x": keyed_array("x", path, 6)}) for name in "ab"]
    whole = KeyedSource(loose)
    assert [field.name for field in whole.fields] == ["x"]
    assert whole.rows["x_offset"].tolist() == [0, 6, 12]
    with pytest.raises(ConfigError, match="a key must not be called x_length next to x"):
        KeyedSource([KeyedShard("a", {"x": plain, "x_length": plain})])


def test_a_key_that_shards_lack_has_no_values_there() -> None:
    one, other = (keyed_array(key, "", 3) for key in "xy")
    shards = [KeyedShard("a", {"x": one}), KeyedShard("b", {"y": other})]
    source = KeyedSource(shards)
    assert source.rows["x_offset"].tolist() == [0, 3, 3]
    assert source.rows["y_offset"].tolist() == [0, 0, 3]
