"""Conversations as rows, against a plain reading of the rules."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.datasets.configs import build_datasets, plain_config
from tests.samples.conversations.speakers import (
    EOD,
    PAD,
    Speaker,
    draw_records,
    make_config,
    write_records,
)
from zindex.datasets.gpt_dataset import MockGPTDataset
from zindex.datasets.sft_dataset import (
    IGNORE_INDEX,
    MockSFTDataset,
    MockSFTLowLevelDataset,
    PretrainValidAsSFTDataset,
    SFTDataset,
    SFTLowLevelDataset,
    load_json_arg,
)
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, SourceError
from zindex.formats import megatron_version
from zindex.loading.collate import collate

NAMES = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"]


class Ending(Speaker):
    """A tokenizer that wants conversations to end, as 0.15 asks."""

    force_eod = True


def open_dataset(
    low_level: Any, num_samples: Any = None, cls: Any = SFTDataset, **settings: Any
) -> Any:
    config = settings.pop("config", None) or make_config(**settings)
    return cls(low_level, "p", range(len(low_level)), num_samples, Split.train, config)


def pack_plainly(
    record: Any, tokenizer: Any, length: int, divisor: int, *, rules: str = "main"
) -> dict[str, Any]:
    """Return a sample as lists, step by step as Megatron's rules say."""
    conversations: list[Any] = []
    for message in record["messages"]:
        if not conversations or (message["role"] == "system" and rules >= "0.16"):
            conversations.append([])
        conversations[-1].append(message)
    rows: list[list[Any]] = [[], [], [], []]
    ends = [0]
    is_short = rules in ("0.16", "0.17")

    def pad(count: int) -> None:
        for _ in range(count):
            for row, value in zip(rows, (PAD, PAD, rows[2][-1] + 1, 0.0), strict=True):
                row.append(value)

    for conversation in conversations:
        tokens, targets = tokenizer.tokenize_conversation(conversation, True, False)
        if rules == "0.16" and tokens[-1] != EOD:
            tokens, targets = [*tokens, EOD], [*targets, EOD]
        if rules < "0.16":
            tokens, targets = [*tokens[: length - 1], EOD], [*targets[: length - 1], EOD]
        loss = [0.0 if target == IGNORE_INDEX else 1.0 for target in targets]
        for row, values in zip(rows, (tokens, targets, range(len(tokens)), loss), strict=True):
            row.extend(values)
        pad(-len(rows[0]) % divisor)
        ends.append(len(rows[0]))
        if len(rows[0]) > length:
            for row, value in zip(rows, (PAD, PAD, None, 0.0), strict=True):
                row[length:] = [value]
            break
    if len(rows[0]) <= length:
        pad(length + 1 - len(rows[0]))
    ends[-1] = length
    boundaries = {
        "cu_seqlens": ends + [length] * ((length + 1 - len(ends)) * (not is_short)),
        "max_seqlen": int(np.diff(ends).max()),
    }
    return {
        "tokens": rows[0][:-1],
        "labels": rows[1][1:],
        "loss_mask": rows[3][1:],
        "position_ids": rows[2][:-1],
    } | (boundaries if rules >= "0.16" else {})


