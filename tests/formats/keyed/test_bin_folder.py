"""Folders of raw arrays with a ``meta.json``."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zindex.errors import SourceError, StoreNotFoundError, StoreUnreadableError
from zindex.formats.keyed import bin_folder
from zindex.formats.keyed.bin_folder import read_bin_shards, write_bin_folder

ROW = {"shape": [4], "dtype": "int32"}


def write(folder: Path, meta: object, **values: Any) -> None:
    """Write a folder by hand; values are arrays of int32 where they are lists."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(meta if isinstance(meta, str) else json.dumps(meta))
    for key, numbers in values.items():
        array = numbers if isinstance(numbers, np.ndarray) else np.array(numbers, "<i4")
        (folder / f"{key}.bin").write_bytes(array.tobytes())


def test_shards_in_natural_order_of_their_paths(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        meta = {"sequence": {"shape": [1], "dtype": "int32"}}
        write(tmp_path / f"domain/shard_{number}", meta, sequence=[number])
    shards = read_bin_shards(tmp_path)
    assert [shard.name for shard in shards] == [f"domain/shard_{n}" for n in (9, 10, 100)]
    array = shards[1].arrays["sequence"]
    assert (array.path, array.key) == (str(tmp_path / "domain/shard_10/sequence.bin"), "sequence")
    assert (array.span_start.tolist(), array.value_offset.tolist()) == ([0], [0, 1])
    assert (array.item_offset, array.num_records, array.names) == (None, None, None)


def test_the_folder_itself_is_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"k": ROW}, k=[1, 2, 3, 4])
    monkeypatch.chdir(tmp_path)
    (shard,) = read_bin_shards(".")
    assert (shard.name, shard.arrays["k"].path) == (".", str(tmp_path / "k.bin"))


def test_offsets_of_items_and_of_groups(tmp_path: Path) -> None:
    meta = {
        "prompts": {"shape": [4], "dtype": "torch.int32", "offsets": [0, 1, 4]},
        "responses": {**ROW, "shape": [6], "offsets": [0, 2, 4, 6], "group_offsets": [0, 3, 3]},
    }
    write(tmp_path, meta, prompts=range(4), responses=range(6))
    arrays = read_bin_shards(tmp_path)[0].arrays
    assert arrays["prompts"].dtype == "int32"
    assert arrays["prompts"].num_records == arrays["responses"].num_records == 2
    assert arrays["responses"].item_offset is not None
    assert arrays["responses"].item_offset.tolist() == [0, 2, 4, 6]


def test_a_key_without_offsets_has_those_of_keys_of_its_length(tmp_path: Path) -> None:
    meta = {
        "chosen": {**ROW, "offsets": [0, 3, 4]},
        "chosen_mask": {"shape": [4], "dtype": "bool"},
        "rejected": {"shape": [2], "dtype": "int32", "offsets": [0, 1, 2]},
        "other": {"shape": [3], "dtype": "int32", "offsets": None},
    }
    mask = np.ones(4, bool)
    write(tmp_path, meta, chosen=range(4), chosen_mask=mask, rejected=[1, 2], other=[1, 2, 3])
    arrays = read_bin_shards(tmp_path)[0].arrays
    assert arrays["chosen_mask"].item_offset is not None
    assert arrays["chosen_mask"].item_offset.tolist() == [0, 3, 4]
    assert arrays["other"].item_offset is None


def test_a_mask_has_the_offsets_of_its_key(tmp_path: Path) -> None:
    # By chance all answers together have as many tokens as all others.
    meta = {
        "chosen": {**ROW, "offsets": [0, 3, 4]},
        "rejected": {**ROW, "offsets": [0, 1, 4]},
        "chosen_mask": ROW,
        "rejected_mask": ROW,
    }
    write(tmp_path, meta, **dict.fromkeys(meta, range(4)))
    arrays = read_bin_shards(tmp_path)[0].arrays
    for key in ("chosen", "rejected"):
        assert arrays[f"{key}_mask"].item_offset is arrays[key].item_offset


