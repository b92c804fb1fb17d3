"""Edited runs as torch datasets: items, batches across edits, states from before them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.datasets.edited_dataset import EditedDataset
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.run_datasets import open_run
from zindex.errors import PlanError, StateMismatchError
from zindex.loading.loader import loader
from zindex.loading.state import LoaderState
from zindex.samples.batch import SampleBatch


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11, [8] * 20])


def open_train(config: RunConfig, tokenizer: Any = None, **settings: Any) -> Any:
    choices = {"create_attention_mask": False} | settings
    return open_run(config, tokenizer or FakeTokenizer(), **choices)["train"]


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert list(left) == list(right)
    for name in left:
        assert np.array_equal(np.asarray(left[name]), np.asarray(right[name])), name


@pytest.mark.parametrize("order", ORDERS)
def test_items_are_those_of_the_datasets(tmp_path: Path, paths: list[str], order: str) -> None:
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    before = open_train(config)
    old = [before[i] for i in range(len(before))]
    edit_here(config, 30, reweight={paths[1]: 4.0}, add={paths[2]: 1.0}, num_samples=150)
    dataset = open_train(config)
    assert isinstance(dataset, EditedDataset)
    assert dataset.paths == tuple(paths)
    assert len(dataset) == 150
    for position in range(30):
        assert_same(dataset[position], old[position])
    sources, samples = dataset.find_samples(np.arange(150))
    assert any(source >= 3 for source in sources.tolist())  # another pass over the second corpus
    for position in range(30, 150, 7):
        member = dataset.sources[int(sources[position])]
        assert isinstance(member, GPTDataset)
        item = dataset[position]
        assert paths[int(item.pop("dataset_id"))] == member.dataset_path
        assert_same(item, member[int(samples[position])])
    assert_same(dataset[-1], dataset[149])
    with pytest.raises(IndexError, match="index 150 is out of range for the 150 samples"):
        dataset[150]


@pytest.mark.parametrize("length", [None, 6])
def test_batches_across_an_edit(tmp_path: Path, paths: list[str], length: int | None) -> None:
    config = weighted_run(tmp_path, paths[:2], order="scalable")
    edit_here(config, 20, add={paths[2]: 0.5}, sequence_length=length)
    dataset = open_train(config)
    for start in (16, 20, 25):
        positions = list(range(start, start + 8))
        batch = dataset.__getitems__(positions)
        assert isinstance(batch, SampleBatch) == (length is None or start >= 20)
        for position, item in zip(positions, batch, strict=True):
            assert_same(item, dataset[position])
    assert len(dataset.__getitems__([])) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"reset_position_ids": True, "eod_mask_loss": True},
        {"reset_attention_mask": True, "create_attention_mask": True},
        {"create_attention_mask": True, "with_provenance": True},
    ],
    ids=["positions", "masks", "provenance"],
)
def test_batches_of_many_sources_equal_their_items(
    tmp_path: Path, paths: list[str], settings: dict[str, Any]
) -> None:
    config = weighted_run(tmp_path, paths[:2], order="scalable")
    edit_here(config, 20, add={paths[2]: 2.0}, sequence_length=6)
    tokenizer = FakeTokenizer(vocab_size=None, eod=200_007)
    dataset = open_train(config, tokenizer, **settings)
    positions = [40, 21, None, *range(59, 21, -3)]
    batch = dataset.__getitems__(positions)
    assert len({int(item["dataset_id"]) for item in batch}) == 3
    for position, item in zip(positions, batch, strict=True):
        if position is not None:
            assert_same(item, dataset[position])
    for name, tensor in batch.tensors.items():
        assert len(tensor) == len(positions), name


def test_padding_has_the_length_of_its_batch(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 20, sequence_length=6)
    dataset = open_train(config)
    batch = dataset.__getitems__([None, 30, None])
    assert batch.tensors["loss_mask"].sum(dim=1).tolist() == [0, 6, 0]
    assert batch.tensors["tokens"].shape == (3, 6)
    assert dataset[None]["tokens"].shape == (4,)
    assert float(dataset[None]["loss_mask"].sum()) == 0


@pytest.mark.parametrize("tail", ["exact", "pad"])
def test_empty_batches_have_the_length_of_other_ranks(
    tmp_path: Path, paths: list[str], tail: Any
) -> None:
    """At the end of the run all samples have the length of the last edit."""
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 20, sequence_length=6, num_samples=33)
    dataset = open_train(config)
    state = LoaderState(dataset.fingerprint, 32, 0).to_dict()
    for rank, size in ((0, 1), (1, 0)):
        (batch,) = loader(
            dataset,
            micro_batch_size=2,
            data_parallel_rank=rank,
            data_parallel_size=2,
            tail=tail,
            state=state,
        )
        assert batch["tokens"].shape == (2 if tail == "pad" else size, 6)
        assert float(batch["loss_mask"].sum()) == 6 * size


def test_datasets_are_pickled(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2], order="scalable")
    edit_here(config, 20, add={paths[2]: 0.5})
    edit_here(config, 40, sequence_length=6)
    dataset = open_train(config)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.fingerprint == dataset.fingerprint
    for position in (0, 25, 45, len(dataset) - 1):
        assert_same(copy[position], dataset[position])


def test_each_edit_has_a_fingerprint(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    base = open_train(config).fingerprint
    edit_here(config, 20, reweight={paths[0]: 2.0})
    first = open_train(config).fingerprint
    edit_here(config, 40, reweight={paths[0]: 3.0})
    dataset = open_train(config)
    assert len({base, first, dataset.fingerprint}) == 3
    assert dataset.previous_fingerprints == ((base, 20), (first, 40))


def test_training_resumes_across_an_edit(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    old = loader(config, FakeTokenizer(), micro_batch_size=5)
    batches = iter(old)
    seen = [next(batches)["tokens"] for _ in range(6)]
    state = old.state_dict()
    old.close()
    edit_here(config, state["consumed_samples"], add={paths[2]: 2.0})
    edited = loader(config, FakeTokenizer(), micro_batch_size=5, state=state)
    seen += [batch["tokens"] for batch in edited]
    assert len(torch.cat(seen)) == 100
    whole = [batch["tokens"] for batch in loader(config, FakeTokenizer(), micro_batch_size=5)]
    assert torch.equal(torch.cat(seen), torch.cat(whole))
    # A run that trained beyond the edit without it has to return to it.
    with pytest.raises(StateMismatchError, match="at position 30, got 35"):
        loader(config, FakeTokenizer(), micro_batch_size=5, state=state | {"consumed_samples": 35})


def test_padded_tails_of_a_run_with_two_lengths(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 80, sequence_length=8)
    made = loader(config, FakeTokenizer(), micro_batch_size=4, tail="pad")
    shapes = [tuple(batch["tokens"].shape) for batch in made]
    assert shapes == [(4, 4)] * 20 + [(4, 8)] * 3
    with (
        pytest.raises(PlanError, match=r"one length, got 4, 8: the run's sequence length was edit"),
        loader(config, FakeTokenizer(), micro_batch_size=7) as across,
    ):
        list(across)


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("lengths", [(2,), (7,), (8, 3), (3, 5, 4)])
def test_no_token_is_repeated_or_lost_when_lengths_change(
    tmp_path: Path, paths: list[str], order: str, lengths: tuple[int, ...], extra: bool
) -> None:
    tokenizer = FakeTokenizer(vocab_size=None)
    settings: dict[str, Any] = {"order": order, "add_extra_token_to_sequence": extra}
    config = weighted_run(tmp_path, paths[:2], samples={"train": 60}, **settings)
    dataset = open_train(config, tokenizer)
    corpora = [set(range(100_000, 100_360)), set(range(200_000, 200_176))]
    used: list[int] = [token for i in range(20) for token in dataset[i]["tokens"].tolist()]
    position = 20
    for length in lengths:
        edit_here(config, position, sequence_length=length, num_samples=position + 5)
        dataset = open_train(config, tokenizer)
        state = dataset._state
        kept = [n for n, item in enumerate(state.sources) if item.sequence_length == length]
        members = [dataset.sources[n] for n in kept if state.sources[n].parent is not None]
        left = [
            token
            for member in members
            for i in range(len(member))
            for token in member[i]["tokens"].tolist()
        ]
        assert not set(left) & set(used)
        assert len(set(left)) == len(left)
        # All that was in a sample is used, left, or the rest that fills no sample; and the rest of
        # each corpus is shorter than a sample, as often as it was cut.
        for corpus in corpora:
            missing = len(corpus - set(left) - set(used))
            assert missing < sum([4 + extra, *lengths])
        for i in range(position, position + 5):
            item = dataset[i]
            used += item["tokens"].tolist()
            check_labels(item, length, extra=extra)
        position += 5
    assert len(set(used)) == len(used)


def check_labels(item: dict[str, Any], length: int, *, extra: bool) -> None:
    """Check that labels are the next tokens of the corpus, or have no weight."""
    tokens, labels = item["tokens"].tolist(), item["labels"].tolist()
    weights = item["loss_mask"].tolist()
    assert len(tokens) == len(labels) == length
    bounds = {
        100_000 * (corpus + 1) + sum(lengths[: i + 1])
        for corpus, lengths in enumerate([[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11])
        for i in range(len(lengths))
    }
    for i, (token, label, weight) in enumerate(zip(tokens, labels, weights, strict=True)):
        if weight == 0:
            assert not extra
            assert i == length - 1 or tokens[i + 1] != token + 1
        else:
            assert label == token + 1 or token + 1 in bounds


def test_boundaries_in_samples_of_a_new_length(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2], order="scalable")
    edit_here(config, 30, sequence_length=16)
    settings = {"inter_document_masking": True, "with_provenance": True}
    dataset = open_train(config, FakeTokenizer(vocab_size=None), **settings)
    lengths = [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11]
    joints = 0
    for position in range(30, len(dataset)):
        item = dataset[position]
        corpus = int(item["dataset_id"])
        starts = np.concatenate([[0], np.cumsum(lengths[corpus])]) + 100_000 * (corpus + 1)
        tokens, documents = item["tokens"].numpy(), item["document_ids"].numpy()
        assert (starts[documents] <= tokens).all()
        assert (tokens < starts[documents + 1]).all()
        expected = 1 + np.flatnonzero((np.diff(documents) != 0) | (np.diff(tokens) != 1))
        joints += len(expected)
        bounds = item["cu_seqlens"].tolist()
        assert sorted({*bounds}) == [0, *expected.tolist(), 16]
        assert int(item["epoch"]) == 0
    assert joints > 0


def test_an_edited_run_is_built_before_it_is_opened(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    entry = edit_here(config, 30, add={paths[2]: 1.0})
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    dataset = open_train(config)
    made = {path.name for path in (tmp_path / "index").iterdir()} - set(names)
    # The edit's indices exist; those of the run are built when it is opened.
    assert all(name.startswith("gpt-train") for name in made)
    assert len(dataset) == entry.state.num_samples
