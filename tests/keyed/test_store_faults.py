"""Faults of AstrAI's stores, by number: none of them is here."""

import json
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.keyed.upstream_files import documents, masks, positions, write_bin, write_h5
from zindex.errors import ConfigError, SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.kernels import mapped
from zindex.keyed import DatasetFactory, StoreFactory, detect_format, load_h5, save_bin, save_h5


def test_fault_01_datasets_in_the_order_of_names(tmp_path: Path) -> None:
    write_h5(tmp_path / "a.h5", {"sequence": documents([1] * 12)})
    ours = StoreFactory.create("h5").load(tmp_path).fetch(0, 12, "sequence")
    assert ours.tolist() == torch.cat(load_h5(tmp_path)["sequence"]).tolist() == list(range(12))


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


def test_fault_03_a_key_missing_in_a_shard(tmp_path: Path) -> None:
    write_bin(tmp_path / "shard_0", {"sequence": [np.arange(3)]})
    write_bin(tmp_path / "shard_1", {k: [np.arange(10, 13)] for k in ("sequence", "loss_mask")})
    with pytest.raises(SourceError, match="shard 'shard_1' has 'loss_mask' unlike shard 'shard_0'"):
        StoreFactory.create("bin").load(tmp_path)


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


def test_fault_05_indices_that_are_not_checked(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(20)]})
    ours = DatasetFactory.load("seq", tmp_path, 4)
    assert [sample["input_ids"][0].item() for sample in ours] == [0, 4, 8, 12]
    assert ours[-1]["input_ids"].tolist() == [12, 13, 14, 15]
    for index in (4, 99, -5):
        with pytest.raises(IndexError, match=f"index {index} is out of range for the 4"):
            ours[index]


def test_fault_06_empty_spans_on_borders(tmp_path: Path) -> None:
    write_h5(tmp_path / "a.h5", {"sequence": documents([3, 4, 2])})
    ours = StoreFactory.create("h5").load(tmp_path)
    assert [ours.fetch(at, at, "sequence").tolist() for at in range(10)] == [[]] * 10
    with pytest.raises(ConfigError, match="begin=7, end=2, length=9; a range must lie within"):
        ours.fetch(7, 2, "sequence")


def test_fault_07_writes_that_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sequence.bin"
    write_bin(tmp_path, {"sequence": [np.arange(9)]})
    before = path.read_bytes()
    ours = StoreFactory.create("bin").load(tmp_path).fetch(2, 7, "sequence")
    ours.zero_()
    assert path.read_bytes() == before
    assert StoreFactory.create("bin").load(tmp_path).fetch(2, 4, "sequence").tolist() == [2, 3]


@pytest.mark.parametrize("name", ["h5", "bin"])
def test_fault_08_data_copied_to_shared_memory(tmp_path: Path, name: str) -> None:
    content = {"sequence": [np.arange(1 << 20)]}
    if name == "h5":
        write_h5(tmp_path / "a.h5", content)
    else:
        write_bin(tmp_path, content)
    # Arguments of spawned processes use this pickler, which shares tensors.
    ours = StoreFactory.create(name).load(tmp_path)
    for _ in range(2):
        described = bytes(ForkingPickler.dumps(ours))
        assert len(described) < 4096
        again = pickle.loads(described)
        assert again.fetch(5, 8, "sequence").tolist() == [5, 6, 7]
        # Maps that are there already do not go along either.
        ours.fetch(0, 1 << 20, "sequence")


def test_fault_09_one_file_is_found_but_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_h5(path, {"sequence": documents([3])})
    assert detect_format(path) == "h5"
    assert StoreFactory.create("h5").load(path).fetch(0, 3, "sequence").tolist() == [0, 1, 2]


def test_fault_10_what_cannot_be_saved(tmp_path: Path) -> None:
    halves = [torch.ones(2, dtype=torch.bfloat16)]
    with pytest.raises(ConfigError, match=r"'k' has bfloat16; store tensor\.float\(\) instead"):
        save_bin(tmp_path, {"k": halves})
    with pytest.raises(ConfigError, match="'k' has bfloat16"):
        save_h5(tmp_path, "a", {"k": halves})
    save_bin(tmp_path, {"k": [], "m": []})
    store = StoreFactory.create("bin").load(tmp_path)
    assert (store.keys, len(store)) == (["k", "m"], 0)


