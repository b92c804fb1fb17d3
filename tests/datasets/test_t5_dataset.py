"""T5 datasets: lengths, sentinels, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets.test_masked_dataset import MASKING, assert_same, open_dataset
from tests.samples.masking.corpora import PieceTokenizer, with_own_masks, write_sentences
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from zindex.errors import ConfigError

OwnMasks = with_own_masks(T5MaskedWordPieceDataset)


def make_config(**settings: Any) -> T5MaskedWordPieceDatasetConfig:
    defaults: dict[str, Any] = {
        "random_seed": 3,
        "sequence_length": 48,
        "sequence_length_decoder": 30,
        "blend": (["c"], None),
        "split": "1",
        "tokenizer": PieceTokenizer(np.random.default_rng(0)),
    }
    return T5MaskedWordPieceDatasetConfig(**(defaults | MASKING | settings))


def open_t5(tmp_path: Path, cls: Any = T5MaskedWordPieceDataset, **settings: Any) -> Any:
    if not (tmp_path / "c.idx").exists():
        write_sentences(str(tmp_path / "c"), np.random.default_rng(1))
    config = make_config(path_to_cache=str(tmp_path / "cache"), **settings)
    return open_dataset(IndexedDataset(str(tmp_path / "c")), config, cls=cls)


def test_encoder_and_decoder_hold_the_text(tmp_path: Path) -> None:
    dataset = open_t5(tmp_path)
    assert dataset.config.sequence_length_encoder == 48
    batch = dataset.__getitems__(range(len(dataset)))
    assert batch.tensors["text_enc"].shape == (len(dataset), 48)
    assert batch.tensors["labels"].shape == (len(dataset), 30)
    for position, item in enumerate(batch):
        first, last, target = (int(number) for number in dataset.sample_index[position])
        text = np.concatenate([dataset.dataset[i] for i in range(first, last)])[:target]
        used = int(item["loss_mask"].sum())
        labels = item["labels"][:used].tolist()
        assert labels[-1] == 5
        assert item["text_dec"][:used].tolist() == [4, *labels[:-1]]
        spans = np.split(labels[:-1], np.flatnonzero(np.array(labels) >= 60))[1:]
        hidden = {int(span[0]): span[1:].tolist() for span in spans}
        encoder = item["text_enc"].tolist()
        shown = [token for code in encoder for token in hidden.get(code, [code])]
        # Separators within a span are lost; padding has id 0.
        assert [t for t in shown if t > 2] == [t for t in text.tolist() if t > 2]


def test_own_masks_give_the_same(tmp_path: Path) -> None:
    dataset, own = open_t5(tmp_path), open_t5(tmp_path, OwnMasks)
    for position in range(10):
        assert_same(own[position], dataset[position])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"sequence_length_decoder": None}, "sequence_length_decoder must be given for masked"),
        ({"sequence_length_decoder": 0}, "sequence_length_decoder must be at least 1, got 0"),
        ({"sequence_length": 3}, "of T5 datasets must be at least 4, .* got 3"),
        ({"tokenizer": object()}, "T5 datasets must have mask, bos, eos, object has no mask"),
        (
            {"tokenizer": PieceTokenizer(np.random.default_rng(0), sentinels=0)},
            r"must have sentinels, PieceTokenizer has additional_special_tokens_ids \[\]",
        ),
    ],
)
def test_settings_are_refused(settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_config(**settings)


@pytest.mark.parametrize("cls", [T5MaskedWordPieceDataset, OwnMasks])
def test_too_few_sentinels(tmp_path: Path, cls: Any) -> None:
    tokenizer = PieceTokenizer(np.random.default_rng(0), sentinels=1)
    dataset = open_t5(tmp_path, cls, tokenizer=tokenizer)
    match = r"ids has 1 and sample \d+ of train of c has more spans; add some"
    with pytest.raises(ConfigError, match=match):
        dataset.__getitems__(range(len(dataset)))


@pytest.mark.parametrize("cls", [T5MaskedWordPieceDataset, OwnMasks])
def test_a_decoder_that_is_too_short(tmp_path: Path, cls: Any) -> None:
    dataset = open_t5(tmp_path, cls, sequence_length_decoder=4)
    match = r"must hold the masked spans .* of train of c needs \d+ tokens or more; raise it"
    with pytest.raises(ConfigError, match=match):
        dataset.__getitems__(range(len(dataset)))


def test_lengths_are_part_of_the_key() -> None:
    names = T5MaskedWordPieceDataset._key_config_attributes()
    assert names[-1] == "sequence_length_decoder"
    assert "sequence_length_encoder" not in names
