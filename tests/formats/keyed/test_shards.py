"""The format of keyed files, and whether their shards fit together."""

import logging
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard
from zindex.formats.keyed.shards import check_shards, detect_format


def array(
    key: str,
    lengths: list[int],
    *,
    dtype: str = "int32",
    is_cut: bool = True,
    names: tuple[str, ...] | None = None,
    groups: list[int] | None = None,
) -> KeyedArray:
    """Return a key of records of these lengths."""
    offset = np.array(list(accumulate(lengths, initial=0)))
    return KeyedArray(
        key,
        f"/{key}.bin",
        dtype,
        span_start=np.zeros(1, np.int64),
        value_offset=np.array([0, offset[-1]]),
        item_offset=offset if is_cut else None,
        group_offset=None if groups is None else np.array(groups),
        names=names,
    )


def shard(name: str, *arrays: KeyedArray) -> KeyedShard:
    return KeyedShard(name, {array.key: array for array in arrays})


def counts(shards: list[KeyedShard]) -> list[list[int | None]]:
    return [[array.num_records for array in shard.arrays.values()] for shard in shards]


def test_records_of_pairs_and_streams_of_one_length() -> None:
    pairs = [shard("a", array("chosen", [3, 1]), array("rejected", [2, 5]))]
    assert counts(check_shards(pairs)) == [[2, 2]]
    streams = [shard(n, array("k", [4], is_cut=False), array("m", [4], is_cut=False)) for n in "ab"]
    assert counts(check_shards(streams)) == [[None, None], [None, None]]
    assert check_shards([]) == []


def test_a_key_that_is_missing() -> None:
    shards = [
        shard("s/a", array("k", [3]), array("m", [3])),
        shard("s/b", array("k", [3]), array("x", [3])),
    ]
    message = r"same keys, but shard 's/b' lacks 'm' and has 'x' unlike shard 's/a'; restore"
    with pytest.raises(SourceError, match=message):
        check_shards(shards)


def test_lengths_that_differ() -> None:
    shards = [
        shard("a", array("k", [3]), array("m", [3])),
        shard("b", array("k", [3, 2, 1]), array("m", [2, 1])),
    ]
    message = r"shard 'b' has 'k' with 6 values in 3 records, 'm' with 3 values in 2 records;"
    with pytest.raises(SourceError, match=message):
        check_shards(shards)
    shards = [shard("c", array("k", [3], is_cut=False), array("m", [2], is_cut=False))]
    with pytest.raises(SourceError, match=r"shard 'c' has 'k' with 3 values, 'm' with 2 values;"):
        check_shards(shards)


def test_not_strictly(caplog: pytest.LogCaptureFixture) -> None:
    shards = [shard("a", array("k", [3]), array("m", [2])), shard("b", array("k", [3, 1]))]
    with caplog.at_level(logging.WARNING):
        kept = check_shards(shards, strict=False)
    assert counts(kept) == [[None, None], [None]]
    assert "do not match in 1 of 2 shards: all shards must have the same keys" in caplog.text
    assert "'b' lacks 'm'" in caplog.text


def test_keys_cut_at_other_places_are_streams(caplog: pytest.LogCaptureFixture) -> None:
    shards = [shard("a", array("k", [3, 1]), array("m", [4]))]
    with caplog.at_level(logging.WARNING):
        assert counts(check_shards(shards)) == [[None, None]]
    assert "shard 'a' have different record bounds ('k' with 4 values in 2" in caplog.text


def test_records_of_other_names() -> None:
    shards = [
        shard(
            "a.h5",
            array("k", [3, 1], names=("k/data_0", "k/data_1")),
            array("m", [3, 1], names=("m/data_0", "m/data_2")),
        )
    ]
    message = r"record 1 of shard 'a\.h5' is 'data_1' in 'k' and 'data_2' in 'm';"
    with pytest.raises(SourceError, match=message):
        check_shards(shards)


def test_groups_without_items_have_any_name() -> None:
    prompts = array("p", [3, 1, 2], names=("p/data_0", "p/data_1", "p/data_2"))
    names = ("r/data_0/data_0", "r/data_2/data_0", "r/data_2/data_1")
    fitting = array("r", [2, 2, 2], names=names, groups=[0, 1, 1, 3])
    assert counts(check_shards([shard("a", prompts, fitting)])) == [[3, 3]]
    other = array("r", [2, 2, 2], names=names, groups=[0, 1, 3, 3])
    with pytest.raises(SourceError, match=r"record 1 of shard 'a' is 'data_1' in 'p' and 'data_2'"):
        check_shards([shard("a", prompts, other)])


@pytest.mark.parametrize("strict", [True, False])
def test_one_dtype_for_each_key(strict: bool) -> None:
    shards = [shard("a", array("k", [3])), shard("b", array("k", [3], dtype="int64"))]
    message = r"'k' has int64 in shard 'b' and int32 in shard 'a'; convert one"
    with pytest.raises(SourceError, match=message):
        check_shards(shards, strict=strict)


