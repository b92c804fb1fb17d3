"""Faults of AstrAI's stores, by number: none of them is here.

Other files prove it of 1 and 6, the order of names and empty spans (test_store_conformance, D7); 3
and 9, keys that are missing and single files (test_stores); 5, 22 and 23, indices, documents and
the tail (test_window_dataset); 8, copies in shared memory (test_worker_processes); 10, what cannot
be saved (test_saving); 20, pairs and groups (test_record_dataset); 11 to 19, samplers
(test_sampler_conformance).
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.keyed.upstream_files import documents, masks, positions, write_bin, write_h5
from zindex.errors import ConfigError, SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.kernels import gather_extents
from zindex.keyed import DatasetFactory, StoreFactory, detect_format


@pytest.mark.parametrize("name", ["h5", "bin"])
def test_fault_02_files_as_the_file_system_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number in range(12):
        content = {"sequence": documents([1], number)}
        if name == "h5":
            write_h5(tmp_path / f"data_{number}.h5", content)
        else:
            write_bin(tmp_path / f"shard_{number}", content)

    ours = StoreFactory.create(name).load(tmp_path)
    scandir = os.scandir

    class Reversed:
        def __init__(self, folder: str) -> None:
            with scandir(folder) as found:
                self.entries = list(found)[::-1]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Reversed)
    other = StoreFactory.create(name).load(tmp_path)
    assert other.fingerprint == ours.fingerprint
    assert ours.fetch(0, 12, "sequence").tolist() == list(range(12))
    assert other.fetch(0, 12, "sequence").tolist() == list(range(12))


def test_fault_04_lengths_cut_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(9)], "loss_mask": [np.ones(7, bool)]})
    message = (
        r"shard '.' has 'sequence' with 9 values, 'loss_mask' with 7 values; .*"
        r"give strict=False \(--loose\)"
    )
    with pytest.raises(SourceError, match=message):
        StoreFactory.create("bin").load(tmp_path)
    assert len(StoreFactory.create("bin").load(tmp_path, strict=False)) == 7
    assert "keys do not match in 1 of 1 shards" in caplog.text


def test_fault_07_writes_that_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sequence.bin"
    write_bin(tmp_path, {"sequence": [np.arange(9)]})
    before = path.read_bytes()
    ours = StoreFactory.create("bin").load(tmp_path).fetch(2, 7, "sequence")
    ours.zero_()
    assert path.read_bytes() == before
    assert StoreFactory.create("bin").load(tmp_path).fetch(2, 4, "sequence").tolist() == [2, 3]


def test_fault_21_lines_that_become_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"sequence": [1, 2], "position_ids": [0, 1]}, {"sequence": [3], "position_ids": [0]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert detect_format(path) == "jsonl"
    with pytest.raises(ConfigError, match="got 'jsonl'; convert the file first: zindex convert"):
        DatasetFactory.load("seq", path, 4)
    convert_keyed(path, tmp_path / "store")
    store = StoreFactory.create("zarr").load(tmp_path / "store")
    assert (store.num_records, len(store)) == (2, 3)
    assert store.fetch(0, 3, "sequence").tolist() == [1, 2, 3]


def test_fault_24_what_the_documents_say(tmp_path: Path) -> None:
    # The table of keys, and that nothing is mapped or copied.
    tokens = documents([9])
    content = {"sequence": tokens, "loss_mask": masks(tokens), "position_ids": positions(tokens)}
    write_bin(tmp_path, content)
    assert DatasetFactory.create("seq", 4).required_keys == ["sequence"]
    sft = DatasetFactory.load("sft", tmp_path, 4)
    assert sft.required_keys == ["sequence", "loss_mask"]
    assert set(sft[0]) == {"input_ids", "target_ids", "loss_mask", "position_ids"}
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in lines if str(tmp_path) in line]


def test_fault_25_a_first_document_without_a_mask(tmp_path: Path) -> None:
    # AstrAI writes masks from the first document on that needs one.
    written = {
        "sequence": documents([3, 2, 1]),
        "loss_mask": [np.array([False, True]), np.array([True])],
    }
    write_bin(tmp_path / "bin", written, ["sequence", "loss_mask"])
    write_h5(tmp_path / "h5/a.h5", written)
    for name in ("bin", "h5"):
        with pytest.raises(SourceError, match=r"'sequence' with 6 values in 3 records") as raised:
            StoreFactory.create(name).load(tmp_path / name)
        assert "'loss_mask' with 3 values in 2 records" in str(raised.value)


def test_fault_26_masks_without_positions(tmp_path: Path) -> None:
    tokens = documents([9])
    write_bin(tmp_path, {"sequence": tokens, "loss_mask": masks(tokens)})
    ours = DatasetFactory.load("sft", tmp_path, 4)
    assert set(ours[0]) == {"input_ids", "target_ids", "loss_mask"}


def test_d12_a_batch_of_all_keys_is_one_gather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The throughput itself is measured in benchmarks; this is what it rests on.
    for shard in range(64):
        tokens = documents([50], 50 * shard)
        content = {"sequence": tokens, "loss_mask": masks(tokens)}
        write_bin(tmp_path / f"shard_{shard}", content | {"position_ids": positions(tokens)})
    dataset = DatasetFactory.load("sft", tmp_path, 48)
    calls: list[int] = []
    gather = gather_extents.gather_extents

    def count(groups: np.ndarray, *spans: np.ndarray) -> int:
        calls.append(len(groups))
        return gather(groups, *spans)

    monkeypatch.setattr(gather_extents, "gather_extents", count)
    numbers = list(range(0, len(dataset), 3))
    batch = dataset.collate(dataset.__getitems__(numbers))
    assert calls == [4, 4]  # the first one has all files opened
    dataset.__getitems__(numbers)
    assert calls == [4, 4, 4]
    assert batch["input_ids"][:, 0].tolist() == [48 * number for number in numbers]
