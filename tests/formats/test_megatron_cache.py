"""Megatron Core's index caches: their names, their hash, and files equal to numpy's."""

import os
import re
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.formats import megatron_cache
from zindex.formats.megatron_cache import cache_paths, describe, write_npy


def identify(num_samples: int | None, **changes: Any) -> OrderedDict[str, Any]:
    """Return the identifiers of the golden dataset, in Megatron Core's order."""
    identifiers: OrderedDict[str, Any] = OrderedDict()
    identifiers["class"] = "GPTDataset"
    identifiers["dataset_path"] = "h"
    identifiers["num_samples"] = num_samples
    identifiers["index_split"] = "train"
    identifiers["random_seed"] = 1234
    identifiers["sequence_length"] = 4
    identifiers["split"] = "100,0,0"
    identifiers["split_matrix"] = [(0, 1.0), None, None]
    identifiers["tokenizer"] = {"a": 1}
    identifiers.update(changes)
    return identifiers


@pytest.mark.parametrize(
    ("num_samples", "digest"),
    [
        (None, "c8ac5bd0460f5b4c398916cae3317aa4"),
        (9, "892a9abb015e7ca13d2ed5a0ee6bdd38"),
        (13, "c7d42e7714d8c591fb68ddaf1f8aa197"),
        (15, "261ac665b36355fb7b5de86431bc85ab"),
    ],
)
def test_digests_are_those_of_megatron_core(num_samples: int | None, digest: str) -> None:
    assert describe(identify(num_samples))[1] == digest


def test_a_tokenizer_stands_for_its_identifiers() -> None:
    tokenizer = SimpleNamespace(unique_identifiers=OrderedDict(a=1))
    assert describe(identify(None, tokenizer=tokenizer)) == describe(identify(None))


def test_every_identifier_counts() -> None:
    changes = [
        {},
        {"class": "Other"},
        {"dataset_path": "./h"},
        {"num_samples": 1},
        {"index_split": "valid"},
        {"random_seed": 1},
        {"sequence_length": 5},
        {"split": "1"},
        {"split_matrix": [(0.0, 1.0), None, None]},  # 0.0 is not 0
        {"tokenizer": {"a": "1"}},
    ]
    assert len({describe(identify(None) | change)[1] for change in changes}) == len(changes)
    backwards = dict(reversed(identify(None).items()))
    assert describe(backwards)[1] != describe(identify(None))[1]


def test_text_of_a_description() -> None:
    text, _ = describe(identify(None))
    assert '"split_matrix": [\n        [\n            0,\n            1.0\n        ],' in text
    assert '"num_samples": null' in text


def test_names_of_a_cache() -> None:
    assert cache_paths("/cache", "d1-GPTDataset-train") == {
        "document_index": Path("/cache/d1-GPTDataset-train-document_index.npy"),
        "sample_index": Path("/cache/d1-GPTDataset-train-sample_index.npy"),
        "shuffle_index": Path("/cache/d1-GPTDataset-train-shuffle_index.npy"),
        "description": Path("/cache/d1-GPTDataset-train-description.txt"),
    }


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint8", "float32", ">i4"])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (8,), (0, 2), (5, 2), (9, 3), (4, 2, 3)])
def test_files_are_those_of_numpy(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.save(tmp_path / "theirs.npy", array)
    write_npy(tmp_path / "ours.npy", array, 4)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["ours.npy", "theirs.npy"]


@given(
    num_rows=st.integers(0, 50), num_columns=st.sampled_from([None, 1, 2]), block=st.integers(1, 60)
)
def test_files_do_not_depend_on_blocks(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, num_columns: int | None, block: int
) -> None:
    folder = tmp_path_factory.mktemp("npy")
    shape = (num_rows,) if num_columns is None else (num_rows, num_columns)
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)[::-1]  # not contiguous
    np.save(folder / "theirs.npy", np.ascontiguousarray(array))
    write_npy(folder / "ours.npy", array, block)
    assert (folder / "ours.npy").read_bytes() == (folder / "theirs.npy").read_bytes()


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_npy(path, np.arange(3))
    write_npy(path, np.arange(5))
    assert np.load(path).tolist() == [0, 1, 2, 3, 4]
    assert np.load(path, mmap_mode="r").shape == (5,)


class Failing:
    """An array whose second block cannot be read."""

    dtype = np.dtype(np.int32)
    shape = (8,)

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        if rows.start:
            raise OSError(5, f"row {rows.start} is gone")
        return np.zeros(rows.stop, np.int32)


@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_what_was_there(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "a.npy"
    if exists:
        np.save(path, np.arange(3))
    with pytest.raises(OSError, match="row 4 is gone"):
        write_npy(path, Failing(), 4)
    assert os.listdir(tmp_path) == (["a.npy"] if exists else [])
    if exists:
        assert np.load(path).tolist() == [0, 1, 2]


def test_a_failed_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(megatron_cache.os, "fsync", fail)
    with pytest.raises(OSError, match=re.escape("Input/output error")):
        write_npy(tmp_path / "a.npy", np.arange(3))
    assert os.listdir(tmp_path) == []