def test_keys_without_values_have_the_dtype_of_the_others() -> None:
    shards = [
        shard("a", array("k", [], dtype="int64")),
        shard("b", array("k", [3])),
        shard("c", array("k", [0], dtype="float32")),
    ]
    assert [kept.arrays["k"].dtype for kept in check_shards(shards)] == ["int32"] * 3


def test_numbers_without_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    names = ("k/data_0", "k/data_2", "k/data_3")
    gap = [shard("a.h5", array("k", [3, 1, 2], names=names))]
    message = (
        "the records of a key must be numbered without a gap, but 'k' of shard 'a.h5' has 'data_0' "
        r"and 'data_2' next to each other; restore the shard, or give strict=False \(--loose\)"
    )
    with pytest.raises(SourceError, match=message):
        check_shards(gap)
    assert counts(check_shards(gap, strict=False)) == [[3]]
    assert "records are missing in 1 of 1 shards: the records of a key must be" in caplog.text
    groups = array("r", [2, 2], names=("r/x_000/0", "r/x_002/0"), groups=[0, 1, 2])
    with pytest.raises(SourceError, match="'r' of shard 'a' has 'x_000' and 'x_002' next to each"):
        check_shards([shard("a", groups)])


@pytest.mark.parametrize(
    "names",
    [
        ["data_0", "data_1"],
        ["data_000", "data_001"],
        ["data_1", "data_3"],
        ["data_0", "other_2"],
        ["data_0", "data_02", "data_2"],
        ["a_0", "b", "c_9"],
        ["zero", "one"],
    ],
)
def test_other_names_are_taken_as_they_are(names: list[str]) -> None:
    lengths = [1] * len(names)
    found = array("k", lengths, names=tuple(f"k/{name}" for name in names))
    assert counts(check_shards([shard("a", found)])) == [[len(names)]]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


# The decision table: files of a folder, and what it is.
@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a.h5"], "h5"),
        (["deep/down/a.hdf5"], "h5"),
        (["meta.json", "k.bin"], "bin"),
        (["x/shard_0000/meta.json", "x/shard_0000/k.bin"], "bin"),
        (["zarr.json", "k/zarr.json", "k/c/0"], "zarr"),
        (["_zindex/plan.json", "k/c/0"], "zarr"),
        (["_zindex/import.json"], "zarr"),
        (["a.jsonl"], "jsonl"),
        (["a.jsonl", "b.h5"], "h5"),
        (["a.jsonl", "meta.json", "k.bin"], "bin"),
        (["a.h5", "meta.json"], "h5"),
        (["a.h5", "k.bin"], "h5"),
    ],
)
def test_folders(tmp_path: Path, names: list[str], wanted: str) -> None:
    touch(tmp_path, *names)
    assert detect_format(tmp_path) == detect_format(str(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"), [("a.h5", "h5"), ("a.b.hdf5", "h5"), ("a.jsonl", "jsonl")]
)
def test_files(tmp_path: Path, name: str, wanted: str) -> None:
    touch(tmp_path, name)
    assert detect_format(tmp_path / name) == wanted


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert detect_format("s3://bucket/store") == detect_format("https://host/store") == "zarr"
    assert detect_format(object()) == "zarr"
    touch(tmp_path, "a b/a.h5")
    assert detect_format(f"file://{tmp_path}/a%20b") == "h5"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert detect_format("~/a b") == "h5"


@pytest.mark.parametrize("name", ["a.bin", "a.txt", "meta.json", "h5", ".h5"])
def test_files_of_other_endings(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name)
    with pytest.raises(ConfigError, match=rf"Unsupported file format: .*jsonl, got '\S+{name}'"):
        detect_format(tmp_path / name)


@pytest.mark.parametrize(
    "names", [[], ["k.bin"], ["meta.json"], ["a.txt"], ["x/zarr.json", "x/a.h5"]]
)
def test_folders_without_any(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    message = r"No supported data files found: '\S+' must be a folder with zarr\.json, \.h5 or"
    with pytest.raises(StoreNotFoundError, match=message):
        detect_format(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"No supported data files found: '\S+/none'"):
        detect_format(tmp_path / "none")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.h5", "x/meta.json", "x/k.bin"], "h5 and bin"),
        (["zarr.json", "a.h5"], "zarr and h5"),
        (["zarr.json", "x/meta.json", "y/k.bin"], "zarr and bin"),
    ],
)
def test_two_formats(tmp_path: Path, names: list[str], found: str) -> None:
    touch(tmp_path, *names)
    message = rf"must have files of one format, '\S+' has {found}; give storage_type='{found[:2]}"
    with pytest.raises(ConfigError, match=message):
        detect_format(tmp_path)
