"""Pairs and groups by record, over files and over Zarr."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.keyed.upstream_files import write_bin, write_h5
from zindex.errors import ConfigError, SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.keyed import DatasetFactory, dpo_collate_fn, grpo_collate_fn, save_bin, save_h5
from zindex.keyed.record_split import RecordSplit

PAIRS = [(2, 5), (7, 1), (1, 1), (3, 4), (6, 2)]
#: Of each record the tokens of the prompt, and of each response.
GROUPS = [(2, (3, 1)), (5, (2, 2, 4)), (0, (1,)), (3, (4, 1, 1, 2))]


def pairs() -> dict[str, list[np.ndarray]]:
    values: dict[str, list[np.ndarray]] = {}
    for place, key in enumerate(("chosen", "rejected")):
        tokens = [
            np.arange(pair[place], dtype=np.int32) + 10 * (2 * k + place + 1)
            for k, pair in enumerate(PAIRS)
        ]
        values |= {key: tokens, f"{key}_mask": [item % 2 == 1 for item in tokens]}
    return values


def groups() -> dict[str, list[Any]]:
    responses = [
        [np.arange(size, dtype=np.int32) + 100 * k + 10 * j for j, size in enumerate(sizes)]
        for k, (_, sizes) in enumerate(GROUPS)
    ]
    return {
        "prompts": [np.arange(size, dtype=np.int32) + 1 for size, _ in GROUPS],
        "responses": responses,
        "masks": [[item % 2 == 0 for item in group] for group in responses],
        "rewards": [
            np.arange(len(sizes), dtype=np.float32) + k for k, (_, sizes) in enumerate(GROUPS)
        ],
    }


@pytest.fixture(scope="module", params=["bin", "h5", "zarr", "zarr of h5"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pairs and groups in each format, in two shards."""
    root = tmp_path_factory.mktemp("stores")
    for name, values in (("dpo", pairs()), ("grpo", groups())):
        for shard, part in enumerate((slice(0, 2), slice(2, None))):
            own = {key: records[part] for key, records in values.items()}
            if "h5" in request.param:
                save_h5(root / name, f"data_{shard}", own)
            else:
                keys = [key for key in own if name == "dpo" or key in ("prompts", "rewards")]
                save_bin(root / name / f"shard_{shard}", own, record_keys=keys)
        if "zarr" in request.param:
            convert_keyed(root / name, root / f"{name}.zarr")
            (root / name).rename(root / f"{name}.files")
            (root / f"{name}.zarr").rename(root / name)
    return root


def test_d9_a_pair_comes_whole(stores: Path) -> None:
    dataset = DatasetFactory.load("dpo", stores / "dpo", 4)
    wanted = pairs()
    assert len(dataset) == len(PAIRS)
    for number in range(-len(PAIRS), len(PAIRS)):
        sample = dataset[number]
        assert set(sample) == set(wanted)
        for key, values in wanted.items():
            assert sample[key].tolist() == values[number].tolist()
            assert sample[key].dtype == (torch.bool if "mask" in key else torch.int64)
    with pytest.raises(IndexError, match="index 5 is out of range for the 5 samples of dpo of"):
        dataset[5]


def test_d9_pairs_are_filled_up_on_the_right_to_the_longest_answer(stores: Path) -> None:
    dataset: Any = DatasetFactory.load("dpo", stores / "dpo", 4, pad_id=9)
    numbers = [3, 0, 0]
    batch = dataset.collate(dataset.__getitems__(numbers))
    one_by_one = dpo_collate_fn([dataset[number] for number in numbers], 9)
    assert {name: value.shape for name, value in batch.items()} == dict.fromkeys(pairs(), (3, 5))
    assert all(torch.equal(batch[name], one_by_one[name]) for name in batch)
    assert batch["chosen"][0].tolist() == [70, 71, 72, 9, 9]
    assert batch["chosen_mask"][0].tolist() == [False, True, False, False, False]


def test_d9_a_group_comes_whole(stores: Path) -> None:
    dataset = DatasetFactory.load("grpo", stores / "grpo", 4)
    wanted = groups()
    assert len(dataset) == len(GROUPS)
    for number, sample in enumerate(dataset):
        assert sample["prompts"].tolist() == wanted["prompts"][number].tolist()
        assert sample["rewards"].tolist() == wanted["rewards"][number].tolist()
        for key in ("responses", "masks"):
            assert [item.tolist() for item in sample[key]] == [
                item.tolist() for item in wanted[key][number]
            ]
        kinds = [sample[key].dtype for key in ("prompts", "rewards")]
        kinds += [sample[key][0].dtype for key in ("responses", "masks")]
        assert kinds == [torch.int64, torch.float32, torch.int64, torch.bool]


