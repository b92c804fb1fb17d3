"""Keyed stores against AstrAI's: files, formats and fetches, the items D6 to D8 and D10."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.keyed.upstream_files import documents, masks, positions, write_bin, write_h5
from zindex.errors import ConfigError, MissingKeyError, NotLoadedError, SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.keyed import DatasetFactory, StoreFactory, detect_format
from zindex.keyed.store import KeyedStore

#: Lengths of the documents of each shard: with empty ones, and more than ten.
SHARDS = [[3, 4, 2], [0], [1, 5, 0, 2, 1, 1, 1, 2, 3, 1, 1, 4], [6]]
TOTAL = sum(map(sum, SHARDS))
FORMATS = ["h5", "bin", "zarr"]


def shards() -> list[dict[str, list[np.ndarray]]]:
    """Return the content of all shards; tokens count up over them."""
    bounds = np.cumsum([0, *map(sum, SHARDS)])
    found = []
    for start, lengths in zip(bounds[:-1], SHARDS, strict=True):
        tokens = documents(lengths, int(start))
        found.append(
            {"sequence": tokens, "loss_mask": masks(tokens), "position_ids": positions(tokens)}
        )
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the same shards in each format."""
    root = tmp_path_factory.mktemp("keyed")
    for number, content in enumerate(shards()):
        # By name alone number 10 would come before number 8.
        write_h5(root / f"h5/data_{number + 8}.h5", content)
        write_bin(root / f"bin/domain/shard_{number + 8}", content, ["sequence"])
    convert_keyed(root / "bin", root / "zarr")
    return {name: root / name for name in FORMATS}


def whole() -> dict[str, np.ndarray]:
    """Return all values of each key, joined."""
    parts = shards()
    return {key: np.concatenate([v for part in parts for v in part[key]]) for key in parts[0]}


# D6: seq and sft alignment, store side.
@pytest.mark.parametrize("name", FORMATS)
def test_d6_windows_are_aligned(folders: dict[str, Path], name: str) -> None:
    values = whole()
    for train_type in ("seq", "sft"):
        dataset = DatasetFactory.load(train_type, folders[name], 5)
        assert len(dataset) == (TOTAL - 1 - 5) // 5 + 1
        names = ["input_ids", "target_ids", "loss_mask", "position_ids"]
        for i, sample in enumerate(dataset):
            assert list(sample) == (names if train_type == "sft" else names[:2])
            inputs, targets = slice(5 * i, 5 * i + 5), slice(5 * i + 1, 5 * i + 6)
            assert sample["input_ids"].tolist() == values["sequence"][inputs].tolist()
            assert sample["target_ids"].tolist() == values["sequence"][targets].tolist()
            assert sample["input_ids"].dtype == sample["target_ids"].dtype == torch.int64
            if train_type == "sft":
                assert sample["loss_mask"].tolist() == values["loss_mask"][targets].tolist()
                assert sample["position_ids"].tolist() == values["position_ids"][inputs].tolist()
                assert sample["loss_mask"].dtype == torch.bool


# D7: every span of several segments, all keys at once and alone.
@pytest.mark.parametrize("name", FORMATS)
def test_d7_every_span(folders: dict[str, Path], name: str) -> None:
    store = StoreFactory.create(name).load(folders[name])
    assert (len(store), store.num_records) == (TOTAL, sum(map(len, SHARDS)))
    assert store.keys == ["loss_mask", "position_ids", "sequence"]
    values = whole()
    keys = list(values)
    for begin in range(TOTAL + 1):
        for end in range(begin, TOTAL + 1):
            found = store.fetch(begin, end, keys)
            assert all(found[k].tolist() == values[k][begin:end].tolist() for k in keys)
            assert [found[k].dtype for k in keys] == [torch.int32, torch.bool, torch.int32]
        one = store.fetch(begin, TOTAL, "loss_mask")
        assert one.equal(torch.from_numpy(values["loss_mask"][begin:]))


