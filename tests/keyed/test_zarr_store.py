"""Record stores as keyed stores."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.damage import flip
from tests.ingest.records.sources import ListFiles
from tests.io.test_leased_maps import can_map
from tests.keyed.small_stores import write_grpo, write_sft
from tests.keyed.upstream_files import write_bin
from zindex.errors import NotReadyError, SourceError, StoreNotFoundError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.records.import_records import import_records
from zindex.keyed import DatasetFactory, MmapStore, ZarrStore
from zindex.keyed.window_dataset import WindowDataset
from zindex.store.layout import ChunkGrid, Codec
from zindex.store.scratch import begin_import


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zarr")
    convert_keyed(write_sft(root / "sft"), root / "sft.zarr")
    convert_keyed(write_grpo(root / "grpo"), root / "grpo.zarr")
    return root


def test_it_has_what_its_files_had(folder: Path) -> None:
    files, stored = MmapStore().load(folder / "sft"), ZarrStore().load(folder / "sft.zarr")
    assert stored.keys == files.keys
    assert len(stored) == len(files)
    assert stored.num_records == files.num_records == 6
    for begin, end in ((0, 250), (39, 41), (124, 126), (250, 250)):
        mine, theirs = (store.fetch(begin, end, files.keys) for store in (stored, files))
        assert all(torch.equal(mine[key], theirs[key]) for key in files.keys)
        assert [value.dtype for value in mine.values()] == [
            value.dtype for value in theirs.values()
        ]


@pytest.mark.parametrize("documents", ["ignore", "respect", "mark", "pack"])
def test_samples_are_the_same_as_of_its_files(folder: Path, documents: str) -> None:
    one, other = (
        DatasetFactory.load("sft", folder / name, 16, documents=documents, tail="pad")
        for name in ("sft", "sft.zarr")
    )
    assert len(one) == len(other) > 10
    for first, second in zip(one, other, strict=True):
        assert all(torch.equal(second[name], value) for name, value in first.items())


def test_item_lengths_are_not_a_key(folder: Path) -> None:
    store = ZarrStore().load(folder / "grpo.zarr")
    assert store.keys == ["masks", "prompts", "responses", "rewards"]
    assert store.column("responses").lengths is not None
    items = store.column("masks").find_items(np.array([4, 0]))
    assert (items.counts.tolist(), items.lengths.tolist()) == ([2, 2], [5, 6, 1, 2])


def test_it_pickles_as_a_description(folder: Path) -> None:
    store = ZarrStore().load(folder / "sft.zarr")
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.fetch(5, 9, "sequence"), store.fetch(5, 9, "sequence"))


def test_a_single_record_without_bounds_is_not_a_document(tmp_path: Path) -> None:
    write_bin(tmp_path / "flat", {"sequence": [np.arange(40, dtype=np.int32)]})
    convert_keyed(tmp_path / "flat", tmp_path / "flat.zarr")
    assert ZarrStore().load(tmp_path / "flat.zarr").num_records is None
    with pytest.raises(SourceError, match="must know where its documents begin"):
        DatasetFactory.load("seq", tmp_path / "flat.zarr", 4, documents="respect")


def test_a_store_of_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    import_records(tmp_path / "a.jsonl", tmp_path / "a.zarr")
    with pytest.raises(SourceError, match=r"must have fields of numbers .*, it has \['text'\]"):
        ZarrStore().load(tmp_path / "a.zarr")


def test_damage_is_found_when_it_is_read(tmp_path: Path) -> None:
    convert_keyed(write_sft(tmp_path / "sft"), tmp_path / "sft.zarr")
    shard = next(path for path in (tmp_path / "sft.zarr" / "sequence_value" / "c").iterdir())
    flip(shard, 5)
    dataset = DatasetFactory.load("sft", tmp_path / "sft.zarr", 16)
    assert isinstance(dataset, WindowDataset)
    with pytest.raises(VerificationError, match="sequence_value"):
        dataset[0]


def test_a_store_without_records_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import_records(ListFiles({"a": [[]]}), tmp_path / "s", client=SerialExecutor())
    assert "s has no records: its source has none, or only damaged ones (skipped: 0)" in caplog.text
    with pytest.raises(SourceError, match="s must have records to be a keyed store, it has none"):
        DatasetFactory.load("seq", tmp_path / "s", 4)


def test_a_store_that_is_not_finished_says_so(folder: Path, tmp_path: Path) -> None:
    begin_import(tmp_path / "s", {"source": "of a process that was killed"})
    with pytest.raises(NotReadyError, match="s is not finished yet, its source is still being re"):
        DatasetFactory.load("seq", tmp_path / "s", 4)
    shutil.copytree(folder / "sft.zarr", tmp_path / "t")
    (tmp_path / "t/zarr.json").unlink()
    with pytest.raises(NotReadyError, match=r"t is not built yet: \d+ of \d+ shards are finished"):
        DatasetFactory.load("seq", tmp_path / "t", 4)
    with pytest.raises(StoreNotFoundError):
        ZarrStore().load(tmp_path / "none")


@pytest.fixture
def maps_from_the_first_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases").write_bytes(b"x")
    if not can_map(tmp_path / "leases"):
        pytest.skip("the file system of temporary files has no leases")
    monkeypatch.setattr("zindex.store.open_files.SPANS_BEFORE_MAPS", 1)
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0)
    monkeypatch.setattr("zindex.store.reader.FEW_SPANS", 0)


def write_chunked(path: Path, codec: Codec = "none") -> Path:
    """Write a store of 5,000 tokens in 50 chunks of ten shards, and their masks."""
    tokens = np.arange(5_000, dtype=np.int32)
    write_bin(path / "bin", {"sequence": [tokens], "loss_mask": [tokens % 3 == 0]})
    grid = ChunkGrid(chunk_length=400, shard_length=2_000, codec=codec)
    convert_keyed(path / "bin", path / "zarr", grid=grid)
    return path / "zarr"


def find_maps(folder: Path) -> list[str]:
    """Return the files of a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if str(folder) in line})


