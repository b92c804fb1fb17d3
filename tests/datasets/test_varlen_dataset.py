"""Samples of the lengths of their conversations and texts."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.datasets.configs import build_datasets
from tests.samples.conversations.speakers import (
    EOD,
    PAD,
    Speaker,
    draw_records,
    make_config,
    write_records,
)
from zindex.datasets.utils import Split
from zindex.datasets.varlen_dataset import (
    MockVarlenDataset,
    VarlenDataset,
    VarlenLowLevelDataset,
    _looks_like_hf_id,
    _select_converter,
)
from zindex.errors import ConfigError, SourceError, StoreNotFoundError

NAMES = ["tokens", "labels", "loss_mask", "position_ids"]
ANSWER = [{"role": "assistant", "content": "abcdefgh"}]
TALK = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]


def open_dataset(low_level: Any, cls: Any = VarlenDataset, **settings: Any) -> Any:
    config = make_config(**({"sequence_length": 8} | settings))
    return cls(low_level, "p", range(len(low_level)), None, Split.train, config)


@pytest.mark.parametrize(
    ("record", "tokens", "labels", "loss"),
    [
        (TALK, [0, 1, 2, EOD], [-100, 2, EOD, PAD], [0, 1, 1, 0]),
        ("ab", [0, 1, EOD, PAD], [1, EOD, PAD, PAD], [1, 1, 0, 0]),
        ("", [EOD, EOD, PAD, PAD], [EOD, PAD, PAD, PAD], [1, 0, 0, 0]),
        ("abcdefgh", list(range(8)), [*range(1, 8), EOD], [1] * 8),
        ("abcdefghijk", list(range(8)), [*range(1, 8), EOD], [1] * 8),
        (ANSWER, list(range(8)), [*range(1, 8), EOD], [1] * 8),
    ],
)  # fmt: skip
def test_samples_have_their_own_lengths(record: Any, tokens: Any, labels: Any, loss: Any) -> None:
    dataset = open_dataset([record], context_parallel_size=2)
    item = dataset[0]
    assert list(item) == [*NAMES, "original_seq_len", "padded_seq_len"]
    assert item["tokens"].tolist() == tokens
    assert item["labels"].tolist() == labels
    assert item["loss_mask"].tolist() == loss
    assert item["position_ids"].tolist() == list(range(len(tokens)))
    assert item["padded_seq_len"].tolist() == [len(tokens)]
    assert item["original_seq_len"].tolist() == [len(labels) - labels.count(PAD)]
    kinds = [torch.int64, torch.int64, torch.float32, torch.int64, torch.int32, torch.int32]
    assert [value.dtype for value in item.values()] == kinds


def make_plainly(record: Any, length: int, divisor: int) -> list[list[int]]:
    """Return tokens, labels, loss and lengths, step by step as Megatron's rules say."""
    speaker = Speaker()
    if isinstance(record, str):
        tokens = targets = speaker.tokenize(record)
    else:
        tokens, targets = speaker.tokenize_conversation(record, True, False)
    ids, goals = list(tokens), list(targets)
    if not ids or ids[-1] != EOD:
        ids, goals = [*ids, EOD], [*goals, EOD]
    if len(ids) == 1:
        ids, goals = [EOD, EOD], [EOD, EOD]
    if len(ids) > length + 1:
        ids, goals = [*ids[:length], EOD], [*goals[:length], EOD]
    count = len(ids) - 1
    padding = [PAD] * (-count % divisor)
    ids, goals = [*ids, *padding], [*goals, *padding]
    loss = [int(i < count and goal != -100) for i, goal in enumerate(goals[1:])]
    return [ids[:-1], goals[1:], loss, [count], [len(ids) - 1]]


@pytest.mark.parametrize("number", range(20))
def test_samples_are_those_of_the_rules(number: int) -> None:
    generator = np.random.default_rng(number)
    length, context = int(generator.integers(2, 20)), int(generator.choice([1, 2, 4]))
    records: list[Any] = [record["messages"][:7] for record in draw_records(number, 6)]
    records += ["abcdefghijklmnopqrstuvwxyz"[: generator.integers(0, 25)] for _ in range(6)]
    dataset = open_dataset(records, sequence_length=length, context_parallel_size=context)
    names = ("tokens", "labels", "loss_mask", "original_seq_len", "padded_seq_len")
    for record, item in zip(records, dataset.__getitems__(range(12)), strict=True):
        expected = make_plainly(record, length, dataset.padding_divisor)
        assert [item[name].tolist() for name in names] == expected


@pytest.mark.filterwarnings("ignore:the pad token must have an id of its own")
def test_without_a_pad_only_padding_is_left_out() -> None:
    for pad in (EOD, None):
        dataset = open_dataset(["abc"], tokenizer=Speaker(pad=pad), context_parallel_size=2)
        assert dataset[0]["labels"].tolist() == [1, 2, EOD, EOD]
        assert dataset[0]["loss_mask"].tolist() == [1, 1, 1, 0]


