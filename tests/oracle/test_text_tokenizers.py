"""Tokenizers of files against Megatron Core's own, over random texts."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.text.tokenizers.vocabularies import save_rank_list, save_sentence_pieces
from zindex.datasets.text_tokenizers import MegatronTokenizerText

_LETTERS = [*"the quick brown fox,.'\n", " ", "\u00e9", "\u4e2d", "</s>", "<x>", " the", "12"]
_NAMES = ("eod", "bos", "eos", "unk", "vocab_size", "additional_special_tokens_ids")


@pytest.fixture(scope="module")
def theirs() -> Any:
    pytest.importorskip("megatron.core.tokenizers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.tokenizers import MegatronTokenizer
    return MegatronTokenizer


def random_texts() -> list[str]:
    generator = np.random.default_rng(9)
    return ["".join(generator.choice(_LETTERS, generator.integers(1, 60))) for _ in range(200)]


def compare(ours: MegatronTokenizerText, theirs: Any, names: tuple[str, ...]) -> None:
    """Compare ids, texts and special tokens."""
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    for text in random_texts():
        ids = theirs.tokenize(text)
        assert ours.tokenize(text) == ids, text
        tokens = [ours.id_to_token(number) for number in ids]
        assert tokens == theirs._tokenizer.ids_to_tokens(ids)


@pytest.mark.parametrize("special", [None, ["<x>", "</s>"]])
def test_sentence_pieces(special: list[str] | None, theirs: Any, tmp_path: Path) -> None:
    model = str(save_sentence_pieces(tmp_path))
    settings: Any = {"special_tokens": special, "legacy": special is not None}
    metadata = {"library": "sentencepiece"}
    ours = MegatronTokenizerText.from_pretrained(model, dict(metadata), **settings)
    other = theirs.from_pretrained(model, dict(metadata), **settings)
    if special is not None:  # Megatron's has no names then, and asks for them
        names = ("unk", "vocab_size")
        assert other._tokenizer.special_token_to_id == ours._tokenizer._own
    else:
        names = ("eod", "bos", "eos", "unk", "pad", "vocab_size")
    compare(ours, other, names)
    for text in random_texts():
        ids = other.tokenize(text)
        assert ours.detokenize(ids) == other.detokenize(ids)


@pytest.mark.parametrize("pattern", ["v1", "v2"])
def test_tiktoken(pattern: str, theirs: Any, tmp_path: Path) -> None:
    file, count = save_rank_list(tmp_path)
    special = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>", "<x>"]
    settings: Any = {
        "special_tokens": special,
        "num_special_tokens": 12,
        "vocab_size": count + 12,
        "pattern": pattern,
    }
    ours = MegatronTokenizerText.from_pretrained(file, {"library": "tiktoken"}, **settings)
    other = theirs.from_pretrained(str(file), {"library": "tiktoken"}, **settings)
    for name in (*_NAMES, "pad", "cls", "sep", "mask"):
        assert getattr(ours, name) == getattr(other, name), name
    for text in random_texts():
        assert ours.tokenize(text) == other.tokenize(text)
        assert ours.detokenize(ours.tokenize(text)) == text


@pytest.mark.parametrize("library", ["null", "byte-level"])
def test_without_files(library: str, theirs: Any) -> None:
    settings: Any = {"vocab_size": 300}
    ours = MegatronTokenizerText.from_pretrained(None, {"library": library}, **settings)
    other = theirs.from_pretrained(None, {"library": library}, **settings)
    assert (ours.vocab_size, ours.eod) == (other.vocab_size, other.eod)
    texts = ["1 2 300", "7"] if library == "null" else random_texts()
    for text in texts:
        ids = other.tokenize(text)
        assert ours.tokenize(text) == ids
        assert ours.detokenize(ids) == other.detokenize(ids)
    assert SimpleNamespace(**ours.special_tokens_dict).eos_token == ours.eos
