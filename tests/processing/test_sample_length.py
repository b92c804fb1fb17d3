"""The length of one sample, by its fields or by a tokenizer."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from zindex.processing.sample_length import measure
from zindex.streaming import TextLength


def count_words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


@pytest.mark.parametrize(
    ("sample", "length"),
    [
        ({"text": "a red circle"}, 3),
        ({"caption": "on the left", "txt": b"a circle"}, 2),
        ("by itself", 2),
        ({"text": "a red circle", "tokens": [1, 2]}, 2),
        ({"caption": "c", "txt": torch.arange(5), "txt_mask": torch.arange(5) < 4}, 4),
        ({"text": ""}, 0),
    ],
)
def test_texts_are_counted_in_tokens(sample: Any, length: int) -> None:
    fields = ["text", "txt", "caption", "data"]
    assert TextLength(count_words, fields=fields)(sample) == length


def test_a_tokenizer_travels_as_its_path(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    length_of = pickle.loads(pickle.dumps(TextLength(tmp_path)))
    assert length_of({"text": "a b a"}) == 3


def test_without_a_text_there_is_no_length() -> None:
    length_of = TextLength(count_words, fields=["body"])
    assert length_of({"text": "a"}) is None
    assert measure({"text": "a"}, "a", length_of) == (0, "samples")


def test_a_sample_without_length_counts_as_a_sample() -> None:
    assert measure({"id": 1}, "a") == (0, "samples")
    assert measure((np.zeros((2, 2)), 1), "a") == (0, "samples")
    assert measure([], "a") == (0, "tokens")
