"""Kinds of records beside AstrAI's, and own ones: from JSON lines to batches."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.cli import commands
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import read_ids, save_tokenizer
from zindex.errors import ConfigError, MissingKeyError, SourceError
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.keyed.tokenize import tokenize
from zindex.keyed import (
    BaseDataset,
    DatasetFactory,
    Field,
    KeyedRecordDataset,
    KeyedStore,
    RecordSchema,
    RecordSplit,
    keyed_loader,
    save_bin,
)
from zindex.store.commit import fingerprint
from zindex.store.verify import verify_store
from zindex.text.chat_template import PLAIN

RNG = np.random.default_rng(7)
#: How own kinds are declared: twenty lines, with the store, the dataset and the batches.
CRITIQUE = """\
name: critique
fields:
  prompt: {axes: prompt, pads_left: true, mask: prompt_mask}
  critique: {axes: critique}
  critique_mask: {values: weights, like: critique}
  scores: {values: floats, axes: aspect, mask: score_mask}
  grade: {values: numbers, dtype: int8, default: 0}
  verdict: {values: text}
"""


def words(count: int, size: int = 6) -> list[str]:
    return ["".join(RNG.choice([*"abcde"], RNG.integers(1, size))) for _ in range(count)]


def rows_of(kind: str, count: int = 9) -> list[dict[str, Any]]:
    """Return JSON objects of a kind."""
    rows: list[dict[str, Any]] = []
    texts = zip(*(words(count) for _ in "abc"), strict=True)
    for number, (prompt, answer, other) in enumerate(texts):
        row: dict[str, Any] = {"prompt": prompt}
        if kind == "kto":
            row |= {"completion": answer, "label": bool(number % 2)}
        elif kind == "reward":
            row |= {"chosen": answer, "rejected": other} | (
                {"margin": number} if number % 2 else {}
            )
        elif kind == "prm":
            row |= {"steps": [*answer], "labels": [ord(x) % 3 / 2 for x in answer]}
        elif kind == "prompts":
            row |= {"ground_truth": answer if number % 3 else {"value": number}, "source": other}
        elif kind == "distill":
            top = [[int(i) for i in RNG.integers(0, 256, 4)] for _ in answer]
            row |= {"completion_ids": [*answer.encode()], "topk_ids": top}
            row["topk_logprobs"] = [[-float(i) for i in ids] for ids in top]
        else:
            row |= {"critique": answer, "scores": [number / 4] * (number % 3)}
            row |= {"verdict": other} | ({"grade": number} if number % 2 else {})
        rows.append(row)
    return rows


KINDS = ["kto", "reward", "prm", "prompts", "distill", "critique"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with JSON lines, a store and a schema of every kind."""
    root = tmp_path_factory.mktemp("kinds")
    save_tokenizer(root / "tokenizer", chat_template=PLAIN)
    (root / "critique.yaml").write_text(CRITIQUE)
    for kind in KINDS:
        write_jsonl(root / f"{kind}.jsonl", rows_of(kind))
        settings: Any = {"step_separator": ""} if kind == "prm" else {}
        tokenize(
            root / f"{kind}.jsonl",
            root / kind,
            root / "critique.yaml" if kind == "critique" else kind,
            tokenizer=root / "tokenizer",
            append_eod=False,
            num_processes=1,
            **settings,
        )
    return root


def load(root: Path, kind: str, **options: Any) -> Any:
    name = root / "critique.yaml" if kind == "critique" else kind
    return DatasetFactory.load(name, root / kind, **options)


def rows_in(root: Path, kind: str) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (root / f"{kind}.jsonl").read_text().splitlines()]