def check_windows(dataset: Any, rng: np.random.Generator, num_batches: int = 20) -> None:
    for _ in range(num_batches):
        numbers = rng.integers(0, len(dataset), 16).tolist()
        batch = dataset.collate(dataset.__getitems__(numbers))
        wanted = np.array(numbers)[:, None] * 64 + np.arange(64)
        assert np.array_equal(batch["input_ids"], wanted)
        assert np.array_equal(batch["target_ids"], wanted + 1)
        assert np.array_equal(batch["loss_mask"], (wanted + 1) % 3 == 0)


@pytest.mark.usefixtures("maps_from_the_first_span")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_windows_from_maps(tmp_path: Path, codec: Codec) -> None:
    path = write_chunked(tmp_path, codec)
    dataset = DatasetFactory.load("sft", path, 64)
    check_windows(dataset, np.random.default_rng(0))
    mapped = find_maps(path)
    assert len(mapped) == 10 + 3
    check_windows(pickle.loads(pickle.dumps(dataset)), np.random.default_rng(1))
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(check_windows, (dataset, np.random.default_rng(2)))
    loader = torch.utils.data.DataLoader(
        dataset, 16, num_workers=1, collate_fn=dataset.collate, multiprocessing_context="fork"
    )
    first = torch.cat([batch["input_ids"][:, 0] for batch in loader])
    assert first.tolist() == list(range(0, 64 * len(dataset), 64))
    assert find_maps(path) == mapped


@pytest.mark.usefixtures("maps_from_the_first_span")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_shard_that_is_cut_while_it_is_mapped_is_an_error(tmp_path: Path, codec: Codec) -> None:
    path = write_chunked(tmp_path, codec)
    dataset = DatasetFactory.load("sft", path, 64)
    check_windows(dataset, np.random.default_rng(0))
    shard = path / "sequence_value/c/1"
    assert str(shard) in find_maps(path)
    os.truncate(shard, 100)
    assert str(shard) not in find_maps(path)
    with pytest.raises(VerificationError, match=r"sequence_value/c/1"):
        dataset.__getitems__([9, 12])
    assert dataset[0]["input_ids"].tolist() == list(range(64))