def test_samples_of_one_length_for_comparisons() -> None:
    dataset = open_dataset(["abc"], varlen_sbhd_validation=True)
    item = dataset[0]
    assert list(item) == NAMES
    assert item["tokens"].tolist() == [0, 1, 2, EOD, *[PAD] * 4]
    assert item["loss_mask"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    message = "varlen_sbhd_validation pads samples to one length, which excludes"
    with pytest.raises(ConfigError, match=message):
        make_config(varlen_sbhd_validation=True, dynamic_context_parallel=True)


def test_batches_are_lists_of_items(tmp_path: Path) -> None:
    rows: list[Any] = [{"text": "abc"}, {"messages": TALK}, {"text": "abcdef", "messages": None}]
    path = write_records(tmp_path / "r.jsonl", rows)
    config = make_config(blend=([path], None), sequence_length=8)
    [dataset, _, _] = build_datasets(VarlenDataset, [7, 0, 0], config)
    assert dataset.dataset.schema_name == "pretrain-text"
    batch = list(pickle.loads(pickle.dumps(dataset)).__getitems__([0, None, 1, -1]))
    assert [len(item["tokens"]) for item in batch] == [3, 3, 3, 3]
    assert not batch[1]["loss_mask"].any()
    for item, position in zip(batch, [0, None, 1, 6], strict=True):
        assert all(torch.equal(item[name], dataset[position][name]) for name in item)
    assert batch[2]["labels"].tolist() == [-100, 2, EOD]
    assert len(dataset.__getitems__([])) == 0

    class Own(VarlenDataset):
        def __getitem__(self, idx: Any) -> dict[str, Any]:
            return {"own": idx}

    assert open_dataset(["a"], cls=Own).__getitems__([0])[0] == {"own": 0}


def test_the_first_layout_is_the_default(tmp_path: Path) -> None:
    rows = [{"instruction": "a", "output": "b"}, {"instruction": "c", "output": None}]
    low_level = VarlenLowLevelDataset(write_records(tmp_path / "r.jsonl", rows))
    assert low_level.schema_name == "alpaca"
    assert [message["content"] for message in low_level[1]] == ["", "c", ""]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = str(tmp_path / "r.parquet")
    rows = [{"messages": TALK, "text": None}, {"messages": None, "text": "ab"}]
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    low_level = pickle.loads(pickle.dumps(VarlenLowLevelDataset(path)))
    assert len(low_level) == 2
    assert low_level[0] == [{"role": "system", "content": ""}, *TALK]
    assert low_level[1] == low_level[-1] == "ab"
    assert low_level.read_many([]) == []
    with pytest.raises(IndexError, match="index 2 is out of range for the 2 samples of"):
        low_level[2]


def test_parquet_must_be_there_and_whole(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "r.parquet"
    with pytest.raises(StoreNotFoundError, match=r"r\.parquet must be a file, there is none"):
        VarlenLowLevelDataset(str(path))
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match=r"r\.parquet must be a file of Parquet, but: "):
        VarlenLowLevelDataset(str(path))


def test_parquet_needs_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "a.parquet"
    path.touch()
    with pytest.raises(ConfigError, match="Parquet needs the library pyarrow, which is not"):
        VarlenLowLevelDataset(str(path))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((path, True) for path in ("owner/name", "o/n-12k")),
        *((path, False) for path in ("/tmp/a.jsonl", "./a", "../a", "name", "", None)),
    ],
)
def test_names_of_hubs(path: Any, expected: bool) -> None:
    assert _looks_like_hf_id(path) is expected


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"owner/name must be a file, .* a dataset of a hub"):
        VarlenLowLevelDataset("owner/name")
    with pytest.raises(SourceError, match="cannot infer schema"):
        VarlenLowLevelDataset(write_records(tmp_path / "a.jsonl", [{"foo": 1}]))
    with pytest.raises(SourceError, match="must hold records, got none"):
        VarlenLowLevelDataset(write_records(tmp_path / "b.jsonl", []))
    low_level = VarlenLowLevelDataset(write_records(tmp_path / "c.jsonl", [{"text": 3}]))
    with pytest.raises(SourceError, match=r"record 0 of .*c.jsonl: text .* must be a string"):
        low_level[0]
    with pytest.raises(SourceError, match="record 1 of p: a text must be Unicode without lone"):
        open_dataset(["a", "b\ud800"])[1]
    assert _select_converter(["text"])[1] == "pretrain-text"


@pytest.mark.parametrize(("length", "valid"), [(1, 1), (7, 7), (8, 8), (20, 8)])
def test_made_up_samples(length: int, valid: int) -> None:
    names = ("min_seq_len", "max_seq_len", "mean_seq_len")
    spec = ", ".join(f'"{name}": {length}' for name in names)
    settings = f'{{"mode": "distribution", "lognormal_sigma": 1.1, {spec}}}'
    config = make_config(
        sequence_length=8, context_parallel_size=2, varlen_mock_dataset_config_json=settings
    )
    [dataset, _, _] = build_datasets(MockVarlenDataset, [5, 0, 0], config)
    item = dataset[2]
    expected = list(range(1, valid + 1))
    assert item["original_seq_len"].tolist() == [valid]
    assert item["tokens"][:valid].tolist() == expected
    assert item["labels"][valid - 1] == EOD
    assert len(item["tokens"]) % 4 == 0
    assert item["loss_mask"].sum() == valid
