"""Tokens left out of tensors: equal to those of the remaining tokens, position by position."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.datasets.run_datasets import open_run
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.forget import forget
from zindex.loading.loader import loader
from zindex.plan.packing import PackingRules

LENGTH = 12


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    rng = np.random.default_rng(2)
    return write_corpora(write_corpus, [rng.integers(2, 9, 60).tolist() for _ in range(2)])


def open_train(config: RunConfig, **settings: Any) -> Any:
    tokenizer = FakeTokenizer(vocab_size=None, eod=100_007)
    return open_run(config, tokenizer, with_provenance=True, **settings)["train"]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "positions": {"reset_position_ids": True, "eod_mask_loss": True},
    "masks": {"reset_attention_mask": True, "reset_position_ids": True},
    "documents": {"inter_document_masking": True, "create_attention_mask": False},
    "packed": {},
    "packed masks": {"inter_document_masking": False},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_remaining_tokens_keep_their_values(tmp_path: Path, paths: list[str], kind: str) -> None:
    packing = PackingRules() if kind.startswith("packed") else None
    config = weighted_run(
        tmp_path, paths, sequence_length=LENGTH, packing=packing, samples={"train": 20}
    )
    before = open_train(config, **SETTINGS[kind])
    old = [before[position] for position in range(len(before))]
    gone = {(0, 3), (0, 4), (0, 20), (1, 5), (1, 9)} | {(1, d) for d in range(20, 40)}
    found = forget(config, sorted(gone), 4, client=SerialExecutor())
    assert len(found.changed) > 3
    dataset = open_train(config, **SETTINGS[kind])
    batch = dataset.__getitems__([*range(len(dataset))])
    for position in range(len(dataset)):
        item, was = dataset[position], old[found.moved.get(position, position)]
        for name, value in batch[position].items():
            assert np.array_equal(value, item[name]), name
        if position < 4:
            assert all(np.array_equal(was[name], item[name]) for name in was)
            continue
        corpus = int(item["dataset_id"])
        documents = was["document_ids"].tolist()
        kept = [
            i for i, document in enumerate(documents)
            if document >= 0 and (corpus, document) not in gone
        ]  # fmt: skip
        size = len(kept)
        for name in ("tokens", "document_ids"):
            assert np.array_equal(item[name][:size], was[name][kept]), name
        assert not item["tokens"][size:].any()
        assert not item["loss_mask"][size:].any()
        weights = item["loss_mask"][:size]
        is_weighed = np.asarray(weights) > 0
        assert np.array_equal(item["labels"][:size][is_weighed], was["labels"][kept][is_weighed])
        assert (np.asarray(was["loss_mask"][kept]) >= np.asarray(weights)).all()
        if size < len(documents) or kind == "plain":
            check_places(item, was, kept)


def check_places(item: dict[str, Any], was: dict[str, Any], kept: list[int]) -> None:
    """Check positions, boundaries and masks of the remaining tokens."""
    size, length = len(kept), len(item["tokens"])
    positions = np.asarray(item["position_ids"])
    if "cu_seqlens" in item:
        bounds = np.unique(item["cu_seqlens"]).tolist()
        assert bounds[0] == 0
        assert {size, length} <= set(bounds)
        starts = np.repeat(bounds[:-1], np.diff(bounds))
        assert np.array_equal(positions, np.arange(length) - starts)
        assert int(item["max_seqlen"]) == np.diff(bounds).max()
        ids = item["document_ids"].tolist()
        assert all(ids[i] != ids[i - 1] for i in bounds[1:-1])
    elif not np.array_equal(positions, np.arange(length)):
        assert np.array_equal(positions[:size], was["position_ids"][kept])
    if "attention_mask" in item:
        mask, old = np.asarray(item["attention_mask"][0]), np.asarray(was["attention_mask"][0])
        assert np.array_equal(mask[:size, :size], old[np.ix_(kept, kept)])
        assert mask[np.triu_indices(length, 1)].all()
        assert not mask[np.arange(length), np.arange(length)].any()


def test_loader_workers_leave_the_tokens_out(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths, sequence_length=LENGTH, samples={"train": 16})
    forget(config, [("0", d) for d in range(10)], 4, client=SerialExecutor())
    dataset = open_run(config, FakeTokenizer(vocab_size=None), create_attention_mask=False)["train"]
    batches = loader(dataset, micro_batch_size=2, num_workers=1)
    found = [batch["tokens"] for batch in batches]
    expected = [dataset[position]["tokens"] for position in range(len(dataset))]
    assert np.array_equal(np.concatenate(found), np.stack(expected)[: 2 * len(found)])


def test_padding_items_hold_no_forgotten_token(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths, sequence_length=LENGTH, samples={"train": 20})
    item = open_train(config)[0]
    gone = {(int(item["dataset_id"]), d) for d in item["document_ids"].tolist()[:4]}
    kept = [d for d in item["document_ids"].tolist() if (int(item["dataset_id"]), d) not in gone]
    forget(config, sorted(gone), 4, client=SerialExecutor())
    dataset = open_train(config)
    assert np.array_equal(dataset[0]["tokens"], item["tokens"])
    padding = dataset[None]
    assert [d for d in padding["document_ids"].tolist() if d >= 0] == kept
    assert not padding["loss_mask"].any()


def test_states_from_before_the_position_resume(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths, sequence_length=LENGTH, samples={"train": 20})
    settings = {"micro_batch_size": 2, "data_parallel_rank": 0, "data_parallel_size": 1}
    made = loader(open_train(config), **settings)
    batches = iter(made)
    next(batches), next(batches)
    state = made.state_dict()
    forget(config, [("0", d) for d in range(10)], 4, client=SerialExecutor())
    dataset = open_train(config)
    resumed = next(iter(loader(dataset, state=state, **settings)))
    assert np.array_equal(resumed["tokens"], np.stack([dataset[i]["tokens"] for i in (4, 5)]))
