"""Packed batches of windows and records, against the samples one after the other."""

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.keyed.small_stores import write_dpo, write_grpo, write_sft
from zindex.errors import ConfigError, PlanError, SourceError
from zindex.keyed import (
    BaseDataset,
    DatasetFactory,
    PackedDataset,
    TokenBatchSampler,
    TokenBudget,
    keyed_loader,
    save_bin,
)
from zindex.keyed.packed_batches import find_bounds
from zindex.loading.device import pack_documents
from zindex.plan.token_batches import Layout


def write_records(folder: Path, kind: str, num_records: int, *, extras: bool = True) -> BaseDataset:
    """Write random records of a kind, with keys that it does not name, and open them."""
    rng = np.random.default_rng(num_records)

    def tokens(count: int) -> np.ndarray:
        return rng.integers(1, 1000, count, np.int32)

    values: dict[str, list[Any]] = {}
    if kind == "dpo":
        for key in ("chosen", "rejected"):
            values[key] = [tokens(int(n)) for n in rng.integers(1, 20, num_records)]
            values[f"{key}_mask"] = [item % 2 == 0 for item in values[key]]
            values[f"{key}_logprobs"] = [item.astype("float32") for item in values[key]]
        values["margin"] = [np.full(1, i, "float32") for i in range(num_records)]
    else:
        sizes = rng.integers(1, 5, num_records)
        groups = [[tokens(int(n)) for n in rng.integers(1, 20, size)] for size in sizes]
        values["prompts"] = [tokens(int(n)) for n in rng.integers(0, 9, num_records)]
        values["responses"] = groups
        values["masks"] = [[item % 3 > 0 for item in group] for group in groups]
        values["rewards"] = [[np.full(1, len(x), "float32") for x in group] for group in groups]
        values["old_logprobs"] = [[item.astype("float32") for item in group] for group in groups]
        values["version"] = [np.full(1, i, "int64") for i in range(num_records)]
    save_bin(folder, values)
    return DatasetFactory.load(kind, folder, 0)