@pytest.mark.parametrize(
    ("settings", "divisor"),
    [
        ({}, 1),
        ({"context_parallel_size": 2}, 4),
        ({"context_parallel_size": 2, "sequence_parallel_size": 2, "sequence_length": 40}, 4),
        ({"sequence_parallel_size": 4}, 1),
        ({"context_parallel_size": 2, "sequence_parallel_size": 2, "sft_rules": "dev"}, 8),
        ({"context_parallel_size": 2, "sequence_parallel_size": 2, "sft_rules": "0.16"}, 4),
        ({"sft_rules": "0.16", "sequence_length": 9}, 1),
        ({"sft_rules": "0.17", "context_parallel_size": 2}, 4),
        ({"sft_rules": "0.14", "context_parallel_size": 2}, 1),
        ({"sft_rules": "0.14", "sequence_length": 90}, 1),
        ({"sft_rules": "0.15", "tokenizer": Ending()}, 1),
        ({"hybrid_context_parallel": True, "data_parallel_size": 2, "sft_rules": "main"}, 1),
        ({"hybrid_context_parallel": True, "data_parallel_size": 2, "sft_rules": None}, 4),
        ({"dynamic_context_parallel": True, "sequence_length": 7, "sft_rules": None}, 2),
        ({"sequence_length": 200}, 1),
    ],
)
@pytest.mark.parametrize("number", range(4))
def test_samples_are_those_of_the_rules(
    tmp_path: Path, settings: dict[str, Any], divisor: int, number: int
) -> None:
    records = draw_records(number)
    path = write_records(tmp_path / "r.jsonl", records)
    config = make_config(**settings)
    low_level = SFTDataset.build_low_level_dataset(path, config)
    dataset = open_dataset(low_level, config=config)
    assert dataset.padding_divisor == divisor
    batch = dataset.__getitems__(range(len(records)))
    for position, record in enumerate(records):
        item = dataset[position]
        expected = pack_plainly(
            record,
            config.tokenizer,
            config.sequence_length,
            divisor,
            rules=config.sft_rules or "main",
        )
        assert list(item) == list(expected)
        for name, value in expected.items():
            assert item[name].tolist() == value, name
            assert torch.equal(batch[position][name], item[name])
    kinds = (torch.int64, torch.int64, torch.float32, torch.int64, torch.int32, torch.int32)
    assert [value.dtype for value in item.values()] == list(kinds[: len(item)])


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        (None, "main"),
        ((0, 13), "0.14"),
        ((0, 15), "0.15"),
        ((0, 16), "0.16"),
        ((0, 18), "0.17"),
        ((0, 19), "main"),
        ((1, 0), "main"),
    ],
)
def test_the_rules_are_those_of_the_installed_megatron(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int] | None, rules: str
) -> None:
    monkeypatch.setattr(megatron_version, "find_megatron_version", lambda: version)
    assert open_dataset([[]], sft_rules=None)._rules == rules
    assert open_dataset([[]], sft_rules="dev")._rules == "dev"


def test_the_tokenizer_says_whether_conversations_end_by_the_rules_of_0_15() -> None:
    low_level = [[{"role": "user", "content": "abcdef"}]]
    for tokenizer, tokens in ((Speaker(), [0, 1, 2, 3]), (Ending(), [0, 1, 2, EOD])):
        dataset = open_dataset(low_level, tokenizer=tokenizer, sequence_length=4, sft_rules="0.15")
        assert dataset[0]["tokens"].tolist() == tokens


def test_empty_conversations_have_boundaries() -> None:
    """As in Megatron: of no tokens, and the last one of the padding, whose positions go on."""
    low_level = [[{"role": "system", "content": text} for text in ("", "ab", "", "c", "")]]
    item = open_dataset(low_level, sequence_length=6)[0]
    assert item["cu_seqlens"].tolist() == [0, 0, 2, 2, 3, 6, 6]
    assert item["position_ids"].tolist() == [0, 1, 0, 1, 2, 3]
    assert item["max_seqlen"] == 3
    short = open_dataset(low_level, sequence_length=2, sft_rules="0.17")[0]
    assert short["cu_seqlens"].tolist() == [0, 0, 2, 2]


class OwnMasks(SFTDataset):
    """Makes masks itself, as subclasses of Megatron's class of 0.14 do."""

    def _get_ltor_masks_and_position_ids(
        self, max_seq_len: int, target: torch.Tensor, pad_token: int
    ) -> Any:
        found = super()._get_ltor_masks_and_position_ids(max_seq_len, target, pad_token)
        return found[0] / 2, found[1] + 1, found[2]


@pytest.mark.parametrize("rules", ["0.14", "0.15"])
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_subclass_may_make_masks_by_the_rules_of_0_14(rules: str, with_mask: bool) -> None:
    records = [record["messages"] for record in draw_records(1)]
    settings = {"sft_rules": rules, "create_attention_mask": with_mask}
    own = open_dataset(records, cls=OwnMasks, **settings)
    plain = open_dataset(records, sft_rules=rules)
    batch = own.__getitems__([0, None, -1])
    for position, row in zip((0, None, -1), batch, strict=True):
        item, expected = own[position], plain[position]
        assert torch.equal(item["loss_mask"], expected["loss_mask"] / 2)
        assert torch.equal(item["position_ids"], expected["position_ids"] + 1)
        assert torch.equal(item["labels"], expected["labels"])
        assert list(item) == list(row)
        assert list(item)[2] == ("attention_mask" if with_mask else "loss_mask")
        assert all(torch.equal(row[name], item[name]) for name in item)
    if with_mask:
        assert torch.equal(item["attention_mask"], torch.ones(1, 24, 24).triu(1) > 0)


