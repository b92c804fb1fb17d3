"""What masking takes from tokenizers and settings."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zindex.datasets.megatron_tokenizer import MegatronTokenizer
from zindex.formats import megatron_version
from zindex.kernels.masking import PIECE, SEPARATOR, UNKNOWN, WORD
from zindex.samples.masking.mask_rules import (
    Vocabulary,
    find_bert_rules,
    make_rules,
    ngram_chances,
)
from zindex.text.tokenizers.base import find_token


class Words(MegatronTokenizer):
    """A tokenizer without any special token."""

    def tokenize(self, text: str) -> Any:
        raise NotImplementedError

    @property
    def vocab(self) -> dict[str, int]:
        return {text: number for number, text in self.inv_vocab.items()}

    @property
    def inv_vocab(self) -> dict[int, str]:
        return {5: "a", 2: "##b", 7: "#c", 3: "##"}

    @property
    def vocab_size(self) -> int:
        return 8


def test_kinds_of_ids() -> None:
    tokenizer = SimpleNamespace(inv_vocab=Words().inv_vocab, cls=7, sep=9)
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary.ids.tolist() == [5, 2, 7, 3]
    assert Vocabulary.of(tokenizer, is_sorted=True).ids.tolist() == [2, 3, 5, 7]
    kinds = {5: WORD, 2: PIECE, 7: SEPARATOR, 3: PIECE, 9: SEPARATOR}
    assert vocabulary.kinds.tolist() == [kinds.get(number, UNKNOWN) for number in range(10)]
    assert SEPARATOR not in Vocabulary.of(Words()).kinds


@pytest.mark.parametrize(
    ("version", "rules"), [(None, "main"), ((0, 18), "main"), ((0, 17), "0.17"), ((0, 14), "0.17")]
)
def test_random_tokens_are_those_of_the_installed_megatron(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int] | None, rules: str
) -> None:
    """Unless the order of the ids differs between processes anyway."""
    monkeypatch.setattr(megatron_version, "find_megatron_version", lambda: version)
    assert find_bert_rules(Words()) == find_bert_rules(SimpleNamespace(is_fast=False)) == rules
    library = SimpleNamespace(tokenizer=SimpleNamespace(is_fast=True))
    assert find_bert_rules(SimpleNamespace(_tokenizer=library)) == "main"


def test_missing_special_tokens() -> None:
    tokenizer = Words()
    assert find_token(tokenizer, "mask") is None
    assert find_token(SimpleNamespace(mask=None), "mask") is None
    assert find_token(SimpleNamespace(mask=np.int32(4)), "mask") == 4


def test_rules() -> None:
    config: Any = SimpleNamespace(
        masking_probability=0.15,
        masking_max_ngram=2,
        masking_use_longer_ngrams=True,
        masking_do_full_word=False,
        masking_use_geometric_distribution=False,
        masking_do_permutation=True,
        vocabulary=Vocabulary.of(Words()),
        tokenizer=SimpleNamespace(mask=7),
    )
    rules = make_rules(config, replaces=True)
    assert rules.ngram_bounds.tolist() == pytest.approx([1 / 3, 1])
    assert (rules.permutes, rules.of_words, rules.mask) == (True, False, 7)
    assert rules.replacements.tolist() == [5, 2, 7, 3]
    assert not make_rules(config, replaces=False).replacements.size


@pytest.mark.parametrize("prefers_long", [False, True])
def test_chances(prefers_long: bool) -> None:
    chances = ngram_chances(3, prefers_long=prefers_long)
    assert chances.sum() == pytest.approx(1)
    assert chances.tolist() == sorted(chances, reverse=not prefers_long)
