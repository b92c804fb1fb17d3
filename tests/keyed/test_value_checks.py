"""What values of a batch must be: ids of the vocabulary, and finite floats; weights stay floats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.keyed.upstream_files import write_bin
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import make_tokenizer, save_tokenizer
from zindex.errors import SourceError
from zindex.formats.keyed.bin_folder import write_bin_folder
from zindex.ingest.keyed.tokenize import tokenize
from zindex.keyed import DatasetFactory
from zindex.store.tokenizer_note import NOTE_KEY, TokenizerNote, write_note

ROWS = 6


def write_groups(root: Path, groups: dict[str, list[np.ndarray]]) -> Path:
    """Write records without checks, as other programs do."""
    write_bin_folder(
        root,
        groups,
        dtypes={key: records[0].dtype.name for key, records in groups.items()},
        item_offset={key: np.cumsum([0, *map(len, items)]) for key, items in groups.items()},
    )
    return root


def sft(**changed: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    tokens = [np.arange(5, dtype=np.int64) + 10 * i for i in range(ROWS)]
    weights = [np.full(5, 0.1 * i, np.float32) for i in range(ROWS)]
    return {"sequence": tokens, "loss_mask": weights} | changed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("documents", ["ignore", "mark", "pack"])
def test_weights_stay_floats(dtype: str, documents: str, tmp_path: Path) -> None:
    weights = [np.full(5, 0.1 * i, dtype) for i in range(ROWS)]
    root = write_groups(tmp_path / "s", sft(loss_mask=weights))
    dataset: Any = DatasetFactory.load("sft", root, 4, documents=documents)
    batch = dataset.collate(dataset.__getitems__(range(len(dataset))))
    assert batch["loss_mask"].dtype == getattr(torch, dtype)
    is_target = batch["target_ids"] >= 0
    found = set(batch["loss_mask"][is_target].tolist())
    assert found <= {item[0].item() for item in weights}
    assert weights[1][0].item() in found
    assert not batch["loss_mask"][~is_target].any()


def test_weights_of_pairs_stay_floats(tmp_path: Path) -> None:
    answers = [np.arange(n, dtype=np.int32) for n in (3, 2)]
    groups = {"chosen": answers, "rejected": answers}
    groups |= {f"{key}_mask": [np.full(n, 0.1, np.float32) for n in (3, 2)] for key in groups}
    dataset: Any = DatasetFactory.load("dpo", write_groups(tmp_path / "s", groups), 4)
    sample = dataset[0]
    assert sample["chosen_mask"].tolist() == [np.float32(0.1).item()] * 3
    batch = dataset.collate([dataset[0], dataset[1]])
    assert batch["rejected_mask"].dtype == torch.float32
    assert torch.equal(
        batch["rejected_mask"], dataset.__getitems__([0, 1]).tensors["rejected_mask"]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_must_be_finite(value: float, tmp_path: Path) -> None:
    groups = sft()
    groups["loss_mask"][3][2] = value
    dataset = DatasetFactory.load("sft", write_groups(tmp_path / "s", groups), 4)
    with pytest.raises(
        SourceError, match=rf"of 'loss_mask' must be finite, got {value} in record 3"
    ):
        dataset.__getitems__(range(len(dataset)))
    rewards = [np.array([1, value], np.float32)]
    one = [np.arange(2, dtype=np.int32)]
    groups = {
        "prompts": one,
        "responses": one,
        "rewards": rewards,
        "masks": [item > 0 for item in one],
    }
    dataset = DatasetFactory.load("grpo", write_grpo(tmp_path / "g", groups), 4)
    with pytest.raises(SourceError, match=r"of 'rewards' must be finite, got .* in record 0 of"):
        dataset[0]


def write_grpo(root: Path, groups: dict[str, list[np.ndarray]]) -> Path:
    """Write one record of two responses."""
    ends, pair = np.array([0, 2]), np.array([0, 1, 2])
    write_bin_folder(
        root,
        groups,
        dtypes={key: records[0].dtype.name for key, records in groups.items()},
        item_offset={"prompts": ends, "rewards": ends, "responses": pair, "masks": pair},
        group_offset={"responses": ends, "masks": ends},
    )
    return root


@pytest.mark.parametrize("documents", ["ignore", "respect", "mark", "pack"])
@pytest.mark.parametrize(("dtype", "value"), [("int64", -5), ("uint64", 2**63 + 5)])
def test_ids_are_not_negative(documents: str, dtype: str, value: int, tmp_path: Path) -> None:
    for record, place in ((0, 0), (2, 4), (ROWS - 1, 4)):
        tokens = [item.astype(dtype) for item in sft()["sequence"]]
        tokens[record][place] = value
        root = write_groups(tmp_path / f"{record}-{place}", sft(sequence=tokens))
        dataset = DatasetFactory.load("sft", root, 4, documents=documents, tail="pad", pad_id=-1)
        message = (
            rf"token ids of 'sequence' must be from 0 to .*, got {value} in record {record} of"
        )
        with pytest.raises(SourceError, match=message):
            dataset.__getitems__(range(len(dataset)))


def test_ids_are_of_the_vocabulary_of_a_store(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "abc"}, {"text": "dé"}])
    store = tokenize(source, tmp_path / "s", "seq", tokenizer=tmp_path / "tokenizer")
    dataset: Any = DatasetFactory.load("seq", store.root, 2)
    assert dataset.storage.num_ids == make_tokenizer().get_vocab_size()
    assert len(dataset.__getitems__(range(len(dataset)))) == 3
    note = TokenizerNote("another", 200)
    (tmp_path / "s" / NOTE_KEY).unlink()
    write_note(store.root, note, {})
    smaller = DatasetFactory.load("seq", store.root, 2)
    with pytest.raises(
        SourceError, match="ids of 'sequence' must be from 0 to 199, got 258 in record"
    ):
        smaller.__getitems__(range(len(smaller)))


def test_values_without_records_are_named_by_place(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.array([1, 2, 3, -4], np.int32)]}, record_keys=[])
    with pytest.raises(SourceError, match="got -4 in value 3 of"):
        DatasetFactory.load("seq", tmp_path, 3)[0]
