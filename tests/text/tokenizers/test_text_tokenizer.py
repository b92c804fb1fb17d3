"""What all tokenizers share: tokens and ids, special tokens, what they refuse."""

from pathlib import Path

import pytest

from tests.text.tokenizers.vocabularies import save_pieces
from zindex.errors import ConfigError
from zindex.lazy import need
from zindex.text.tokenizers.null_tokenizer import ByteLevelTokenizer, NullTokenizer
from zindex.text.tokenizers.rust_tokenizers import WordPieceTokenizer


def test_tokens_and_ids(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path))
    assert tokenizer.tokens_to_ids(["un", "never seen"]) == [5, 1]
    assert tokenizer.tokens_to_ids("un") == [5]
    assert tokenizer.id_to_token(99) is None
    assert repr(tokenizer).startswith("WordPieceTokenizer(/")
    with pytest.raises(ConfigError, match=r"one of the 11 of NullTokenizer\(11\), got 'x'; look"):
        NullTokenizer(10).tokens_to_ids("x")


def test_special_tokens_have_names(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path))
    with pytest.raises(ConfigError, match=r"or one of bos_token, .*, got 'end'; name it so"):
        tokenizer.add_special_tokens({"end": "x"})
    tokenizer.add_special_tokens({"additional_special_tokens": ["<a>"], "pad_token": "<b>"})
    assert tokenizer.special_tokens_map["pad_token"] == "<b>"
    assert tokenizer.all_special_tokens[-1] == "<a>"
    with pytest.raises(ConfigError, match="special tokens of a ByteLevelTokenizer must be in its"):
        ByteLevelTokenizer().add_special_tokens(["<a>"])


def test_libraries_may_be_missing() -> None:
    with pytest.raises(ConfigError, match="a thing needs the library no_such_library, which is no"):
        need("no_such_library", "a thing")