@pytest.mark.parametrize("rules", ["0.16", "main"])
def test_masks_of_a_subclass_that_would_not_be_called_are_refused(rules: Any) -> None:
    match = f"OwnMasks overrides, must belong to sft_rules .* got {rules}; set one"
    with pytest.raises(ConfigError, match=match):
        open_dataset([[]], cls=OwnMasks, sft_rules=rules)


def test_records_repeat(tmp_path: Path) -> None:
    low_level = SFTLowLevelDataset(write_records(tmp_path / "r.jsonl", draw_records(1, 5)))
    dataset = SFTDataset(low_level, "p", np.array([3, 1, 4]), 7, Split.train, make_config())
    assert len(dataset) == 7
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[-1]["tokens"], dataset[0]["tokens"])
    plain = open_dataset(low_level)
    assert len(plain) == 5
    assert torch.equal(plain[3]["tokens"], dataset[0]["tokens"])
    padding = dataset[None]
    assert not padding["loss_mask"].any()
    assert torch.equal(padding["tokens"], dataset[0]["tokens"])
    with pytest.raises(IndexError, match="index 7 is out of range for the 7 samples of p"):
        dataset[7]


def test_a_loader_stacks_them(tmp_path: Path) -> None:
    low_level = SFTLowLevelDataset(write_records(tmp_path / "r.jsonl", draw_records(1, 6)))
    dataset = open_dataset(low_level)
    for how in (collate, None):
        batches = list(DataLoader(dataset, batch_size=3, collate_fn=how))
        assert batches[0]["cu_seqlens"].shape == (3, 25)
        assert torch.equal(batches[1]["labels"][2], dataset[5]["labels"])


