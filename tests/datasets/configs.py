"""Configurations and builders that tests of datasets share."""

from typing import Any

from tests.conftest import FakeTokenizer
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_config import GPTDatasetConfig


def plain_config(cls: Any = GPTDatasetConfig, **choices: Any) -> Any:
    """Return the configuration of plain text in samples of 8 tokens, without masks."""
    defaults: dict[str, Any] = {
        "random_seed": 1,
        "sequence_length": 8,
        "tokenizer": FakeTokenizer(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    }
    return cls(**(defaults | choices))


def build_datasets(cls: Any, sizes: Any, config: Any) -> list[Any]:
    """Return what Megatron's builder makes of a configuration: a dataset for each split."""
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()
