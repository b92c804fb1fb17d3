"""A tokenizer of conversations, and files of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import FakeTokenizer
from tests.datasets.configs import plain_config
from zindex.datasets.gpt_config import GPTDatasetConfig

EOD, PAD = 98, 99


class Speaker(FakeTokenizer):
    """Letters are ids; the assistant's messages and the end tokens after them are learned."""

    def __init__(self, pad: int | None = PAD, eod: Any = EOD) -> None:
        super().__init__(vocab_size=100, eod=eod, pad=pad)

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def tokenize_conversation(
        self, conversation: Any, return_target: bool, add_generation_prompt: bool
    ) -> tuple[Any, Any]:
        assert return_target
        assert not add_generation_prompt
        tokens: list[int] = []
        targets: list[int] = []
        for message in conversation:
            ids = self.tokenize(message["content"])
            learned = message["role"] == "assistant"
            ids = [*ids, EOD] if learned else ids
            tokens += ids
            targets += ids if learned else [-100] * len(ids)
        return np.array(tokens), np.array(targets)


def make_config(tokenizer: Any = None, **settings: Any) -> GPTDatasetConfig:
    defaults: dict[str, Any] = {"sequence_length": 24, "tokenizer": tokenizer or Speaker()}
    defaults["sft_rules"] = "main"  # not those of the Megatron that is installed
    if "blend" in settings:
        defaults["split"] = "100,0,0"
    return plain_config(**(defaults | settings))


def draw_records(number: int, count: int = 12) -> list[dict[str, Any]]:
    """Return records of one to four conversations."""
    generator = np.random.default_rng(number)

    def text(low: int, high: int) -> str:
        return "".join(
            chr(97 + i) for i in generator.integers(0, 26, generator.integers(low, high))
        )

    records = []
    for _ in range(count):
        messages: list[dict[str, str]] = []
        for _ in range(generator.integers(1, 5)):
            messages.append({"role": "system", "content": text(0, 3)})
            for _ in range(generator.integers(1, 3)):
                messages.append({"role": "user", "content": text(1, 6)})
                messages.append({"role": "assistant", "content": text(0, 8)})
        records.append({"messages": messages})
    return records


def write_records(path: Path, records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return str(path)
