"""Stores of HDF5 files and of folders of raw arrays."""

import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from tests.keyed.upstream_files import documents, masks, write_bin, write_h5
from zindex.errors import ConfigError, SourceError
from zindex.keyed import DatasetFactory
from zindex.keyed.store import KeyedStore
from zindex.keyed.stores import H5Store, MmapStore

LENGTHS = [4, 0, 3, 1, 5, 2, 6, 1, 2, 3, 4, 5]


def groups(start: int = 0) -> dict[str, list[np.ndarray]]:
    tokens = documents(LENGTHS, start)
    return {"sequence": tokens, "loss_mask": masks(tokens)}


def write(folder: Path, store_type: type[KeyedStore]) -> None:
    """Write three shards of which the tenth is last."""
    for place, number in enumerate((1, 2, 10)):
        content = groups(36 * place)
        if store_type is H5Store:
            write_h5(folder / f"data_{number}.h5", content)
        else:
            write_bin(folder / f"shard_{number}", content, ["sequence"])


@pytest.mark.parametrize("store_type", [H5Store, MmapStore])
class TestBoth:
    def test_same_content_same_fingerprint(
        self, tmp_path: Path, store_type: type[KeyedStore]
    ) -> None:
        write(tmp_path / "a", store_type)
        shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
        first = store_type().load(tmp_path / "a").fingerprint
        assert store_type().load(tmp_path / "b").fingerprint == first
        assert pickle.loads(pickle.dumps(store_type().load(tmp_path / "b"))).fingerprint == first

    def test_an_object_store(self, store_type: type[KeyedStore]) -> None:
        message = rf"format '{store_type.format}' must be in a file system, got s3://b/store; conv"
        with pytest.raises(ConfigError, match=message):
            store_type().load("s3://b/store")


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": documents(LENGTHS, 1), "loss_mask": groups()["loss_mask"]},
        {"sequence": documents(LENGTHS, 0, "int64"), "loss_mask": groups()["loss_mask"]},
        {
            "sequence": documents([4, *LENGTHS[2:]]),
            "loss_mask": masks(documents([4, *LENGTHS[2:]])),
        },
        {"sequence": groups()["sequence"]},
        {"input": groups()["sequence"], "loss_mask": groups()["loss_mask"]},
    ],
    ids=["values", "dtype", "records", "keys", "names"],
)
def test_other_content_other_fingerprint(
    tmp_path: Path, change: dict[str, list[np.ndarray]]
) -> None:
    write_h5(tmp_path / "a/x.h5", groups())
    write_h5(tmp_path / "b/x.h5", change)
    one, other = (H5Store().load(tmp_path / name).fingerprint for name in "ab")
    assert one != other


def test_a_single_file(tmp_path: Path) -> None:
    write_h5(tmp_path / "data.h5", groups())
    store = H5Store().load(tmp_path / "data.h5")
    assert store.fetch(3, 9, "sequence").tolist() == list(range(3, 9))


def test_datasets_that_cannot_be_mapped(tmp_path: Path) -> None:
    numbers = np.arange(100, dtype="<i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("k/data_0", data=numbers, compression="gzip")
        file.create_dataset("k/data_1", data=numbers)
        file.create_dataset("k/data_2", data=numbers.astype(">i4"))
        file.create_dataset("k/data_3", data=numbers, chunks=(7,))
    store = H5Store().load(tmp_path)
    wanted = np.tile(numbers, 4).tolist()
    assert store.fetch(0, 400, "k").tolist() == wanted
    assert pickle.loads(pickle.dumps(store)).fetch(90, 310, "k").tolist() == wanted[90:310]


def test_shards_must_agree(tmp_path: Path) -> None:
    write_bin(tmp_path / "a", groups())
    write_bin(tmp_path / "b", {"sequence": documents([3])})
    with pytest.raises(SourceError, match="shard 'b' lacks 'loss_mask' unlike shard 'a'"):
        MmapStore().load(tmp_path)
    store = MmapStore().load(tmp_path, strict=False)
    assert (len(store), store.column("sequence").length) == (36, 39)


def test_booleans_are_0_or_1_for_any_bytes_in_the_file(tmp_path: Path) -> None:
    # The middle of a file is not looked at when it is loaded.
    marks = np.ones(4000, np.bool_)
    marks.view(np.uint8)[1500:2500] = 255
    write_bin(tmp_path, {"sequence": [np.arange(4000)], "loss_mask": [marks]})
    found = MmapStore().load(tmp_path).fetch(1000, 3000, "loss_mask")
    sample = DatasetFactory.load("sft", tmp_path, 1500)[1]
    for values in (found, sample["loss_mask"]):
        assert values.view(torch.uint8).unique().tolist() == [1]