def sequences_of(kind: str, item: dict[str, Any]) -> list[tuple[int, Any, Any, Any]]:
    """Return the field, tokens, mask and log-probabilities of each sequence of a sample."""
    if kind == "dpo":
        return [
            (number, *(item[f"{key}{end}"] for end in ("", "_mask", "_logprobs")))
            for number, key in enumerate(("chosen", "rejected"))
        ]
    asked = item["prompts"]
    blank = torch.zeros(len(asked))
    return [
        (0, torch.cat([asked, ids]), torch.cat([blank.bool(), mask]), torch.cat([blank, own]))
        for ids, mask, own in zip(
            item["responses"], item["masks"], item["old_logprobs"], strict=True
        )
    ]


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
@pytest.mark.parametrize("multiple_of", [1, 32])
def test_records_are_packed_whole(tmp_path: Path, kind: str, multiple_of: int) -> None:
    dataset = write_records(tmp_path, kind, 30)
    packed = PackedDataset(dataset, multiple_of=multiple_of)
    rows = [7, 3, 29, 3]
    batch = packed.collate(packed.__getitems__(rows))
    wanted = [
        (row, *found) for row, i in enumerate(rows) for found in sequences_of(kind, dataset[i])
    ]
    lengths = [len(ids) for _, _, ids, _, _ in wanted]
    total = sum(lengths)
    width = -(-total // multiple_of) * multiple_of
    bounds = np.append(0, np.cumsum(lengths)).tolist()
    assert batch["cu_seqlens"].tolist() == bounds + [width] * (width > total)
    assert int(batch["max_seqlen"]) == max(*lengths, width - total)
    assert batch["record_ids"].tolist() == [row for row, *_ in wanted]
    assert batch["field_ids"].tolist() == [field for _, field, *_ in wanted]
    for name in ("input_ids", "loss_mask", "position_ids", "document_ids"):
        assert batch[name].shape == (1, width)
    assert batch["input_ids"][0, :total].tolist() == torch.cat([x[2] for x in wanted]).tolist()
    assert not batch["input_ids"][0, total:].any()
    assert batch["document_ids"][0, total:].tolist() == [-1] * (width - total)
    masks = [torch.cat([torch.zeros(1).bool(), mask[1:]]) for _, _, _, mask, _ in wanted]
    assert batch["loss_mask"][0].tolist() == [
        *torch.cat(masks).tolist(),
        *[False] * (width - total),
    ]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        assert batch["position_ids"][0, start:stop].tolist() == list(range(stop - start))
        assert set(batch["document_ids"][0, start:stop].tolist()) == {number}
        *_, own = wanted[number]
        names = ["old_logprobs"] if kind == "grpo" else ["chosen_logprobs", "rejected_logprobs"]
        found = sum(batch[name][0, start:stop] for name in names)
        assert torch.equal(found, own)
    if kind == "grpo":
        rewards = torch.cat([dataset[i]["rewards"] for i in rows])
        assert batch["rewards"].tolist() == rewards.tolist()
    scalar = "margin" if kind == "dpo" else "version"
    assert batch[scalar].tolist() == rows
    sizes = packed.sample_sizes()
    assert sizes.tokens[[7, 3, 29, 3]].sum() == total
    padded = dataset.collate(dataset.__getitems__([7, 3, 29]))
    names = ("chosen", "rejected") if kind == "dpo" else ("prompts", "responses")
    area = 3 * sizes.take(np.array([7, 3, 29])).merge(np.array([0])).padded[0]
    assert area == sum(padded[name].numel() for name in names)


@pytest.mark.parametrize("seed", range(8))
def test_top_logits_of_tokens_are_packed(tmp_path: Path, seed: int) -> None:
    """Of random records, with any number of choices for each token, none of some."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    least, most = int(rng.integers(0, 2)), int(rng.integers(1, 5))

    def tokens(size: int) -> np.ndarray:
        return rng.integers(1, 1000, size, np.int32)

    lengths = rng.integers(least, 9, count)
    choices = [rng.integers(least, most + 1, length) for length in lengths]
    values: dict[str, list[Any]] = {
        "prompt": [tokens(int(n)) for n in rng.integers(0, 5, count)],
        "completion": [tokens(int(n)) for n in lengths],
        "completion_mask": [rng.random(n) < 0.7 for n in lengths],
        "topk_ids": [[tokens(int(n)) for n in own] for own in choices],
    }
    values["topk_logprobs"] = [
        [-rng.random(len(ids), np.float32) for ids in own] for own in values["topk_ids"]
    ]
    # An array for each token; a record of no tokens has none.
    if not any(values["topk_ids"]):
        values["topk_ids"][0], values["topk_logprobs"][0] = [tokens(1)], [np.full(1, -1, "float32")]
        values["completion"][0], values["completion_mask"][0] = tokens(1), np.ones(1, bool)
    save_bin(tmp_path, values)
    dataset = DatasetFactory.load("distill", tmp_path, 0)
    for multiple_of in (1, 16):
        packed = PackedDataset(dataset, multiple_of=multiple_of)
        rows = rng.integers(0, count, 5).tolist()
        batch = packed.collate(packed.__getitems__(rows))
        num_choices = max((len(ids) for row in rows for ids in values["topk_ids"][row]), default=0)
        ids, mask, starts, place = list[int](), list[bool](), list[int](), 0
        width = batch["input_ids"].shape[1]
        wanted = {
            "topk_ids": np.zeros((1, width, num_choices), np.int64),
            "topk_logprobs": np.zeros((1, width, num_choices), np.float32),
        }
        for row in rows:
            asked, own = values["prompt"][row], values["completion"][row]
            starts.append(place)
            ids += [*asked.tolist(), *own.tolist()]
            mask += [False] * len(asked) + values["completion_mask"][row].tolist()
            for name, found in wanted.items():
                for token, top in enumerate(values[name][row], place + len(asked)):
                    found[0, token, : len(top)] = top
            place = len(ids)
        assert width == -(-place // multiple_of) * multiple_of
        assert batch["input_ids"][0].tolist() == ids + [0] * (width - place)
        for start in {start for start in starts if start < place}:
            mask[start] = False
        assert batch["loss_mask"][0].tolist() == mask + [False] * (width - place)
        for name, found in wanted.items():
            assert batch[name].shape == found.shape
            assert np.array_equal(batch[name].numpy(), found)
            assert batch[name].numpy().dtype == found.dtype
        assert batch["record_ids"].tolist() == list(range(len(rows)))
    sizes = dataset.sample_sizes().tokens.tolist()
    assert sizes == [
        len(asked) + len(own)
        for asked, own in zip(values["prompt"], values["completion"], strict=True)
    ]


def test_choices_without_their_tokens_are_refused(tmp_path: Path) -> None:
    ids = [np.array([1, 2], "int32"), np.array([3], "int32")]
    top = [[np.array([4, 5], "int32")] * 2, [np.array([6], "int32")] * 2]
    scores = [[item.astype("float32") for item in own] for own in top]
    masks = [np.ones(len(item), bool) for item in ids]
    values = {"prompt": ids, "completion": ids, "completion_mask": masks}
    save_bin(tmp_path / "a", values | {"topk_ids": top, "topk_logprobs": scores})
    packed = PackedDataset(DatasetFactory.load("distill", tmp_path / "a", 0))
    packed.__getitems__([0])
    with pytest.raises(SourceError, match="completion and topk_ids of a record must be of one"):
        packed.__getitems__([0, 1])
    scores[0][1] = scores[0][1][:1]
    save_bin(tmp_path / "b", values | {"topk_ids": top, "topk_logprobs": scores})
    packed = PackedDataset(DatasetFactory.load("distill", tmp_path / "b", 0))
    with pytest.raises(SourceError, match="topk_ids and topk_logprobs of a record must be of one"):
        packed.__getitems__([0])


def test_documents_are_packed_and_long_ones_divided(tmp_path: Path) -> None:
    dataset = DatasetFactory.load("sft", write_sft(tmp_path), 30, documents="respect", tail="exact")
    packed = PackedDataset(dataset, multiple_of=64)
    rows = [4, 0, 9]
    batch = packed.collate(packed.__getitems__(rows))
    total = sum(len(dataset[i]["input_ids"]) for i in rows)
    for name, pad in (("input_ids", 0), ("target_ids", -100), ("loss_mask", False)):
        joined = torch.cat([dataset[i][name] for i in rows]).tolist()
        assert batch[name].tolist() == [joined + [pad] * (-total % 64)]
    found = pack_documents(batch["document_ids"])
    assert batch["cu_seqlens"].tolist() == found.cu_seqlens.tolist()
    assert int(batch["max_seqlen"]) == int(found.max_seqlen)
    assert torch.equal(batch["position_ids"], found.position_ids)
    sizes = packed.sample_sizes()
    assert sizes.tokens.tolist() == [len(item["input_ids"]) for item in dataset]
    padded = DatasetFactory.load("sft", tmp_path, 30, documents="respect", tail="pad")
    assert padded.sample_sizes().tokens.tolist() == sizes.tokens.tolist()
    assert padded.sample_sizes().padded.tolist() == [30] * len(dataset)


@pytest.mark.parametrize("documents", ["mark", "pack"])
def test_windows_of_documents_have_bounds(tmp_path: Path, documents: str) -> None:
    dataset = DatasetFactory.load("sft", write_sft(tmp_path), 50, documents=documents)
    for batch in DataLoader(dataset, 3, collate_fn=dataset.collate):  # type: ignore[arg-type]
        found = pack_documents(batch["document_ids"])
        assert batch["cu_seqlens"].tolist() == found.cu_seqlens.tolist()
        assert (batch["cu_seqlens"].dtype, batch["max_seqlen"].dtype) == (torch.int32,) * 2
        assert int(batch["max_seqlen"]) == int(found.max_seqlen)
        alone = dataset.collate([dataset[0], dataset[1]])
        assert torch.equal(alone["cu_seqlens"], find_bounds(alone["document_ids"])["cu_seqlens"])
    # A rank without samples.
    batches = list(keyed_loader(dataset, 1, tail="exact", rank=2, num_ranks=len(dataset) - 1))
    assert (batches[-1]["cu_seqlens"].tolist(), int(batches[-1]["max_seqlen"])) == ([0], 0)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_loaders_share_a_pass(tmp_path: Path, kind: str, layout: Layout) -> None:
    if kind == "sft":
        write_sft(tmp_path, tuple(range(3, 40)))
        dataset = DatasetFactory.load("sft", tmp_path, 16, documents="respect", tail="exact")
    else:
        dataset = write_records(tmp_path, kind, 60)
    budget = TokenBudget(400, layout, window=20)
    names = {"sft": ["input_ids"], "dpo": ["chosen", "rejected"], "grpo": ["prompts", "responses"]}
    shown = ["input_ids"] if layout == "packed" else names[kind]
    counts, num_seen = set(), 0
    for rank in range(3):
        batches = keyed_loader(dataset, budget, rank=rank, num_ranks=3, tail="exact")
        tensors = list(batches)
        counts.add((len(tensors), len(batches)))
        for batch in tensors:
            assert sum(batch[name].numel() for name in shown) <= 400
            num_seen += sum(int((batch[name] > 0).sum()) for name in shown)
    assert len(counts) == 1
    sizes = dataset.sample_sizes()
    total = int((sizes.tokens if layout == "packed" else sizes.stored).sum())
    assert num_seen == total - (kind == "sft")  # whose first token is 0


def test_workers_and_processes(tmp_path: Path) -> None:
    packed = pickle.loads(pickle.dumps(PackedDataset(write_records(tmp_path, "dpo", 20))))
    sampler = TokenBatchSampler(packed, TokenBudget(100))
    read: Any = {"batch_sampler": sampler, "collate_fn": packed.collate}
    expected = [packed.collate(packed.__getitems__(rows)) for rows in list(sampler)]
    sampler = TokenBatchSampler(packed, TokenBudget(100))
    found = list(DataLoader(packed, num_workers=2, **(read | {"batch_sampler": sampler})))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    padding = list(keyed_loader(packed, TokenBudget(100), tail="pad", rank=8, num_ranks=9))[-1]
    assert not padding["loss_mask"].any()
    assert padding["cu_seqlens"].tolist()[0] == 0


def test_mistakes(tmp_path: Path) -> None:
    windows = DatasetFactory.load("sft", write_sft(tmp_path / "a"), 30, documents="pack")
    with pytest.raises(
        ConfigError, match="documents='respect' or 'ignore', got 'pack'; choose one"
    ):
        PackedDataset(windows)
    with pytest.raises(ConfigError, match="layout='padded' for the batches"):
        keyed_loader(windows, TokenBudget(64))
    pairs = DatasetFactory.load("dpo", write_dpo(tmp_path / "b"), 0)
    packed = PackedDataset(pairs)
    assert (len(packed), packed.fingerprint) == (10, pairs.fingerprint)
    assert torch.equal(packed[3]["chosen"], pairs[3]["chosen"])
    with pytest.raises(ConfigError, match="takes what its __getitems__ returned, got list; read"):
        packed.collate([packed[0]])
    with pytest.raises(ConfigError, match="a packed batch has no item 1; take it from the dataset"):
        packed.__getitems__([0, 1])[1]
    with pytest.raises(ConfigError, match=r"a dataset of zindex\.keyed, got str; load it with"):
        PackedDataset("pairs.zarr")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a budget of layout='packed', got 'padded'; give the"):
        keyed_loader(packed, TokenBudget(64, "padded"))
    with pytest.raises(PlanError, match="got 2 that are longer, up to 22 tokens; raise max_tokens"):
        keyed_loader(pairs, TokenBudget(19))
    with pytest.raises(ConfigError, match="need windows or records of zindex, got BaseDataset"):
        PackedDataset(BaseDataset(pairs.schema))
    with pytest.raises(
        ConfigError, match="multiple_of must be a whole number of at least 1, got 0"
    ):
        PackedDataset(pairs, multiple_of=0)
    groups = DatasetFactory.load("grpo", write_grpo(tmp_path / "c"), 0)
    with pytest.raises(IndexError):
        PackedDataset(groups).__getitems__([6])


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    ids = [np.array([1, 2], "int32"), np.array([3, -4, 5], "int32")]
    masks = [np.ones(2, bool), np.ones(3, bool)]
    values = {"chosen": ids, "rejected": ids, "chosen_mask": masks, "rejected_mask": masks[::-1]}
    from tests.keyed.upstream_files import write_bin

    write_bin(tmp_path / "a", values, record_keys=list(values))
    packed = PackedDataset(DatasetFactory.load("dpo", tmp_path / "a", 0))
    with pytest.raises(SourceError, match="rejected and rejected_mask of a record must be of one"):
        packed.__getitems__([0])
    write_bin(tmp_path / "b", values | {"rejected_mask": masks}, record_keys=list(values))
    packed = PackedDataset(DatasetFactory.load("dpo", tmp_path / "b", 0))
    packed.__getitems__([0])
    with pytest.raises(SourceError, match=r"token ids of 'chosen' must be .*, got -4 in record 1"):
        packed.__getitems__([1])
    # Also where it is only a target.
    tokens = [np.array([1, 2, -3], "int32"), np.array([4, 5], "int32")]
    write_bin(tmp_path / "c", {"sequence": tokens}, record_keys=["sequence"])
    windows = DatasetFactory.load("seq", tmp_path / "c", 9, documents="respect", tail="exact")
    with pytest.raises(SourceError, match=r"ids of 'sequence' must be .*, got -3 in record 0"):
        PackedDataset(windows).__getitems__([0, 1])
