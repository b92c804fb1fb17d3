"""Texts of pre-training as conversations."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.conftest import FakeTokenizer
from zindex.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from zindex.datasets.sft_dataset import PretrainValidAsSFTDataset
from zindex.datasets.utils import Split

NAMES = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"]


class Texts:
    """What a dataset of GPT samples has."""

    index_split = Split.valid

    def __len__(self) -> int:
        return 5

    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        assert idx is None or 0 <= idx < 5
        plane = torch.full((4,), -1 if idx is None else idx)
        return dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids", "more"), plane)


def test_texts_validate_a_fine_tuning() -> None:
    packed = PretrainValidAsSFTDataset(Texts(), 3)
    assert (len(packed), packed.index_split) == (3, Split.valid)
    item = packed[-1]
    assert list(item) == NAMES
    assert item["tokens"].tolist() == [2] * 4
    assert item["cu_seqlens"].tolist() == [0, 4, 4, 4, 4]
    assert item["cu_seqlens"].dtype == item["max_seqlen"].dtype == torch.int32
    assert int(item["max_seqlen"]) == 4
    batch = packed.__getitems__([2, None, -3])
    assert [row["tokens"].tolist() for row in batch] == [[2] * 4, [-1] * 4, [0] * 4]
    assert batch.tensors["cu_seqlens"].shape == (3, 5)
    assert len(packed.__getitems__([])) == 0
    assert packed[None]["tokens"].tolist() == [-1] * 4
    with pytest.raises(IndexError, match="3"):
        packed[3]
    plain = PretrainValidAsSFTDataset(Texts(), 9, packed=False)
    assert len(plain) == len(PretrainValidAsSFTDataset(Texts())) == 5
    assert list(plain[4]) == NAMES[:4]


def test_batches_are_read_together() -> None:
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=8,
        split="1,0,0",
        tokenizer=FakeTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low_level = MockGPTDataset.build_low_level_dataset(None, config)
    reads: list[Any] = []

    class Counted(MockGPTDataset):
        def __getitems__(self, positions: Sequence[int | None]) -> Any:
            reads.append(positions)
            return super().__getitems__(positions)

    texts = Counted(low_level, None, range(len(low_level)), 20, Split.valid, config)
    dataset = PretrainValidAsSFTDataset(texts, 5)
    batch = dataset.__getitems__([4, None, -5])
    assert reads == [[4, None, 0]]
    for item, position in zip(batch, (4, None, 0), strict=True):
        expected = dataset[position]
        assert all(torch.equal(item[name], expected[name]) for name in NAMES)