@pytest.mark.filterwarnings("ignore:the pad token must have an id of its own")
def test_an_end_that_is_padding_too_is_learned() -> None:
    low_level = [[{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]]
    for pad in (EOD, None):
        item = open_dataset(low_level, tokenizer=Speaker(pad=pad), sequence_length=6)[0]
        assert item["tokens"].tolist() == [0, 1, 2, EOD, EOD, EOD]
        assert item["labels"].tolist() == [-100, 2, EOD, EOD, EOD, EOD]
        assert item["loss_mask"].tolist() == [0, 1, 1, 0, 0, 0]


def test_a_negative_pad_stays_a_label() -> None:
    low_level = [[{"role": "assistant", "content": "c"}]]
    item = open_dataset(low_level, tokenizer=Speaker(pad=-1), sequence_length=4)[0]
    assert item["tokens"].tolist() == [2, EOD, EOD, EOD]
    assert item["labels"].tolist() == [EOD, -1, -1, -1]
    assert item["loss_mask"].tolist() == [1, 0, 0, 0]


def test_many_short_conversations_fill_a_row() -> None:
    low_level = [[{"role": "system", "content": "a"}] * 9]
    item = open_dataset(low_level, sequence_length=4)[0]
    assert item["cu_seqlens"].tolist() == [0, 1, 2, 3, 4]
    assert item["max_seqlen"] == 1


def test_splits_and_blends_by_the_builder(tmp_path: Path) -> None:
    paths = [write_records(tmp_path / f"{i}.jsonl", draw_records(i, 10)) for i in range(2)]
    config = make_config(blend=(paths, [1.0, 2.0]), split="80,20,0")
    train, valid, test = build_datasets(SFTDataset, [30, 4, 0], config)
    assert test is None
    batch = train.__getitems__([4, None, 11])
    assert batch.tensors["dataset_id"].dtype == torch.int16
    for item, position in zip(batch, [4, None, 11], strict=True):
        expected = train[position]
        assert list(item) == ["dataset_id", *NAMES]
        assert all(
            torch.equal(torch.as_tensor(item[k]), torch.as_tensor(expected[k])) for k in item
        )
    assert valid.datasets[0].indices.tolist() == [8, 9]
    reads = []
    member = train.datasets[0]
    member.dataset = SimpleNamespace(
        read_many=lambda n: reads.append(n) or [draw_records(0)[0]["messages"]] * len(n)
    )
    member.indices = np.array([0])
    member.__getitems__([0, 1, 2])
    assert reads == [[0, 0, 0]]


def test_a_split_without_samples_may_be_empty(tmp_path: Path) -> None:
    path = write_records(tmp_path / "r.jsonl", draw_records(1, 3))
    config = make_config(blend=([path], None), split="969,30,1")
    datasets = build_datasets(SFTDataset, [4, 0, 0], config)
    assert [len(dataset) for dataset in datasets] == [4, 0, 0]
    assert len(datasets[2].__getitems__([])) == 0


def test_indices_may_have_gaps() -> None:
    low_level = [[{"role": "assistant", "content": letter}] for letter in "abcdef"]
    dataset = SFTDataset(low_level, "p", range(1, 6, 2), 4, Split.train, make_config())
    assert [int(dataset[i]["tokens"][0]) for i in range(4)] == [1, 3, 5, 1]


def test_a_subclass_may_override_items() -> None:
    class Own(SFTDataset):
        def __getitem__(self, idx: Any) -> dict[str, Any]:
            return super().__getitem__(idx) | {"own": torch.tensor(1)}

    dataset = open_dataset([[{"role": "user", "content": "a"}]], cls=Own)
    assert "own" in dataset.__getitems__([0])[0]


def test_ids_may_be_tensors_or_lists() -> None:
    class Lists(Speaker):
        def tokenize_conversation(self, *args: Any, **settings: Any) -> Any:
            tokens, targets = super().tokenize_conversation(*args, **settings)
            return torch.as_tensor(tokens), targets.tolist()

    low_level = [[{"role": "assistant", "content": "ab"}]]
    item = open_dataset(low_level, tokenizer=Lists(), sequence_length=4)[0]
    assert item["tokens"].tolist() == [0, 1, EOD, PAD]


@pytest.mark.parametrize(
    "name", ["create_attention_mask", "reset_attention_mask", "reset_position_ids"]
)
def test_masks_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be off for SFTDataset"):
        open_dataset([[]], **{name: True})


def test_errors_name_the_record(tmp_path: Path) -> None:
    path = write_records(tmp_path / "r.jsonl", [{"messages": "x"}, {"text": "a"}])
    low_level = SFTLowLevelDataset(path)
    for number in range(2):
        message = f"record {number} of {path} must have messages, a list of objects"
        with pytest.raises(SourceError, match=message):
            low_level[number]
    silent = open_dataset([[{"role": "user", "content": ""}]])
    with pytest.raises(SourceError, match="record 0 of p: a record must give tokens, this"):
        silent[0]
    with pytest.raises(ConfigError, match="train of p must have records, got none"):
        open_dataset([])
    with pytest.raises(ConfigError, match="a tokenizer with an end of document, Speaker says"):
        open_dataset([[]], tokenizer=Speaker(eod=None))[0]


def test_targets_must_be_as_many() -> None:
    class Short(Speaker):
        def tokenize_conversation(self, *args: Any, **settings: Any) -> Any:
            return [1, 2], [1]

    with pytest.raises(ConfigError, match="a target for each token, it gives 1 for 2; fix it"):
        open_dataset([[{"role": "user", "content": "a"}]], tokenizer=Short())[0]


@pytest.mark.parametrize("kind", ["thd", "sbhd"])
@pytest.mark.parametrize(("length", "valid"), [(1, 1), (3, 3), (7, 7), (8, 8), (30, 8)])
def test_made_up_conversations(kind: str, length: int, valid: int) -> None:
    lengths = dict.fromkeys(("min_seq_len", "max_seq_len", "mean_seq_len"), length)
    spec = {"mode": "distribution", "lognormal_sigma": 1.1, "format": kind, **lengths}
    config = make_config(sequence_length=8, sft_mock_dataset_config_json=json.dumps(spec))
    [dataset, _, _] = build_datasets(MockSFTDataset, [10, 0, 0], config)
    item = dataset[3]
    assert list(item) == (NAMES if kind == "thd" else NAMES[:4])
    assert item["tokens"].tolist() == [*range(1, valid + 1), EOD, *[PAD] * 7][:8]
    assert item["labels"].tolist() == [*range(1, valid + 1), EOD, *[PAD] * 8][1:9]
    assert item["loss_mask"].tolist() == [1.0] * valid + [0.0] * (8 - valid)
    assert item["position_ids"].tolist() == list(range(8))
    if kind == "thd":
        assert item["cu_seqlens"].tolist() == [0, *[8] * 8]


def test_a_stub_of_a_mock_gives_samples() -> None:
    """As Megatron's own test of padding makes it, without a constructor."""
    dataset = MockSFTDataset.__new__(MockSFTDataset)
    dataset.dataset = [np.arange(20)]
    dataset.indices = np.array([0])
    dataset.num_samples = 1
    dataset.padding_divisor = 1
    dataset.config = SimpleNamespace(  # type: ignore[assignment]
        sequence_length=64, tokenizer=SimpleNamespace(eod=127, pad=-1)
    )
    item = dataset[0]
    assert item["tokens"].tolist() == [*range(20), *[127] * 44]
    assert item["labels"].tolist() == [*range(1, 20), 127, *[-1] * 44]


def test_conversations_that_see_each_other_have_no_boundaries() -> None:
    roles = ("system", "user", "assistant")
    records = [[{"role": role, "content": text} for text in ("ab", "cde") for role in roles]]
    apart, together = open_dataset(records)[0], open_dataset(records)
    together.config.sft_cross_document_attention = True
    item = together[0]
    assert list(item) == list(NAMES[:4])
    assert item["position_ids"].tolist() == list(range(len(item["tokens"])))
    assert apart["position_ids"].tolist() != item["position_ids"].tolist()
    for name in ("tokens", "labels", "loss_mask"):
        assert torch.equal(item[name], apart[name])


def test_lengths_of_mocks_are_drawn_as_megatron_draws_them() -> None:
    low_level = MockSFTDataset.build_low_level_dataset(None, make_config(sequence_length=64))
    np.random.seed(0)
    drawn = np.random.lognormal(np.log(48) - 1.1**2 / 2, 1.1, 1_000_000)
    expected = np.clip(drawn, 32, 64).astype(int)
    np.testing.assert_array_equal(low_level.sequence_lengths, expected)
    assert len(low_level) == 1_000_000
    assert len(pickle.dumps(low_level)) < 500
    assert isinstance(low_level, MockSFTLowLevelDataset)


def test_specs_may_be_files(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"mode": "file"}')
    assert load_json_arg(str(file)) == load_json_arg('{"mode": "file"}') == {"mode": "file"}
    assert load_json_arg(None) is None
    with pytest.raises(ConfigError, match=r"must be JSON, or the path of a file of JSON, got '\{'"):
        load_json_arg("{")
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"got the file .*spec\.json"):
        load_json_arg(str(file))