@pytest.mark.parametrize("name", FORMATS)
def test_d7_records(folders: dict[str, Path], name: str) -> None:
    column = StoreFactory.create(name).load(folders[name]).column("sequence")
    starts, stops = column.record_spans(np.arange(sum(map(len, SHARDS))))
    bounds = np.cumsum([0, *(length for lengths in SHARDS for length in lengths)])
    assert [*zip(starts, stops, strict=True)] == [*pairwise(bounds)]


# D8: files in upstream's layouts; h5 with twelve datasets is in SHARDS.
@pytest.mark.parametrize("record_keys", [[], ["sequence"], ["sequence", "loss_mask"]])
def test_d8_bin_with_and_without_offsets(tmp_path: Path, record_keys: list[str]) -> None:
    tokens = documents([2, 0, 3])
    content = {"sequence": tokens, "loss_mask": masks(tokens)}
    write_bin(tmp_path / "shard_0000", content, record_keys)
    store = StoreFactory.create("bin").load(tmp_path)
    assert store.fetch(0, 5, "sequence").tolist() == [0, 1, 2, 3, 4]
    assert store.num_records == (3 if record_keys else None)


# D10: the decision table of formats is in tests/formats/keyed/test_shards.py.
def test_d10_formats(folders: dict[str, Path]) -> None:
    for name, folder in folders.items():
        assert detect_format(folder) == name
        assert type(DatasetFactory.load("sft", folder, 4).storage).format == name
        forced = DatasetFactory.load("sft", folder, 4, storage_type=name)
        assert len(forced) == (TOTAL - 1 - 4) // 4 + 1


@pytest.fixture
def fifty(tmp_path: Path) -> KeyedStore:
    write_bin(tmp_path, {"sequence": documents([20, 30])})
    return StoreFactory.create("bin").load(tmp_path)


@pytest.mark.parametrize(("begin", "end"), [(-1, 10), (0, 51), (51, 51), (8, 7), (60, 70)])
def test_d10_out_of_bounds(fifty: KeyedStore, begin: int, end: int) -> None:
    message = f"Index out of bounds: begin={begin}, end={end}, length=50"
    with pytest.raises(ConfigError, match=re.escape(message)):
        fifty.fetch(begin, end, "sequence")


def test_d10_empty_spans(fifty: KeyedStore) -> None:
    # Upstream refuses the one at the end of the store; here it is empty, as of a list.
    for place in (0, 10, 20, 50):
        assert fifty.fetch(place, place, "sequence").tolist() == []


def test_d10_missing_keys(fifty: KeyedStore) -> None:
    with pytest.raises(KeyError, match="'sequence'], got 'loss_mask'"):
        fifty.fetch(0, 1, ["sequence", "loss_mask"])
    with pytest.raises(MissingKeyError, match="needs the keys sequence, loss_mask, got sequence"):
        DatasetFactory.load("sft", str(fifty.path), 4)


def test_d10_before_load() -> None:
    store = StoreFactory.create("bin")
    assert (len(store), store.keys) == (0, [])
    with pytest.raises(NotLoadedError, match="Store not loaded"):
        store.fetch(0, 1, "k")


def test_d10_keys_without_values(tmp_path: Path) -> None:
    none = np.empty(0, "int32")
    write_h5(tmp_path / "a/x.h5", {"sequence": [], "loss_mask": []})
    write_bin(tmp_path / "b", {"sequence": [none, none]})
    write_h5(tmp_path / "c/x.h5", {"sequence": [np.arange(3)], "loss_mask": []})
    for name in "ab":
        assert len(DatasetFactory.load("seq", tmp_path / name, 4)) == 0
    with pytest.raises(SourceError, match=r"'x.h5' has 'loss_mask' with 0 values in 0 records,"):
        StoreFactory.create("h5").load(tmp_path / "c")
    assert len(StoreFactory.create("h5").load(tmp_path / "c", strict=False)) == 0
