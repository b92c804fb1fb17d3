"""Batches for Hugging Face's models: the same tokens and the same losses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import LENGTHS, make_config
from tests.loading.datasets import Numbers
from zindex.config import DatasetConfig
from zindex.errors import ConfigError
from zindex.loading.hf_format import IGNORED, HFDataset, rename_tensors
from zindex.loading.loader import loader

# torch warns of more workers than cores; nothing is timed here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def make_run(tmp_path: Path, write_corpus: WriteCorpus, **settings: Any) -> Any:
    corpus = write_corpus(LENGTHS * 4)
    own = {"split": "60,40,0", "samples": {"train": 20, "valid": None}}
    return make_config(tmp_path, DatasetConfig(corpus), **(own | settings))


def counted_pairs(tokens: Any, labels: Any, loss_mask: Any) -> list[tuple[int, int, int]]:
    """Return sample, position and label of each prediction with a loss but the last of samples."""
    rows, places = np.nonzero(loss_mask.numpy()[:, :-1])
    found = labels[rows, places].tolist()
    return list(zip(rows.tolist(), places.tolist(), found, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("settings", [{}, {"eod_mask_loss": True}, {"with_provenance": True}])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_tokens_and_losses_are_those_of_megatrons_names(
    tmp_path: Path,
    write_corpus: WriteCorpus,
    tokenizer: FakeTokenizer,
    split: Any,
    num_workers: int,
    settings: dict[str, Any],
) -> None:
    keeps_rest = {"drop_last_partial_validation_sequence": False}
    config = make_run(tmp_path, write_corpus, **keeps_rest)
    own: Any = {"micro_batch_size": 3, "split": split, "tail": "exact"} | settings
    batches = loader(config, tokenizer, **own)
    renamed = loader(config, tokenizer, format="hf", num_workers=num_workers, **own)
    for batch, found in zip(batches, renamed, strict=True):
        assert list(found)[:3] == ["input_ids", "labels", "attention_mask"]
        assert ("sample_id" in found) == ("with_provenance" in settings)
        tokens, labels, mask = (found[name] for name in list(found)[:3])
        assert tokens.shape == labels.shape == mask.shape == batch["tokens"].shape
        assert tokens.dtype == labels.dtype == mask.dtype == torch.int64
        assert torch.equal(tokens, batch["tokens"])
        # The models shift labels themselves.
        shifted = labels[:, 1:]
        assert counted_pairs(tokens, batch["labels"], batch["loss_mask"]) == counted_pairs(
            tokens,
            torch.nn.functional.pad(shifted, (0, 1)),
            torch.nn.functional.pad(shifted != IGNORED, (0, 1)),
        )
        assert (labels[:, 0] == IGNORED).all()
        assert mask[labels != IGNORED].all()
    assert renamed.state_dict() == batches.state_dict()


def test_padding_has_no_attention() -> None:
    batch = {
        "tokens": torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9], [0, 0, 0, 0, 0]]),
        "labels": torch.tensor([[6, 7, 0, 0, 0], [6, 7, 8, 9, 1], [0, 0, 0, 0, 0]]),
        "loss_mask": torch.tensor([[1.0, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]),
    }
    found = rename_tensors(batch)
    ignored = IGNORED
    assert found["labels"].tolist() == [
        [ignored, 6, 7, ignored, ignored],
        [ignored, 6, 7, 8, 9],
        [ignored] * 5,
    ]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]


@pytest.mark.parametrize("is_packed", [False, True])
def test_boundaries_of_documents_are_in_the_positions(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer, is_packed: bool
) -> None:
    settings: dict[str, Any] = {"packing": {}} if is_packed else {}
    config = make_run(tmp_path, write_corpus, **settings)
    own = {} if is_packed else {"inter_document_masking": True}
    batch = next(iter(loader(config, tokenizer, micro_batch_size=4, **own)))
    found = next(iter(loader(config, tokenizer, micro_batch_size=4, format="hf", **own)))
    assert list(found) == ["input_ids", "labels", "position_ids"]
    assert torch.equal(found["position_ids"], batch["position_ids"])


def test_a_blend_has_the_same_names(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    corpora = [DatasetConfig(write_corpus(LENGTHS, name=str(i)), weight=1.0) for i in range(2)]
    config = make_config(tmp_path, *corpora, split="100,0,0", samples={"train": 20})
    batch = next(iter(loader(config, tokenizer, micro_batch_size=4, format="hf")))
    assert list(batch) == ["input_ids", "labels", "attention_mask"]
    own: Any = {"format": "hf", "with_provenance": True}
    batch = next(iter(loader(config, tokenizer, micro_batch_size=4, **own)))
    assert {"dataset_id", "document_ids", "epoch", "sample_id"} < set(batch)


def test_samples_one_by_one(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    batches = loader(make_run(tmp_path, write_corpus), tokenizer, micro_batch_size=4, format="hf")
    dataset = batches.dataset
    assert isinstance(dataset, HFDataset)
    first = next(iter(batches))
    stacked = torch.utils.data.default_collate([dataset[i] for i in range(4)])
    assert list(stacked) == list(first)
    assert all(torch.equal(stacked[name], tensor) for name, tensor in first.items())


def test_an_interrupted_run_goes_on_in_either_format(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    config = make_run(tmp_path, write_corpus)
    batches = loader(config, tokenizer, micro_batch_size=2)
    first = iter(batches)
    next(first)
    state = batches.state_dict()
    rest = loader(config, tokenizer, micro_batch_size=2, format="hf", state=state)
    assert torch.equal(next(iter(rest))["input_ids"], next(first)["tokens"])


def test_what_the_format_cannot_have_is_refused(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    config = make_run(tmp_path, write_corpus)
    with pytest.raises(ConfigError, match="tail must be 'drop_last' or 'exact' with format='hf'"):
        loader(config, tokenizer, micro_batch_size=4, format="hf", tail="pad")
    with pytest.raises(ConfigError, match="create_attention_mask must be left out with format='h"):
        loader(config, tokenizer, micro_batch_size=4, format="hf", create_attention_mask=True)
    with pytest.raises(ConfigError, match="format must be one of megatron, hf, got 'torch'"):
        loader(config, tokenizer, micro_batch_size=4, format="torch")  # type: ignore[arg-type]
    numbers = loader(Numbers(8), micro_batch_size=4, format="hf")
    with pytest.raises(ConfigError, match="needs samples with tokens, labels, loss_mask, these h"):
        next(iter(numbers))