def test_d9_groups_of_any_size_make_a_batch(stores: Path) -> None:
    dataset: Any = DatasetFactory.load("grpo", stores / "grpo", 4)
    numbers = [3, 2, 1]
    batch = dataset.collate(dataset.__getitems__(numbers))
    one_by_one = grpo_collate_fn([dataset[number] for number in numbers])
    assert list(batch) == list(one_by_one)
    assert all(torch.equal(batch[name], one_by_one[name]) for name in batch)
    assert batch["prompts"].tolist() == [[0, 0, 1, 2, 3], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]]
    assert batch["prompt_mask"].sum(1).tolist() == [3, 0, 5]
    assert batch["responses"].shape == (3, 4, 4)
    assert batch["group_mask"].sum(1).tolist() == [4, 1, 3]
    assert batch["rewards"][1].tolist() == [2.0, 0.0, 0.0, 0.0]


def test_an_empty_prompt_is_a_prompt(stores: Path) -> None:
    dataset: Any = DatasetFactory.load("grpo", stores / "grpo", 4)
    batch = dataset.collate(dataset.__getitems__([2]))
    assert batch["prompts"].shape == batch["prompt_mask"].shape == (1, 0)


def test_splits_are_of_records(stores: Path) -> None:
    split = RecordSplit("60,40", 3)
    parts = {name: split.find(name, len(PAIRS)).tolist() for name in ("train", "valid")}
    assert sorted(parts["train"] + parts["valid"]) == list(range(len(PAIRS)))
    for name, records in parts.items():
        dataset = DatasetFactory.load(
            "dpo", stores / "dpo", 4, split=name, split_weights="60,40", split_seed=3
        )
        assert [len(sample["chosen"]) for sample in dataset] == [PAIRS[k][0] for k in records]


def test_datasets_in_hdf5_are_records(tmp_path: Path) -> None:
    write_h5(tmp_path / "pairs.h5", pairs())
    dataset = DatasetFactory.load("dpo", tmp_path, 4)
    assert [(len(item["chosen"]), len(item["rejected"])) for item in dataset] == PAIRS


def test_records_must_be_known(tmp_path: Path) -> None:
    write_bin(tmp_path, {key: [values[0][:1]] for key, values in pairs().items()})
    with pytest.raises(
        SourceError, match=r"dpo needs a store that knows where its records begin, ch"
    ):
        DatasetFactory.load("dpo", tmp_path, 4)


def test_a_mask_must_be_as_long_as_its_answer(tmp_path: Path) -> None:
    values = pairs()
    values["chosen_mask"][3] = np.ones(2, np.bool_)
    write_bin(tmp_path, values, list(values))
    dataset = DatasetFactory.load("dpo", tmp_path, 4)
    assert len(dataset[2]["chosen"]) == 1
    with pytest.raises(
        SourceError, match="chosen and chosen_mask of a record must be of one length"
    ):
        dataset[3]


def test_every_response_must_have_a_reward(tmp_path: Path) -> None:
    values = groups()
    values["rewards"][1] = np.zeros(2, np.float32)
    save_bin(tmp_path, values, record_keys=["prompts", "rewards"])
    dataset = DatasetFactory.load("grpo", tmp_path, 4)
    with pytest.raises(SourceError, match=r"responses and rewards .*, got 3 and 2 in record 1"):
        dataset[1]


def test_windows_cut_all_streams_at_the_same_places(tmp_path: Path) -> None:
    tokens = np.arange(20, dtype=np.int32)
    mask = tokens % 2 == 0
    write_bin(
        tmp_path / "dpo",
        {
            "chosen": [tokens],
            "rejected": [40 - tokens],
            "chosen_mask": [mask],
            "rejected_mask": [~mask],
        },
    )
    dataset = DatasetFactory.load("dpo", tmp_path / "dpo", 4, mode="windows")
    assert len(dataset) == 4
    assert dataset[1]["rejected"].tolist() == [36, 35, 34, 33]
    assert dataset[1]["chosen_mask"].tolist() == [True, False, True, False]
    rewards = tokens.astype(np.float64)
    write_bin(
        tmp_path / "grpo",
        {"prompts": [tokens], "responses": [tokens], "masks": [mask], "rewards": [rewards]},
    )
    sample = DatasetFactory.load("grpo", tmp_path / "grpo", 4, mode="windows")[0]
    assert {name: value.dtype for name, value in sample.items()} == {
        "prompts": torch.int64,
        "responses": torch.int64,
        "masks": torch.bool,
        "rewards": torch.float64,
    }


def test_windows_of_pairs_of_unequal_length_are_refused(tmp_path: Path) -> None:
    write_bin(tmp_path, pairs(), list(pairs()))
    with pytest.raises(SourceError, match="must have one length to be cut at the same places, got"):
        DatasetFactory.load("dpo", tmp_path, 4, mode="windows")
    assert len(DatasetFactory.load("dpo", tmp_path, 4, mode="windows", strict=False)) == 3


def test_records_have_no_windows(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"records of 'dpo' must .*, got tail; .*, or choose mode='windows'"
    ):
        DatasetFactory.create("dpo", 4, tail="pad")