class Texts:
    """What a dataset of GPT samples has."""

    index_split = Split.valid

    def __len__(self) -> int:
        return 5

    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        assert idx is None or 0 <= idx < 5
        plane = torch.full((4,), -1 if idx is None else idx)
        return dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids", "more"), plane)


def test_texts_validate_a_fine_tuning() -> None:
    packed = PretrainValidAsSFTDataset(Texts(), 3)
    assert (len(packed), packed.index_split) == (3, Split.valid)
    item = packed[-1]
    assert list(item) == NAMES
    assert item["tokens"].tolist() == [2] * 4
    assert item["cu_seqlens"].tolist() == [0, 4, 4, 4, 4]
    assert item["cu_seqlens"].dtype == item["max_seqlen"].dtype == torch.int32
    assert int(item["max_seqlen"]) == 4
    batch = packed.__getitems__([2, None, -3])
    assert [row["tokens"].tolist() for row in batch] == [[2] * 4, [-1] * 4, [0] * 4]
    assert batch.tensors["cu_seqlens"].shape == (3, 5)
    assert len(packed.__getitems__([])) == 0
    assert packed[None]["tokens"].tolist() == [-1] * 4
    with pytest.raises(IndexError, match="3"):
        packed[3]
    plain = PretrainValidAsSFTDataset(Texts(), 9, packed=False)
    assert len(plain) == len(PretrainValidAsSFTDataset(Texts())) == 5
    assert list(plain[4]) == NAMES[:4]


def test_batches_are_read_together() -> None:
    config = plain_config(split="1,0,0")
    low_level = MockGPTDataset.build_low_level_dataset(None, config)
    reads: list[Any] = []

    class Counted(MockGPTDataset):
        def __getitems__(self, positions: Sequence[int | None]) -> Any:
            reads.append(positions)
            return super().__getitems__(positions)

    texts = Counted(low_level, None, range(len(low_level)), 20, Split.valid, config)
    dataset = PretrainValidAsSFTDataset(texts, 5)
    batch = dataset.__getitems__([4, None, -5])
    assert reads == [[4, None, 0]]
    for item, position in zip(batch, (4, None, 0), strict=True):
        expected = dataset[position]
        assert all(torch.equal(item[name], expected[name]) for name in NAMES)
