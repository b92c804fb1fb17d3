"""Tensors by key, to files and back."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from zindex.errors import ConfigError, SourceError
from zindex.keyed import StoreFactory
from zindex.keyed.saving import load_bin, load_h5, save_bin, save_h5

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64,
]  # fmt: skip
GROUPS = {
    "prompts": [torch.arange(2), torch.arange(3)],
    "responses": [[torch.arange(2), torch.arange(4)], [torch.arange(1)]],
    "rewards": [torch.tensor([0.5, 1.0]), torch.tensor([2.0])],
}


def to_lists(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else [to_lists(item) for item in value]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"k": [torch.tensor([1, 0, 3]).to(dtype), torch.tensor([2]).to(dtype)]}
    save_h5(tmp_path, "a", tensors)
    save_bin(tmp_path / "bin", tensors)
    from_h5, from_bin = load_h5(tmp_path)["k"], load_bin(tmp_path)["k"]
    assert len(from_h5) == 2
    assert torch.cat(from_h5).equal(torch.cat(tensors["k"]))
    assert torch.cat(from_bin).equal(torch.cat(tensors["k"]))
    name = str(dtype).removeprefix("torch.")
    assert json.loads((tmp_path / "bin/meta.json").read_text())["k"]["dtype"] == name


def test_h5_as_upstream_writes_it(tmp_path: Path) -> None:
    save_h5(tmp_path / "new", "data_0000", {"sequence": [np.arange(i) for i in range(12)]})
    with h5py.File(tmp_path / "new/data_0000.h5") as file:
        assert file["sequence/data_11"][:].tolist() == list(range(11))
        assert set(file["sequence"]) == {f"data_{i}" for i in range(12)}
    assert to_lists(load_h5(tmp_path)["sequence"]) == [list(range(i)) for i in range(12)]


def test_bin_as_upstream_writes_it(tmp_path: Path) -> None:
    tensors = {"chosen": [torch.arange(3), torch.arange(5)], "rejected": [torch.arange(4)] * 2}
    save_bin(tmp_path, tensors, record_keys=["chosen"])
    assert json.loads((tmp_path / "meta.json").read_text()) == {
        "chosen": {"shape": [8], "dtype": "int64", "offsets": [0, 3, 8]},
        "rejected": {"shape": [8], "dtype": "int64"},
    }
    assert np.fromfile(tmp_path / "chosen.bin", "<i8").tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_groups(tmp_path: Path) -> None:
    save_h5(tmp_path, "a", GROUPS)
    assert to_lists(load_h5(tmp_path, share_memory=False)["responses"]) == [
        [[0, 1], [0, 1, 2, 3]],
        [[0]],
    ]
    save_bin(tmp_path / "b", GROUPS)
    meta = json.loads((tmp_path / "b/meta.json").read_text())
    assert meta["responses"]["offsets"] == [0, 2, 6, 7]
    assert meta["responses"]["group_offsets"] == [0, 2, 3]
    assert meta["prompts"]["offsets"] == [0, 2, 5]
    assert meta["rewards"]["offsets"] == [0, 2, 3]
    save_bin(tmp_path / "c", GROUPS, record_keys=["prompts"])
    meta = json.loads((tmp_path / "c/meta.json").read_text())
    assert [key for key in meta if "offsets" in meta[key]] == ["prompts", "responses"]


def test_shared_memory_where_it_is_wanted(tmp_path: Path) -> None:
    save_h5(tmp_path, "a", {"k": [torch.arange(3)]})
    assert load_h5(tmp_path / "a.h5")["k"][0].is_shared()
    assert not load_h5(tmp_path / "a.h5", share_memory=False)["k"][0].is_shared()


def test_writes_to_a_mapped_tensor_are_private(tmp_path: Path) -> None:
    save_bin(tmp_path, {"k": [torch.arange(3)], "none": []})
    tensors = load_bin(tmp_path)
    tensors["k"][0][1] = 9
    assert tensors["none"][0].tolist() == []
    assert load_bin(tmp_path)["k"][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("save", [save_bin, lambda path, group: save_h5(path, "a", group)])
@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        ({}, ConfigError, "tensors must have one or more keys, got none"),
        ({"k": [torch.ones(2, dtype=torch.bfloat16)]}, ConfigError, "'k' has bfloat16; store ten"),
        ({"k": [[torch.ones(2).bfloat16()]]}, ConfigError, "'k' has bfloat16"),
        ({"k": [[1, 2]]}, ConfigError, "or lists of them, 'k' has int '1'; convert it"),
        ({"k": [[[torch.ones(2)]]]}, ConfigError, "'k' has list '[[tensor([1., 1.])]]'"),
        ({"k": [torch.ones(2, 2)]}, SourceError, "got shape (2, 2)"),
        ({"k": [torch.tensor(2)]}, SourceError, "got shape ()"),
        ({"k": [torch.ones(2).cfloat()]}, SourceError, "got 'complex64' in"),
        ({"../k": [torch.ones(2)]}, SourceError, "got '../k' in"),
    ],
    ids=range(9),
)
def test_tensors_that_cannot_be_stored(
    tmp_path: Path, save: Any, group: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        save(tmp_path, group)


def test_record_keys_are_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys of the tensors, k, got other; leave them out"):
        save_bin(tmp_path, {"k": [torch.arange(2)]}, record_keys=["k", "other"])


def test_record_bounds_are_stored_unless_excluded(tmp_path: Path) -> None:
    group = {"chosen": [torch.ones(2), torch.ones(1)], "rejected": [torch.ones(1), torch.ones(3)]}
    save_bin(tmp_path / "all", group)
    assert StoreFactory.create("bin").load(tmp_path / "all").num_records == 2
    save_bin(tmp_path / "none", {"chosen": group["chosen"]}, record_keys=())
    assert StoreFactory.create("bin").load(tmp_path / "none").num_records is None


@pytest.mark.parametrize("save", [save_bin, lambda root, groups: save_h5(root, "data", groups)])
@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("sequence", np.array([1, -5], np.int32), "token ids of 'sequence' must be from 0"),
        ("responses", [np.array([1], "u8"), np.array([2**63 + 5], "u8")], "ids of 'responses'"),
        ("rewards", np.array([np.nan], np.float32), "numbers of 'rewards' must be finite, got nan"),
        ("logprobs", [np.array([-np.inf])], "numbers of 'logprobs' must be finite, got -inf"),
    ],
)
def test_invalid_values_are_not_saved(
    save: Any, key: str, values: Any, shown: str, tmp_path: Path
) -> None:
    zeros = [np.zeros(1, item.dtype) for item in values] if isinstance(values, list) else values[:0]
    with pytest.raises(SourceError, match=f"{shown}.* in record 1 of these tensors"):
        save(tmp_path / "s", {key: [zeros, values]})
    assert not (tmp_path / "s").exists()
