"""Masks in plain Python equal the kernel's for random settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from tests.datasets.test_masked_dataset import Sentences, assert_same, open_dataset
from tests.samples.masking.corpora import (
    PieceTokenizer,
    draw_settings,
    with_own_masks,
    write_sentences,
)
from zindex.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig

CLASSES: dict[str, Any] = {
    "bert": (BERTMaskedWordPieceDatasetConfig, BERTMaskedWordPieceDataset),
    "t5": (T5MaskedWordPieceDatasetConfig, T5MaskedWordPieceDataset),
}


@pytest.mark.parametrize("kind", ["bert", "t5"])
@pytest.mark.parametrize("case", numbers(10, 100))
def test_kernel_and_plain_python_mask_the_same(tmp_path: Path, kind: str, case: int) -> None:
    rng = np.random.default_rng((case, kind == "t5"))
    write_sentences(str(tmp_path / "c"), rng)
    config_class, cls = CLASSES[kind]
    config = config_class(
        **draw_settings(rng, kind) | {"allow_ambiguous_pad_tokens": False},
        blend=(["c"], None),
        split="1",
        tokenizer=PieceTokenizer(rng, pad=[None, 0, 7][case % 3]),
    )
    source = Sentences(IndexedDataset(str(tmp_path / "c")))
    plain, own = (open_dataset(source, config, 20, cls) for cls in (cls, with_own_masks(cls)))
    assert plain._masks_plainly
    assert not own._masks_plainly
    for item, other in zip(plain.__getitems__(range(20)), own.__getitems__(range(20)), strict=True):
        assert_same(item, other)


def test_masked_predictions(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    write_sentences(str(tmp_path / "c"), rng)
    settings = draw_settings(rng, "t5") | {"masking_do_permutation": False}
    settings |= {"masking_probability": 0.5, "allow_ambiguous_pad_tokens": False}
    tokenizer = PieceTokenizer(rng)
    config = T5MaskedWordPieceDatasetConfig(
        **settings, blend=(["c"], None), split="1", tokenizer=tokenizer
    )
    source = Sentences(IndexedDataset(str(tmp_path / "c")))
    dataset = open_dataset(source, config, 20, T5MaskedWordPieceDataset)
    tokens = [*range(6, 40), tokenizer.sep]
    masked, positions, labels, boundaries, spans = dataset._create_masked_lm_predictions(
        tokens, 35, np.random.RandomState(1)
    )
    words = [not tokenizer.inv_vocab[token].startswith("##") for token in tokens[:-1]]
    assert boundaries == [*map(int, words), 1]
    assert labels == [tokens[position] for position in positions]
    assert sorted(at for part, _ in spans for at in part) == positions
    assert all(own == [tokens[at] for at in part] for part, own in spans)
    kept = set(range(35)) - set(positions)
    assert all(masked[at] == (tokens[at] if at in kept else tokenizer.mask) for at in range(35))
