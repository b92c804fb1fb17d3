"""The configuration of GPT datasets."""

import re
from typing import Any

import pytest

from zindex.datasets.gpt_dataset import GPTDatasetConfig
from zindex.errors import ConfigError


def make(tokenizer: Any, **settings: Any) -> GPTDatasetConfig:
    required = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    return GPTDatasetConfig(
        random_seed=1, sequence_length=8, tokenizer=tokenizer, **(required | settings)
    )


@pytest.mark.parametrize(
    ("vocab_size", "code"),
    [
        (None, None),
        (100, 8),  # uint16
        (65536, 8),
        (65537, 4),  # int32
    ],
)
def test_token_dtype_code(make_tokenizer: Any, vocab_size: int | None, code: int | None) -> None:
    assert make(make_tokenizer(vocab_size=vocab_size)).token_dtype_code == code


@pytest.mark.parametrize("name", ["reset_position_ids", "reset_attention_mask", "eod_mask_loss"])
def test_masks_must_be_decided(tokenizer: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be given for GPT datasets, got None"):
        make(tokenizer, **{name: None})


def test_tokenizer_must_be_given() -> None:
    with pytest.raises(ConfigError, match="tokenizer must be given for GPT datasets, got None"):
        make(None)


def test_counts_need_a_vocabulary(make_tokenizer: Any) -> None:
    message = "sequences_per_dataset needs a tokenizer with a vocab_size, got None"
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(make_tokenizer(vocab_size=None), sequences_per_dataset={"a": (1, 2)})


def test_base_rules_hold(tokenizer: Any) -> None:
    assert make(tokenizer).mock
    with pytest.raises(ConfigError, match="split must be given with blend, got None"):
        make(tokenizer, blend=(["a"], None))