def expected(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return what a sample must have, by a naive reading of the JSON object."""
    ids = {name: [*text.encode()] for name, text in row.items() if isinstance(text, str)}
    # The small tokenizer has its own number for each byte.
    if kind == "kto":
        return {"label": row["label"], "completion_mask": [True] * len(ids["completion"])}
    if kind == "reward":
        return {"margin": float(row.get("margin", 0))}
    if kind == "prm":
        prefix = [0.0] * len(ids["prompt"])
        return {"step_labels": prefix + row["labels"], "step_mask": [False] * len(prefix)}
    if kind == "prompts":
        return {"ground_truth": row["ground_truth"], "source": row["source"]}
    if kind == "distill":
        return {name: row[name] for name in ("topk_ids", "topk_logprobs")}
    return {"scores": row["scores"], "grade": row.get("grade", 0), "verdict": row["verdict"]}


TEXTS = {
    "kto": {"prompt": ("prompt",), "completion": ("completion",)},
    "reward": {"chosen": ("prompt", "chosen"), "rejected": ("prompt", "rejected")},
    "prm": {"input_ids": ("prompt", "steps")},
    "prompts": {"prompts": ("prompt",)},
    "distill": {"prompt": ("prompt",)},
    "critique": {"prompt": ("prompt",), "critique": ("critique",)},
}


def plain(value: Any) -> Any:
    """Return a value of a sample as JSON values."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_records(root: Path, kind: str) -> None:
    dataset, rows = load(root, kind), rows_in(root, kind)
    assert len(dataset) == len(rows)
    for sample, row in zip(dataset, rows, strict=True):
        for name, parts in TEXTS[kind].items():
            text = "".join("".join(row[part]) for part in parts)
            assert read_ids(sample[name]) == text
        for name, value in expected(kind, row).items():
            found = plain(sample[name])
            if name == "step_mask":
                assert found[: len(value)] == value
                assert all(found[len(value) :])
            else:
                assert found == value
    assert verify_store(root / kind).is_sound
    assert verify_store(root / kind).invalid == []


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_padded_samples(root: Path, kind: str) -> None:
    dataset = load(root, kind, pad_id=9)
    numbers = [4, 0, 7, 4]
    batch = dataset.collate(dataset.__getitems__(numbers))
    one_by_one = dataset.collate([dataset[number] for number in numbers])
    unloaded = KeyedRecordDataset(dataset.schema, pad_id=9)
    by_items = unloaded.collate([dataset[number] for number in numbers])
    assert list(batch) == list(one_by_one)
    for name, value in batch.items():
        for other in (one_by_one, by_items):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other[name])
            elif name in other:
                assert value == other[name]
    for field in dataset.schema.tensors:
        tensor = batch[field.name]
        mask = torch.zeros(tensor.shape, dtype=torch.bool)
        for row, number in enumerate(numbers):
            value = dataset[number][field.name]
            if not field.axes:
                assert tensor[row] == value
                mask[row] = True
            for place, part in enumerate(value if field.is_group else [value]):
                if field.axes:
                    own = (row, place) if field.is_group else row
                    line, length = tensor[own], len(part)
                    kept = slice(len(line) - length, None) if field.pads_left else slice(length)
                    assert torch.equal(line[kept], part)
                    mask[own][kept] = True
        assert (tensor[~mask] == (9 if field.values == "ids" else 0)).all()
        if field.mask is not None:
            assert torch.equal(batch[field.mask], mask)


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_splits_and_states(root: Path, kind: str) -> None:
    split = RecordSplit("70,30", 1)
    train = load(root, kind, split="train", split_weights="70,30", split_seed=1)
    assert len(train) == len(split.find("train", 9))
    name = train.schema.tensors[0].name
    whole = [batch[name].tolist() for batch in keyed_loader(train, 2, num_epochs=2)]
    loader = keyed_loader(train, 2, num_epochs=2)
    walk = iter(loader)
    head = [next(walk)[name].tolist()]
    again = keyed_loader(load(root, kind, split="train", split_weights="70,30", split_seed=1), 2)
    state = loader.state_dict()
    assert state["fingerprint"] == again.state_dict()["fingerprint"]
    rest = keyed_loader(train, 2, num_epochs=2, state=state)
    assert head + [batch[name].tolist() for batch in rest] == whole


@pytest.mark.parametrize("kind", ["prompts", "distill"])
def test_workers_of_a_plain_loader(root: Path, kind: str) -> None:
    dataset = load(root, kind)
    settings: Any = {"collate_fn": dataset.collate, "num_workers": 2}
    found = list(DataLoader(dataset, 4, **settings))
    wanted = list(DataLoader(dataset, 4, collate_fn=dataset.collate))
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else None
            assert value == other[name] if same is None else same


def test_fingerprints_of_kinds(root: Path) -> None:
    """Those of presets are their names; own kinds include their declaration."""
    dataset = load(root, "critique")
    schema = RecordSchema("critique", dataset.schema.fields[:3])
    other = DatasetFactory.load(schema, dataset.opened.path)
    assert dataset.fingerprint != other.fingerprint
    settings = {"train_type": "kto", "pad_id": 0, "split": None, "records": True}
    kto = load(root, "kto")
    assert kto.fingerprint == fingerprint({"store": kto.opened.fingerprint} | settings)
    assert len(pickle.dumps(load(root, "prompts"))) < 20_000


def test_a_kind_from_a_file_on_the_command_line(root: Path, tmp_path: Path) -> None:
    arguments: list[Any] = [root / "critique.jsonl", tmp_path / "a.zarr"]
    arguments += ["--for", root / "critique.yaml", "--tokenizer", root / "tokenizer"]
    arguments += ["--processes", 1, "--append-eod", "none"]
    shown = commands.succeed("tokenize", *arguments)
    assert "9 records for critique, values: " in shown
    mine = DatasetFactory.load(root / "critique.yaml", tmp_path / "a.zarr")
    assert mine.opened.fingerprint == load(root, "critique").opened.fingerprint
    shown = commands.fail("tokenize", *arguments[:2], "--for", root / "none.yaml", *arguments[4:])
    assert "cannot read" in shown
    rows = [*rows_in(root, "kto"), {"prompt": "p", "completion": "c", "label": "yes"}]
    source = write_jsonl(tmp_path / "bad.jsonl", rows)
    shown = commands.fail("tokenize", source, tmp_path / "b", "--for", "kto", *arguments[4:])
    assert "'label' must have one number per record, got 'yes', in line 10 of" in shown.replace(
        "flat numbers", "one number per record"
    )