def pairs() -> dict[str, list[np.ndarray]]:
    chosen, rejected = documents([8, 8]), documents([2, 14], 100)
    return {
        "chosen": chosen,
        "rejected": rejected,
        "chosen_mask": masks(chosen),
        "rejected_mask": masks(rejected),
    }


def test_fault_20_pairs_that_drift_apart(tmp_path: Path) -> None:
    for number in range(2):
        write_bin(tmp_path / f"shard_{number}", pairs(), ["chosen", "rejected"])
    ours = DatasetFactory.load("dpo", tmp_path, 4)
    assert len(ours) == 4
    for i, sample in enumerate(ours):
        for key, records in pairs().items():
            assert sample[key].tolist() == records[i % 2].tolist()


def test_fault_20_groups_that_are_lost(tmp_path: Path) -> None:
    group = {
        "prompts": [torch.arange(2), torch.arange(3)],
        "responses": [[torch.arange(2), torch.arange(2)], [torch.arange(4)]],
        "masks": [[torch.ones(2).bool(), torch.ones(2).bool()], [torch.ones(4).bool()]],
        "rewards": [torch.tensor([0.5, 1.0]), torch.tensor([2.0])],
    }
    save_bin(tmp_path / "bin", group)
    save_h5(tmp_path / "h5", "a", group)
    convert_keyed(tmp_path / "bin", tmp_path / "zarr")
    for name in ("bin", "h5", "zarr"):
        ours = DatasetFactory.load("grpo", tmp_path / name, 4)
        assert len(ours) == 2
        assert [r.tolist() for r in ours[0]["responses"]] == [[0, 1], [0, 1]]
        assert [r.tolist() for r in ours[1]["responses"]] == [[0, 1, 2, 3]]
        assert ours[0]["rewards"].tolist() == [0.5, 1.0]


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
    # The table of keys, and that files are mapped for reading alone.
    tokens = documents([9])
    content = {"sequence": tokens, "loss_mask": masks(tokens), "position_ids": positions(tokens)}
    write_bin(tmp_path, content)
    assert DatasetFactory.create("seq", 4).required_keys == ["sequence"]
    sft = DatasetFactory.load("sft", tmp_path, 4)
    assert sft.required_keys == ["sequence", "loss_mask"]
    assert set(sft[0]) == {"input_ids", "target_ids", "loss_mask", "position_ids"}
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert {line.split()[1] for line in lines if str(tmp_path) in line} == {"r--s"}


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


def test_fault_22_documents_are_known_and_packed_when_read(tmp_path: Path) -> None:
    tokens = documents([5, 2, 4])
    write_bin(tmp_path, {"sequence": tokens}, ["sequence"])
    marked = DatasetFactory.load("seq", tmp_path, 6, documents="mark")[0]
    assert marked["input_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    assert marked["document_ids"].tolist() == [0, 0, 0, 0, 0, 1]
    assert marked["target_ids"].tolist() == [1, 2, 3, 4, -100, 6]
    packed = DatasetFactory.load("seq", tmp_path, 6, documents="pack")
    targets = torch.cat([sample["target_ids"] for sample in packed])
    assert sorted(targets[targets >= 0].tolist()) == [1, 2, 3, 4, 6, 8, 9, 10]


def test_fault_23_tokens_of_the_tail_are_targets_if_wanted(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(200)]})
    # Three windows, whose last target is token 192.
    assert len(DatasetFactory.load("seq", tmp_path, 64)) == 3
    for tail in ("pad", "short"):
        ours = DatasetFactory.load("seq", tmp_path, 64, tail=tail)
        targets = torch.cat([sample["target_ids"] for sample in ours])
        assert targets[targets >= 0].tolist() == list(range(1, 200))


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
    gather = mapped.gather_mapped

    def count(groups: np.ndarray, *spans: np.ndarray) -> int:
        calls.append(len(groups))
        return gather(groups, *spans)

    monkeypatch.setattr(mapped, "gather_mapped", count)
    numbers = list(range(0, len(dataset), 3))
    batch = dataset.collate(dataset.__getitems__(numbers))
    assert calls == [4]
    assert batch["input_ids"][:, 0].tolist() == [48 * number for number in numbers]
