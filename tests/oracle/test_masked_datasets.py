"""Samples of BERT and T5 datasets against Megatron Core's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import numbers
from tests.oracle.conftest import fit
from tests.samples.masking.corpora import (
    PieceTokenizer,
    draw_settings,
    with_own_masks,
    write_sentences,
)
from zindex.datasets import bert_dataset, t5_dataset
from zindex.datasets.utils import Split
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert

OURS: dict[str, Any] = {
    "bert": (
        bert_dataset.BERTMaskedWordPieceDataset,
        bert_dataset.BERTMaskedWordPieceDatasetConfig,
    ),
    "t5": (t5_dataset.T5MaskedWordPieceDataset, t5_dataset.T5MaskedWordPieceDatasetConfig),
}


@pytest.fixture(scope="module")
def theirs(masked_megatron: SimpleNamespace) -> SimpleNamespace:
    return masked_megatron


@pytest.fixture
def permute_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Megatron's permutations draw from the sample's generator, as ours do."""
    made: list[np.random.RandomState] = []

    class Noted(np.random.RandomState):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            made[:] = [self]

    monkeypatch.setattr(np.random, "RandomState", Noted)
    monkeypatch.setattr(np.random, "choice", lambda *args, **named: made[0].choice(*args, **named))


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], name: Any) -> None:
    """Compare names in order, types, dtypes and values."""
    assert list(ours) == list(theirs), name
    for key, value in theirs.items():
        assert type(ours[key]) is type(value), (name, key)
        assert np.asarray(ours[key]).dtype == np.asarray(value).dtype, (name, key)
        np.testing.assert_array_equal(ours[key], value, err_msg=f"{name} {key}")


@pytest.mark.filterwarnings("ignore:The pad token:UserWarning")
@pytest.mark.filterwarnings("ignore:the pad token:UserWarning")
@pytest.mark.usefixtures("permute_by_sample")
@pytest.mark.parametrize("kind", ["bert", "t5"])
@pytest.mark.parametrize("case", numbers(8, 300))
def test_items_are_megatrons(theirs: SimpleNamespace, tmp_path: Path, kind: str, case: int) -> None:
    rng = np.random.default_rng((case, kind == "t5"))
    prefix = str(tmp_path / "c")
    write_sentences(prefix, rng)
    tokenizer = PieceTokenizer(rng, pad=[None, 0, 7, 2][case % 4])
    settings = draw_settings(rng, kind) | {
        "tokenizer": tokenizer,
        "blend": ([prefix], None),
        "split": "1",
        "path_to_cache": str(tmp_path / "cache"),
    }
    source = theirs.indexed(prefix)
    num_documents = len(source.document_indices) - 1
    indices = np.arange(int(rng.integers(num_documents)), num_documents, dtype=np.int32)
    num_samples = int(rng.integers(1, 25))
    cls, config = getattr(theirs, kind)
    args = (prefix, indices, num_samples)
    settings, fitting = fit(config, settings)
    expected = cls(source, *args, theirs.utils.Split.train, config(**fitting))
    own, own_config = OURS[kind]
    if case % 2:
        convert(prefix, tmp_path / "c.zarr", client=SerialExecutor())
        prefix = str(tmp_path / "c.zarr")
    low_level = own.build_low_level_dataset(prefix, own_config(**settings))
    assert own.numel_low_level_dataset(low_level) == num_documents
    found = own(low_level, *args, Split.train, own_config(**settings))
    by_hand = with_own_masks(own)(low_level, *args, Split.train, own_config(**settings))
    assert found.unique_description == expected.unique_description
    assert found.unique_description_hash == expected.unique_description_hash
    np.testing.assert_array_equal(found.sample_index[:], expected.sample_index)
    assert found.sample_index[:].dtype == expected.sample_index.dtype
    batch = found.__getitems__(list(range(len(expected))))
    for i in range(min(len(expected), 60)):
        item = expected[i]
        assert_same(found[i], item, (case, i))
        assert_same(batch[i], item, (case, i))
        if i < 6:
            assert_same(by_hand[i], item, (case, i))
    # Negative positions key the draws as they are, also beside others.
    last = -min(len(expected), 3)
    batch = found.__getitems__([last, 0, -1])
    for i, item in ((last, batch[0]), (0, batch[1]), (-1, batch[2])):
        assert_same(item, expected[i], (case, i))
        assert_same(found[i], expected[i], (case, i))
        assert_same(by_hand[i], expected[i], (case, i))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("version", ["1.6.0", "1.7.0", "1.9.9", "1.10.0", "2.3"])
@pytest.mark.parametrize("flash", [None, "0", "1"])
def test_attention_masks_are_megatrons(
    theirs: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    local: bool,
    version: str,
    flash: str | None,
) -> None:
    monkeypatch.delenv("NVTE_FUSED_ATTN", raising=False)
    monkeypatch.delenv("NVTE_FLASH_ATTN", raising=False)
    if flash is not None:
        monkeypatch.setenv("NVTE_FLASH_ATTN", flash)
    generator = torch.Generator().manual_seed(1)
    encoder = torch.randint(0, 3, (2, 7), generator=generator)
    decoder = torch.randint(0, 3, (2, 5), generator=generator)
    args = (encoder, decoder, (encoder > 0).long(), (decoder > 0).long(), local, version)
    if flash == "1" and version == "1.6.0" and not local:
        with pytest.raises(ValueError, match=r"need Transformer Engine 1\.7 .* got 1\.6\.0"):
            OURS["t5"][0].config_attention_mask(*args)
        return
    found = flatten(OURS["t5"][0].config_attention_mask(*args))
    expected = flatten(theirs.t5[0].config_attention_mask(*args))
    assert len(found) == len(expected)
    for ours, wanted in zip(found, expected, strict=True):
        assert (ours is None) == (wanted is None)
        assert ours is None or (ours.dtype == wanted.dtype and torch.equal(ours, wanted))
    history = theirs.t5[0]._build_b1ss_attention_mask(decoder, decoder, True)
    assert torch.equal(OURS["t5"][0]._build_b1ss_attention_mask(decoder, decoder, True), history)


def flatten(masks: tuple[Any, ...]) -> list[Any]:
    """Return masks with those of a pair apart."""
    return [item for mask in masks for item in (mask if isinstance(mask, tuple) else [mask])]