def test_kinds_need_their_keys(root: Path) -> None:
    with pytest.raises(MissingKeyError, match=r"'critique' needs the keys .*: critique, .* missin"):
        DatasetFactory.load(root / "critique.yaml", root / "kto")
    with pytest.raises(ConfigError, match=r"options of records of 'kto' must .* got tail; name on"):
        DatasetFactory.create("kto", tail="pad")
    with pytest.raises(ConfigError, match="mode of 'kto' must be one of records, got 'windows'"):
        DatasetFactory.create("kto", 4, mode="windows")
    with pytest.raises(ConfigError, match="windows of 'seq' need a window_size, got none; give th"):
        DatasetFactory.create("seq")


def test_own_windows(tmp_path: Path) -> None:
    schema = RecordSchema(
        "weighted",
        [
            Field("input_ids", "sequence", axes="token"),
            Field("labels", "sequence", axes="token", shift=1, pad=-100),
            Field("weight", values="weights", like="sequence", shift=1),
            Field("domain", values="numbers"),
        ],
        ["windows"],
    )
    lengths = (5, 3)
    groups = {
        "sequence": [np.arange(1, n + 1, dtype=np.int32) for n in lengths],
        "weight": [np.arange(n, dtype=np.float32) for n in lengths],
        "domain": [np.array([n], np.int16) for n in lengths],
    }
    save_bin(tmp_path / "a", groups)
    dataset = DatasetFactory.load(schema, tmp_path / "a", 4, documents="respect", tail="pad")
    assert {name: value.tolist() for name, value in dataset[1].items()} == {
        "input_ids": [1, 2, 0, 0],
        "labels": [2, 3, -100, -100],
        "weight": [1.0, 2.0, 0.0, 0.0],
        "domain": [3, 3, 0, 0],
    }
    save_bin(tmp_path / "b", groups | {"domain": groups["sequence"]})
    with pytest.raises(SourceError, match=r"domain of .* must have one value per record"):
        DatasetFactory.load(schema, tmp_path / "b", 4)


def test_damaged_stores_name_key_and_record(tmp_path: Path) -> None:
    ids = [np.array([1], np.int32), np.array([2, 3], np.int32)]
    groups: dict[str, Any] = {"prompt": ids, "completion": ids}
    groups["completion_mask"] = [item > 0 for item in ids]
    save_bin(tmp_path / "a", groups | {"label": [item > 0 for item in ids]})
    dataset = DatasetFactory.load("kto", tmp_path / "a")
    assert dataset[0]["label"].item() is True
    with pytest.raises(SourceError, match="label must have one value per record, got 2 in record "):
        dataset[1]
    labels = [np.array([True])] * 2
    save_bin(tmp_path / "b", groups | {"label": labels, "completion_mask": labels})
    dataset = DatasetFactory.load("kto", tmp_path / "b")
    with pytest.raises(SourceError, match=r"completion and completion_mask .* 2 and 1 in record 1"):
        dataset[1]


def test_lines_of_tokens_have_the_dtypes_of_presets(tmp_path: Path) -> None:
    rows = [{"sequence": [1, 2], "step_mask": [False, True], "step_labels": [0, 1]}]
    write_jsonl(tmp_path / "prm.jsonl", rows)
    convert_keyed(tmp_path / "prm.jsonl", tmp_path / "prm.zarr")
    sample = DatasetFactory.load("prm", tmp_path / "prm.zarr")[0]
    assert sample["step_labels"].dtype == torch.float32
    assert sample["step_mask"].tolist() == [False, True]
    write_jsonl(tmp_path / "bad.jsonl", [rows[0] | {"step_labels": [0]}])
    with pytest.raises(SourceError, match=r"'step_labels' must have as many values as 'sequence'"):
        convert_keyed(tmp_path / "bad.jsonl", tmp_path / "bad.zarr")


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_weight(root: Path, kind: str) -> None:
    """Ranks without a sample of the last step get samples whose masks are False."""
    dataset = load(root, kind)
    batches = list(keyed_loader(dataset, 4, tail="pad", shuffle=False, rank=0, num_ranks=1))
    assert len(batches) == 3
    masks = [name for name in batches[-1] if name.endswith("_mask")]
    assert masks
    assert any(batches[0][name][-1].any() for name in masks)
    assert not any(batches[-1][name][1:].any() for name in masks)


def test_a_dataset_without_methods_says_what_to_do(root: Path) -> None:
    dataset = BaseDataset(load(root, "kto").schema)
    with pytest.raises(NotImplementedError, match=r"must define _count_samples, BaseDataset does "):
        dataset.load(root / "kto")
    with pytest.raises(NotImplementedError, match=r"declare the kind of record as a zindex\.keyed"):
        dataset.collate([])

    class Empty(KeyedStore):
        """A store that defines nothing."""

    with pytest.raises(NotImplementedError, match="must define _open, Empty does not; return the"):
        Empty().load(root)
