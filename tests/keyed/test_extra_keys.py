"""Keys that no train type names: they come with the samples, aligned with their items."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.keyed.small_stores import write_sft
from zindex.errors import SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.keyed import DatasetFactory, dpo_collate_fn, grpo_collate_fn, save_bin, save_h5

RNG = np.random.default_rng(0)
FORMATS = ["bin", "h5", "zarr"]


def floats(*lengths: int) -> list[np.ndarray]:
    return [RNG.random(length, np.float32) for length in lengths]


def save(root: Path, form: str, groups: dict[str, list[Any]]) -> Path:
    """Write records in two shards of a format."""
    source = root / ("h5" if form == "h5" else "bin")
    for shard, part in enumerate((slice(0, 2), slice(2, None))):
        own = {key: records[part] for key, records in groups.items()}
        if form == "h5":
            save_h5(source, f"data_{shard}", own)
        else:
            save_bin(source / f"shard_{shard}", own)
    if form != "zarr":
        return source
    convert_keyed(source, root / "zarr")
    return root / "zarr"


PAIRS: dict[str, list[np.ndarray]] = {
    "chosen": [np.arange(n, dtype=np.int32) for n in (3, 1, 2)],
    "rejected": [np.arange(n, dtype=np.int32) for n in (2, 6, 1)],
}
PAIRS |= {f"{key}_mask": [item > 0 for item in PAIRS[key]] for key in ("chosen", "rejected")}
PAIRS |= {
    "chosen_logprobs": floats(3, 1, 2),
    "margin": floats(1, 1, 1),
    "source": [np.array([i], np.int32) for i in (5, 9, 7)],
    "notes": [np.arange(n, dtype=np.int16) for n in (0, 9, 1)],
}


@pytest.mark.parametrize("form", FORMATS)
def test_pairs(form: str, tmp_path: Path) -> None:
    dataset: Any = DatasetFactory.load("dpo", save(tmp_path, form, PAIRS), 8)
    for number, sample in enumerate(dataset):
        assert sample.keys() == PAIRS.keys()
        for key, records in PAIRS.items():
            wanted = records[number]
            assert sample[key].tolist() == (
                wanted[0] if key in ("margin", "source") else wanted.tolist()
            )
    batch = dataset.collate(dataset.__getitems__([1, 0]))
    assert batch["chosen_logprobs"].shape == batch["chosen"].shape == (2, 6)
    assert batch["chosen_logprobs"][0].tolist() == [PAIRS["chosen_logprobs"][1][0].item(), *[0] * 5]
    assert (batch["margin"].shape, batch["margin"].dtype) == ((2,), torch.float32)
    assert batch["source"].tolist() == [9, 5]
    assert batch["notes"].tolist() == [list(range(9)), [0] * 9]
    for one_by_one in (
        dataset.collate([dataset[1], dataset[0]]),
        dpo_collate_fn([dataset[1], dataset[0]]),
    ):
        assert list(one_by_one) == list(batch)
        assert all(torch.equal(batch[name], one_by_one[name]) for name in batch)


SIZES = ((3, 1), (2, 2, 4), (1,))
RESPONSES = [[np.arange(n, dtype=np.int32) for n in sizes] for sizes in SIZES]
GROUPS: dict[str, list[Any]] = {
    "prompts": [np.arange(n, dtype=np.int32) for n in (2, 1, 4)],
    "responses": RESPONSES,
    "masks": [[item >= 0 for item in group] for group in RESPONSES],
    "rewards": floats(2, 3, 1),
    "old_logprobs": [floats(*sizes) for sizes in SIZES],
    "advantages": floats(2, 3, 1),
    "prompt_weights": floats(2, 1, 4),
    "policy": [np.array([i], np.int64) for i in (1, 2, 2)],
    "tools": [floats(1), floats(2, 5), []],
}


@pytest.mark.parametrize("form", FORMATS)
def test_groups(form: str, tmp_path: Path) -> None:
    groups = {key: records for key, records in GROUPS.items() if form != "h5" or key != "tools"}
    dataset: Any = DatasetFactory.load("grpo", save(tmp_path, form, groups), 8)
    for number, sample in enumerate(dataset):
        assert sample.keys() == groups.keys()
        assert [item.tolist() for item in sample["old_logprobs"]] == [
            item.tolist() for item in GROUPS["old_logprobs"][number]
        ]
        assert sample["advantages"].tolist() == GROUPS["advantages"][number].tolist()
        assert sample["policy"].item() == GROUPS["policy"][number][0]
    batch = dataset.collate(dataset.__getitems__([1, 2, 0]))
    assert batch["old_logprobs"].shape == batch["responses"].shape == (3, 3, 4)
    assert (batch["old_logprobs"] != 0)[batch["masks"]].all()
    assert not batch["old_logprobs"][~batch["masks"]].any()
    assert batch["advantages"].shape == batch["rewards"].shape
    assert ((batch["prompt_weights"] != 0) == batch["prompt_mask"]).all()
    assert batch["policy"].tolist() == [2, 2, 1]
    one_by_one = grpo_collate_fn([dataset[1], dataset[2], dataset[0]])
    assert list(one_by_one) == list(batch)
    assert all(torch.equal(batch[name], one_by_one[name]) for name in batch)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("documents", ["ignore", "respect", "mark", "pack"])
@pytest.mark.parametrize("tail", ["drop_last", "pad", "exact"])
def test_windows(form: str, documents: str, tail: str, tmp_path: Path) -> None:
    if (documents, tail) == ("pack", "exact"):
        pytest.skip("packed samples are always padded")
    lengths = (5, 1, 9, 3, 4)
    tokens = np.split(np.arange(1, 1 + sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1])
    groups = {
        "sequence": tokens,
        "loss_mask": [item % 2 == 0 for item in tokens],
        "old_logprobs": [(item / 8).astype(np.float32) for item in tokens],
        "part": [item * 3 for item in tokens],
        "weight": [np.array([len(item)], np.float32) for item in tokens],
        "domain": [np.array([len(item)], np.int8) for item in tokens],
    }
    root = save(tmp_path, form, groups)
    dataset: Any = DatasetFactory.load("sft", root, 4, documents=documents, tail=tail)
    length_of = dict[int, int]()
    for item in tokens:
        length_of |= dict.fromkeys(item.tolist(), len(item))
    seen = 0
    batch = dataset.collate(dataset.__getitems__(range(len(dataset))))
    rows = {name: values for name, values in batch.items() if values.dim() > 1}
    for sample in [*dataset, *({k: v[i] for k, v in rows.items()} for i in range(len(dataset)))]:
        is_target, is_input = sample["target_ids"] > 0, sample["input_ids"] > 0
        targets = sample["target_ids"][is_target]
        assert torch.equal(sample["old_logprobs"][is_target], targets / 8)
        assert not sample["old_logprobs"][~is_target].any()
        assert torch.equal(sample["part"], sample["input_ids"] * 3)
        assert sample["weight"][is_target].tolist() == [length_of[i] for i in targets.tolist()]
        inputs = sample["input_ids"][is_input]
        assert sample["domain"][is_input].tolist() == [length_of[i] for i in inputs.tolist()]
        kinds = [sample[name].dtype for name in ("old_logprobs", "part", "weight", "domain")]
        assert kinds == [torch.float32, torch.int64, torch.float32, torch.int64]
        seen += len(targets)
    assert seen > 16


def test_what_no_sample_can_have_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = [np.arange(5, dtype=np.int32)] * 3
    other = [np.arange(n, dtype=np.int32) for n in (1, 2, 3)]
    save_bin(tmp_path, {"sequence": tokens, "other": other, "input_ids": tokens})
    assert DatasetFactory.load("seq", tmp_path, 4)[0].keys() == {"input_ids", "target_ids"}
    assert "do not have the key 'other': it has neither one value per token of" in caplog.text
    assert "do not have the key 'input_ids': samples have another tensor of that" in caplog.text


def test_keys_of_other_types_are_left_out(tmp_path: Path) -> None:
    dataset = DatasetFactory.load("seq", write_sft(tmp_path), 4)
    assert dataset[0].keys() == {"input_ids", "target_ids"}


def test_values_of_records_are_finite(tmp_path: Path) -> None:
    tokens = [np.arange(5, dtype=np.int32)] * 3
    weight = [np.array([value], np.float32) for value in (1, np.inf, 1)]
    (tmp_path / "a").mkdir()
    from zindex.formats.keyed.bin_folder import write_bin_folder

    offsets = {"sequence": np.arange(0, 16, 5), "weight": np.arange(4)}
    kinds = {"sequence": "int32", "weight": "float32"}
    groups = {"sequence": tokens, "weight": weight}
    write_bin_folder(tmp_path / "a", groups, dtypes=kinds, item_offset=offsets)
    dataset = DatasetFactory.load("seq", tmp_path / "a", 4)
    assert dataset[0]["weight"].tolist() == [1.0] * 4
    with pytest.raises(
        SourceError, match=r"numbers of 'weight' must be finite, got inf in record 1"
    ):
        dataset[1]
