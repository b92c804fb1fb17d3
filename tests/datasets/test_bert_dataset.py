"""BERT datasets through the builder, in blends, splits and loader workers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.datasets.configs import build_datasets
from tests.datasets.test_masked_dataset import MASKING, assert_same
from tests.samples.masking.corpora import PieceTokenizer, write_sentences
from zindex.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.loading.collate import collate


def build(paths: list[str], tmp_path: Path, sizes: Any = (40, 8, 8), **settings: Any) -> list[Any]:
    defaults: dict[str, Any] = {
        "random_seed": 3,
        "sequence_length": 32,
        "blend": (paths, [0.7, 0.3]),
        "split": "60,20,20",
        "tokenizer": PieceTokenizer(np.random.default_rng(0)),
        "path_to_cache": str(tmp_path / "cache"),
        "classification_head": False,
    }
    config = BERTMaskedWordPieceDatasetConfig(**(defaults | MASKING | settings))
    return build_datasets(BERTMaskedWordPieceDataset, sizes, config)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for number in range(2):
        write_sentences(str(tmp_path / f"c{number}"), np.random.default_rng(number))
    convert(tmp_path / "c1", tmp_path / "c1.zarr", client=SerialExecutor())
    return [str(tmp_path / "c0"), str(tmp_path / "c1.zarr")]


def test_blends_of_splits(paths: list[str], tmp_path: Path) -> None:
    datasets = build(paths, tmp_path)
    assert [type(dataset) for dataset in datasets] == [BlendedDataset] * 3
    spans = [[member._span for member in dataset.datasets] for dataset in datasets]
    for of_one in zip(*spans, strict=True):  # documents are divided
        assert all(before.stop == after.start for before, after in pairwise(of_one))
    train = datasets[0]
    assert len(train) >= 40
    batch = train.__getitems__(list(range(len(train))))
    assert set(batch.tensors["dataset_id"].tolist()) == {0, 1}
    for position in range(len(train)):
        item = train[position]
        assert list(item) == [
            *("dataset_id", "text", "types", "labels", "is_random"),
            *("padding_mask", "loss_mask", "truncated"),
        ]
        assert_same(batch[position], item)
        assert [type(batch[position][name]) for name in item] == [type(item[n]) for n in item]
        member, sample = train.dataset_index[position], train.dataset_sample_index[position]
        assert_same(item, {"dataset_id": member, **train.datasets[member][int(sample)]})
    collated = torch.utils.data.default_collate([train[i] for i in range(4)])
    for name, tensor in collate(train.__getitems__(range(4))).items():
        assert torch.equal(tensor, collated[name]), name
        assert tensor.dtype == collated[name].dtype


def test_a_second_build_reuses_the_index(paths: list[str], tmp_path: Path) -> None:
    first = build(paths, tmp_path)[0]
    stores = sorted((tmp_path / "cache").iterdir())
    second = build(paths, tmp_path)[0]
    assert sorted((tmp_path / "cache").iterdir()) == stores
    assert second.fingerprint == first.fingerprint
    assert_same(second[7], first[7])


def test_without_weights(paths: list[str], tmp_path: Path) -> None:
    (train, _, _) = build(paths, tmp_path, (None, None, None), blend=(paths, None))
    assert train.weights == [len(member) for member in train.datasets]
    assert len(train) == sum(train.weights)
    (alone, _, _) = build(paths, tmp_path, (50, 0, 0), blend=(paths[1:], None))
    assert type(alone) is BERTMaskedWordPieceDataset
    assert len(alone) >= 50


def test_two_segments_are_swapped_half_of_the_time(paths: list[str], tmp_path: Path) -> None:
    (train, _, _) = build(paths, tmp_path, (200, 0, 0), classification_head=True, split="1")
    tensors = train.__getitems__(range(200)).tensors
    assert 60 < tensors["is_random"].sum() < 140
    has_second = (tensors["types"] == 1).any(1)
    assert has_second.sum() > 180  # sentences may be empty


@pytest.mark.parametrize("rules", ["0.17", "main"])
def test_random_tokens_are_drawn_by_the_rules_of_a_version(
    paths: list[str], tmp_path: Path, rules: str
) -> None:
    settings: dict[str, Any] = {"split": "1", "bert_rules": rules}
    (train, _, _) = build(paths[:1], tmp_path, (200, 0, 0), blend=(paths[:1], None), **settings)
    order = list(train.config.tokenizer.inv_vocab)
    assert order != sorted(order)
    assert train.token_lookup == (sorted(order) if rules == "main" else order)
    other = "main" if rules == "0.17" else "0.17"
    again = build(
        paths[:1], tmp_path, (200, 0, 0), blend=(paths[:1], None), split="1", bert_rules=other
    )[0]
    num_random = 0
    for position in range(200):
        item, changed = train[position], again[position]["text"]
        differs = item["text"] != changed
        # Only where a token became a random one: the same draw from another order.
        assert (item["loss_mask"][differs] == 1).all()
        num_random += int(differs.sum())
        for mine, theirs in zip(item["text"][differs], changed[differs], strict=True):
            lookup = train.token_lookup.index(mine)
            assert again.token_lookup[lookup] == theirs
    assert num_random > 10
    assert train.fingerprint == again.fingerprint


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_workers_give_the_same(paths: list[str], tmp_path: Path, num_workers: int) -> None:
    (train, _, _) = build(paths, tmp_path)
    expected = train.__getitems__(range(24)).tensors  # compiled before workers are forked
    loader = torch.utils.data.DataLoader(
        train,
        batch_size=8,
        sampler=range(24),
        num_workers=num_workers,
        collate_fn=collate,
        multiprocessing_context="fork" if num_workers else None,
    )
    batches = list(loader)
    for name, tensor in expected.items():
        assert torch.equal(torch.cat([batch[name] for batch in batches]), tensor), name


def test_a_loader_resumes_from_its_state(paths: list[str], tmp_path: Path) -> None:
    (train, _, _) = build(paths, tmp_path)

    def open_loader(state: Any = None) -> Any:
        return zindex.loader(
            train,
            micro_batch_size=4,
            data_parallel_rank=0,
            data_parallel_size=1,
            shuffle=True,
            tail="pad",
            state=state,
        )

    loader = open_loader()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    resumed = list(open_loader(state))
    assert len(resumed) == -(-len(train) // 4) - 3
    for batch, other in zip(batches, resumed, strict=True):
        assert all(torch.equal(batch[name], tensor) for name, tensor in other.items())
