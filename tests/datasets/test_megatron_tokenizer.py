"""The tokenizer base: identity, and what a subclass may leave out."""

import json
from typing import Any

import numpy as np
import pytest

from zindex.datasets.megatron_tokenizer import MegatronLegacyTokenizer, MegatronTokenizer


class Words(MegatronTokenizer):
    def tokenize(self, text: str) -> Any:
        return np.array([self.vocab[word] for word in text.split()])

    @property
    def vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1}

    @property
    def inv_vocab(self) -> dict[int, str]:
        return {0: "a", 1: "b"}

    @property
    def vocab_size(self) -> int:
        return 2


def test_identity_is_class_paths_and_options_as_text() -> None:
    words = Words("x.model", "y.txt", lower=True, size=3)
    expected = {
        "class": "Words",
        "tokenizer_path": ["x.model", "y.txt"],
        "lower": "True",
        "size": "3",
    }
    assert list(words.unique_identifiers.items()) == list(expected.items())
    assert words.unique_description == json.dumps(expected, indent=4)
    assert words.tokenize("b a").tolist() == [1, 0]
    assert MegatronLegacyTokenizer is MegatronTokenizer


@pytest.mark.parametrize("name", ["cls", "sep", "pad", "eod", "bos", "eos", "mask"])
def test_missing_special_tokens(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^Words has no attribute '{name}'$"):
        getattr(Words(), name)


def test_missing_methods() -> None:
    with pytest.raises(NotImplementedError, match=r"^Words has no method 'detokenize'$"):
        Words().detokenize(np.array([1]))
    with pytest.raises(NotImplementedError, match=r"^Words has no method 'offsets'$"):
        Words().offsets([1], "b")


def test_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MegatronTokenizer()  # type: ignore[abstract]