@pytest.mark.parametrize(
    "second", [{"offsets": [0, 2, 4]}, {"offsets": [0, 3, 4], "group_offsets": [0, 2]}]
)
def test_a_key_takes_no_offsets_on_which_others_do_not_agree(
    tmp_path: Path, second: dict[str, list[int]]
) -> None:
    meta = {"a": {**ROW, "offsets": [0, 3, 4]}, "b": {**ROW, **second}, "c": ROW}
    write(tmp_path, meta, a=range(4), b=range(4), c=range(4))
    assert read_bin_shards(tmp_path)[0].arrays["c"].item_offset is None


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("", r"meta\.json must be a JSON object of keys, but Expecting value"),
        ("[" * 100_000, r"but it is nested too deeply"),
        ('{"k": {}, "k": {}}', r"but a name is in it twice"),
        ('{"k": ' + "9" * 5000 + "}", r"but Exceeds the limit"),
        ("[]", r"with one or more keys, it is '\[\]'"),
        ("{}", r"with one or more keys, it is '\{\}'"),
        ({"../k": ROW}, r"a key must be the name of a file, .*, got '\.\./k' in /.*meta\.json"),
        ({"k": 4}, r"meta\.json, key 'k', must have a \"shape\" of one number .*, got '4';"),
        ({"k": {"dtype": "int32"}}, r"got 'None'"),
        ({"k": {**ROW, "shape": 4}}, r"got '4'"),
        ({"k": {**ROW, "shape": [2, 2]}}, r"got '\[2, 2\]'"),
        ({"k": {**ROW, "shape": [-1]}}, r"got '\[-1\]'"),
        ({"k": {**ROW, "shape": [True]}}, r"got '\[True\]'"),
        ({"k": {**ROW, "shape": [4.0]}}, r"got '\[4.0\]'"),
        ({"k": {**ROW, "shape": [2**62]}}, r"got '\[4611686018427387904\]'"),
        ({"k": {"shape": [4]}}, r"got None in /.*meta\.json, key 'k';"),
        ({"k": {**ROW, "dtype": "bfloat16"}}, r"got 'bfloat16' in .*store them as float32"),
        ({"k": {**ROW, "shape": [5]}}, r"k\.bin must hold 20 bytes, for .* 5 values of int32, but"),
        ({"k": {**ROW, "dtype": "int64"}}, r"must hold 32 bytes, .* but it holds 16;"),
        ({"none": ROW}, r"none\.bin must be there as .*: No such file or directory; restore"),
        ({"folder": ROW}, r"folder\.bin must be a regular file, it is something else"),
        ({"k": {**ROW, "offsets": [0, 3]}}, r"from 0 to 4, .*key 'k' has offsets from 0 to 3;"),
        ({"k": {**ROW, "group_offsets": [0, 1]}}, r'"offsets" where it has "group_offsets"'),
        (
            {"k": {**ROW, "offsets": [0, 4], "group_offsets": [0, 2]}},
            r"from 0 to 1, .*key 'k', group_offsets, has offsets from 0 to 2",
        ),
    ],
)
def test_invalid_meta(tmp_path: Path, meta: object, message: str) -> None:
    write(tmp_path, meta, k=range(4))
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(SourceError, match=message):
        read_bin_shards(tmp_path)


def test_meta_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meta.json")
    with pytest.raises(SourceError, match=r"meta\.json must be a regular file"):
        read_bin_shards(tmp_path)


def test_meta_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"k": ROW}, k=range(4))

    def refuse(*args: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(bin_folder, "open", refuse, raising=False)
    message = r"meta\.json must be readable, .*: Permission denied; check the perm"
    with pytest.raises(StoreUnreadableError, match=message):
        read_bin_shards(tmp_path)


def test_places_without_shards(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"the folder \S+none must be there"):
        read_bin_shards(tmp_path / "none")
    (tmp_path / "k.bin").touch()
    with pytest.raises(StoreNotFoundError, match=r"there is none in \S+ or below it"):
        read_bin_shards(tmp_path)


def test_round_trip(tmp_path: Path) -> None:
    values = {
        "sequence": [np.arange(3, dtype=">i4"), np.arange(5, dtype="i4")[::2]],
        "mask": [np.array([True, False, True])],
        "empty": [],
    }
    dtypes = {"sequence": "int32", "mask": "bool", "empty": "float32"}
    offset = {"sequence": np.array([0, 3, 6]), "mask": np.array([0, 2, 3])}
    write_bin_folder(
        tmp_path / "s", values, dtypes=dtypes, item_offset=offset,
        group_offset={"mask": np.array([0, 2])},
    )  # fmt: skip
    assert json.loads((tmp_path / "s/meta.json").read_text()) == {
        "sequence": {"shape": [6], "dtype": "int32", "offsets": [0, 3, 6]},
        "mask": {"shape": [3], "dtype": "bool", "offsets": [0, 2, 3], "group_offsets": [0, 2]},
        "empty": {"shape": [0], "dtype": "float32"},
    }
    assert np.fromfile(tmp_path / "s/sequence.bin", "<i4").tolist() == [0, 1, 2, 0, 2, 4]
    assert list(read_bin_shards(tmp_path)[0].arrays) == ["sequence", "mask", "empty"]


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (np.zeros((2, 2), "i4"), r"int32, got shape \(2, 2\) of int32 for \S+k\.bin"),
        (np.zeros(2, "i8"), r"flat arrays of int32, got shape \(2,\) of int64"),
    ],
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, piece: np.ndarray, message: str
) -> None:
    write(tmp_path, {"k": ROW}, k=range(4))
    with pytest.raises(SourceError, match=message):
        write_bin_folder(tmp_path, {"k": [piece]}, dtypes={"k": "int32"})
    assert sorted(os.listdir(tmp_path)) == ["k.bin", "meta.json"]
    assert read_bin_shards(tmp_path)[0].arrays["k"].length == 4


def test_offsets_are_checked_when_written(tmp_path: Path) -> None:
    message = re.escape("must ascend from 0 to 4, ") + r"\S+k\.bin has offsets from 0 to 3"
    with pytest.raises(SourceError, match=message):
        write_bin_folder(
            tmp_path, {"k": [np.arange(4)]}, dtypes={"k": "int64"},
            item_offset={"k": np.array([0, 3])},
        )  # fmt: skip


def test_one_value_for_each_response_is_cut_at_the_groups(tmp_path: Path) -> None:
    responses = {
        "shape": [5],
        "dtype": "int32",
        "offsets": [0, 2, 3, 5],
        "group_offsets": [0, 2, 3],
    }
    meta = {"responses": responses, "rewards": {"shape": [3], "dtype": "float32"}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    np.arange(5, dtype=np.int32).tofile(tmp_path / "responses.bin")
    np.arange(3, dtype=np.float32).tofile(tmp_path / "rewards.bin")
    (shard,) = read_bin_shards(tmp_path)
    rewards = shard.arrays["rewards"]
    assert rewards.item_offset is not None
    assert rewards.item_offset.tolist() == [0, 2, 3]
    assert rewards.num_records == shard.arrays["responses"].num_records == 2
