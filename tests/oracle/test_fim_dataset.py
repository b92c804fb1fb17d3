"""Samples filled in the middle by ``fim_draws="sequential"`` are those of Megatron-LM.

``MEGATRON_CHECKOUT`` names a checkout, whose dataset is read over the wheel's Megatron Core: it is
not part of the wheel.
"""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.datasets.test_fim_dataset import SPECIAL, Letters, Tokenizer, write
from tests.module_files import import_file
from tests.oracle.conftest import assert_same_item, megatron_version
from zindex.datasets import blended_dataset as our_blend
from zindex.datasets import fim_dataset as our_fim
from zindex.datasets.utils import Split
from zindex.loading.megatron_samplers import MegatronPretrainingSampler, ReplayedDraws

NUM_SAMPLES = 60

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"fim_rate": 1.0, "fim_spm_rate": 1.0},
    {"fim_split_sample": "<split>", "fim_fragment_rate": 0.7},
    {"fim_no_prefix": "a", "fim_rate": 1.0},
    {"fim_rate": 0.0},
]


class Library(Letters):
    """A library that removes special tokens and looks up single ones, like that of transformers."""

    def ids_to_text(self, ids: Any, remove_special_tokens: bool = True) -> str:
        return super().ids_to_text(ids, remove_special_tokens)

    def tokens_to_ids(self, tokens: Any) -> Any:
        return self.ids.get(tokens) if isinstance(tokens, str) else super().tokens_to_ids(tokens)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer()
    tokenizer._tokenizer = Library()
    return tokenizer


@pytest.fixture
def theirs(megatron_checkout: str, tmp_path: Path) -> SimpleNamespace:
    """Give Megatron's dataset and blend."""
    pytest.importorskip("megatron.core")
    path = Path(megatron_checkout, "megatron", "training", "datasets", "fim_dataset.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = import_file("megatron_fim_dataset", path)
        from megatron.core.datasets.blended_dataset import BlendedDataset
        from megatron.core.datasets.utils import Split as TheirSplit

    class Dataset(module.GPTFIMDataset):  # type: ignore[misc,name-defined]
        def _query_document_sample_shuffle_indices(self, idx: int) -> Any:
            # The main branch adds the lengths of documents, which 0.16.1 does not expect.
            parts = super()._query_document_sample_shuffle_indices(idx)
            return parts[:2] if megatron_version() <= (0, 16) else parts

    return SimpleNamespace(
        dataset=Dataset,
        config=module.GPTFIMDatasetConfig,
        blend=BlendedDataset,
        split=TheirSplit.train,
        own={"path_to_cache": str(tmp_path / "theirs")},
    )


@pytest.fixture
def ours() -> SimpleNamespace:
    return SimpleNamespace(
        dataset=our_fim.GPTFIMDataset,
        config=our_fim.GPTFIMDatasetConfig,
        blend=our_blend.BlendedDataset,
        split=Split.train,
        own={"fim_draws": "sequential"},
    )


def open_blend(
    side: SimpleNamespace, paths: list[str], *, share_config: bool = True, **settings: Any
) -> Any:
    """Return a dataset, or a blend of several."""
    made: list[Any] = []
    for path in paths:
        config = side.config(
            **{
                "random_seed": 7,
                "sequence_length": 24,
                "blend": (paths, None),
                "split": "100,0,0",
                "reset_position_ids": False,
                "reset_attention_mask": False,
                "eod_mask_loss": True,
                "create_attention_mask": False,
                "tokenizer": make_tokenizer(),
                "fim_rate": 0.6,
                "fim_spm_rate": 0.5,
                "fim_extra_tokens": SPECIAL,
                **side.own,
                **settings,
            }
        )
        config = made[0].config if made and share_config else config
        low_level = side.dataset.build_low_level_dataset(path, config)
        indices = np.arange(len(low_level), dtype=np.int32)
        made.append(side.dataset(low_level, path, indices, NUM_SAMPLES, side.split, config))
    if len(made) == 1:
        return made[0]
    config.path_to_cache = None
    return side.blend(made, [0.4, 0.6], NUM_SAMPLES, config)


def read_all(dataset: Any, sampler: Any, num_workers: int, init: Any = None) -> list[Any]:
    """Return the batches of torch's loader, as Megatron makes it."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        worker_init_fn=init,
        multiprocessing_context="fork" if num_workers else None,
    )
    return list(loader)


@pytest.mark.parametrize("settings", SETTINGS)
def test_items_in_any_order(write_corpus: Any, ours: Any, theirs: Any, settings: Any) -> None:
    path = write(write_corpus)
    mine, other = open_blend(ours, [path], **settings), open_blend(theirs, [path], **settings)
    order = np.random.default_rng(1).integers(0, NUM_SAMPLES, 150).tolist()
    for position in [*order[:50], None, *order[50:100]]:
        assert_same_item(mine[position], other[position], str(position))
    for item, position in zip(mine.__getitems__(order[100:]), order[100:], strict=True):
        assert item["tokens"].tolist() == other[position]["tokens"].tolist()
    for name in ("np_rng", "prefix_tok_id", "eod_tok_id", "fragment_fim_rate"):
        assert hasattr(mine, name) == hasattr(other, name)
    states = [dataset.np_rng.get_state()[1].tolist() for dataset in (mine, other)]
    assert states[0] == states[1]


@pytest.mark.parametrize("share_config", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_loaders(
    write_corpus: Any, ours: Any, theirs: Any, num_workers: int, share_config: bool
) -> None:
    paths = [write(write_corpus, f"c{i}", seed=i) for i in range(2)]
    read = []
    for side in (ours, theirs):
        dataset = open_blend(side, paths, share_config=share_config)
        sampler = MegatronPretrainingSampler(len(dataset), 6, 3, 1, 2)
        read.append(read_all(dataset, sampler, num_workers))
    assert len(read[0]) == len(read[1]) == 9
    for batch, other in zip(*read, strict=True):
        assert_same_item(batch, other, "batch")


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_replayed_job_is_an_uninterrupted_one(
    write_corpus: Any, ours: Any, theirs: Any, num_workers: int
) -> None:
    paths = [write(write_corpus, f"c{i}", seed=i) for i in range(2)]
    dataset = open_blend(theirs, paths)
    whole = read_all(dataset, MegatronPretrainingSampler(len(dataset), 0, 3, 0, 2), num_workers)
    resumed = open_blend(ours, paths)
    init = ReplayedDraws(MegatronPretrainingSampler(len(resumed), 0, 3, 0, 2), 4)
    sampler = MegatronPretrainingSampler(len(resumed), 4 * 6, 3, 0, 2)
    rest = read_all(resumed, sampler, num_workers, init)
    for batch, other in zip(rest, whole[4:], strict=True):
        assert_same_item(batch, other, "batch")


def test_permuted(write_corpus: Any, ours: Any, theirs: Any) -> None:
    path = write(write_corpus)
    mine, other = open_blend(ours, [path]), open_blend(theirs, [path])
    generator = np.random.default_rng(0)
    for _ in range(200):
        tokens = generator.integers(0, 26, generator.integers(0, 12))
        ids = {"suffix_tok_id": 1, "prefix_tok_id": 2, "middle_tok_id": 3, "pad_tok_id": 4}
        for settings in ({}, {"truncate_or_pad": False}, {"no_fim_prefix": "b"}):
            found, expected = (
                side._permute(tokens, 0.8, 0.5, side.config.tokenizer, **ids, **settings)
                for side in (mine, other)
            )
            assert np.asarray(found).tolist() == np.asarray(expected).tolist()
